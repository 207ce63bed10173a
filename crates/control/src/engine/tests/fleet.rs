//! Balancers of one fleet, without the store: what they make of the documents that it has.

use super::*;
use crate::engine::fleet::{digest_of, now};
use crate::engine::sources::boot;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, watch};
use weir_fleet::{Ask, Cache, Document, Report, Share, Sign, text};
use weir_steering::cheetah::servers;

/// What is a balancer's own.
fn own(directory: &TempDir) -> String {
    format!(
        "[balancer]\ninterfaces = [\"eth0\"]\nrun_dir = {:?}\n\n[store]\nkind = \"etcd\"\n\
         endpoints = [\"http://127.0.0.1:1\"]\n",
        directory.path().display().to_string()
    )
}

/// A service with these backends.
fn shared(backends: &[u8]) -> String {
    let mut text = String::from(
        "[[service]]\nname = \"a\"\nvip = \"10.0.0.1\"\nport = 80\nmethod = \"cheetah\"\n\
         answers = \"backend\"\n\
         check = { enabled = false }\n",
    );
    for n in backends {
        text += &format!("[[service.backend]]\nname = \"b{n}\"\naddress = \"10.9.0.{n}\"\n");
    }
    text
}

/// The same, and another service at these addresses.
fn at(vips: &str) -> String {
    format!(
        "{}[[service]]\nname = \"b\"\nvip = {vips}\nport = 80\nmethod = \"tracked\"\n\
         check = {{ enabled = false }}\n[[service.backend]]\nname = \"b1\"\naddress = \"10.9.0.1\"\n",
        shared(&[1, 2])
    )
}

fn begun(directory: &TempDir, document: Option<Document>, joined: bool) -> Begun {
    let cache = Cache { id: "1".into(), document, step: None };
    let (own, left) = (own(directory), None);
    Begun { cache, step: None, own, joined, left, followed: true, notes: Vec::new() }
}

fn parsed(directory: &TempDir, shared: &str) -> Config {
    Config::parse(&text::join(&own(directory), shared), "weir.toml").expect("it can be used")
}

/// A balancer that has heard of this document, and of nothing before.
fn member(document: &Document) -> World {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("weir.toml"), own(&directory)).expect("a file");
    let config = parsed(&directory, &document.text);
    let fleet = Some(begun(&directory, Some(document.clone()), true));
    let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
    let engine = over(plane, Found { fleet, ..Found::default() }, &config);
    World { engine: engine.expect("it starts"), live: HashMap::new(), directory }
}

impl World {
    /// The document that makes the shared configuration this one.
    fn document(&self, change: u64, shared: &str) -> Document {
        let keys = self.engine.keys_for(&parsed(&self.directory, shared)).expect("there is room");
        Document::new(change, shared.into(), keys)
    }

    fn hears(&mut self, document: &Document, revision: i64) {
        let news = FleetNews::Config(Some(Box::new(document.clone())), revision);
        self.engine.fleet_news(news);
    }

    /// The names of the servers by their numbers, and the digest of the table.
    fn decides(&self) -> (Vec<Option<String>>, String) {
        let service = &self.engine.services["a"];
        let image = service.builder.published().expect("a table");
        let servers = servers(image).expect("servers").backends();
        let name = |id: &u16| service.name_of(BackendId::new(*id)?);
        (servers.iter().map(name).collect(), digest_of(service, image))
    }

    fn members_named(&self) -> Vec<String> {
        let pool = &self.engine.services["a"].pool;
        pool.iter().map(|member| member.wanted.name.clone()).collect()
    }

    fn file(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("weir.toml")).expect("a file")
    }

    fn fleet_says(&self) -> String {
        self.engine.fleet_warnings().join("\n")
    }
}

fn first() -> Document {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = parsed(&directory, &shared(&[1, 2, 3]));
    let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
    let fleet = Some(begun(&directory, None, false));
    let engine = over(plane, Found { fleet, ..Found::default() }, &config).expect("it starts");
    World { engine, live: HashMap::new(), directory }.document(1, &shared(&[1, 2, 3]))
}

