//! The lab itself: it is built, works, and goes away without a trace, however it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_lab::topology::{ECHO_PORT, INTERFACE, VIP4, VIP6, WEB_PORT};
use weir_lab::{Error, Lab, LabSpec};

/// Longest wait for anything: a machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn small() -> LabSpec {
    LabSpec { backends: 3, clients: 1, ..LabSpec::default() }
}

/// What a client of the lab gets from the web service at an address.
fn get(lab: &Lab, address: IpAddr) -> String {
    lab.clients()[0]
        .enter(|| {
            let mut stream = TcpStream::connect(SocketAddr::new(address, WEB_PORT)).unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\nHost: lab\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        })
        .unwrap()
}

fn echo(lab: &Lab, vip: IpAddr) -> String {
    lab.clients()[0]
        .enter(|| {
            let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            // Connected: an answer from another address than the VIP would not be received.
            socket.connect((vip, ECHO_PORT)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send(b"hello").unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        })
        .unwrap()
}

/// What is left of a lab: its namespaces, its directory, and processes that name the directory.
fn traces(id: &str) -> Vec<String> {
    let directory = format!("/run/weir-lab/{id}");
    let namespaces = fs::read_dir("/run/netns").unwrap().flatten();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    namespaces
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&format!("wl{id}-")))
        .chain(Path::new(&directory).exists().then(|| directory.clone()))
        .chain(processes.filter_map(|entry| {
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            line.contains(&directory).then_some(line)
        }))
        .collect()
}

fn assert_gone(id: &str) {
    let end = Instant::now() + PATIENCE;
    while !traces(id).is_empty() {
        assert!(Instant::now() < end, "left behind: {:?}", traces(id));
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_backend_answers_at_the_vip_and_at_its_own_address() {
    let lab = Lab::create(small()).unwrap();
    for backend in lab.backends() {
        let named = format!("X-Backend: {}\r\n", backend.name());
        for address in [backend.address4().into(), backend.address6().into()] {
            assert!(get(&lab, address).contains(&named), "{address}");
        }
        lab.bypass(0, Some(backend.index())).unwrap();
        for vip in [VIP4.into(), VIP6.into()] {
            assert!(get(&lab, vip).contains(&named), "{vip}");
            assert_eq!(echo(&lab, vip), format!("{}:hello", backend.name()));
        }
    }
}

#[test]
fn only_the_balancer_says_that_it_has_the_vip() {
    let lab = Lab::create(small()).unwrap();
    for vip in [IpAddr::from(VIP4), IpAddr::from(VIP6)] {
        let refused = lab.clients()[0]
            .enter(|| {
                let address = SocketAddr::new(vip, WEB_PORT);
                TcpStream::connect_timeout(&address, PATIENCE)
            })
            .unwrap();
        // The balancer's kernel has the address, and nothing listens there.
        let kind = refused.unwrap_err().kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionRefused, "{vip}");
    }
    let neighbours = lab.clients()[0]
        .command("ip")
        .unwrap()
        .args(["neigh", "show", "dev", INTERFACE])
        .output()
        .unwrap();
    let neighbours = String::from_utf8(neighbours.stdout).unwrap();
    for vip in [VIP4.to_string(), VIP6.to_string()] {
        let line = neighbours.lines().find(|line| line.starts_with(&format!("{vip} ")));
        assert!(line.is_some_and(|line| line.contains("02:77:00:00:ff:01")), "{neighbours}");
    }
}

#[test]
fn a_killed_backend_is_silent_until_it_is_started() {
    let lab = Lab::create(small()).unwrap();
    lab.bypass(0, Some(1)).unwrap();
    let before = Instant::now();
    lab.backend(1).kill();
    assert!(!lab.backend(1).is_running());
    assert!(lab.events().killed_since(1, before));
    let attempt = || TcpStream::connect((VIP4, WEB_PORT)).map(drop);
    let kind = lab.clients()[0].enter(attempt).unwrap().unwrap_err().kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    lab.backend(1).start().unwrap();
    assert!(get(&lab, VIP4.into()).contains("X-Backend: b1"));
    assert_eq!(echo(&lab, VIP4.into()), "b1:hello");
}

#[test]
fn labs_run_side_by_side_and_leave_nothing() {
    let first = Lab::create(small()).unwrap();
    let second = Lab::create(small()).unwrap();
    let id = first.id().to_string();
    assert_ne!(id, second.id());
    first.bypass(0, Some(0)).unwrap();
    second.bypass(0, Some(2)).unwrap();
    assert!(get(&first, VIP4.into()).contains("X-Backend: b0"));
    assert!(get(&second, VIP4.into()).contains("X-Backend: b2"));
    drop(first);
    assert_gone(&id);
    assert!(get(&second, VIP6.into()).contains("X-Backend: b2"));
    let id = second.id().to_string();
    drop(second);
    assert_gone(&id);
}

#[test]
fn a_lab_is_created_and_removed_in_seconds() {
    let started = Instant::now();
    let lab = Lab::create(LabSpec::default()).unwrap();
    let created = started.elapsed();
    drop(lab);
    let removed = started.elapsed() - created;
    println!("12 backends: created in {created:?}, removed in {removed:?}");
    // A bound that a busy machine keeps; alone it takes about 0.15 s and 0.03 s.
    assert!(created < PATIENCE && removed < PATIENCE);
}

#[test]
fn impossible_labs_are_refused() {
    for spec in [
        LabSpec { backends: 0, ..small() },
        LabSpec { clients: 1000, ..small() },
        LabSpec { big_rate: 0, ..small() },
    ] {
        assert!(matches!(Lab::create(spec), Err(Error::BadSpec(_))));
    }
}

/// The file that the helper writes its lab's id to.
const HELPER: &str = "WEIR_LAB_TEST_HELPER";

/// Not a test by itself: the process of the two tests below, which runs this one alone.
#[test]
fn helper_holds_a_lab_until_interrupted() {
    let Some(file) = std::env::var_os(HELPER) else {
        return;
    };
    weir_lab::catch_interrupts();
    let lab = Lab::create(small()).unwrap();
    fs::write(file, format!("{}\n", lab.id())).unwrap();
    weir_lab::sleep(PATIENCE * 5);
}

/// Starts the helper and waits until it has its lab.
fn start_helper(name: &str) -> (Child, String) {
    let file = std::env::temp_dir().join(format!("weir-lab-{name}-{}", std::process::id()));
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["helper_holds_a_lab_until_interrupted", "--exact"])
        .env(HELPER, &file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if let Some(id) = text.strip_suffix('\n') {
            fs::remove_file(&file).unwrap();
            return (helper, id.to_string());
        }
        sleep(Duration::from_millis(20));
    }
    helper.kill().unwrap();
    panic!("the helper made no lab: {:?}", helper.wait());
}

