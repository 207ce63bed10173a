//! For whoever watches: the status and what happens, as a stream of events (Server-Sent Events, the
//! WHATWG's HTML standard, section 9.2), and rates over the last hour. All of it is bounded, and a status is
//! made once for all watchers.

use super::guard::Common;
use super::server::Working;
use super::{Failure, ask};
use crate::engine::{Command, Counted, Event, Events, Front, Kind, Sample, Sender, Status};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Whoever asks sooner gets the same status again.
const KEPT: Duration = Duration::from_secs(1);
/// Streams at once.
const WATCHERS: usize = 64;
/// Between two points of a rate.
pub(super) const STEP: Duration = Duration::from_secs(10);
/// Points of a rate: an hour.
const POINTS: usize = 360;
/// Services with rates of their own: 256 of them take 1.5 MB.
const SERVICES: usize = 256;

/// What to watch, and how often.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WatchQuery {
    /// Seconds between two statuses, 1 to 60; 2 if it is not said, 0: no status.
    #[serde(deserialize_with = "super::whole")]
    #[schemars(range(max = 60))]
    interval: Option<u8>,
    /// Begin with the events after this number; if it is not said, with those that come.
    #[serde(deserialize_with = "super::whole")]
    #[schemars(range(max = u64::MAX))]
    after: Option<u64>,
}

/// What a watcher is told at once; Server-Sent Events have the same by these names.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "it is described, and told piece by piece")]
pub(super) enum WatchLine {
    /// The status, every few seconds.
    Status(Box<Status>),
    /// What has just happened.
    Event(Box<Event>),
}

/// Which events.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct EventQuery {
    /// Those after this number; all that are kept if it is not said.
    #[serde(deserialize_with = "super::whole")]
    #[schemars(range(max = u64::MAX))]
    after: Option<u64>,
}

/// What has happened lately.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventList {
    /// The oldest first, at most 512.
    pub events: Vec<Event>,
}

/// Which rates.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RateQuery {
    /// Of this service alone; of all together and of each if it is not said.
    service: Option<String>,
}

/// Rates over the last hour, while they were kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Seconds between two points.
    pub step: u64,
    /// When the last point was, in seconds since 1970; 0: there is none.
    pub at: u64,
    /// Of all services together.
    pub all: Rate,
    /// Of each service, as far as there is room: 256 of them.
    pub services: BTreeMap<String, Rate>,
}

/// Rates of one, the oldest point first; null: nobody knows. The last points of all are of one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// Packets that were forwarded, in a second.
    pub packets: Vec<Option<f32>>,
    /// Their bytes, in a second.
    pub bytes: Vec<Option<f32>>,
    /// Flows that started, in a second.
    pub flows: Vec<Option<f32>>,
    /// Connections that were known.
    pub states: Vec<Option<f32>>,
    /// Packets that were dropped, in a second; of all services together only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Option<f32>>,
}

/// What is not known is no number, here.
#[derive(Debug, Default)]
struct Series([VecDeque<f32>; 5]);

impl Series {
    fn push(&mut self, point: [f32; 5]) {
        for (series, value) in self.0.iter_mut().zip(point) {
            if series.len() == POINTS {
                series.pop_front();
            }
            series.push_back(value);
        }
    }

    fn show(&self, with_drops: bool) -> Rate {
        let show = |series: &VecDeque<f32>| {
            let round = |value: &f32| (!value.is_nan()).then(|| (value * 10.0).round() / 10.0);
            series.iter().map(round).collect()
        };
        let [packets, bytes, flows, states, dropped] = &self.0;
        Rate {
            packets: show(packets),
            bytes: show(bytes),
            flows: show(flows),
            states: show(states),
            dropped: if with_drops { show(dropped) } else { Vec::new() },
        }
    }
}

/// The last hour.
#[derive(Debug, Default)]
struct Hour {
    before: Option<(Instant, Sample)>,
    at: u64,
    all: Series,
    services: BTreeMap<String, Series>,
}

const UNKNOWN: [f32; 5] = [f32::NAN; 5];

/// Rates from one sample to the next. Counters that went back are of a backend that was removed.
fn rates(before: Counted, now: Counted, seconds: f32) -> [f32; 5] {
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f32 / seconds;
    [
        rate(before.packets, now.packets),
        rate(before.bytes, now.bytes),
        rate(before.flows, now.flows),
        now.states as f32,
        f32::NAN,
    ]
}