/// Whether a backend may be called otherwise is found out where somebody asks: a plan says that it would be refused.
/// Who is told of it follows, as what it has missed may be one that went and another that came.
#[test]
fn who_is_told_of_another_name_follows() {
    let mut one = member(&first());
    let renamed = shared(&[1, 2, 3]).replace("\"b2\"", "\"bee2\"");
    let wanted = parsed(&one.directory, &renamed);
    let plan = one.engine.plan_to(&wanted, &one.engine.source()).expect("it is looked at");
    assert!(plan.refused && plan.services[0].why.is_some(), "{plan:?}");
    let document = one.document(2, &renamed);
    one.hears(&document, 2);
    assert_eq!(one.members_named(), ["b1", "bee2", "b3"]);
}

#[test]
fn who_has_missed_changes_decides_as_who_has_seen_them() {
    let mut document = first();
    let mut one = member(&document);
    let mut late = member(&document);
    for (change, backends) in
        [&[1, 2, 3, 4][..], &[2, 3, 4], &[5, 3, 4], &[1, 5, 3, 4, 6]].into_iter().enumerate()
    {
        let change = change as u64 + 2;
        document = one.document(change, &shared(backends));
        one.hears(&document, change as i64);
        assert_eq!(one.members_named().len(), backends.len());
        assert!(one.file().contains(&shared(backends)), "{}", one.file());
    }
    late.hears(&document, 5);
    let new = member(&document);
    assert_eq!(one.decides(), late.decides());
    assert_eq!(one.decides(), new.decides());
    // b1 has its number again, as there are others left; b5 has not taken that of b2.
    let names = ["b1", "b3", "b4", "b5", "b6"];
    let (numbered, _) = one.decides();
    assert_eq!(numbered[0].as_deref(), Some("b1"));
    assert_eq!(numbered[1], None);
    assert!(names.iter().all(|name| numbered.contains(&Some((*name).into()))), "{numbered:?}");
    let ids = |world: &World| {
        world.engine.services["a"].pool.iter().map(|one| one.id).collect::<Vec<_>>()
    };
    assert_ne!(ids(&one), ids(&new), "they call backends by other numbers");
    // It is on the disc: a restart without the store goes on with it.
    let cache = Cache::load(&weir_fleet::cache_path(&new.directory.path().join("weir.toml")));
    assert_eq!(cache.expect("none yet").document, None);
    let cache = Cache::load(&weir_fleet::cache_path(&one.directory.path().join("weir.toml")));
    assert_eq!(cache.expect("it was kept").document, Some(document));
}

/// What tells the addresses of a service apart is part of its flows' hashes.
#[test]
fn addresses_are_told_apart_alike() {
    let mut document = first();
    let mut one = member(&document);
    let mut late = member(&document);
    for (change, vips) in [
        "[\"10.1.0.1\", \"10.1.0.2\"]",
        "[\"10.1.0.2\", \"10.1.0.3\"]",
        "[\"10.1.0.3\", \"10.1.0.4\", \"10.1.0.2\"]",
    ]
    .into_iter()
    .enumerate()
    {
        document = one.document(change as u64 + 2, &at(vips));
        one.hears(&document, change as i64 + 2);
    }
    late.hears(&document, 5);
    let new = member(&document);
    let of = |world: &World| {
        let service = &world.engine.services["b"];
        let mut places = service.salts.places(&service.configured);
        places.sort_by_key(|at| at.vip());
        places
    };
    assert_eq!(of(&one).len(), 3, "{}", one.fleet_says());
    assert_eq!(of(&one), of(&late));
    assert_eq!(of(&one), of(&new));
    assert!(of(&one).iter().all(|at| at.salt != 0), "none has what the first address had");
}

#[test]
fn what_cannot_be_followed_changes_nothing_and_is_said() {
    let document = first();
    let mut world = member(&document);
    let before = world.decides();
    let file = world.file();
    let mut bad = world.document(2, &shared(&[1, 2]));
    bad.text = bad.text.replace("method = \"cheetah\"\nanswers = \"backend\"\n", "");
    world.hears(&bad, 2);
    assert!(
        world.fleet_says().contains("each balancer sees the connections that come by it"),
        "{}",
        world.fleet_says()
    );
    assert_eq!((world.decides(), world.file()), (before.clone(), file.clone()));
    // One that was restored from a copy has another change under the same number.
    let other = world.document(1, &shared(&[1, 2]));
    world.hears(&other, 3);
    assert!(world.fleet_says().contains("restored from a copy"), "{}", world.fleet_says());
    assert_eq!((world.decides(), world.file()), (before, file));
    world.hears(&document, 4);
    assert_eq!(world.fleet_says(), "");
    let good = world.document(3, &shared(&[1, 2]));
    world.hears(&good, 5);
    assert_eq!((world.members_named().len(), world.fleet_says()), (2, String::new()));
    // Without the store nobody can change anything.
    let refused = world.ask(|reply| Command::Drain("a".into(), "b1".into(), true, reply));
    let refused = refused.expect_err("there is no store").to_string();
    assert!(refused.contains("the store cannot be reached"), "{refused}");
    assert!(!world.engine.services["a"].member("b1").expect("there").wanted.drain);
}

