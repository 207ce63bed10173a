//! Which connections count as alive: the dead expire beside live ones, under floods, and through
//! changes of pool and hash key.
//!
//! `WEIR_LIVE` connections send all the time (20,000 of them here), and `WEIR_NEW` begin in each second (100
//! here). `make soak` takes 1,000,000 and 5,000, with memory as large as a balancer has it by default.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use weir_steering::{Phase, ServiceConfig, ServiceId};

/// Idle timeouts of the service, in seconds: one under which flows are always watched, and one under
/// which those that were seen alive are not for a while.
const TIMEOUTS: [u32; 2] = [60, 600];
/// Seconds between two looks.
const PERIOD: u32 = 10;
/// Flows that send in each period.
static LIVE: LazyLock<u32> = LazyLock::new(|| number("WEIR_LIVE", 20_000, DEAD));
/// Flows that begin in each period, and send one packet more.
static NEW: LazyLock<u32> = LazyLock::new(|| number("WEIR_NEW", 100, 10_000) * PERIOD);

/// Where the numbers of flows begin that are not live ones.
const DEAD: u32 = 0x20_0000;
const FRESH: u32 = 0x40_0000;
const OTHERS: u32 = 0x100_0000;

/// States that the service may have: with the longer timeout, 900 seconds of new ones are there.
const MOST: u32 = 1 << 23;

/// A size that the environment may say.
fn number(name: &str, small: u32, most: u32) -> u32 {
    let said = std::env::var(name).ok();
    let number = said.map_or(small, |text| text.parse().expect("a number"));
    assert!((1..=most).contains(&number), "{name} is 1 to {most}");
    number
}

struct Timed {
    world: World,
    clock: Arc<AtomicU32>,
    timeout: u32,
    fresh: u32,
    others: u32,
}

impl Timed {
    fn new(timeout: u32) -> Self {
        let small = *LIVE <= 20_000 && *NEW <= 1_000;
        Self::with(if small { 1 << 14 } else { 1 << 21 }, timeout)
    }

    /// With so many words of marks.
    fn with(words: usize, timeout: u32) -> Self {
        let strangers = if words > 1 << 14 { 1 << 18 } else { 1 << 14 };
        let mut memory = SoftMemory::new(100_000, strangers, 64);
        memory.marks = vec![0; words * 2];
        let mut world = World::over(memory, 1, |config| {
            config.services[0].idle_timeout = Duration::from_secs(timeout.into());
            config.limits.states_per_service = MOST;
        });
        let clock = Arc::new(AtomicU32::new(1_000));
        let read = clock.clone();
        world.engine.clock = Box::new(move || read.load(Ordering::Relaxed));
        Self { world, clock, timeout, fresh: FRESH, others: OTHERS }
    }

    fn send(&mut self, clients: std::ops::Range<u32>, flags: TcpFlags) {
        for client in clients {
            let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
            let went = self.world.engine.plane.process(&frame);
            assert!(matches!(went, Outcome::Forwarded(_)), "{went:?}");
        }
    }

    fn connect(&mut self, clients: std::ops::Range<u32>) {
        self.send(clients.clone(), TcpFlags::SYN);
        self.send(clients, TcpFlags::ACK);
    }

    /// Numbers of flows that nobody has used.
    fn others(&mut self, count: u32) -> std::ops::Range<u32> {
        self.others += count;
        self.others - count..self.others
    }

    /// Live flows send, new ones begin, and what is idle is forgotten.
    fn period(&mut self) {
        self.send(0..*LIVE, TcpFlags::ACK);
        let fresh = self.fresh;
        self.connect(fresh..fresh + *NEW);
        self.fresh += *NEW;
        assert!(self.fresh <= OTHERS, "so many periods have no numbers");
        self.clock.fetch_add(PERIOD, Ordering::Relaxed);
        self.world.engine.sweep().expect("nothing is refused");
    }

    fn drain(&mut self, backend: &str, drain: bool) {
        let (service, backend) = ("a".to_owned(), backend.to_owned());
        let done = self.world.ask(|reply| Command::Drain(service, backend, drain, reply));
        done.expect("nothing is refused");
        self.world.engine.upkeep(&mut Timers::new());
    }

    /// So many flows begin and never go on, and the pool changes.
    fn flood(&mut self, flows: u32, drain: bool) {
        let others = self.others(flows);
        self.send(others, TcpFlags::SYN);
        self.drain("b1", drain);
    }