impl Hour {
    /// Takes up what was counted at a moment; none if nobody could tell.
    fn take(&mut self, when: Instant, at: u64, sample: Option<Sample>) {
        let before = self.before.take();
        let (Some((then, before)), Some(now)) = (&before, &sample) else {
            if before.is_some() || !self.all.0[0].is_empty() {
                self.all.push(UNKNOWN);
                self.services.values_mut().for_each(|one| one.push(UNKNOWN));
                self.at = at;
            }
            self.before = sample.map(|sample| (when, sample));
            return;
        };
        let seconds = when.duration_since(*then).as_secs_f32().max(0.001);
        self.at = at;
        let mut sum = [0.0; 5];
        let known: BTreeMap<&str, Counted> =
            before.services.iter().map(|(name, counted)| (name.as_str(), *counted)).collect();
        let there: BTreeMap<&str, Counted> =
            now.services.iter().map(|(name, counted)| (name.as_str(), *counted)).collect();
        self.services.retain(|name, _| there.contains_key(name.as_str()));
        for (name, counted) in &there {
            let first = Counted { states: counted.states, ..Counted::default() };
            let point = known.get(name).map(|before| rates(*before, *counted, seconds));
            // Of a service that is new all is new.
            let point = point.unwrap_or_else(|| rates(first, *counted, seconds));
            sum.iter_mut().zip(point).for_each(|(sum, value)| *sum += value);
            if let Some(series) = self.services.get_mut(*name) {
                series.push(point);
            } else if self.services.len() < SERVICES {
                let mut series = Series::default();
                (0..self.all.0[0].len()).for_each(|_| series.push(UNKNOWN));
                series.push(point);
                self.services.insert((*name).to_owned(), series);
            }
        }
        sum[4] = now.dropped.saturating_sub(before.dropped) as f32 / seconds;
        self.all.push(sum);
        self.before = sample.map(|sample| (when, sample));
    }

    fn show(&self, service: Option<&str>) -> Rates {
        let wanted = |name: &&String| service.is_none_or(|service| service == *name);
        let services = self.services.iter().filter(|(name, _)| wanted(name));
        Rates {
            step: STEP.as_secs(),
            at: self.at,
            all: if service.is_none() { self.all.show(true) } else { Rate::default() },
            services: services.map(|(name, one)| (name.clone(), one.show(false))).collect(),
        }
    }
}

/// What watchers are told.
#[derive(Debug)]
pub(super) struct Hub {
    engine: Sender,
    events: Arc<Events>,
    common: Arc<Common>,
    kept: AsyncMutex<Option<(Instant, Arc<str>)>>,
    hour: Mutex<Hour>,
    places: Arc<Semaphore>,
}

impl Hub {
    pub fn new(engine: Sender, events: Arc<Events>, common: Arc<Common>) -> Self {
        Self {
            engine,
            events,
            common,
            kept: AsyncMutex::default(),
            hour: Mutex::default(),
            places: Arc::new(Semaphore::new(WATCHERS)),
        }
    }

    pub fn events(&self, query: EventQuery) -> EventList {
        EventList { events: self.events.after(query.after.unwrap_or(0)) }
    }

    /// # Errors
    /// If there is no such service. One that is there may have no rates, as there is room for some alone, and as nobody
    /// has looked yet.
    pub async fn rates(&self, query: &RateQuery) -> Result<Rates, Failure> {
        let wanted = query.service.as_deref();
        let rates = self.hour.lock().unwrap_or_else(PoisonError::into_inner).show(wanted);
        if let Some(name) = wanted
            && rates.services.is_empty()
        {
            let sample = ask(&self.engine, Command::Sample).await?;
            if !sample.services.iter().any(|(known, _)| known == name) {
                return Err(Failure(Kind::NotFound, format!("there is no service {name}")));
            }
        }
        Ok(rates)
    }

    /// The status as JSON, at most a second old; none if the engine has ended.
    async fn status(&self) -> Option<Arc<str>> {
        let mut kept = self.kept.lock().await;
        if let Some((made, text)) = &*kept
            && made.elapsed() < KEPT
        {
            return Some(Arc::clone(text));
        }
        let status = ask(&self.engine, Command::Status).await.ok()?;
        let status = Arc::clone(&self.common).complete(status).await;
        let text: Arc<str> = serde_json::to_string(&status).ok()?.into();
        *kept = Some((Instant::now(), Arc::clone(&text)));
        Some(text)
    }

    /// Looks at counters every few seconds, while there is a page that draws them.
    pub async fn keep_rates(self: Arc<Self>, front: watch::Receiver<Front>) {
        let mut ticks = interval(STEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let wanted = {
                let front = front.borrow();
                front.web.is_some() || front.api.tls.is_some()
            };
            if !wanted {
                *self.hour.lock().unwrap_or_else(PoisonError::into_inner) = Hour::default();
                continue;
            }
            let sample = ask(&self.engine, Command::Sample).await;
            if matches!(sample, Err(Failure(Kind::Busy, _))) {
                return;
            }
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let mut hour = self.hour.lock().unwrap_or_else(PoisonError::into_inner);
            hour.take(Instant::now(), at, sample.ok());
        }
    }