#[test]
fn who_was_alone_and_has_connections_is_asked_before_they_break() {
    let document = first();
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("weir.toml"), own(&directory)).expect("a file");
    let config = parsed(&directory, &document.text);
    let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
    let mut alone = over(plane, Found::default(), &config).expect("it starts");
    alone.save().expect("it can be kept");
    let (seed, plane) = (alone.services["a"].seed, std::mem::take(&mut alone.plane));
    assert_ne!(seed, document.services["a"].seed);
    drop(alone);
    let with = |plane, breaking| {
        let fleet = Some(begun(&directory, Some(document.clone()), false));
        over(plane, Found { resumed: true, breaking, fleet, ..Found::default() }, &config)
    };
    let memory = SoftMemory::new(10_000, 64, 64);
    let refused = with(plane, false).err().expect("it would break them").to_string();
    assert!(refused.contains("the fleet hashes it under another key"), "{refused}");
    let engine = with(Soft::new(memory), true).expect("it is asked for");
    assert_eq!(engine.services["a"].seed, document.services["a"].seed);
}

/// A store that takes each change.
struct Taking {
    runtime: tokio::runtime::Runtime,
    asks: mpsc::Receiver<Ask>,
    commands: Commands,
    report: watch::Sender<Report>,
    _sign: watch::Receiver<Sign>,
}

impl Taking {
    fn of(world: &mut World) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (asks, asked) = mpsc::channel(8);
        let (sign, signed) = watch::channel(Sign::default());
        let (report, reported) = watch::channel(Report::default());
        report.send_modify(|report| report.reachable = true);
        let (sender, commands) = channel(8).expect("descriptors");
        let fleet = world.engine.fleet.as_mut().expect("it is of one");
        fleet.keep_by(asks, sign, reported, sender);
        Self { runtime, asks: asked, commands, report, _sign: signed }
    }

    /// What becomes of a command, and the document that the store gets by it, with the revision that it replaces.
    fn ask(
        &mut self,
        world: &mut World,
        command: impl FnOnce(oneshot::Sender<commands::Done>) -> Command,
    ) -> (commands::Done, Option<(Document, i64)>) {
        let (reply, mut answer) = oneshot::channel();
        let guard = self.runtime.enter();
        world.engine.handle(command(reply));
        drop(guard);
        self.settle();
        let mut put = None;
        while let Ok(ask) = self.asks.try_recv() {
            let Ask::Put { document, expected, then } = ask else { continue };
            put = Some((*document, expected));
            let _ = then.send(Ok(expected + 1));
        }
        self.settle();
        let _guard = self.runtime.enter();
        self.commands.take(8, |command| {
            world.engine.handle(command);
            true
        });
        (answer.try_recv().expect("each command is answered"), put)
    }

    fn settle(&self) {
        self.runtime.block_on(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
    }

    fn hears(&self, world: &mut World, document: &Document, revision: i64) {
        self.report.send_modify(|report| report.change = document.change);
        world.hears(document, revision);
    }
}

fn apply(text: String) -> impl FnOnce(oneshot::Sender<commands::Done>) -> Command {
    let (file, break_connections, expect) = ("weir.toml".into(), false, None);
    let apply = Apply { file, text, break_connections, expect };
    move |reply| Command::Apply(Box::new(apply), reply)
}

