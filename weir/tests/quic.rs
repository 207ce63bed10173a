//! Real QUIC connections whose clients change address and port in the middle, while the pool
//! changes under them and keys are rotated: quinn on both ends, and a client of another stack.

mod common;
#[path = "quic/stack.rs"]
mod stack;

use common::{WEIR, alone, lab_of, log_tail, seed, start_spec};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stack::{Certificate, Mover};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_lab::topology::{self, Topology, VIP4};
use weir_lab::{Balancer, BalancerSpec, Fleet, Lab, LabSpec, PoolControl};

const QUIC: SocketAddr = SocketAddr::new(IpAddr::V4(VIP4), 4433);
const BACKENDS: usize = 5;
/// Backends that are there from the beginning.
const FIRST: usize = 3;
const MOVERS: usize = 24;
const KEYS: [&str; 2] = ["8f95f09245765f80256934e50c66207f", "fdf726a9893ec05c0632d3956680baf0"];

/// A QUIC configuration: three bytes of server id and nine of nonce take three passes of AES, eight
/// and four take four.
fn config(number: usize, lengths: (usize, usize), key: Option<&str>) -> String {
    let key = key.map_or(String::new(), |key| format!("key = \"{key}\"\n"));
    let (server_id, nonce) = lengths;
    assert_eq!(1 + server_id + nonce, stack::ID_LENGTH);
    format!(
        "\n[[service.quic.config]]\nconfig_id = {number}\nserver_id_length = {server_id}\n\
         nonce_length = {nonce}\n{key}"
    )
}

/// How packets get to the servers.
#[derive(Clone, Copy)]
enum Way {
    Frames,
    Tunnels,
    Nat,
}

impl Way {
    fn topology(self) -> Topology {
        match self {
            Self::Frames => Topology::L2,
            Self::Tunnels => Topology::Routed,
            Self::Nat => Topology::Nat,
        }
    }

    /// The service's line that says so.
    fn line(self) -> &'static str {
        match self {
            Self::Frames => "forward = \"l2\"",
            Self::Tunnels => "forward = \"ipip\"",
            Self::Nat => "forward = \"nat\"",
        }
    }

    /// Where a backend's server listens: translated packets have the backend's own address.
    fn listens(self, backend: usize) -> SocketAddr {
        match self {
            Self::Frames | Self::Tunnels => QUIC,
            Self::Nat => (topology::backend4(backend), QUIC.port()).into(),
        }
    }
}

/// The service with the first backends.
fn service(method: &str, quic: &str) -> String {
    service_by(Way::Frames, method, quic)
}

fn service_by(way: Way, method: &str, quic: &str) -> String {
    let mut text = format!(
        "\n[[service]]\nname = \"quic\"\nvip = \"{VIP4}\"\nprotocol = \"udp\"\nport = {}\n\
         method = \"{method}\"\n{}\n[service.check]\nenabled = false\n",
        QUIC.port(),
        way.line()
    );
    if !quic.is_empty() {
        text += &format!("[service.quic]\n{quic}");
    }
    for backend in 0..FIRST {
        let address = topology::backend4(backend);
        text += &format!("[[service.backend]]\nname = \"b{backend}\"\naddress = \"{address}\"\n");
    }
    text
}

struct World {
    lab: Arc<Lab>,
    balancer: Balancer,
    certificate: Arc<Certificate>,
    _servers: Vec<quinn::Endpoint>,
}

impl World {
    /// In a runtime.
    fn new(method: &str, quic: &str) -> Self {
        Self::by(Way::Frames, method, quic)
    }

    fn by(way: Way, method: &str, quic: &str) -> Self {
        let topology = way.topology();
        let lab = lab_of(LabSpec { backends: BACKENDS, topology, ..LabSpec::default() });
        let spec = BalancerSpec {
            more_services: service_by(way, method, quic),
            service_lines: way.line().into(),
            ..BalancerSpec::new(WEIR, FIRST)
        };
        let balancer = start_spec(&lab, spec);
        let certificate = Arc::new(Certificate::new());
        let file: PathBuf = balancer.socket().with_file_name("quic-quic.toml");
        let servers = (0..BACKENDS)
            .map(|backend| {
                let is = (format!("b{backend}"), topology::backend4(backend).into());
                let (netns, at) = (lab.backend(backend).netns(), way.listens(backend));
                stack::serve(&certificate, netns, at, is, &file)
            })
            .collect();
        Self { lab, balancer, certificate, _servers: servers }
    }