    /// The pool changes, and the next table takes another hash key, as after a cycle.
    fn rekey(&mut self, drain: bool) {
        let key = self.key();
        let now = self.clock.load(Ordering::Relaxed);
        let service = self.world.engine.services.get_mut("a").expect("there");
        let config = ServiceConfig {
            settings: service.configured.method.settings().clone(),
            client_affinity: false,
            udp: false,
            seed: service.seed,
            nonce: service.seed ^ u64::from(now) ^ 1 << 40,
            capacity: 1024,
            max_states: MOST as usize,
            idle_seconds: self.timeout,
        };
        let mut builder = service.configured.method.builder(&config, None);
        service.builder.each_state(&mut |state, known| {
            match known.phase {
                Phase::Opening => builder.start(*state, known.backend, now).map(drop),
                _ => builder.restore(*state, known.backend, now),
            }
            .expect("keys differ");
        });
        service.builder = Counted::new(builder, 1);
        service.count_prefixes();
        self.drain("b1", drain);
        assert_ne!(self.key(), key, "another hash key");
    }

    fn phase(&self, client: u32) -> Option<Phase> {
        let key = StateKey::of_flow(&flow(0, client));
        self.world.engine.services["a"].known(&key).map(|known| known.phase)
    }

    fn known(&self, clients: std::ops::Range<u32>) -> usize {
        clients.filter(|client| self.phase(*client).is_some()).count()
    }

    fn open(&self, clients: std::ops::Range<u32>) -> usize {
        clients.filter(|client| self.phase(*client) == Some(Phase::Open)).count()
    }

    fn key(&self) -> weir_hash::HashKey {
        self.world.engine.plane.tables[&ServiceId(0)].header().key
    }

    fn check_live(&self) {
        assert_eq!(self.known(0..*LIVE), *LIVE as usize, "no live flow is forgotten");
    }
}

/// However much others send, and whatever becomes of pool and hash key.
#[test]
fn the_dead_expire_beside_the_living() {
    TIMEOUTS.into_iter().for_each(check_the_dead_expire_beside_the_living);
}

fn check_the_dead_expire_beside_the_living(timeout: u32) {
    const MANY: u32 = 3_000;
    let mut timed = Timed::new(timeout);
    timed.connect(0..*LIVE);
    timed.period();
    timed.drain("b1", true);
    timed.connect(DEAD..DEAD + MANY);
    timed.period();
    for period in 1..=timeout * 3 / 2 / PERIOD {
        match period {
            1 => timed.rekey(false),
            2 => timed.flood(40_000, false),
            5 => timed.flood(90_000, true),
            _ => timed.drain("b1", period % 2 == 0),
        }
        timed.period();
    }
    let left = timed.known(DEAD..DEAD + MANY);
    let states = timed.world.engine.services["a"].builder.states();
    println!("{left} of {MANY} are known after 1.5 x {timeout} s, beside {states} connections");
    assert!(left * 100 <= MANY as usize, "{left} of {MANY} dead flows are known");
    timed.check_live();
}

/// A flood of SYNs, then a change of pool: none of them becomes open by that.
#[test]
fn an_unanswered_syn_is_not_open_by_others_marks() {
    TIMEOUTS.into_iter().for_each(check_an_unanswered_syn_is_not_open_by_others_marks);
}

fn check_an_unanswered_syn_is_not_open_by_others_marks(timeout: u32) {
    const FLOOD: u32 = 60_000;
    let mut timed = Timed::new(timeout);
    timed.connect(0..*LIVE);
    timed.period();
    timed.drain("b1", true);
    let flood = timed.others..timed.others + FLOOD;
    timed.flood(FLOOD, false);
    timed.rekey(true);
    for _ in 0..3 {
        timed.period();
    }
    let open = timed.open(flood.clone());
    assert!(open * 200 <= FLOOD as usize, "{open} of {FLOOD} count as open");
    for _ in 0..6 {
        timed.period();
    }
    let left = timed.known(flood);
    assert!(left * 200 <= FLOOD as usize, "{left} of {FLOOD} are known");
    timed.check_live();
}

/// Packets of flows that never began keep none alive.
#[test]
fn a_flood_of_unknown_flows_keeps_no_state() {
    TIMEOUTS.into_iter().for_each(check_a_flood_of_unknown_flows_keeps_no_state);
}

fn check_a_flood_of_unknown_flows_keeps_no_state(timeout: u32) {
    const FLOOD: u32 = 100_000;
    const MANY: u32 = 2_000;
    let mut timed = Timed::new(timeout);
    timed.connect(0..*LIVE);
    timed.connect(DEAD..DEAD + MANY);
    timed.period();
    for _ in 0..timeout * 3 / 2 / PERIOD {
        let flood = timed.others(FLOOD);
        timed.send(flood.clone(), TcpFlags::ACK);
        timed.period();
        assert_eq!(timed.known(flood), 0, "an ACK creates no state");
    }
    let left = timed.known(DEAD..DEAD + MANY);
    assert!(left * 100 <= MANY as usize, "{left} of {MANY} dead flows are known");
    timed.check_live();
}