/// Whatever the store has that this balancer does not follow, a whole text takes its place, and so does the one that is
/// in force; what would be made of a document that is not the fleet's any more says how to get out of that.
#[test]
fn a_whole_text_takes_the_place_of_what_is_not_followed() {
    let mut world = member(&first());
    let mut store = Taking::of(&mut world);
    let document = world.document(5, &shared(&[1, 2, 3]));
    store.hears(&mut world, &document, 5);
    assert_eq!(world.fleet_says(), "");
    let whole = text::join(&own(&world.directory), &document.text);
    let (said, put) = store.ask(&mut world, apply(whole.clone()));
    assert!(said.is_ok() && put.is_none(), "{said:?}: it is in force everywhere");

    // One that no balancer of this version can follow.
    let mut later = world.document(7, &shared(&[1, 2]));
    later.text = later.text.replace("name = \"a\"", "name = \"a\"\nnew_field = 1");
    later.by = "lb9".into();
    store.hears(&mut world, &later, 7);
    assert!(world.fleet_says().contains("new_field"), "{}", world.fleet_says());
    let weight = |reply| Command::Weight("a".into(), "b1".into(), 3, reply);
    let (refused, put) = store.ask(&mut world, weight);
    let refused = refused.expect_err("it would be made of an earlier one");
    let said = refused.to_string();
    assert!(
        said.contains("follows change 5, and not change 7 of the fleet (by lb9)")
            && said.contains("weir apply of the file that is right")
            && !said.contains("ask again"),
        "{said}"
    );
    assert!(refused.kind() == crate::engine::Kind::Conflict && put.is_none());
    let from = Source::Text { name: "weir.toml".into(), text: whole.as_str().into() };
    let plan = world.engine.plan_in_fleet(Some(from)).expect("it can be looked at");
    assert!(plan.changes && plan.settings[0].to == 8, "{:?}", plan.settings);
    // A file that is read again is none that somebody means.
    let reload = |reply| Command::Reload(false, reply);
    let (said, put) = store.ask(&mut world, reload);
    assert!(put.is_none(), "{said:?}");
    let said = said.expect("its own part is followed");
    assert!(said.contains("what the store has is not followed"), "{said}");
    let (said, put) = store.ask(&mut world, apply(whole.clone()));
    let said = said.expect("it is written");
    assert!(said.contains("change 8 of the fleet"), "{said}");
    let (put, expected) = put.expect("it is written");
    assert_eq!((put.change, &put.text, expected), (8, &document.text, 7));
    assert_eq!(world.fleet_says(), "");

    // And one that was restored from an old copy.
    store.hears(&mut world, &document, 3);
    assert!(world.fleet_says().contains("restored from a copy"), "{}", world.fleet_says());
    // A command means no whole text, and the others may follow a later one than this balancer.
    let (refused, put) = store.ask(&mut world, weight);
    let refused = refused.expect_err("the store has another one");
    assert!(refused.kind() == crate::engine::Kind::Conflict && put.is_none());
    let said = refused.to_string();
    assert!(said.contains("nothing has changed: the store has change 5"), "{said}");
    assert!(said.contains("weir apply on the one that is right"), "{said}");
    let (said, put) = store.ask(&mut world, apply(whole));
    let (put, expected) = put.unwrap_or_else(|| panic!("{said:?}"));
    assert_eq!((put.change, &put.text, expected), (9, &document.text, 3));
    assert_eq!(world.fleet_says(), "");
}

/// And so at the one whose document the store has, where others follow another one of that number, or a later one: the
/// store has lost what they follow.
#[test]
fn a_whole_text_takes_the_place_of_what_others_follow() {
    let mut world = member(&first());
    let mut store = Taking::of(&mut world);
    let document = world.document(5, &shared(&[1, 2, 3]));
    store.hears(&mut world, &document, 5);
    let whole = text::join(&own(&world.directory), &document.text);
    let says = |store: &Taking, change: u64, digest: &str| {
        let sign = Sign { id: "2".into(), change, digest: digest.into(), ..Sign::default() };
        store.report.send_modify(|report| drop(report.balancers.insert("lb2".into(), sign)));
    };
    // It follows the same, or is late.
    for (change, digest) in [(5, document.digest()), (4, "ff".to_owned())] {
        says(&store, change, &digest);
        let (said, put) = store.ask(&mut world, apply(whole.clone()));
        assert!(said.is_ok() && put.is_none(), "{said:?}");
    }
    let plan = |world: &World| {
        let from = Source::Text { name: "weir.toml".into(), text: whole.as_str().into() };
        world.engine.plan_in_fleet(Some(from)).expect("it can be looked at")
    };
    assert!(!plan(&world).changes);
    for (expected, (change, next)) in (5..).zip([(5, 6), (20, 21)]) {
        says(&store, change, "ff");
        let planned = plan(&world);
        assert!(planned.changes && planned.settings[0].to == next, "{:?}", planned.settings);
        // A file that is read again is none that somebody means.
        let (said, put) = store.ask(&mut world, |reply| Command::Reload(false, reply));
        assert!(put.is_none(), "{said:?}");
        let said = said.expect("it is in force here");
        assert!(said.contains("not followed by lb2: weir apply"), "{said}");
        let (said, put) = store.ask(&mut world, apply(whole.clone()));
        let said = said.expect("it is written");
        assert!(said.contains(&format!("change {next} of the fleet")), "{said}");
        let (put, replaced) = put.expect("it is written");
        assert_eq!((put.change, &put.text, replaced), (next, &document.text, expected));
        says(&store, next, &put.digest());
        assert!(!plan(&world).changes, "all follow it");
    }
}