    fn command(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let said = self.balancer.command(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        println!("{}", said.trim_end());
    }

    /// Another [service.quic], by a reload.
    fn reconfigure(&self, former: &str, quic: &str) {
        let path = self.balancer.config();
        let text = std::fs::read_to_string(path).expect("the configuration");
        assert!(text.contains(former));
        std::fs::write(path, text.replace(former, quic)).expect("the configuration");
        self.command("reload");
    }

    fn ids(&self, outcome: &str) -> u64 {
        let status = self.balancer.status().expect("the status");
        let all = status["ids"].as_array().expect("what became of ids");
        let found = all.iter().find(|one| one["outcome"] == outcome);
        found.map_or(0, |one| one["packets"].as_u64().expect("a number"))
    }

    fn address(&self, client: usize, random: &mut StdRng) -> IpAddr {
        let number = random.random_range(0..self.lab.spec().addresses_per_client);
        topology::client4(client, number).into()
    }

    async fn open(&self, number: usize, random: &mut StdRng) -> Result<Mover, String> {
        let client = number % self.lab.clients().len();
        let from = self.address(client, random);
        Mover::open(&self.certificate, &self.lab.clients()[client], from, QUIC).await
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

/// Opens connections that move and ask until told to stop; returns what broke, and how often all of
/// them moved.
async fn keep_moving(
    world: &Arc<World>,
    stop: &Arc<AtomicBool>,
    seed: u64,
) -> tokio::task::JoinHandle<(Vec<String>, u64, u64)> {
    let (world, stop) = (Arc::clone(world), Arc::clone(stop));
    tokio::spawn(async move {
        let tasks: Vec<_> = (0..MOVERS)
            .map(|number| {
                let (world, stop) = (Arc::clone(&world), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut random = StdRng::seed_from_u64(seed ^ (number as u64) << 32);
                    // A part of them begins while the pool changes.
                    let pause = Duration::from_millis(random.random_range(0..4000));
                    tokio::time::sleep(pause).await;
                    let mut mover = world.open(number, &mut random).await?;
                    while !stop.load(Ordering::Relaxed) {
                        let address =
                            world.address(number % world.lab.clients().len(), &mut random);
                        mover.go_to(address);
                        for _ in 0..random.random_range(1..5) {
                            mover.check().await.map_err(|why| {
                                format!("{number} on {}, move {}: {why}", mover.server, mover.moved)
                            })?;
                            let pause = Duration::from_millis(random.random_range(0..100));
                            tokio::time::sleep(pause).await;
                        }
                    }
                    Ok((mover.moved, mover.asked))
                })
            })
            .collect();
        let (mut broken, mut moved, mut asked) = (Vec::new(), 0, 0);
        for task in tasks {
            match task.await.expect("a client") {
                Ok((moves, asks)) => (moved, asked) = (moved + moves, asked + asks),
                Err(why) => broken.push(why),
            }
        }
        (broken, moved, asked)
    })
}

fn unbroken(way: Way, method: &str, seed: u64) {
    let runtime = runtime();
    let _inside = runtime.enter();
    let plain = config(0, (2, 10), None);
    let world = Arc::new(World::by(way, method, &plain));
    let stop = Arc::new(AtomicBool::new(false));
    let moving = runtime.block_on(keep_moving(&world, &stop, seed));
    let wait = || std::thread::sleep(Duration::from_millis(800));
    let both = plain.clone() + &config(3, (3, 9), Some(KEYS[0]));
    let new = config(3, (3, 9), Some(KEYS[0])) + &config(1, (8, 4), Some(KEYS[1]));
    wait();
    world.command(&format!("backend add quic b3 {}", topology::backend4(3)));
    wait();
    world.command("backend drain quic b0");
    wait();
    world.command("backend weight quic b1 5");
    world.command(&format!("backend add quic b4 {}", topology::backend4(4)));
    wait();
    world.command("backend drain quic b0 --undo");
    world.command("backend drain quic b3");
    wait();
    stop.store(true, Ordering::Relaxed);
    let (broken, moved, asked) = runtime.block_on(moving).expect("clients");
    println!("plain: {moved} moves, {asked} answers");
    assert!(broken.is_empty(), "{broken:#?}\n{}", log_tail(&world.balancer, 30));
    assert!(moved > 3 * MOVERS as u64);

    // Rotation: the encrypted configuration is issued beside the plain one, whose ids go on being
    // read; then that goes, and another one comes. A reload makes the pool the file's.
    let stop = Arc::new(AtomicBool::new(false));
    let moving = runtime.block_on(keep_moving(&world, &stop, seed ^ 1));
    wait();
    world.reconfigure(&plain, &both);
    wait();
    world.command("backend weight quic b1 3");
    world.command("backend drain quic b2");
    wait();
    world.command(&format!("backend add quic b3 {}", topology::backend4(3)));
    wait();
    stop.store(true, Ordering::Relaxed);
    let (broken, moved, asked) = runtime.block_on(moving).expect("clients");
    println!("rotation: {moved} moves, {asked} answers");
    // Those of the backends that the reload has taken away are the only ones that may break.
    let inevitable = |why: &String| [" on b3,", " on b4,"].iter().any(|gone| why.contains(gone));
    let broken: Vec<_> = broken.into_iter().filter(|why| !inevitable(why)).collect();
    assert!(broken.is_empty(), "{broken:#?}\n{}", log_tail(&world.balancer, 30));

    world.reconfigure(&both, &new);
    let stop = Arc::new(AtomicBool::new(false));
    let moving = runtime.block_on(keep_moving(&world, &stop, seed ^ 2));
    wait();
    world.balancer.kill();
    wait();
    world.balancer.launch().expect("weir starts again");
    world.command("backend drain quic b1");
    wait();
    stop.store(true, Ordering::Relaxed);
    let (broken, moved, asked) = runtime.block_on(moving).expect("clients");
    println!("four passes, killed and started again: {moved} moves, {asked} answers");
    assert!(broken.is_empty(), "{broken:#?}\n{}", log_tail(&world.balancer, 30));
    for outcome in ["decoded", "remembered"] {
        let packets = world.ids(outcome);
        println!("{outcome}: {packets} packets");
        assert!(packets > 0, "{outcome}");
    }
}

#[test]
fn connections_move_while_the_pool_changes_and_keys_rotate() {
    let _alone = alone();
    let seed = seed();
    for method in ["concury", "tracked", "jet", "residue"] {
        unbroken(Way::Frames, method, seed);
    }
}

/// Through a router's network, which frames do not cross.
#[test]
fn connections_move_through_tunnels() {
    let _alone = alone();
    unbroken(Way::Tunnels, "concury", seed());
}

/// To servers that know nothing of the service, whose answers the balancer translates.
#[test]
fn connections_move_under_nat() {
    let _alone = alone();
    unbroken(Way::Nat, "concury", seed());
}

/// A connection of a fleet's client, and which client that is.
type Roamer = (usize, Mover);

/// Moves and asks until told to stop, and then once more.
async fn roam(
    (client, mut mover): Roamer,
    addresses: usize,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> Result<Roamer, String> {
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        let last = stop.load(Ordering::Relaxed);
        mover.go_to(topology::client4(client, random.random_range(0..addresses)).into());
        mover.check().await.map_err(|why| {
            format!("on {}, move {} of client {client}: {why}", mover.server, mover.moved)
        })?;
        if last {
            return Ok((client, mover));
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..150))).await;
    }
}

