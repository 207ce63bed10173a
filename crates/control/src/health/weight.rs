//! The weight that a backend says in its answers, made calm.

use std::time::{Duration, Instant};

use crate::config::Spoken;

/// How much of an answer counts at once: of a sudden change half after three answers, nine tenths after eight.
const SHARE: f64 = 0.25;

/// Turns single answers into changes that are worth another table.
///
/// Answers are averaged; what is told is told only if it differs from what was told before by more than a
/// threshold, and not more often than once in a time. 0 (no new connections, please) and the end of it are not
/// averaged, as nothing lies between them and the rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calm {
    average: Option<Spoken<f64>>,
    told: Option<Spoken>,
    at: Option<Instant>,
}

impl Calm {
    /// Takes an answer; the weight that is to be in force from now on, if it is another one. `step`: the
    /// threshold, in per cent of what was told; `every`: the shortest time between two changes.
    pub fn take(
        &mut self,
        said: Spoken,
        step: u32,
        every: Duration,
        now: Instant,
    ) -> Option<Spoken> {
        let new = said.number();
        let before = self.average.filter(|before| before.is_like(&said)).map(|one| one.number());
        let average = match before {
            Some(before) if before > 0.0 && new > 0.0 => before + (new - before) * SHARE,
            _ => new,
        };
        self.average = Some(said.with(average));
        let wanted = said.with(match average {
            average if average > 0.0 => (average.round() as u16).max(1),
            _ => 0,
        });
        let differs = self.told.is_none_or(|told| {
            let (told_number, number) = (told.number(), wanted.number());
            !told.is_like(&wanted)
                || (told_number == 0.0) != (number == 0.0)
                || (number - told_number).abs() * 100.0 > told_number * f64::from(step)
        });
        let soon = self.at.is_some_and(|at| now.saturating_duration_since(at) < every);
        if !differs || soon {
            return None;
        }
        (self.told, self.at) = (Some(wanted), Some(now));
        Some(wanted)
    }

    /// What was told last.
    pub fn told(&self) -> Option<Spoken> {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    fn run(answers: impl Iterator<Item = Spoken>, step: u32) -> Vec<(u64, Spoken)> {
        let (mut calm, start) = (Calm::default(), Instant::now());
        let each = answers.zip(0u64..);
        each.filter_map(|(said, second)| {
            let now = start + Duration::from_secs(second);
            Some((second, calm.take(said, step, EVERY, now)?))
        })
        .collect()
    }

    #[test]
    fn noise_changes_nothing_and_a_change_arrives() {
        let noise = (0..300).map(|n| Spoken::Percent(if n % 2 == 0 { 55 } else { 45 }));
        let told = run(noise, 20);
        assert_eq!(told, [(0, Spoken::Percent(55))]);
        let steps = (0..300).map(|n| Spoken::Percent(if n < 100 { 100 } else { 40 }));
        let told = run(steps, 10);
        assert_eq!(told[0], (0, Spoken::Percent(100)));
        assert!(told[1].0 >= 100 && told[1].0 < 104, "{told:?}");
        let (_, last) = told.last().unwrap();
        assert!(last.number() >= 40.0 && last.number() <= 44.0, "{told:?}");
        assert!(told.windows(2).all(|two| two[1].0 - two[0].0 >= 10), "{told:?}");
        assert!(told.len() <= 6, "{told:?}");
    }

    #[test]
    fn zero_is_taken_as_it_is_and_not_more_often_than_anything_else() {
        let answers = (0..100).map(|n| Spoken::Weight(if n % 2 == 0 { 0 } else { 8 }));
        let told = run(answers, 10);
        assert!(told.len() <= 10, "{told:?}");
        assert!(told.iter().all(|(_, one)| [0.0, 8.0].contains(&one.number())), "{told:?}");
        let once = [8, 8, 0, 0, 0].map(Spoken::Weight).into_iter();
        let told = run(once.chain((0..20).map(|_| Spoken::Weight(0))), 10);
        assert_eq!(told, [(0, Spoken::Weight(8)), (10, Spoken::Weight(0))]);
        // Another kind of answer begins anew.
        let kinds = (0..30).map(|n| if n < 15 { Spoken::Weight(50) } else { Spoken::Percent(50) });
        assert_eq!(run(kinds, 10).last(), Some(&(15, Spoken::Percent(50))));
    }
}
