//! Prefixes that commands put on lists of sources, over a plane that is only memory: they hold at once, end by the
//! clock of the boot, outlive a restart and a reload, and what is refused changes nothing.

use super::*;
use crate::history::Who;
use weir_plane::Operation;
use weir_wire::Reason;

const HOUR: u32 = 3600;

/// Drops packets from a prefix.
fn deny(prefix: &str, seconds: Option<u32>) -> ListSource {
    ListSource { prefix: prefix.into(), allow: false, seconds, reason: None }
}

fn allow(prefix: &str) -> ListSource {
    ListSource { allow: true, ..deny(prefix, None) }
}

impl World {
    fn list(&mut self, wanted: &ListSource) -> commands::Done {
        self.ask(|reply| {
            let who = Who { uid: Some(7), ..Who::nobody("alice") };
            Command::By(who, Box::new(Command::List("a".into(), wanted.clone(), reply)))
        })
    }

    fn unlist(&mut self, prefix: &str) -> commands::Done {
        self.ask(|reply| Command::Unlist("a".into(), prefix.into(), reply))
    }

    /// Whether the first packet of a client, `10.16.0.0` and so many, is taken.
    fn takes(&mut self, client: u32) -> bool {
        let frame = Frame::new(flow(0, client)).tcp_flags(TcpFlags::SYN).build();
        match self.engine.plane.process(&frame) {
            Outcome::Forwarded(_) => true,
            Outcome::Dropped(Reason::DeniedSource) => false,
            other => panic!("{client}: {other:?}"),
        }
    }

    fn sources(&self) -> Option<SourceStatus> {
        self.engine.status().expect("readable").services.swap_remove(0).sources
    }

    fn listed(&self) -> Vec<ListedSource> {
        self.sources().map_or_else(Vec::new, |sources| sources.by_commands)
    }

    /// The engine's clock goes on by so many seconds.
    fn pass(&mut self, seconds: u32) {
        self.engine.ahead += seconds;
        self.engine.look_at_sources();
    }

    fn explained(&self, client: u32) -> String {
        let said = self.engine.explain(&flow(0, client), None).expect("it can be told");
        said.source.expect("there are lists")
    }
}

#[test]
fn a_prefix_holds_at_once_for_its_time_and_others_are_not_concerned() {
    let mut world = World::with(2, "");
    assert!(world.takes(7) && world.sources().is_none());
    let tables = world.engine.services["a"].generation;
    let reason = Some("a scanner".into());
    let said = world.list(&ListSource { reason, ..deny("10.16.0.0/28", Some(HOUR)) });
    let said = said.expect("nothing is in its way");
    assert_eq!(said, "10.16.0.0/28 is denied by a for 1h: a scanner");
    assert!(!world.takes(7) && world.takes(16));
    let frame = Frame::new(flow(1, 7)).tcp_flags(TcpFlags::SYN).build();
    assert!(matches!(world.engine.plane.process(&frame), Outcome::Forwarded(_)), "another service");
    assert_eq!(world.engine.services["a"].generation, tables, "no table was built");

    // The status has all of it, and the history who it was.
    let shown = world.listed();
    assert_eq!((shown.len(), &*shown[0].prefix, shown[0].allow), (1, "10.16.0.0/28", false));
    assert_eq!((&*shown[0].by, shown[0].reason.as_deref()), ("alice", Some("a scanner")));
    assert!((HOUR - 60..=HOUR).contains(&shown[0].seconds_left.expect("it ends")), "{shown:?}");
    assert!(world.sources().is_some_and(|sources| sources.digest.is_some()));
    let why = world.explained(7);
    assert!(why.starts_with("denied by 10.16.0.0/28 (a command of alice, for "), "{why}");
    assert!(why.ends_with(" more: a scanner)"), "{why}");
    let last = world.engine.history.entries().last().cloned().expect("it is remembered");
    assert_eq!((&*last.what, &*last.who.name, &*last.done), ("command", "alice", &*said));

    // Asked again, its time begins anew.
    world.pass(HOUR / 2);
    assert!(!world.takes(7));
    world.list(&deny("10.16.0.0/28", Some(HOUR))).expect("nothing is in its way");
    world.pass(HOUR / 2 + 60);
    assert!(!world.takes(7));
    assert_eq!(world.listed().len(), 1);
    world.pass(HOUR / 2);
    assert!(world.takes(7) && world.sources().is_none());
    let last = world.engine.history.entries().last().expect("it is remembered");
    assert_eq!(last.done, "off the lists of a, as the time is over: 10.16.0.0/28");
    assert_eq!(world.warnings(), Vec::<String>::new());
}