/// A connection whose packets come before anybody knows of it, and then none, is open all the same:
/// also if the hash key changes in between.
#[test]
fn a_silent_connection_is_open_from_its_second_packet() {
    TIMEOUTS.into_iter().for_each(check_a_silent_connection_is_open_from_its_second_packet);
}

fn check_a_silent_connection_is_open_from_its_second_packet(timeout: u32) {
    const MANY: u32 = 1_000;
    let mut timed = Timed::new(timeout);
    timed.connect(0..100);
    timed.period();
    timed.connect(DEAD..DEAD + MANY);
    timed.rekey(true);
    timed.period();
    assert_eq!(timed.open(DEAD..DEAD + MANY), MANY as usize);
}

/// A SYN with the addresses of a connection that has lived for long on a backend that drains now: it
/// stays there, whoever sent it. On one that is down, whoever repeats it is let go.
#[test]
fn a_repeated_syn_does_not_move_a_connection() {
    TIMEOUTS.into_iter().for_each(check_a_repeated_syn_does_not_move_a_connection);
}

fn check_a_repeated_syn_does_not_move_a_connection(timeout: u32) {
    let mut timed = Timed::new(timeout);
    timed.world.start(0, 0..3_000);
    let live: Vec<FlowKey> = timed.world.live.keys().copied().collect();
    for _ in 0..20 {
        for flow in &live {
            let frame = Frame::new(*flow).tcp_flags(TcpFlags::ACK).build();
            timed.world.engine.plane.process(&frame);
        }
        timed.clock.fetch_add(PERIOD, Ordering::Relaxed);
        timed.world.engine.sweep().expect("nothing is refused");
    }
    timed.drain("b1", true);
    assert!(timed.world.engine.plane.memory.pinned.is_empty(), "no SYN is repeated so late");
    timed.world.check();
    timed.drain("b1", true);
    timed.world.check();
    let down = timed.world.health("a", "b1", false);
    timed.world.upkeep();
    let there = live.iter().filter(|flow| timed.world.live[flow] == down);
    for flow in there.copied().collect::<Vec<_>>() {
        let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
        let went = timed.world.engine.plane.process(&frame);
        assert!(!matches!(went, Outcome::Forwarded(id) if id == down), "{flow}");
    }
}

/// A connection to a draining backend that begins with the ports of one just ended, as packets know that one still,
/// stays there, though they are told anew which connections live before anybody has heard of it.
#[test]
fn ports_used_again_do_not_move_a_connection() {
    for timeout in TIMEOUTS {
        let mut timed = Timed::new(timeout);
        timed.connect(0..3_000);
        timed.world.engine.sweep().expect("nothing is refused");
        timed.drain("b1", true);
        let process = |timed: &mut Timed, client, flags| {
            let frame = Frame::new(flow(0, client)).tcp_flags(flags).build();
            timed.world.engine.plane.process(&frame)
        };
        for client in 0..3_000 {
            process(&mut timed, client, TcpFlags::RST);
        }
        timed.world.engine.drain_reports().expect("nothing is refused");
        timed.world.start(0, 0..3_000);
        let b1 = timed.world.engine.services["a"].member("b1").expect("there").id;
        let again = timed.world.live.values().filter(|backend| **backend == b1).count();
        assert!(again > 500, "{again}");
        timed.clock.fetch_add(PERIOD, Ordering::Relaxed);
        timed.world.engine.sweep().expect("nothing is refused");
        timed.world.check();
    }
}

/// Many young connections of a backend that drains are told to packets, and are not pinned one by one: a
/// repeated SYN finds its place, at once, after looks, and after other changes. Where there is not room to
/// tell of all, they are pinned.
#[test]
fn many_young_connections_need_no_pins() {
    for (words, timeout) in
        TIMEOUTS.into_iter().flat_map(|timeout| [(1 << 14, timeout), (256, timeout)])
    {
        let mut timed = Timed::with(words, timeout);
        timed.world.start(0, 0..30_000);
        // Some of them are known already, and half have answered.
        timed.world.engine.drain_reports().expect("nothing is refused");
        timed.send(0..15_000, TcpFlags::ACK);
        // The table has grown, perhaps under another hash key.
        timed.world.engine.update("a").expect("nothing is refused");
        timed.world.upkeep();
        timed.drain("b1", true);
        let pinned = timed.world.engine.plane.memory.pinned.len();
        match words {
            256 => assert!(pinned > 8_192, "{pinned} are pinned"),
            _ => assert_eq!(pinned, 0),
        }
        timed.world.check();
        // These have begun since.
        timed.world.start(0, 30_000..32_000);
        for round in 0..6 {
            timed.clock.fetch_add(PERIOD, Ordering::Relaxed);
            timed.world.engine.sweep().expect("nothing is refused");
            timed.world.check();
            timed.drain("b2", round % 2 == 0);
            timed.world.check();
        }
        assert_eq!(timed.known(0..32_000), 32_000);
    }
}

