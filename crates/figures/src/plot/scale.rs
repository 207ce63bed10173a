//! From values to places on the page, and where the ticks are.

use crate::figure::Scale;
use crate::number::short;

/// Room for the place of 0 under a logarithmic axis.
const ZERO_BAND: f64 = 26.0;

/// An axis with its ends.
pub struct Map {
    scale: Scale,
    low: f64,
    high: f64,
    /// Where the low end and the high end are on the page.
    from: f64,
    to: f64,
    /// Where 0 is, on a logarithmic axis that needs it.
    zero: Option<f64>,
}

impl Map {
    /// An axis on which all values have a place.
    pub fn new(scale: Scale, values: &[f64], from: f64, to: f64) -> Self {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let most = finite().fold(f64::NEG_INFINITY, f64::max);
        let least = finite().fold(f64::INFINITY, f64::min);
        let mut map = Self { scale, low: 0.0, high: 1.0, from, to, zero: None };
        match scale {
            Scale::Names(names) => (map.low, map.high) = (-0.5, names.len() as f64 - 0.5),
            Scale::Log => map.stretch(finite().filter(|&v| v > 0.0), least <= 0.0),
            // Nothing to be placed: any ends will do.
            _ if !most.is_finite() => {}
            Scale::Linear => {
                map.low = least.min(0.0);
                map.high = if most > map.low { most + 0.06 * (most - map.low) } else { 1.0 };
            }
            Scale::Near => {
                let room = (0.06 * (most - least)).max(1e-3 * most.abs()).max(1e-9);
                (map.low, map.high) = (least - room, most + room);
            }
        }
        map
    }

    fn stretch(&mut self, positive: impl Iterator<Item = f64>, zero: bool) {
        let ends = positive.fold(None, |ends: Option<(f64, f64)>, v| {
            Some(ends.map_or((v, v), |(a, b)| (a.min(v), b.max(v))))
        });
        let (least, most) = ends.unwrap_or((0.1, 1.0));
        (self.low, self.high) = (least / 1.25, most * 1.25);
        if zero {
            let inwards = (self.to - self.from).signum();
            self.zero = Some(self.from + inwards * ZERO_BAND / 4.0);
            self.from += inwards * ZERO_BAND;
        }
    }

    /// Where a value is on the page.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Log if value <= 0.0 => return self.zero.unwrap_or(self.from),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            _ => (value - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    /// Places on the page that get a tick, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let numbers = match self.scale {
            Scale::Names(names) => {
                return names
                    .iter()
                    .enumerate()
                    .map(|(at, name)| (self.place(at as f64), (*name).to_owned()))
                    .collect();
            }
            Scale::Log => self.decades(),
            _ => self.steps(),
        };
        let mut ticks: Vec<_> = numbers.iter().map(|&v| (self.place(v), short(v))).collect();
        if let Some(zero) = self.zero {
            ticks.push((zero, "0".into()));
        }
        ticks
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 5.5;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * power)
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }

    /// Powers of ten, with 2 and 5 times them if there is room.
    fn decades(&self) -> Vec<f64> {
        let span = (self.high / self.low).log10();
        let within = |multiples: &[f64]| -> Vec<f64> {
            let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            powers
                .flat_map(|p| multiples.iter().map(move |m| m * 10f64.powi(p)))
                .filter(|v| (self.low..=self.high).contains(v))
                .collect()
        };
        match span {
            s if s > 7.0 => {
                let all = within(&[1.0]);
                all.into_iter().step_by((s / 6.0).ceil() as usize).collect()
            }
            s if s > 2.5 => within(&[1.0]),
            s if s > 0.9 => within(&[1.0, 2.0, 5.0]),
            _ => {
                let few = within(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
                if few.len() >= 3 { few } else { self.steps() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_place_and_ticks_are_round() {
        let map = Map::new(Scale::Linear, &[3.0, 9.7], 400.0, 0.0);
        assert_eq!(map.place(0.0), 400.0);
        assert!(map.place(9.7) > 0.0);
        assert_eq!(map.ticks().iter().map(|t| &t.1[..]).collect::<Vec<_>>()[1], "2");

        let map = Map::new(Scale::Log, &[0.0, 1e3, 1.6e7], 0.0, 700.0);
        assert_eq!(map.place(0.0), 6.5);
        assert!(map.place(1e3) > 26.0 && map.place(1.6e7) < 700.0);
        let labels: Vec<String> = map.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(labels, ["1000", "10K", "100K", "1M", "10M", "0"]);

        // One value, no value, and the same value twice.
        for values in [&[5.0][..], &[], &[2.0, 2.0], &[0.0]] {
            for scale in [Scale::Linear, Scale::Near, Scale::Log] {
                let map = Map::new(scale, values, 10.0, 90.0);
                for &v in values {
                    let place = map.place(v);
                    assert!((10.0..=90.0).contains(&place), "{scale:?} {values:?}: {place}");
                }
                assert!(map.ticks().iter().all(|t| (9.9..=90.1).contains(&t.0)), "{scale:?}");
            }
        }
    }
}