/// A fleet, with servers of QUIC on its backends that make ids as the first balancer says.
struct FleetWorld {
    lab: Arc<Lab>,
    fleet: Fleet,
    certificate: Certificate,
    runtime: tokio::runtime::Runtime,
    seed: u64,
    _servers: Vec<quinn::Endpoint>,
}

impl FleetWorld {
    fn new(quic: &str) -> Self {
        let (runtime, seed) = (runtime(), seed());
        let topology = Topology::Fleet;
        let lab = lab_of(LabSpec { backends: BACKENDS, topology, ..LabSpec::default() });
        // The servers of the web are as well as those of QUIC.
        let check = "interval = \"500ms\"\ntimeout = \"400ms\"\nrise = 2\nfall = 2\nport = 80";
        let spec = BalancerSpec {
            method: "tracked".into(),
            more_services: service("tracked", quic).replace("enabled = false", check),
            ..BalancerSpec::new(WEIR, FIRST)
        };
        let fleet = Fleet::start(&lab, &spec, seed).expect("a fleet of weir run");
        let certificate = Certificate::new();
        let file = fleet.balancers()[0].socket().with_file_name("quic-quic.toml");
        let inside = runtime.enter();
        let servers = (0..BACKENDS)
            .map(|backend| {
                let is = (format!("b{backend}"), topology::backend4(backend).into());
                stack::serve(&certificate, lab.backend(backend).netns(), QUIC, is, &file)
            })
            .collect();
        drop(inside);
        Self { lab, fleet, certificate, runtime, seed, _servers: servers }
    }

