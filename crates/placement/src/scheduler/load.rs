//! Schedulers that compare loads: power of two choices, least loaded.

use super::Scheduler;
use weir_hash::scale;

/// Which load is compared, always per unit of weight.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Metric {
    /// Open connections, as counted by `on_open` and `on_close`. A backend of equal load and
    /// more weight is preferred, as one more connection weighs less there.
    #[default]
    Connections,
    /// The last report of `on_load`; zero before the first.
    Reported,
}

#[derive(Clone, Copy, Debug)]
struct Loaded {
    backend: u16,
    weight: u32,
    open: u64,
    reported: u64,
}

impl Loaded {
    fn load(&self, metric: Metric) -> u64 {
        match metric {
            Metric::Connections => self.open.saturating_add(1),
            Metric::Reported => self.reported,
        }
    }

    /// Load per weight, compared without a division.
    fn is_less_loaded(&self, other: &Self, metric: Metric) -> bool {
        let side = |load: &Self, weight: u32| u128::from(load.load(metric)) * u128::from(weight);
        side(self, other.weight) < side(other, self.weight)
    }
}

/// The backends and their loads. A pool keeps its order of arrival; picks do not depend on it
/// but for equal loads.
#[derive(Clone, Default, Debug)]
struct Loads {
    backends: Vec<Loaded>,
    /// Place of each backend number in `backends`, for feedback that arrives with every packet.
    places: std::collections::HashMap<u16, usize>,
}

impl Loads {
    fn set(&mut self, backend: u16, weight: u32) {
        match self.get_mut(backend) {
            Some(known) => known.weight = weight,
            None => {
                self.places.insert(backend, self.backends.len());
                self.backends.push(Loaded { backend, weight, open: 0, reported: 0 });
            }
        }
    }

    fn remove(&mut self, backend: u16) {
        if let Some(place) = self.places.remove(&backend) {
            self.backends.remove(place);
            for (place, known) in self.backends.iter().enumerate().skip(place) {
                self.places.insert(known.backend, place);
            }
        }
    }

    fn get_mut(&mut self, backend: u16) -> Option<&mut Loaded> {
        let place = *self.places.get(&backend)?;
        self.backends.get_mut(place)
    }

    fn open(&mut self, backend: u16) {
        if let Some(known) = self.get_mut(backend) {
            known.open += 1;
        }
    }

    /// A close without an open (one from before a restart, say) is not counted.
    fn close(&mut self, backend: u16) {
        if let Some(known) = self.get_mut(backend) {
            known.open = known.open.saturating_sub(1);
        }
    }

    fn report(&mut self, backend: u16, load: u64) {
        if let Some(known) = self.get_mut(backend) {
            known.reported = load;
        }
    }
}

/// Two backends are drawn in proportion to their weights, and the less loaded of them is taken
/// (Mitzenmacher 2001; Cheetah, section 2).
///
/// The two differ whenever two have weight. A pick costs two binary searches and two loads.
#[derive(Clone, Default, Debug)]
pub struct PowerOfTwo {
    metric: Metric,
    loads: Loads,
    /// Sum of the weights up to and with each backend.
    ends: Vec<u64>,
}

impl PowerOfTwo {
    /// A scheduler without backends that compares loads of this kind. Its picks are `None` until a
    /// backend with weight is set.
    pub fn new(metric: Metric) -> Self {
        Self { metric, ..Self::default() }
    }

    fn sum_up(&mut self) {
        let mut end = 0;
        self.ends.clear();
        self.ends.extend(self.loads.backends.iter().map(|known| {
            end += u64::from(known.weight);
            end
        }));
    }

    /// The backend whose share of the weights `ticket` falls in.
    fn place(&self, ticket: u64) -> usize {
        self.ends.partition_point(|&end| end <= ticket)
    }
}

/// Maps a 32-bit draw onto `0..n`, also for n above 2^32.
fn ticket(draw: u32, n: u64) -> u64 {
    ((u128::from(draw) * u128::from(n)) >> 32) as u64
}

impl Scheduler for PowerOfTwo {
    fn pick(&mut self, random: u64) -> Option<u16> {
        let total = *self.ends.last()?;
        if total == 0 {
            return None;
        }
        let first = self.place(ticket((random >> 32) as u32, total));
        let one = &self.loads.backends[first];
        let others = total - u64::from(one.weight);
        if others == 0 {
            return Some(one.backend);
        }
        // Drawn from the shares of the others: those behind the first move up by its weight.
        let draw = ticket(random as u32, others);
        let start = self.ends[first] - u64::from(one.weight);
        let second = self.place(if draw < start { draw } else { draw + u64::from(one.weight) });
        let two = &self.loads.backends[second];
        Some(if two.is_less_loaded(one, self.metric) { two.backend } else { one.backend })
    }

    fn set(&mut self, backend: u16, weight: u32) {
        self.loads.set(backend, weight);
        self.sum_up();
    }

    fn remove(&mut self, backend: u16) {
        self.loads.remove(backend);
        self.sum_up();
    }

    fn on_open(&mut self, backend: u16) {
        self.loads.open(backend);
    }

    fn on_close(&mut self, backend: u16) {
        self.loads.close(backend);
    }

    fn on_load(&mut self, backend: u16, load: u64) {
        self.loads.report(backend, load);
    }
}

/// The backend with the least load per weight; of equals the first one after a random place.
///
/// With [`Metric::Reported`] mind Cheetah, section 4.1: "using a least-loaded server for
/// coordination-based approaches is a bad idea as a single server will receive all the incoming
/// connections until its load metric increases and is reported to the LB". A pick takes one
/// step per backend.
#[derive(Clone, Default, Debug)]
pub struct LeastLoaded {
    metric: Metric,
    loads: Loads,
}

impl LeastLoaded {
    /// A scheduler without backends that compares loads of this kind. Its picks are `None` until a
    /// backend with weight is set.
    pub fn new(metric: Metric) -> Self {
        Self { metric, ..Self::default() }
    }
}

impl Scheduler for LeastLoaded {
    fn pick(&mut self, random: u64) -> Option<u16> {
        let backends = &self.loads.backends;
        let start = scale(random as u32, backends.len() as u32) as usize;
        let (before, after) = backends.split_at(start);
        let mut eligible = after.iter().chain(before).filter(|known| known.weight > 0);
        let first = eligible.next()?;
        let least = eligible.fold(first, |least, known| {
            if known.is_less_loaded(least, self.metric) { known } else { least }
        });
        Some(least.backend)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        self.loads.set(backend, weight);
    }

    fn remove(&mut self, backend: u16) {
        self.loads.remove(backend);
    }

    fn on_open(&mut self, backend: u16) {
        self.loads.open(backend);
    }

    fn on_close(&mut self, backend: u16) {
        self.loads.close(backend);
    }

    fn on_load(&mut self, backend: u16, load: u64) {
        self.loads.report(backend, load);
    }
}
