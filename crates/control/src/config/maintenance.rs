//! When backends are in maintenance, as the calendar says: they drain meanwhile.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MINUTES_OF_A_DAY: u32 = 24 * 60;
const SECONDS_OF_A_DAY: u64 = 86_400;
/// Names of days, from the first of the week.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// What the first day of 1970 was.
const THURSDAY: u64 = 3;
/// More windows of one backend than this are a mistake.
pub const MOST_WINDOWS: usize = 64;

/// What is wrong with a window, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowError {
    /// What is wrong.
    pub wrong: String,
    /// What would be right.
    pub right: String,
}

/// A time in which a backend is in maintenance. Beginnings belong to it, ends do not; all times are UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Once.
    Once {
        /// When it begins.
        from: SystemTime,
        /// When it is over.
        to: SystemTime,
    },
    /// Every week.
    Weekly {
        /// The days on which it begins: a bit for each, Monday's the lowest.
        days: u8,
        /// The minute of the day at which it begins.
        from: u32,
        /// How many minutes it lasts, a day at most.
        minutes: u32,
    },
}

impl Window {
    /// Reads `FROM/TO`, two times as RFC 3339 has them in UTC, or `DAYS HH:MM-HH:MM`, with days as `daily`, `Sun`,
    /// `Mon-Fri` or `Sat,Sun`, where what ends before it begins ends on the next day.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn parse(text: &str) -> Result<Self, WindowError> {
        let text = text.trim();
        if let Some((from, to)) = text.split_once('/') {
            let (from, to) = (moment(from)?, moment(to)?);
            if to <= from {
                return Err(WindowError {
                    wrong: format!("{text:?} ends before it begins"),
                    right: "put the earlier time first".into(),
                });
            }
            return Ok(Self::Once { from, to });
        }
        let (days, times) = text.split_once(' ').ok_or_else(|| unknown(text))?;
        let (from, to) = times.trim().split_once('-').ok_or_else(|| unknown(text))?;
        let (days, from, to) = (days_of(days, text)?, minute(from, text)?, minute(to, text)?);
        if from == to || from == MINUTES_OF_A_DAY || to == 0 && from == 0 {
            return Err(WindowError {
                wrong: format!("{text:?} has no end"),
                right: "give another time for its end; a whole day is 00:00-24:00".into(),
            });
        }
        let minutes = if to > from { to - from } else { to + MINUTES_OF_A_DAY - from };
        Ok(Self::Weekly { days, from, minutes })
    }

    /// When it is over, if it is at this time.
    pub fn until(&self, now: SystemTime) -> Option<SystemTime> {
        match *self {
            Self::Once { from, to } => (from <= now && now < to).then_some(to),
            Self::Weekly { .. } => {
                let today = seconds(now) / SECONDS_OF_A_DAY;
                let begun = [Some(today), today.checked_sub(1)].into_iter().flatten();
                let ends = begun.filter_map(|day| self.on(day)).filter(|(from, to)| {
                    let now = seconds(now);
                    *from <= now && now < *to
                });
                ends.map(|(_, to)| UNIX_EPOCH + Duration::from_secs(to)).max()
            }
        }
    }

    /// When it begins next, after this time.
    pub fn next(&self, now: SystemTime) -> Option<SystemTime> {
        match *self {
            Self::Once { from, .. } => (from > now).then_some(from),
            Self::Weekly { .. } => {
                let today = seconds(now) / SECONDS_OF_A_DAY;
                let begins =
                    (today..=today + 7).filter_map(|day| self.on(day)).map(|(from, _)| from);
                let begins = begins.filter(|from| *from > seconds(now)).min()?;
                Some(UNIX_EPOCH + Duration::from_secs(begins))
            }
        }
    }

    /// From when to when it is, of a weekly one that begins on this day, both in seconds since 1970.
    fn on(&self, day: u64) -> Option<(u64, u64)> {
        let Self::Weekly { days, from, minutes } = *self else { return None };
        let weekday = (day + THURSDAY) % 7;
        let begins = day * SECONDS_OF_A_DAY + u64::from(from) * 60;
        (days >> weekday & 1 != 0).then_some((begins, begins + u64::from(minutes) * 60))
    }
}