    /// A stream, if there is room for another one.
    pub fn watch(
        self: &Arc<Self>,
        query: WatchQuery,
        headers: &HeaderMap,
        working: Working,
    ) -> Result<Response, Failure> {
        let every = match query.interval.unwrap_or(2) {
            0 => None,
            seconds @ 1..=60 => Some(Duration::from_secs(seconds.into())),
            seconds => {
                let words = format!("interval: {seconds} is out of range; give 0..60");
                return Err(Failure(Kind::Invalid, words));
            }
        };
        let full = || Failure(Kind::Busy, format!("there are {WATCHERS} streams already"));
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| full())?;
        let follow = self.events.follow();
        // A browser that was cut off says what it had last.
        let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let sent = last.or(query.after).unwrap_or(*follow.borrow());
        let ticks = every.map(|every| {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let queue = self.events.after(sent).into();
        let watcher = Watcher {
            hub: Arc::clone(self),
            ticks,
            follow,
            sent,
            queue,
            _working: working,
            _place: place,
        };
        let events = stream::unfold(watcher, |mut watcher| async {
            let event = watcher.next().await?;
            Some((Ok::<_, Infallible>(event), watcher))
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
    }
}

struct Watcher {
    hub: Arc<Hub>,
    ticks: Option<Interval>,
    follow: watch::Receiver<u64>,
    sent: u64,
    queue: VecDeque<Event>,
    _working: Working,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    /// What is to be told next; none if weir is stopping.
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                self.sent = event.number;
                let told = sse::Event::default().event("event").id(event.number.to_string());
                return told.json_data(&event).ok();
            }
            let tick = async {
                match &mut self.ticks {
                    Some(ticks) => drop(ticks.tick().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.follow.changed() => {
                    changed.ok()?;
                    self.queue = self.hub.events.after(self.sent).into();
                }
                () = tick => {
                    let status = self.hub.status().await?;
                    return Some(sse::Event::default().event("status").data(&*status));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(packets: &[(&str, u64)], dropped: u64) -> Option<Sample> {
        let one = |(name, packets): &(&str, u64)| {
            let counted = Counted { packets: *packets, states: 7, ..Counted::default() };
            ((*name).to_owned(), counted)
        };
        Some(Sample { services: packets.iter().map(one).collect(), dropped })
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let (mut hour, start) = (Hour::default(), Instant::now());
        for step in 0..POINTS as u64 + 50 {
            let when = start + STEP * u32::try_from(step).expect("small");
            hour.take(when, 1000 + 10 * step, sample(&[("a", 100 * step)], 10 * step));
        }
        let shown = hour.show(None);
        assert_eq!((shown.all.packets.len(), shown.services["a"].packets.len()), (POINTS, POINTS));
        assert!(shown.all.packets.iter().all(|rate| *rate == Some(10.0)));
        assert!(shown.all.dropped.iter().all(|rate| *rate == Some(1.0)));
        assert_eq!(shown.at, 1000 + 10 * (POINTS as u64 + 49));
        assert!(hour.show(Some("a")).all.packets.is_empty());
        assert!(hour.show(Some("b")).services.is_empty());
    }

    #[test]
    fn what_nobody_knows_is_null_and_all_end_at_one_time() {
        let (mut hour, start) = (Hour::default(), Instant::now());
        let at = |step: u32| start + STEP * step;
        hour.take(at(0), 0, None);
        assert!(hour.show(None).all.packets.is_empty(), "nothing was known before either");
        hour.take(at(1), 10, sample(&[("a", 100)], 0));
        hour.take(at(2), 20, sample(&[("a", 300)], 0));
        hour.take(at(3), 30, None);
        hour.take(at(4), 40, sample(&[("a", 400)], 0));
        // A service that is new, and a counter that went back with a backend that is gone.
        hour.take(at(5), 50, sample(&[("a", 50), ("b", 20)], 0));
        let shown = hour.show(None);
        assert_eq!(shown.all.packets, [Some(20.0), None, None, Some(2.0)]);
        assert_eq!(shown.services["a"].packets, [Some(20.0), None, None, Some(0.0)]);
        assert_eq!(shown.services["b"].packets, [None, None, None, Some(2.0)]);
        hour.take(at(6), 60, sample(&[("b", 20)], 0));
        assert_eq!(hour.show(None).services.keys().collect::<Vec<_>>(), ["b"]);
        let text = serde_json::to_string(&hour.show(None)).expect("JSON");
        assert!(text.contains("null") && text.len() < 1000, "{text}");
    }

    #[test]
    fn a_thousand_services_take_no_more_than_there_is_room_for() {
        let names: Vec<String> = (0..1000).map(|n| format!("s{n}")).collect();
        let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 10)).collect();
        let (mut hour, start) = (Hour::default(), Instant::now());
        hour.take(start, 0, sample(&all, 0));
        hour.take(start + STEP, 10, sample(&all, 0));
        assert_eq!(hour.show(None).services.len(), SERVICES);
        assert_eq!(hour.show(None).all.states, [Some(7000.0)]);
    }
}