#[test]
fn what_commands_say_lies_over_the_file_and_stays_through_reloads_and_restarts() {
    let mut world = World::with(1, "");
    // An exception keeps nobody out, with or without lists in the file.
    world.list(&allow("10.16.0.7")).expect("nothing is in its way");
    assert!(world.takes(7) && world.takes(8));
    let before = world.engine.history.last();
    let said = world.list(&allow("10.16.0.7/32")).expect("nothing is in its way");
    assert!(said.ends_with(" already"), "{said}");
    assert_eq!(world.engine.history.last(), before);
    world.list(&deny("10.16.1.0/24", Some(HOUR))).expect("nothing is in its way");
    let follow = |world: &mut World, fields: &str| {
        let wanted = config_with(&world.directory, 1, fields);
        world.follow(&wanted).unwrap_or_else(|error| panic!("{fields}: {error}"));
    };
    follow(&mut world, "deny = [\"10.16.0.0/24\"]");
    assert!(world.takes(7) && !world.takes(8) && !world.takes(256) && world.takes(512));
    let sources = world.sources().expect("it has lists");
    assert_eq!((sources.allow, sources.deny, sources.by_commands.len()), (0, 1, 2));

    // It was written down when it was said.
    let saved = document::Document::read(world.directory.path()).expect("readable");
    assert!(saved.services["a"].sources.is_some());
    let mut world = world.restart();
    assert!(world.takes(7) && !world.takes(8) && !world.takes(256) && world.takes(512));
    assert_eq!(world.listed().len(), 2);

    // The same prefix as the file's: what a command says counts, until it is taken back.
    world.list(&allow("10.16.0.0/24")).expect("nothing is in its way");
    assert!(world.takes(8));
    world.unlist("10.16.0.0/24").expect("it is there");
    assert!(!world.takes(8) && world.takes(7));
    follow(&mut world, "");
    assert!(world.takes(8) && !world.takes(256));
    world.pass(HOUR);
    assert!(world.takes(256));
    world.unlist("10.16.0.7").expect("it is there");
    assert!(world.sources().is_none());
    let saved = document::Document::read(world.directory.path()).expect("readable");
    assert!(saved.services["a"].sources.is_none());
    world.check();
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let mut world = World::with(1, "");
    world.list(&deny("10.16.0.0/28", None)).expect("nothing is in its way");
    let refused = |world: &mut World, wanted: &ListSource, kind: Kind, words: &str| {
        let error = world.list(wanted).expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    let before = (world.listed(), world.engine.history.last());
    for (prefix, words) in [
        ("everybody", "prefix: \"everybody\" is no prefix; give one such as"),
        ("10.16.0.1/28", "write 10.16.0.0/28"),
        ("10.16.0.0/33", "has 0 to 32 bits"),
        ("", "is no prefix"),
    ] {
        refused(&mut world, &deny(prefix, None), Kind::Invalid, words);
    }
    for seconds in [0, 365 * 24 * HOUR + 1, u32::MAX] {
        refused(&mut world, &deny("10.17.0.0/16", Some(seconds)), Kind::Invalid, "seconds: ");
    }
    for reason in ["x".repeat(201), "two\nlines".into()] {
        let wanted = ListSource { reason: Some(reason), ..deny("10.17.0.0/16", None) };
        refused(&mut world, &wanted, Kind::Invalid, "reason: ");
    }
    let elsewhere = |reply| Command::List("b".into(), deny("10.17.0.0/16", None), reply);
    assert_eq!(world.ask(elsewhere).expect_err("no service").kind(), Kind::NotFound);
    let missing = world.unlist("10.17.0.0/16").expect_err("nobody has put it there");
    assert!(missing.kind() == Kind::NotFound && missing.to_string().contains("weir source list a"));

    // A plane that does not take it, and a disc that is full.
    world.engine.plane.refuse(Operation::SetSources);
    let failed = world.list(&deny("10.16.0.16/28", None)).expect_err("it is refused");
    assert!(failed.to_string().contains("refused on demand"), "{failed}");
    assert!(world.unlist("10.16.0.0/28").is_err());
    world.engine.plane.refuse_nothing();
    world.engine.journal.fill_disc();
    assert!(world.list(&deny("10.16.0.16/28", None)).is_err_and(|error| error.is_full()));
    world.engine.journal.empty_disc();
    assert_eq!((world.listed(), world.engine.history.last()), before);
    world.upkeep_later();
    assert!(!world.takes(7) && world.takes(16));

    // There is so much room for all lists, and for those of commands.
    world.engine.config.limits.list_prefixes = 50;
    let host = |n: u32| format!("10.{}.{}.{}", 20 + n % 7, n / 7 % 250, 1 + n / 1750);
    let mut listed = (0..100).map(|n| world.list(&deny(&host(n), None)));
    let full = listed.find_map(Result::err).expect("there is room for 50").to_string();
    assert!(
        full.contains("the list is full") && full.contains("limits.list_prefixes is 50"),
        "{full}"
    );
    drop(listed);
    assert!(!world.takes(7) && world.takes(16));
    world.engine.config.limits.list_prefixes = 100_000;
    let mut listed = (100..2000).map(|n| world.list(&deny(&host(n), None)));
    let full = listed.find_map(Result::err).expect("there is room for 1,000").to_string();
    assert!(full.contains("commands have put 1000 prefixes"), "{full}");
    drop(listed);
    assert_eq!(world.listed().len(), 1000);
    // One that is there may still be said anew.
    world.list(&deny("10.16.0.0/28", Some(HOUR))).expect("it is there");

    // Where there is too much by now, it can be taken back, and a file is refused that leaves it so.
    world.engine.config.limits.list_prefixes = 100;
    let config = world.engine.config.clone();
    let refused = world.engine.refuses(&config, false).expect_err("1,000 of 100").to_string();
    assert!(refused.contains("limits.list_prefixes = 100"), "{refused}");
    world.engine.unlist_source("a", "10.16.0.0/28").expect("it is there");
    assert_eq!(world.listed().len(), 999);
    // A start leaves them out, the file's lists apart.
    world.engine.leave_out_lists(&config);
    assert_eq!(world.listed().len(), 0);
    world.engine.refuses(&config, false).expect("what is left has room");
}