/// Two documents of one number that decide alike are one, whoever has made them: nobody is behind.
#[test]
fn a_document_that_decides_alike_is_followed() {
    let mut world = member(&first());
    let document = world.document(5, &shared(&[1, 2, 3]));
    world.hears(&document, 5);
    let mut again = document.clone();
    (again.by, again.at) = ("lb2".into(), document.at + 1);
    world.hears(&again, 3);
    assert_eq!(world.fleet_says(), "");
    let another = world.document(5, &shared(&[1, 2]));
    world.hears(&another, 4);
    assert!(world.fleet_says().contains("restored from a copy"), "{}", world.fleet_says());
}

/// Where the speaker does not answer it is not known what is announced, which is not nothing.
#[test]
fn what_a_silent_speaker_announces_is_unknown() {
    let mut world = member(&first());
    let _store = Taking::of(&mut world);
    let (_keeper, _wanted, reports) = world.engine.announce().expect("nothing was announced");
    let route = weir_announce::Route::of("10.0.0.1".parse().expect("an address"));
    let mut says = |announced: Option<bool>| {
        reports.send_modify(|report| {
            let route = weir_announce::RouteReport { route, withheld: None, announced };
            report.routes = vec![route];
        });
        world.engine.tell_fleet();
        let status = world.engine.fleet_status().expect("it is of one");
        let sign = status.balancers.into_iter().find_map(|one| one.sign).expect("its own");
        (sign.announced, sign.announced_unknown)
    };
    let one = vec!["10.0.0.1/32".to_owned()];
    assert_eq!(says(Some(true)), (one.clone(), Vec::new()));
    assert_eq!(says(None), (Vec::new(), one));
    assert_eq!(says(Some(false)), (Vec::new(), Vec::new()));
}

/// Who cannot lend the tables that all have alike does not run for leader, and says why; of others nobody needs them.
#[test]
fn who_cannot_lend_tables_does_not_run_for_leader() {
    let mut world = member(&first());
    let _store = Taking::of(&mut world);
    let says = |world: &mut World| {
        world.engine.tell_fleet();
        let status = world.engine.fleet_status().expect("it is of one");
        let sign = status.balancers.into_iter().find_map(|one| one.sign).expect("its own");
        let said = (world.fleet_says(), status.disagreements.join("\n"));
        (sign.unfit, said)
    };
    let pem = world.directory.path().join("lb.pem");
    let ending = |year| {
        let mut wanted = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        wanted.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().expect("a key");
        std::fs::write(&pem, wanted.self_signed(&key).expect("a certificate").pem())
            .expect("written");
    };
    let agents = |world: &World, method: &str| {
        let agents = format!(
            "\n[agents]\nlisten = \"127.0.0.1:4479\"\ncertificate = {0:?}\nkey = {0:?}\nca = {0:?}\n",
            pem.display().to_string()
        );
        let services = shared(&[1, 2, 3]).replace(
            "method = \"cheetah\"\nanswers = \"backend\"",
            &format!("method = \"{method}\"\nstates = \"agents\""),
        );
        let text = text::join(&(own(&world.directory) + &agents), &services);
        Config::parse(&text, "weir.toml").expect("it can be used")
    };
    ending(2001);
    for (method, needed) in [("residue", false), ("concury", true)] {
        let config = agents(&world, method);
        world.engine.config = config.clone();
        world.engine.services.get_mut("a").expect("a service").configured =
            config.services[0].clone();
        world.engine.tell_listener();
        let (unfit, (own, all)) = says(&mut world);
        assert_eq!(unfit.is_some(), needed, "{unfit:?}");
        for said in [own, all] {
            assert_eq!(said.contains("does not run for leader: its certificate"), needed, "{said}");
            assert_eq!(said.contains("lb.pem) has ended"), needed, "{said}");
        }
    }
    // A new one counts when it is read.
    ending(3001);
    assert!(says(&mut world).0.is_some());
    world.engine.tell_listener();
    assert_eq!(says(&mut world).0, None);
    // And nobody can ask one for tables that cannot listen.
    let (listener, _listens) = watch::channel(None);
    let (trouble, troubled) = watch::channel(None);
    world.engine.hear_agents_by(listener, troubled);
    assert_eq!(says(&mut world).0, None);
    trouble.send_replace(Some("lb.pem: No such file or directory".to_owned()));
    let (unfit, _) = says(&mut world);
    assert!(unfit.expect("it is in the way").contains("lb.pem: No such file"));
}

