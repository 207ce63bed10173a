//! What agents say of their backends' health: a check of type "agent" goes by the last word.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answer::{Good, Trouble};
use crate::config::Spoken;

/// How often an agent speaks, at most and at least, for how long its word counts.
const EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));
/// Who says nothing for so many times as long as it said is silent.
const SILENT: u32 = 3;

/// What an agent has said of its backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    /// Whether it is well.
    pub good: bool,
    /// In words.
    pub why: String,
    /// The weight that it says is its own.
    pub weight: Option<Spoken>,
    /// After so long it says so again.
    pub every: Duration,
}

/// The last word of each, and until when it counts. Addresses are those that certificates name, so there are no more
/// than agents may have.
static WORDS: Mutex<Option<HashMap<IpAddr, (Word, Instant)>>> = Mutex::new(None);

fn words() -> MutexGuard<'static, Option<HashMap<IpAddr, (Word, Instant)>>> {
    WORDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The agent of the backends at these addresses says this.
pub fn tell(addresses: &[IpAddr], word: &Word) {
    let now = Instant::now();
    let until = now + word.every.clamp(EVERY.0, EVERY.1) * SILENT;
    let mut words = words();
    let all = words.get_or_insert_default();
    // Old words count for nothing; they are looked for only where they would take memory.
    if all.len() + addresses.len() > all.capacity() {
        all.retain(|_, (_, until)| *until > now);
    }
    all.extend(addresses.iter().map(|address| (*address, (word.clone(), until))));
}

/// What the agent of a backend has said. Its silence says nothing of the backend.
pub(super) fn ask(address: IpAddr) -> Result<Good, Trouble> {
    let found = words().as_ref().and_then(|all| all.get(&address).cloned());
    match found.filter(|(_, until)| *until > Instant::now()) {
        None => Err(Trouble::Host("its agent says nothing of its health".into())),
        Some((Word { good: false, why, .. }, _)) => {
            Err(Trouble::Answer(format!("its agent says: {why}")))
        }
        Some((Word { why, weight, .. }, _)) => Ok(Good {
            said: format!("its agent says: {why}"),
            certificate_ends: None,
            spoken: weight,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::What;
    use crate::health::{Checker, Target};
    use std::sync::Arc;

    /// rise and fall count as with any other check, a weight is heard, and silence takes nothing down.
    #[tokio::test]
    async fn a_backend_is_as_its_agent_says() {
        let here = IpAddr::from([192, 0, 2, 214]);
        let (checker, mut transitions) = Checker::new();
        checker.set_targets(vec![Target {
            id: 1,
            source: None,
            address: (here, 0).into(),
            way: None,
            what: Arc::new(What::Agent),
            interfaces: Arc::new([]),
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(10),
            jitter: 0,
            rise: 2,
            fall: 3,
            flap_window: Duration::ZERO,
            weight_step: 0,
            weight_every: Duration::ZERO,
            initially_up: false,
        }]);
        let state = || checker.snapshot().remove(0);
        let patience = Duration::from_secs(60);
        let word = |good, every| Word {
            good,
            why: "so it is".into(),
            weight: Some(Spoken::Percent(50)),
            every,
        };
        let mut next = async || {
            let all = tokio::time::timeout(patience, transitions.recv()).await.expect("in time");
            all.expect("a transition").remove(0)
        };
        tell(&[here], &word(true, patience));
        let mut up = next().await;
        if !up.up {
            // The weight may be heard before it is up.
            up = next().await;
        }
        assert!(up.up && state().successes >= 2, "{up:?}");
        assert_eq!(state().spoken, Some(Spoken::Percent(50)));
        tell(&[here], &word(false, patience));
        let down = next().await;
        assert!(!down.up && down.detail.contains("its agent says: so it is"), "{down:?}");
        assert!(state().failures >= 3);
        tell(&[here], &word(true, Duration::from_secs(2)));
        let again = next().await;
        assert!(again.up, "{again:?}");
        // Silence.
        let silent = async {
            while !state().unknown {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(patience, silent).await.expect("it is silent");
        let checks = state().checks;
        let more = async {
            while state().checks < checks + 10 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(patience, more).await.expect("it goes on");
        assert!(state().up, "who is silent stays as it was");
    }

    #[test]
    fn the_last_word_counts_and_silence_is_none() {
        // Nobody else asks for this one.
        let here = IpAddr::from([192, 0, 2, 213]);
        let word = |good, every| Word {
            good,
            why: "disc full".into(),
            weight: Some(Spoken::Weight(7)),
            every,
        };
        assert!(matches!(ask(here), Err(Trouble::Host(_))));
        tell(&[here], &word(false, Duration::from_secs(60)));
        let Err(Trouble::Answer(why)) = ask(here) else { panic!("it is ill") };
        assert_eq!(why, "its agent says: disc full");
        tell(&[here], &word(true, Duration::from_secs(2)));
        assert_eq!(ask(here).map_err(|_| ()).expect("well").spoken, Some(Spoken::Weight(7)));
        let begun = Instant::now();
        while ask(here).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is silent");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(matches!(ask(here), Err(Trouble::Host(_))));
    }
}