    /// Waits until all balancers follow the same.
    fn agree(&self) {
        let all = self.fleet.balancers();
        self.fleet.await_agreement(all.len(), common::PATIENCE).expect("all follow the same");
        let change = |one: &Balancer| {
            let text = one.command(&["fleet", "status", "--json"]).expect("it answers");
            let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            status["change"].as_u64()
        };
        common::eventually("all have followed the last change", || {
            let first = change(&all[0]);
            first.is_some() && all[1..].iter().all(|one| change(one) == first)
        });
    }

    /// A change that one balancer is asked for.
    fn command(&self, at: usize, line: &str) {
        println!("{}", common::command(&self.fleet.balancers()[at], line).trim_end());
        self.agree();
    }

    /// Another [service.quic], for all.
    fn apply(&self, at: usize, former: &str, quic: &str) {
        let text = std::fs::read_to_string(self.fleet.balancers()[at].config());
        let text = text.expect("the configuration");
        assert!(text.contains(former), "{text}");
        let file = self.lab.directory().join("quic.toml");
        std::fs::write(&file, text.replace(former, quic)).expect("a file");
        self.command(at, &format!("apply {}", file.display()));
    }

    /// Connections that begin while nothing changes: until a server has answered, the method leads them.
    fn open(&self, count: usize) -> Vec<Roamer> {
        let open = |number: usize| {
            let client = number % self.lab.clients().len();
            let addresses = self.lab.spec().addresses_per_client;
            let from = topology::client4(client, number % addresses).into();
            let netns = &self.lab.clients()[client];
            let opened = Mover::open(&self.certificate, netns, from, QUIC);
            (client, self.runtime.block_on(opened).expect("nothing changes"))
        };
        (0..count).map(open).collect()
    }

    /// Does something while connections move, and when flows are spread over balancers anew after it. None breaks.
    fn moving(&self, roamers: Vec<Roamer>, what: &str, work: impl FnOnce()) -> Vec<Roamer> {
        let stop = Arc::new(AtomicBool::new(false));
        let addresses = self.lab.spec().addresses_per_client;
        let tasks: Vec<_> = (0..)
            .zip(roamers)
            .map(|(number, one)| {
                self.runtime.spawn(roam(one, addresses, self.seed ^ number, Arc::clone(&stop)))
            })
            .collect();
        work();
        self.fleet.reshuffle().expect("the router's routes");
        stop.store(true, Ordering::Relaxed);
        let (mut kept, mut broken) = (Vec::new(), Vec::new());
        for task in tasks {
            match self.runtime.block_on(task).expect("a client") {
                Ok(one) => kept.push(one),
                Err(why) => broken.push(why),
            }
        }
        let log = || log_tail(&self.fleet.balancers()[0], 30);
        assert!(broken.is_empty(), "{what}: {broken:#?}\n{}", log());
        println!("{what}: 0 of {} broken", kept.len());
        kept
    }

