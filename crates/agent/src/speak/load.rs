//! How loaded this host is.

use super::app::Source;
use std::fs;

/// What is told as the load of this backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadOf {
    /// The part of all processors that is busy, in per cent.
    Cpu,
    /// Processes that run or want to.
    RunQueue,
    /// Open connections to the services.
    Connections,
    /// A number that the application says.
    Said(Source),
}

/// A look at `/proc/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Look {
    all: u64,
    idle: u64,
    /// Processes that run or want to, this one among them.
    pub running: u32,
}

impl Look {
    pub fn now() -> Self {
        Self::read(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// proc_pid_stat(5): user, nice, system, idle, iowait, irq, softirq and steal, then guests, which are
    /// in the first ones already.
    fn read(text: &str) -> Self {
        let mut look = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("cpu") => {
                    let times: Vec<u64> =
                        words.take(8).map_while(|word| word.parse().ok()).collect();
                    look.all = times.iter().sum();
                    look.idle = times.iter().skip(3).take(2).sum();
                }
                Some("procs_running") => {
                    look.running = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        look
    }

    /// The part of all processors that was busy since another look, 0 to 1.
    pub fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle).min(all);
        if all == 0 { 0.0 } else { (all - idle) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        let before = Look::read("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 1 1 1\nprocs_running 3\n");
        let now = Look::read("cpu  150 0 75 820 55 0 0 0 9 9\nprocs_running 4\n");
        assert_eq!(now.busy_since(before), 0.75);
        assert_eq!((before.running, now.running), (3, 4));
        assert_eq!(now.busy_since(now), 0.0);
        assert_eq!(Look::read("").busy_since(now), 0.0);
        assert!(Look::now().all > 0);
    }
}
