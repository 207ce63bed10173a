//! Backends by name: a real name server, whose answers change, whose answers are long, and that dies.

mod common;

use common::user_plane::enough;
use common::{PATIENCE, WEB4, WEIR, eventually};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use weir_lab::topology::WEB_PORT;
use weir_lab::{Balancer, BalancerSpec, Lab};

/// dnsmasq beside the balancer, for names under `test`.
struct Names {
    folder: PathBuf,
    process: Option<Child>,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.die();
    }
}

impl Names {
    fn new(lab: &Lab) -> Self {
        let folder = lab.directory().join("names");
        fs::create_dir_all(&folder).unwrap();
        Self { folder, process: None }
    }

    fn die(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Answers so from now on: lines of a hosts file, and of dnsmasq's own configuration.
    fn serve(&mut self, lab: &Lab, hosts: &str, more: &str) {
        self.die();
        let (file, config) = (self.folder.join("hosts"), self.folder.join("dnsmasq.conf"));
        fs::write(&file, hosts).unwrap();
        let text = format!(
            "keep-in-foreground\nport=5353\nlisten-address=127.0.0.1\nbind-interfaces\nno-resolv\nno-hosts\n\
             local=/test/\nlocal-ttl=1\nuser=root\npid-file=\naddn-hosts={}\n{more}\n",
            file.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = lab.balancer_command("dnsmasq").unwrap();
        command.arg(format!("--conf-file={}", config.display())).stdin(Stdio::null());
        self.process = Some(command.spawn().expect("dnsmasq"));
    }

    /// The name `web.test` has the addresses of these backends.
    fn web(&mut self, lab: &Lab, backends: &[usize]) {
        let line = |n: &usize| format!("{} web.test\n", lab.backend(*n).address4());
        self.serve(lab, &backends.iter().map(line).collect::<String>(), "");
    }
}

const METRICS: &str = "127.0.0.1:9469";
const ENTRY: &str = "name = \"dns\"\nservers = [\"127.0.0.1:5353\"]\nevery = \"1s\"\n";

/// The instance's file with an entry of the service web4, beside its backends or in their place.
fn write(balancer: &Balancer, good: &str, entry: &str, keep: bool) {
    let (head, rest) = good.split_once("\n[[service.backend]]").expect("web4 is the first service");
    let (own, others) = rest.split_once("\n[[service]]").expect("the next service");
    let own = if keep { format!("\n[[service.backend]]{own}") } else { String::new() };
    let text = format!("{head}\n{own}\n[[service.discover]]\n{entry}\n\n[[service]]{others}");
    fs::write(balancer.config(), text).unwrap();
}

fn called(lab: &Lab, backend: usize) -> String {
    format!("dns-{}", lab.backend(backend).address4())
}

/// The backends of web4 with their states, in the order of their names.
fn shown(status: &Value) -> Vec<(String, String)> {
    let web = common::service(status, "web4");
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    let all = web["backends"].as_array().unwrap().iter();
    let mut all: Vec<_> = all.map(|one| (text(one, "name"), text(one, "state"))).collect();
    all.sort();
    all
}

fn until(balancer: &Balancer, wanted: &[(String, &str)]) -> Value {
    let mut wanted: Vec<_> =
        wanted.iter().map(|(name, state)| (name.clone(), (*state).to_owned())).collect();
    wanted.sort();
    let (mut last, mut status) = (Vec::new(), Value::Null);
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        status = balancer.status().unwrap();
        last = shown(&status);
        if last == wanted {
            return status;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!(
        "not {wanted:?} but {last:?}: {}\n{}",
        status["warnings"],
        common::log_tail(balancer, 30)
    );
}

fn warned(balancer: &Balancer, words: &str) {
    let mut said = String::new();
    eventually(words, || {
        said = balancer.status().unwrap()["warnings"].to_string();
        said.contains(words)
    });
}

#[test]
fn a_pool_by_name_is_followed_and_nothing_breaks() {
    let _alone = common::alone();
    let lab = common::lab(4);
    let balancer_lines = format!("metrics = \"{METRICS}\"\n");
    let spec = BalancerSpec { balancer_lines, ..BalancerSpec::new(WEIR, 1) };
    let balancer = common::start_spec(&lab, spec);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let mut names = Names::new(&lab);
    names.web(&lab, &[1, 2]);
    write(&balancer, &good, &format!("{ENTRY}dns = \"web.test\""), true);
    common::command(&balancer, "reload");
    let b = |n: usize| if n == 0 { "b0".to_owned() } else { called(&lab, n) };
    until(&balancer, &[(b(0), "up"), (b(1), "up"), (b(2), "up")]);
    let mut held = common::hold(&lab, WEB4, 90);
    assert_eq!(common::spread(&held).len(), 3, "all three have connections");
    let traffic = common::mixed_traffic(&lab, 60);

    // One leaves with its connections, another one comes.
    names.web(&lab, &[2, 3]);
    let status = until(&balancer, &[(b(0), "up"), (b(1), "draining"), (b(2), "up"), (b(3), "up")]);
    let web = common::service(&status, "web4");
    let leaves = common::backend(web, &b(1));
    assert_eq!((&leaves["leaving"], &leaves["found_by"]), (&true.into(), &"dns".into()));
    assert_eq!(web["discover"][0]["leaving"], 1);
    held.extend(common::hold(&lab, WEB4, 60));
    common::assert_unbroken(&mut held, "after a change of the name", &balancer);
    assert_eq!(common::spread(&held).len(), 4, "the new one has connections");
    let text = balancer.command(&["status"]).unwrap();
    assert!(text.contains("looked up by dns (dns web.test): 2 backends, 1 leaving"), "{text}");
    let url = format!("http://{METRICS}/metrics");
    let read = lab.balancer().command("curl").unwrap().args(["-s", &url]).output().unwrap();
    let read = common::stdout(&read);
    for (name, value) in [("backends", 2), ("leaving", 1), ("left_out", 0)] {
        let line = format!("weir_discover_{name}{{service=\"web4\",discover=\"dns\"}} {value}");
        assert!(read.contains(&line), "no {line} in {read}");
    }

    // The last connection of the one that leaves ends, and it is gone.
    let leaving = lab.backend(1).name().to_owned();
    held.retain(|one| one.backend != leaving);
    enough(traffic);
    until(&balancer, &[(b(0), "up"), (b(2), "up"), (b(3), "up")]);
    common::assert_unbroken(&mut held, "without the one that has left", &balancer);
    let refused = common::try_command(&balancer, &format!("backend remove web4 {}", b(2)));
    assert!(refused.unwrap_err().contains("was looked up (discover dns)"));

    // Nobody answers: all stays, through a kill, too.
    let traffic = common::mixed_traffic(&lab, 60);
    names.web(&lab, &[2]);
    let stays = [(b(0), "up"), (b(2), "up"), (b(3), "draining")];
    until(&balancer, &stays);
    names.die();
    warned(&balancer, "discover dns: no answer about dns web.test in");
    common::kill_and_launch(&lab, &balancer, &mut held, "without a name server");
    until(&balancer, &stays);
    warned(&balancer, "no answer about dns web.test yet");
    // Somebody answers that there is no such name.
    names.web(&lab, &[]);
    warned(&balancer, "there is no name web.test");
    until(&balancer, &stays);
    common::assert_unbroken(&mut held, "without the name", &balancer);

    // It comes back with the connections that it has kept.
    names.web(&lab, &[2, 3]);
    let status = until(&balancer, &[(b(0), "up"), (b(2), "up"), (b(3), "up")]);
    assert!(common::service(&status, "web4")["discover"][0]["failure"].is_null());
    enough(traffic);
    common::assert_unbroken(&mut held, "at the end", &balancer);
    let plan = balancer.command(&["plan"]).unwrap();
    assert!(plan.contains("nothing would change"), "{plan}");
}

/// SRV records with priorities, weights and a port that cannot be; and an answer too long for a datagram.
#[test]
fn records_of_services_and_long_answers() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "residue", 1);
    let good = fs::read_to_string(balancer.config()).unwrap();
    let mut names = Names::new(&lab);
    let host = |n: usize| format!("{} h{n}.test\n", lab.backend(n).address4());
    let hosts: String = (0..3).map(host).collect();
    let odd = WEB_PORT + 1;
    let records = format!(
        "srv-host=_http._tcp.test,h0.test,{WEB_PORT},10,5\nsrv-host=_http._tcp.test,h1.test,{WEB_PORT},20,1\n\
         srv-host=_http._tcp.test,h2.test,{odd},10,1"
    );
    names.serve(&lab, &hosts, &records);
    // Nothing but names: the one in the file goes.
    write(&balancer, &good, &format!("{ENTRY}srv = \"_http._tcp.test\""), false);
    common::command(&balancer, "reload");
    let name = |n: usize| called(&lab, n);
    let status = until(&balancer, &[(name(0), "up"), (name(1), "backup")]);
    let found = common::backend(common::service(&status, "web4"), &name(0)).clone();
    assert_eq!(found["weight"], 5, "{found}");
    warned(&balancer, &format!("has port {odd}, and packets keep port {WEB_PORT}"));
    let mut held = common::hold(&lab, WEB4, 40);
    assert_eq!(common::spread(&held).len(), 1, "the backup has none");

    // A target that nobody knows: the answer does not count.
    let unknown = format!("srv-host=_http._tcp.test,h9.test,{WEB_PORT},10,1");
    names.serve(&lab, &hosts, &unknown);
    warned(&balancer, "there is no name h9.test");
    until(&balancer, &[(name(0), "up"), (name(1), "backup")]);

    // More than a datagram holds, and more than the entry takes.
    let many: String = (1..=200).map(|n| format!("10.77.0.{n} many.test\n")).collect();
    let own = format!("{} many.test\n", lab.backend(0).address4());
    names.serve(&lab, &(many + &own), "");
    let entry = format!("{ENTRY}dns = \"many.test\"\nmost = 1\n");
    write(&balancer, &good, &entry, false);
    common::command(&balancer, "reload");
    warned(&balancer, "there are most = 1 already");
    let status = balancer.status().unwrap();
    let seen = &common::service(&status, "web4")["discover"][0];
    assert_eq!((&seen["answered"], &seen["backends"]), (&201.into(), &1.into()), "{seen}");
    common::assert_unbroken(&mut held, "at the end", &balancer);
}