    /// Packets that a balancer has led by their ids.
    fn led(&self, at: usize) -> u64 {
        let status = self.fleet.balancers()[at].status().expect("the status");
        let all = status["ids"].as_array().expect("what became of ids").iter();
        let led =
            all.filter(|one| ["decoded", "remembered"].iter().any(|by| one["outcome"] == *by));
        led.filter_map(|one| one["packets"].as_u64()).sum()
    }
}

/// All balancers of a fleet read an id alike: connections whose clients change address and port come to any of them,
/// while the pool changes, a balancer dies and is back with nothing in its memory, the store is away, and keys rotate.
#[test]
fn connections_move_between_the_balancers_of_a_fleet() {
    let _alone = alone();
    let (plain, hidden) = (config(0, (2, 10), None), config(3, (3, 9), Some(KEYS[0])));
    let only_plain = format!("issue = 0\n{plain}");
    let world = FleetWorld::new(&only_plain);
    let fleet = &world.fleet;
    let pause = || std::thread::sleep(Duration::from_millis(200));
    let mut roamers = world.open(MOVERS);
    roamers = world.moving(roamers, "flows spread anew", || {
        for _ in 0..4 {
            fleet.reshuffle().expect("the router's routes");
            pause();
        }
        // In turn, so that each leads some, whatever was drawn.
        for weights in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
            let at = weights.iter().position(|weight| *weight > 0).expect("one has it");
            let before = world.led(at);
            fleet.lead(&weights).expect("the router's routes");
            common::eventually("it leads by ids", || world.led(at) > before);
        }
    });
    roamers = world.moving(roamers, "backends come and drain", || {
        world.command(0, &format!("backend add quic b3 {}", topology::backend4(3)));
        fleet.reshuffle().expect("the router's routes");
        world.command(1, "backend drain quic b0");
        fleet.reshuffle().expect("the router's routes");
        world.command(2, "backend weight quic b1 5");
    });
    roamers = world.moving(roamers, "a balancer dies and is back", || {
        fleet.die(2).expect("it dies");
        pause();
        fleet.revive(2).expect("it is back");
        world.agree();
        fleet.lead(&[0, 0, 1]).expect("the router's routes");
        common::eventually("it leads by ids that it has never seen", || world.led(2) > 0);
    });
    fleet.lead_evenly().expect("the router's routes");
    world.agree();
    roamers.extend(world.open(8));
    roamers = world.moving(roamers, "without the store", || {
        fleet.kill_store();
        fleet.reshuffle().expect("the router's routes");
        fleet.balancers()[1].crash(Duration::ZERO).expect("it starts without the store");
        fleet.reshuffle().expect("the router's routes");
        fleet.revive_store().expect("etcd");
        world.agree();
    });

    // A key is read by all before servers make ids by it.
    let both = format!("{only_plain}{hidden}");
    let new_ids = both.replace("issue = 0", "issue = 3");
    roamers = world.moving(roamers, "a second key is read", || world.apply(1, &only_plain, &both));
    roamers = world.moving(roamers, "new ids have it", || world.apply(2, &both, &new_ids));
    let later = world.open(8);
    drop(roamers);
    let only_hidden = format!("issue = 3\n{hidden}");
    world.moving(later, "the first one goes", || world.apply(0, &new_ids, &only_hidden));
}