/// Marks that an update begins are read afterwards: who had sent something before it is known to.
#[test]
fn an_update_forgets_nobody_s_marks() {
    for timeout in TIMEOUTS {
        let mut timed = Timed::new(timeout);
        timed.connect(0..30_000);
        timed.world.engine.sweep().expect("nothing is refused");
        timed.connect(30_000..60_000);
        timed.world.engine.drain_reports().expect("nothing is refused");
        timed.drain("b1", true);
        assert!(timed.world.engine.unread.is_none());
        assert_eq!(timed.open(0..60_000), 60_000);
        // Another key, and another backend with many connections, in one update.
        timed.connect(60_000..62_000);
        timed.rekey(false);
        timed.period();
        assert_eq!(timed.open(30_000..62_000), 32_000);
    }
}

/// A connection that sends one packet in each timeout, whenever that is, lives for ever; and of those
/// that send all the time few are watched.
#[test]
fn whoever_speaks_once_in_a_timeout_lives() {
    const MANY: u32 = 2_000;
    for timeout in TIMEOUTS {
        let mut timed = Timed::new(timeout);
        timed.connect(0..*LIVE);
        timed.connect(DEAD..DEAD + MANY);
        timed.period();
        for second in 0..timeout * 5 {
            // Each in a second of its own.
            let speaks =
                |client: &u32| client.wrapping_mul(2_654_435_761) % timeout == second % timeout;
            for client in (DEAD..DEAD + MANY).filter(speaks) {
                timed.send(client..client + 1, TcpFlags::ACK);
            }
            timed.clock.fetch_add(1, Ordering::Relaxed);
            if second % PERIOD == PERIOD - 1 {
                timed.send(0..*LIVE, TcpFlags::ACK);
                timed.world.engine.sweep().expect("nothing is refused");
            }
        }
        assert_eq!(timed.known(DEAD..DEAD + MANY), MANY as usize, "timeout {timeout}");
        timed.check_live();
        let watched = timed.world.engine.plane.memory.watched.iter().flatten();
        let bits: u32 = watched.map(|word| word.count_ones()).sum();
        assert!(
            timeout < 100 || bits < *LIVE,
            "{bits} bits for {} flows, of which few are due",
            *LIVE
        );
    }
}

/// Whose silence counts by another filter, which gives its generations the same few numbers again and again.
#[test]
fn datagrams_that_have_ended_expire_and_those_that_go_on_do_not() {
    for timeout in [20, 120, 600] {
        let fields = format!(
            "protocol = \"udp\"\nidle_timeout = \"{timeout}s\"\n[service.check]\nenabled = false"
        );
        let mut world = World::with(1, &fields);
        let clock = Arc::new(AtomicU32::new(1_000));
        let read = clock.clone();
        world.engine.clock = Box::new(move || read.load(Ordering::Relaxed));
        let of = |client| FlowKey { protocol: Protocol::Udp, ..flow(0, client) };
        let send = |world: &mut World, clients: std::ops::Range<u32>| {
            for client in clients {
                let went = world.engine.plane.process(&Frame::new(of(client)).build());
                assert!(matches!(went, Outcome::Forwarded(_)), "{went:?}");
            }
        };
        let known = |world: &World, clients: std::ops::Range<u32>| {
            let service = &world.engine.services["a"];
            clients.filter(|n| service.known(&StateKey::of_flow(&of(*n))).is_some()).count()
        };
        send(&mut world, 0..100);
        for period in 1..=2 * timeout / PERIOD + 20 {
            let passed = clock.fetch_add(PERIOD, Ordering::Relaxed) + PERIOD - 1_000;
            // Some send all the time, some just in time.
            let [first, second] = if period % 2 == 0 { [true, false] } else { [false, true] };
            if first && period % 3 == 0 {
                world.engine.turn_seen();
            }
            send(&mut world, 0..20);
            if passed.is_multiple_of(timeout - PERIOD) {
                send(&mut world, 20..40);
            }
            if second && period % 3 == 0 {
                world.engine.turn_seen();
            }
            world.engine.sweep().expect("nothing is refused");
            assert_eq!(known(&world, 0..40), 40, "after {passed} s of {timeout}");
            let ended = known(&world, 40..100);
            assert!(passed >= timeout || ended == 60, "{ended} after {passed} s of {timeout}");
            assert!(passed <= timeout + 50 || ended == 0, "{ended} after {passed} s of {timeout}");
        }
    }
}