/// When a backend with these windows is in service again, if it is in maintenance at this time.
pub fn until(windows: &[Window], now: SystemTime) -> Option<SystemTime> {
    windows.iter().filter_map(|window| window.until(now)).max()
}

/// When its next window begins.
pub fn next(windows: &[Window], now: SystemTime) -> Option<SystemTime> {
    windows.iter().filter_map(|window| window.next(now)).min()
}

/// What a calendar on this host's wall has.
pub fn wall_clock() -> SystemTime {
    #[cfg(test)]
    if let Some(set) = tests::WALL.get() {
        return set;
    }
    SystemTime::now()
}

/// A time as people write it, in whole seconds.
pub fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn unknown(text: &str) -> WindowError {
    WindowError {
        wrong: format!("{text:?} is no window"),
        right: "use \"2026-12-01T22:00:00Z/2026-12-02T02:00:00Z\" or \"Sun 03:00-05:00\" (daily, Mon-Fri and \
                Sat,Sun are days, too), in UTC"
            .into(),
    }
}

fn moment(text: &str) -> Result<SystemTime, WindowError> {
    humantime::parse_rfc3339(text.trim()).map_err(|_| WindowError {
        wrong: format!("{text:?} is no time"),
        right: "use UTC, as in 2026-12-01T22:00:00Z".into(),
    })
}

fn minute(text: &str, whole: &str) -> Result<u32, WindowError> {
    let number = |text: &str| match text.len() {
        2 if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u32>().ok(),
        _ => None,
    };
    let read = text.trim().split_once(':').and_then(|(hour, minute)| {
        let (hour, minute) = (number(hour)?, number(minute)?);
        (minute < 60 && hour * 60 + minute <= MINUTES_OF_A_DAY).then_some(hour * 60 + minute)
    });
    read.ok_or_else(|| WindowError {
        wrong: format!("{whole:?}: {text:?} is no time of a day"),
        right: "use 00:00 to 24:00, with two digits each".into(),
    })
}

fn days_of(text: &str, whole: &str) -> Result<u8, WindowError> {
    if text.eq_ignore_ascii_case("daily") {
        return Ok(0x7f);
    }
    let day = |name: &str| {
        let found = DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
        found.ok_or_else(|| WindowError {
            wrong: format!("{whole:?}: {name:?} is no day"),
            right: "use Mon, Tue, Wed, Thu, Fri, Sat, Sun, or daily".into(),
        })
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // Fri-Mon goes over the end of the week.
        let many = (last + 7 - first) % 7;
        (0..=many).for_each(|step| days |= 1 << ((first + step) % 7));
    }
    Ok(days)
}