/// The same without QUIC ids: what the tests above hold together comes apart.
#[test]
fn without_ids_connections_that_move_break() {
    let _alone = alone();
    let mut random = StdRng::seed_from_u64(seed());
    let runtime = runtime();
    let _inside = runtime.enter();
    let world = World::new("concury", "");
    let broken = runtime.block_on(async {
        let mut broken = 0;
        for number in 0..MOVERS {
            let mut mover = world.open(number, &mut random).await.expect("it has not moved yet");
            mover.check().await.expect("it has not moved yet");
            mover.go_to(world.address(number % world.lab.clients().len(), &mut random));
            let check = tokio::time::timeout(Duration::from_secs(2), mover.check()).await;
            broken += usize::from(!matches!(check, Ok(Ok(()))));
        }
        broken
    });
    println!("{broken} of {MOVERS} broke");
    // Two of three go to another backend.
    assert!(broken > MOVERS / 3, "{broken}");
}

/// Downloads of another stack's client at a time, and rounds of them.
const DOWNLOADS: usize = 6;
const ROUNDS: usize = 3;
/// A client ends by itself, by its own timeouts; this is for one that does not.
const PATIENCE: Duration = Duration::from_secs(300);

/// ngtcp2's client (Debian: ngtcp2-client) changes its port in the middle of a download. It does so
/// by itself: after `--nat-rebinding` it has nothing to send, and would wait for a server that does
/// not know where it is. Meanwhile backends come, drain and change weight, keys rotate, and weir is
/// killed.
#[test]
fn clients_of_another_stack_move_while_the_pool_changes() {
    const CLIENT: &str = "gtlsclient";
    let _alone = alone();
    if std::process::Command::new(CLIENT).arg("--help").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "{CLIENT} is not installed: scripts/setup test");
        println!("skipped: {CLIENT} is not installed");
        return;
    }
    let runtime = runtime();
    let _inside = runtime.enter();
    let first = config(2, (4, 8), Some(KEYS[0]));
    let both = first.clone() + &config(3, (8, 4), Some(KEYS[1]));
    let world = World::new("concury", &first);
    let wait = || std::thread::sleep(Duration::from_millis(500));
    for round in 0..ROUNDS {
        let before = world.ids("decoded");
        let mut clients = Vec::new();
        for number in 0..DOWNLOADS {
            let directory = world.lab.directory().join(format!("download{round}-{number}"));
            std::fs::create_dir(&directory).expect("a directory");
            let client = &world.lab.clients()[number % world.lab.clients().len()];
            let mut command = client.command(CLIENT).expect("its namespace");
            let how = if number % 2 == 0 { "--no-pmtud" } else { "--disable-early-data" };
            // While the pool changes, each at another time.
            let moves = format!("--change-local-addr={}ms", 400 + 500 * number);
            command.args(["-q", "--exit-on-all-streams-close", &moves, how]);
            command.arg(format!("--download={}", directory.display()));
            let uri = format!("https://{}/file", stack::NAME);
            command.args([&QUIC.ip().to_string(), &QUIC.port().to_string(), &uri]);
            command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
            let errors = std::fs::File::create(directory.join("errors")).expect("a file");
            clients.push((command.stderr(errors).spawn().expect("running it"), directory));
        }
        // None of it takes a backend away, which would break what is there.
        match round {
            0 => {
                wait();
                world.command(&format!("backend add quic b3 {}", topology::backend4(3)));
                wait();
                world.command("backend drain quic b0");
                wait();
                world.command("backend weight quic b1 5");
                world.command(&format!("backend add quic b4 {}", topology::backend4(4)));
                wait();
                world.command("backend drain quic b0 --undo");
                world.command("backend drain quic b3");
            }
            1 => {
                wait();
                world.command("backend drain quic b2");
                wait();
                world.balancer.kill();
                wait();
                world.balancer.launch().expect("weir starts again");
                world.command("backend drain quic b2 --undo");
                wait();
                world.command("backend weight quic b0 4");
            }
            _ => {
                wait();
                world.command("backend drain quic b1");
                wait();
                world.command("backend drain quic b3 --undo");
                world.command("backend weight quic b2 2");
            }
        }
        let started = std::time::Instant::now();
        for (mut client, directory) in clients {
            let status = loop {
                if let Some(status) = client.try_wait().expect("its state") {
                    break status;
                }
                if started.elapsed() > PATIENCE {
                    client.kill().expect("it is ours");
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            let length = std::fs::metadata(directory.join("file")).map_or(0, |found| found.len());
            let said = std::fs::read_to_string(directory.join("errors")).unwrap_or_default();
            let log = || log_tail(&world.balancer, 30);
            assert!(status.success(), "{}: {said}\n{}", directory.display(), log());
            let whole = (stack::PARTS * stack::PART) as u64;
            assert_eq!(length, whole, "{}: {said}\n{}", directory.display(), log());
        }
        let decoded = world.ids("decoded");
        // Who starts again may count from nothing.
        let before = if round == 1 { 0 } else { before };
        assert!(
            decoded > before,
            "round {round}: {before} packets were led by a new id, {decoded}"
        );
        println!("round {round}: {DOWNLOADS} downloads whole");
        if round == 1 {
            // The last round's ids are by another key, that of the last configuration. A reload makes the pool the file's: it takes
            // backends away, and therefore comes between downloads.
            world.reconfigure(&first, &both);
            world.command(&format!("backend add quic b3 {}", topology::backend4(3)));
        }
    }
}

/// What an operator sees of it.
#[test]
fn ids_are_shown_and_explained() {
    let _alone = alone();
    let quic = config(5, (1, 11), None) + "[service.quic.server_ids]\nb1 = \"2a\"\n";
    let lab = lab_of(LabSpec { backends: BACKENDS, ..LabSpec::default() });
    let spec =
        BalancerSpec { more_services: service("concury", &quic), ..BalancerSpec::new(WEIR, FIRST) };
    let balancer = start_spec(&lab, spec);
    let client = format!("{}:4000", topology::client4(0, 0));
    let explain = |id: &str| {
        let vip = QUIC.to_string();
        let said = balancer.command(&["explain", "udp", &client, &vip, "--connection-id", id]);
        said.expect("it is explained")
    };
    let said = explain("a02a112233445566778899aabb");
    assert!(said.contains("server 2a in configuration 5") && said.contains("b1"), "{said}");
    let said = explain("a0ff112233445566778899aabb");
    assert!(said.contains("names server ff in configuration 5, which is none"), "{said}");
    assert!(said.contains("the method decides"), "{said}");
    let said = explain("e0ff112233445566778899aabb");
    assert!(said.contains("its server has no configuration"), "{said}");
    let said = explain("20ff112233445566778899aabb");
    assert!(said.contains("configuration 1, which is not known here"), "{said}");
    let wrong =
        balancer.command(&["explain", "udp", &client, &QUIC.to_string(), "--connection-id", "a"]);
    assert!(wrong.is_err_and(|why| why.to_string().contains("1 to 20 bytes in hexadecimal")));
    let status = balancer.command(&["status"]).expect("the status");
    assert!(
        status.contains("led by QUIC ids of configuration 5 (plain, 1 + 11 bytes, new ids)"),
        "{status}"
    );
    let file = balancer.socket().with_file_name("quic-quic.toml");
    let text = || std::fs::read_to_string(&file).expect("the servers' file");
    assert!(text().contains("server_id.5 = \"2a\""), "{}", text());
    let address = topology::backend4(FIRST).to_string();
    balancer.command(&["backend", "add", "quic", "b9", &address]).expect("it is added");
    assert!(text().contains("backend = \"b9\""), "{}", text());
    // There are keys in it: it goes with its service, and so does one that was not finished.
    let unfinished = file.with_extension("toml.tmp");
    std::fs::write(&unfinished, "").expect("the run directory takes it");
    let config = std::fs::read_to_string(balancer.config()).expect("the configuration");
    let parts = config.split("\n[[service]]\n");
    let others: Vec<&str> = parts.filter(|part| !part.contains("name = \"quic\"")).collect();
    let others = others.join("\n[[service]]\n");
    assert!(others.len() < config.len(), "{config}");
    std::fs::write(balancer.config(), others).expect("written");
    balancer.command(&["reload"]).expect("it is good");
    assert!(!file.exists() && !unfinished.exists());
}