/// Without the store nobody knows what the others do: they are not away, what they have said last is there, and why
/// nothing is heard is said as it is.
#[test]
fn who_is_not_heard_of_without_the_store_is_unknown() {
    let mut world = member(&first());
    let (asks, _asked) = mpsc::channel(1);
    let (sign, _signed) = watch::channel(Sign::default());
    let (report, reported) = watch::channel(Report::default());
    let (sender, _commands) = channel(16).expect("descriptors");
    world.engine.fleet.as_mut().expect("it is of one").keep_by(asks, sign, reported, sender);
    let others = |world: &World| {
        let status = world.engine.fleet_status().expect("it is of one");
        assert_eq!(status.disagreements, Vec::<String>::new());
        let own = status.balancers.iter().find(|one| one.name == status.name);
        assert_ne!(own.expect("itself").role, "unknown");
        let others = status.balancers.iter().filter(|one| one.name != status.name);
        let said = others.map(|one| format!("{} {} {}", one.name, one.role, one.sign.is_some()));
        said.collect::<Vec<_>>()
    };
    report.send_modify(|report| {
        (report.reachable, report.change) = (true, 1);
        report.members = ["lb2", "lb3"].map(String::from).into();
        let sign = Sign { id: "2".into(), change: 1, ..Sign::default() };
        report.balancers = BTreeMap::from([("lb2".to_owned(), sign)]);
    });
    assert_eq!(others(&world), ["lb2 serves true", "lb3 away false"]);
    let why = "/weir/config in the store cannot be used: it is of version 9";
    report.send_modify(|report| {
        (report.reachable, report.error) = (false, Some(why.into()));
        report.before = std::mem::take(&mut report.balancers);
    });
    assert_eq!(others(&world), ["lb2 unknown true", "lb3 unknown false"]);
    let refused = world.ask(|reply| Command::Drain("a".into(), "b1".into(), true, reply));
    let refused = refused.expect_err("the store takes nothing").to_string();
    assert_eq!(refused, format!("{why}; nothing has changed"));
}

/// A start without the store says for how long there was none, and not for how long it has looked itself.
#[test]
fn a_restart_counts_from_when_the_fleet_was_followed_last() {
    let mut world = member(&first());
    let at = serde_json::json!({ "boot": boot(), "seconds": world.engine.now() });
    std::fs::write(world.directory.path().join("followed.json"), at.to_string()).expect("a file");
    world.engine.begin_apart();
    world.engine.ahead += 40;
    let (asks, _asked) = mpsc::channel(1);
    let (sign, _signed) = watch::channel(Sign::default());
    let (report, reported) = watch::channel(Report::default());
    let (sender, _commands) = channel(16).expect("descriptors");
    world.engine.fleet.as_mut().expect("it is of one").keep_by(asks, sign, reported, sender);
    report.send_modify(|report| {
        (report.since, report.error) = (now(), Some("no answer".into()));
    });
    let seconds = world.engine.fleet_status().expect("it is of one").seconds;
    assert!((40..1_000_000).contains(&seconds), "{seconds}");
    assert!(!world.fleet_says().contains("store for 0 s"), "{}", world.fleet_says());
    // Where it answers, it is said since when it does.
    report.send_modify(|report| report.reachable = true);
    assert!(world.engine.fleet_status().expect("it is of one").seconds < 1_000_000);
}