impl fmt::Display for Window {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Once { from, to: end } => {
                let time = humantime::format_rfc3339;
                write!(to, "{}/{}", time(from), time(end))
            }
            Self::Weekly { days, from, minutes } => {
                let names: Vec<&str> =
                    (0..7).filter(|day| days >> day & 1 != 0).map(|day| DAYS[day]).collect();
                let names = if names.len() == 7 { "daily".into() } else { names.join(",") };
                let mut end = from + minutes;
                if end > MINUTES_OF_A_DAY {
                    end -= MINUTES_OF_A_DAY;
                }
                let time = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
                write!(to, "{names} {}-{}", time(from), time(end))
            }
        }
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(|error| serde::de::Error::custom(error.wrong))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use std::cell::Cell;

    thread_local! {
        /// What the wall clock shows to the tests of this thread.
        pub static WALL: Cell<Option<SystemTime>> = const { Cell::new(None) };
    }

    fn at(time: &str) -> SystemTime {
        humantime::parse_rfc3339(time).unwrap()
    }

    #[test]
    fn windows_begin_and_end() {
        // The last of November 2026 is a Monday.
        for (window, now, until, next) in [
            (
                "2026-12-01T22:00:00Z/2026-12-02T02:00:00Z",
                "2026-12-01T22:00:00Z",
                Some("2026-12-02T02:00:00Z"),
                None,
            ),
            (
                "2026-12-01T22:00:00Z/2026-12-02T02:00:00Z",
                "2026-12-01T21:59:59Z",
                None,
                Some("2026-12-01T22:00:00Z"),
            ),
            ("2026-12-01T22:00:00Z/2026-12-02T02:00:00Z", "2026-12-02T02:00:00Z", None, None),
            (
                "Sun 03:00-05:00",
                "2026-11-29T04:59:59Z",
                Some("2026-11-29T05:00:00Z"),
                Some("2026-12-06T03:00:00Z"),
            ),
            ("Sun 03:00-05:00", "2026-11-29T05:00:00Z", None, Some("2026-12-06T03:00:00Z")),
            ("Sun 03:00-05:00", "2026-11-30T04:00:00Z", None, Some("2026-12-06T03:00:00Z")),
            (
                "Sun 23:00-01:00",
                "2026-11-30T00:30:00Z",
                Some("2026-11-30T01:00:00Z"),
                Some("2026-12-06T23:00:00Z"),
            ),
            (
                "daily 00:00-24:00",
                "2026-11-30T12:00:00Z",
                Some("2026-12-01T00:00:00Z"),
                Some("2026-12-01T00:00:00Z"),
            ),
            (
                "Fri-Mon 10:00-11:00",
                "2026-11-30T10:30:00Z",
                Some("2026-11-30T11:00:00Z"),
                Some("2026-12-04T10:00:00Z"),
            ),
            ("Tue,Thu 10:00-11:00", "2026-11-30T10:30:00Z", None, Some("2026-12-01T10:00:00Z")),
        ] {
            let read = Window::parse(window).unwrap();
            assert_eq!(read.until(at(now)), until.map(at), "{window} at {now}");
            assert_eq!(read.next(at(now)), next.map(at), "{window} at {now}");
        }
    }

    #[test]
    fn what_is_no_window_is_refused_with_what_would_be_right() {
        for (text, words) in [
            ("", "is no window"),
            ("Sun", "is no window"),
            ("Sun 03:00", "is no window"),
            ("Sunday 03:00-05:00", "\"Sunday\" is no day"),
            ("Sun, 03:00-05:00", "\"\" is no day"),
            ("Sun 3:00-05:00", "\"3:00\" is no time of a day"),
            ("Sun 03:00-24:01", "\"24:01\" is no time of a day"),
            ("Sun 03:60-05:00", "\"03:60\" is no time of a day"),
            ("Sun 03:00-03:00", "has no end"),
            ("Sun 24:00-03:00", "has no end"),
            ("2026-12-02T02:00:00Z/2026-12-01T22:00:00Z", "ends before it begins"),
            ("2026-12-02T02:00:00Z/2026-12-02T02:00:00Z", "ends before it begins"),
            ("2026-12-01T22:00:00+01:00/2026-12-02T02:00:00Z", "is no time"),
            ("2026-13-01T22:00:00Z/2026-12-02T02:00:00Z", "is no time"),
        ] {
            let error = Window::parse(text).unwrap_err();
            assert!(error.wrong.contains(words), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same_and_minutes_agree() {
        let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(rand::random);
        println!("WEIR_SEED={seed}");
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..200 {
            let window = Window::Weekly {
                days: random.random_range(1..0x80),
                from: random.random_range(0..MINUTES_OF_A_DAY),
                minutes: random.random_range(1..=MINUTES_OF_A_DAY),
            };
            let Window::Weekly { days, from, minutes } = window else { unreachable!() };
            if minutes == MINUTES_OF_A_DAY && from != 0 {
                continue;
            }
            assert_eq!(Window::parse(&window.to_string()), Ok(window), "{window}");
            // By minutes of the week, counted one after the other.
            let monday = at("2026-11-30T00:00:00Z");
            let mut inside = vec![false; 7 * 1440];
            for day in (0..7).filter(|day| days >> day & 1 != 0) {
                let begins = day * 1440 + from as usize;
                (0..minutes as usize).for_each(|more| inside[(begins + more) % (7 * 1440)] = true);
            }
            for _ in 0..100 {
                let minute = random.random_range(0..7 * 1440);
                let now = monday + Duration::from_secs(minute as u64 * 60 + 59);
                assert_eq!(window.until(now).is_some(), inside[minute], "{window} at {minute}");
            }
        }
        let once = "2026-12-01T22:00:00Z/2026-12-02T02:00:00.5Z";
        let read = Window::parse(once).unwrap();
        assert_eq!(Window::parse(&read.to_string()), Ok(read));
    }
}