fn signal(child: &Child, name: &str) {
    let sent =
        Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn an_interrupted_lab_leaves_nothing() {
    let (mut helper, id) = start_helper("interrupted");
    assert!(traces(&id).len() > 3);
    signal(&helper, "INT");
    assert!(helper.wait().unwrap().success());
    assert_eq!(traces(&id), Vec::<String>::new());
}

/// Whoever ends a process may send the same to its group: a second signal does not keep it from removing what it has
/// made.
#[test]
fn a_lab_that_is_interrupted_twice_leaves_nothing() {
    let (mut helper, id) = start_helper("twice");
    signal(&helper, "TERM");
    signal(&helper, "TERM");
    assert!(helper.wait().unwrap().success());
    assert_eq!(traces(&id), Vec::<String>::new());
}

#[test]
fn a_dead_lab_is_swept_up_and_a_living_one_is_not() {
    let (mut helper, id) = start_helper("dead");
    let (mut living, living_id) = start_helper("living");
    // What a test has mounted in it goes with it.
    for (id, name) in [(&id, "disc"), (&id, "disc/inner"), (&living_id, "disc")] {
        let disc = format!("/run/weir-lab/{id}/{name}");
        fs::create_dir(&disc).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs", &disc]).status();
        assert!(mounted.unwrap().success());
    }
    signal(&helper, "KILL");
    helper.wait().unwrap();
    // Its servers have died with it, its namespaces wait to be swept.
    assert!(Path::new(&format!("/run/netns/wl{id}-sw")).exists() || traces(&id).is_empty());
    weir_lab::sweep().unwrap();
    assert_gone(&id);
    assert!(traces(&living_id).len() > 3);
    signal(&living, "TERM");
    assert!(living.wait().unwrap().success());
    assert_eq!(traces(&living_id), Vec::<String>::new());
}