/// A change stands in the history of each balancer by what it does, by who has asked which one, and by the fleet's
/// number, whether that one was asked or was told. Numbers of their own may differ.
#[test]
fn histories_name_changes_of_the_fleet_alike() {
    let document = first();
    let (mut asked, mut told) = (member(&document), member(&document));
    for world in [&asked, &told] {
        let file = text::join(&own(&world.directory), &document.text);
        std::fs::write(world.directory.path().join("weir.toml"), file).expect("a file");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (asks, mut put) = mpsc::channel(1);
    let (sign, _signed) = watch::channel(Sign::default());
    let (report, reported) = watch::channel(Report::default());
    report.send_modify(|report| (report.reachable, report.change) = (true, 1));
    let (sender, mut commands) = channel(16).expect("descriptors");
    asked.engine.fleet.as_mut().expect("it is of one").keep_by(asks, sign, reported, sender);
    asked.hears(&document, 1);
    told.engine.remember_own("what the other one has not done".into());
    asked.engine.asked_by(Who { name: "root".into(), uid: Some(0), pid: None });
    let (reply, answer) = oneshot::channel();
    let guard = runtime.enter();
    asked.engine.handle(Command::Drain("a".into(), "b1".into(), true, reply));
    drop(guard);
    let made = runtime.block_on(async {
        let asked = put.recv().await;
        let Some(Ask::Put { document, then, .. }) = asked else { panic!("it is proposed") };
        then.send(Ok(2)).expect("it waits for that");
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        document
    });
    let guard = runtime.enter();
    commands.take(16, |command| {
        asked.engine.handle(command);
        true
    });
    drop(guard);
    let said = runtime.block_on(answer).expect("it is answered").expect("it is done");
    assert_eq!(said, "backend b1 of a drains; change 2 of the fleet");
    told.hears(&made, 2);
    let last = |world: &World| {
        let entry = world.engine.history.entries().last().expect("there is one").clone();
        (entry.number, (entry.fleet, entry.who, entry.what, entry.done))
    };
    let ((one, here), (other, there)) = (last(&asked), last(&told));
    let who = Who::nobody(&format!("root@{}", asked.engine.config.balancer.name));
    let (what, done) = ("fleet".to_owned(), "backend b1 of a drains".to_owned());
    assert_eq!(here, (Some(2), who, what, done));
    assert_eq!(there, here);
    assert_ne!(one, other);
    // The file is what this change has made it, on both: nobody has edited it.
    for world in [&asked, &told] {
        let current = world.engine.history.current().map(|entry| entry.fleet);
        assert_eq!(current, Some(Some(2)));
        assert!(!world.directory.path().join("weir.toml.edited").exists());
    }
}

/// What is wrong with the fleet's document is told by its own lines: a file that has others there is not at fault.
#[test]
fn an_error_in_the_document_is_told_by_its_own_lines() {
    let document = first();
    let mut world = member(&document);
    let mut bad = world.document(2, &shared(&[1, 2]));
    bad.text = bad.text.replace("port = 80\n", "port = 80\nfuturefield = 1\n");
    let line = bad.text.lines().position(|line| line.starts_with("futurefield"));
    let place = format!("the fleet's document, change 2:{}: ", line.expect("it is there") + 1);
    world.hears(&bad, 2);
    let said = world.fleet_says();
    assert!(said.contains(&place) && said.contains("futurefield"), "{said}");
    assert!(!said.contains("weir.toml:"), "{said}");
}

/// A file gets the fleet's services when its balancer starts. What is lost by that is kept beside it, and nothing else
/// is: a balancer that joins has edited nothing, nor has one whose history has gone with its machine.
#[test]
fn what_a_start_replaces_is_kept_where_it_is_lost() {
    let document = first();
    let (of_fleet, older, other) = (document.text.clone(), shared(&[1, 2]), shared(&[7]));
    for (joined, left, stood, kept) in [
        (false, None, "", false),
        (false, None, &*of_fleet, false),
        (false, None, &*other, true),
        (true, Some(&older), &*older, false),
        (true, Some(&older), "", true),
        (true, Some(&older), &*other, true),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("weir.toml");
        let before = format!("# Mine.\n{}", text::join(&own(&directory), stood));
        std::fs::write(&path, &before).expect("a file");
        let config = parsed(&directory, &of_fleet);
        let own = text::split(&before).expect("it is TOML").own;
        let begun = begun(&directory, Some(document.clone()), joined);
        let begun = Begun { own: own.clone(), left: left.cloned(), ..begun };
        let found = Found { fleet: Some(begun), ..Found::default() };
        let plane = Soft::new(SoftMemory::new(10_000, 64, 64));
        let mut engine = over(plane, found, &config).expect("it starts");
        let (sender, _commands) = channel(16).expect("descriptors");
        assert!(engine.join_fleet(sender).is_some());
        let now = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(now, text::join(&own, &of_fleet));
        let edited = std::fs::read_to_string(directory.path().join("weir.toml.edited"));
        assert_eq!(edited.ok(), kept.then_some(before), "{joined} {stood:?}");
    }
}

/// An answer names the pools that change in step by this very change: none of a method that knows no steps, and none
/// that waits for an earlier one.
#[test]
fn an_answer_names_the_pools_of_this_change() {
    let of = |directory: &TempDir| {
        format!(
            "{}\n[agents]\nlisten = \"127.0.0.1:4479\"\ncertificate = \"/none.pem\"\nkey = \"/none.key\"\n\
             ca = \"/none-ca.pem\"\nlearn = \"60s\"\n",
            own(directory)
        )
    };
    let mut text = shared(&[1, 2]);
    for (name, vip) in [("c", "10.0.0.3"), ("d", "10.0.0.4")] {
        text += &format!(
            "[[service]]\nname = \"{name}\"\nvip = \"{vip}\"\nport = 80\nmethod = \"residue\"\nrows = 1024\n\
             states = \"agents\"\ncheck = {{ enabled = false }}\n"
        );
        for n in [1, 2] {
            text += &format!(
                "[[service.backend]]\nname = \"b{n}\"\naddress = \"10.9.1.{n}\"\nweight = 1\n"
            );
        }
    }
    let begin = |document: Option<Document>| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let own = of(&directory);
        std::fs::write(directory.path().join("weir.toml"), &own).expect("a file");
        let config = Config::parse(&text::join(&own, &text), "weir.toml").expect("it can be used");
        let joined = document.is_some();
        let fleet = Some(Begun { own, ..begun(&directory, document, joined) });
        let plane = Soft::new(SoftMemory::new(100_000, 1 << 14, 64));
        let engine = over(plane, Found { fleet, ..Found::default() }, &config).expect("it starts");
        let keys = engine.keys_for(&config).expect("there is room");
        (World { engine, live: HashMap::new(), directory }, keys)
    };
    let (_, keys) = begin(None);
    let document = Document::new(1, text.clone(), keys);
    let (mut world, _) = begin(Some(document.clone()));
    let store = Taking::of(&mut world);
    store.hears(&mut world, &document, 1);
    // What all have agreed on: both have been given other weights since.
    for name in ["c", "d"] {
        let share = |(n, weight): (u8, u32)| Share {
            name: format!("b{n}"),
            weight,
            drains: false,
            down: false,
        };
        let shares = [(1, 7), (2, 1)].map(share).to_vec();
        world.engine.services.get_mut(name).expect("it is there").agreed = Some(shares);
    }
    world.engine.fleet.as_mut().expect("it is of a fleet").stepping.made = 0;
    assert_eq!(world.engine.pools_that_wait(), ["c", "d"]);
    let said = |names: &[&str]| {
        let changed = names.iter().map(ToString::to_string).collect();
        world.engine.in_step_words(&changed)
    };
    assert_eq!(said(&["a"]), "");
    assert_eq!(said(&["a", "d"]), "; the pool of d changes in step with the others");
    assert_eq!(said(&["c", "d"]), "; the pools of c and d change in step with the others");
    let mut config = world.engine.config.clone();
    let heavier = config.services.iter_mut().find(|service| service.name == "d").expect("there");
    heavier.backends[0].weight = 3;
    let changed: Vec<String> = world.engine.pools_changed_by(&config).into_iter().collect();
    assert_eq!(changed, ["d"]);
}
