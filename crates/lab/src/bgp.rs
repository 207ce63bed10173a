//! A router of a fleet that learns its routes by BGP: a BIRD on it, and a BIRD or a GoBGP beside each balancer, which
//! balancers tell what they announce.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::lab::Lab;
use crate::topology::{GATEWAY4, GATEWAY6, VIP4, VIP6, front4, front6};
use weir_testbed::interrupt::sleep;
use weir_testbed::{NetNs, process};

/// The speaker, of the package `bird2`.
const BIRD: &str = "/usr/sbin/bird";
/// The other one, of the package `gobgpd`.
const GOBGPD: &str = "/usr/bin/gobgpd";
/// The seed of the router's hash, by which it spreads flows. Linux 6.11 and later have it.
const HASH_SEED: &str = "ipv4/fib_multipath_hash_seed";
/// Autonomous systems of the router and of the balancers.
const AS_OF_ROUTER: u32 = 65_000;
const AS_OF_FLEET: u32 = 65_001;
/// Seconds until a neighbour that says nothing is dead: the least that BGP has (RFC 4271, section 4.2). A client waits
/// for longer.
const HOLD: u32 = 3;
const POLL: Duration = Duration::from_millis(50);

/// What a balancer tells what it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// BIRD, over its socket.
    Bird,
    /// GoBGP, by its API.
    Gobgp,
}

impl Speaker {
    /// Its program, and the package that has it.
    fn program(self) -> (&'static str, &'static str) {
        match self {
            Self::Bird => (BIRD, "bird2"),
            Self::Gobgp => (GOBGPD, "gobgpd"),
        }
    }
}

/// The speakers of a fleet and of its router. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Bgp {
    lab: Arc<Lab>,
    speaker: Speaker,
    folder: PathBuf,
    _router: Ended,
    /// Beside each balancer; none where the machine is off.
    members: Vec<Mutex<Option<Ended>>>,
}

/// A process that ends with this.
#[derive(Debug)]
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        process::kill(&mut self.0);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is missing here, in words.
fn missing(programs: &[(&Path, &str)], seed: &Path) -> Option<String> {
    if let Some((program, package)) = programs.iter().find(|(program, _)| !program.exists()) {
        return Some(format!(
            "a router with BGP needs {}: install the package {package} (Debian: apt install {package})",
            program.display()
        ));
    }
    (!seed.exists()).then(|| {
        format!(
            "flows of a router with BGP are spread anew by another seed of its hash, and this kernel has no {}: it \
             takes Linux 6.11",
            seed.display()
        )
    })
}

impl Bgp {
    /// Starts all speakers. Nobody announces anything yet.
    pub(crate) fn start(lab: &Arc<Lab>, speaker: Speaker) -> Result<Self> {
        let programs = [Speaker::Bird, speaker].map(Speaker::program);
        let programs = programs.map(|(program, package)| (Path::new(program), package));
        if let Some(why) = missing(&programs, &Path::new("/proc/sys/net").join(HASH_SEED)) {
            return Err(Error::Missing(why));
        }
        let Some(router) = lab.router() else {
            return Err(Error::BadSpec("a router with BGP is the one of a fleet".into()));
        };
        let folder = lab.directory().join("bird");
        fs::create_dir_all(&folder).doing(|| format!("creating {}", folder.display()))?;
        let text = of_router(lab.spec().balancers);
        let bgp = Self {
            _router: launch(router, &folder, "rt", &text)?,
            lab: Arc::clone(lab),
            speaker,
            folder,
            members: (0..lab.spec().balancers).map(|_| Mutex::default()).collect(),
        };
        (0..bgp.members.len()).try_for_each(|member| bgp.revive(member))?;
        Ok(bgp)
    }

    /// What a balancer's configuration says of its speaker.
    pub(crate) fn announce(&self, member: usize) -> String {
        let told = match self.speaker {
            Speaker::Bird => format!(
                "speaker = \"bird\"\nsocket = {:?}\nfile = {:?}",
                self.folder.join(format!("m{member}.ctl")),
                self.announced(member)
            ),
            Speaker::Gobgp => {
                format!("speaker = \"gobgp\"\napi = \"unix:{}\"", self.api(member).display())
            }
        };
        format!("\n[announce]\n{told}\nlearn_delay = \"1s\"\n")
    }

    /// Where a balancer writes what it announces.
    fn announced(&self, member: usize) -> PathBuf {
        self.folder.join(format!("m{member}.weir"))
    }

    /// Where a balancer's GoBGP listens for it.
    fn api(&self, member: usize) -> PathBuf {
        self.folder.join(format!("m{member}.sock"))
    }

    /// A balancer's speaker ends with its machine, and says nothing any more.
    pub(crate) fn kill(&self, member: usize) {
        *lock(&self.members[member]) = None;
    }

    /// A balancer's speaker begins with its machine, and has nothing to announce.
    pub(crate) fn revive(&self, member: usize) -> Result<()> {
        let (file, netns) = (self.announced(member), self.lab.front(member));
        for file in [&file, &self.api(member)] {
            if file.exists() {
                fs::remove_file(file).doing(|| format!("removing {}", file.display()))?;
            }
        }
        let name = format!("m{member}");
        let speaker = match self.speaker {
            Speaker::Bird => launch(netns, &self.folder, &name, &of_member(member, &file))?,
            Speaker::Gobgp => {
                let (config, log) = files(&self.folder, &name, &of_gobgp(member))?;
                let mut gobgpd = netns.command(GOBGPD)?;
                let api = format!("unix://{}", self.api(member).display());
                gobgpd.arg("-f").arg(&config).args(["--api-hosts", &api, "--pprof-disable"]);
                spawn(gobgpd, log)?
            }
        };
        *lock(&self.members[member]) = Some(speaker);
        Ok(())
    }

    /// The balancers that the router leads to, in order, and how many it leads IPv6 to.
    pub(crate) fn led_to(&self) -> Result<(Vec<usize>, usize)> {
        let Some(router) = self.lab.router() else { return Ok((Vec::new(), 0)) };
        let shown = |family: &str, vip: &str| -> Result<String> {
            let mut ip = router.command("ip")?;
            ip.args([family, "route", "show", vip]);
            Ok(process::run(ip, "")?)
        };
        let first = shown("-4", &VIP4.to_string())?;
        let second = shown("-6", &VIP6.to_string())?;
        Ok((members(&first, self.members.len()), hops(&second).count()))
    }

    /// Waits until the router leads to these balancers, in order, and to no other.
    pub(crate) fn await_led_to(&self, wanted: &[usize], patience: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let (found, of_v6) = self.led_to()?;
            if found == wanted && of_v6 == wanted.len() {
                return Ok(());
            }
            if begun.elapsed() > patience {
                return Err(Error::NotReady {
                    what: "the router".into(),
                    seconds: patience.as_secs_f64(),
                    detail: format!(
                        ": it is to lead to balancers {wanted:?}, and leads IPv4 to {found:?} and IPv6 to {of_v6} \
                         of them; logs are in {}",
                        self.folder.display()
                    ),
                });
            }
            if !sleep(POLL) {
                return Err(Error::Interrupted);
            }
        }
    }

    /// Gives the router's hash another seed: most flows go by another balancer afterwards than before.
    pub(crate) fn reseed(&self, seed: u32) -> Result<()> {
        let Some(router) = self.lab.router() else { return Ok(()) };
        // 0 is the kernel's own.
        Ok(router.sysctl(HASH_SEED, &seed.max(1).to_string())?)
    }
}

/// Starts BIRD by this configuration.
fn launch(netns: &NetNs, folder: &Path, name: &str, text: &str) -> Result<Ended> {
    let (config, log) = files(folder, name, text)?;
    let mut bird = netns.command(BIRD)?;
    bird.arg("-f").arg("-c").arg(&config).arg("-s").arg(folder.join(format!("{name}.ctl")));
    spawn(bird, log)
}

/// Writes a speaker's configuration, and opens its log.
fn files(folder: &Path, name: &str, text: &str) -> Result<(PathBuf, File)> {
    let config = folder.join(format!("{name}.conf"));
    fs::write(&config, text).doing(|| format!("writing {}", config.display()))?;
    let path = folder.join(format!("{name}.log"));
    let log = OpenOptions::new().create(true).append(true).open(&path);
    Ok((config, log.doing(|| format!("opening {}", path.display()))?))
}

fn spawn(mut speaker: Command, log: File) -> Result<Ended> {
    let second = log.try_clone().doing(|| "opening the log of a speaker".into())?;
    speaker.stdin(Stdio::null()).stdout(log).stderr(second);
    Ok(Ended(process::spawn(speaker)?))
}

/// What is the same at both ends of a session.
fn timers() -> String {
    format!("connect delay time 1; connect retry time 1; error wait time 1, 1; hold time {HOLD};")
}

/// The router's: what it learns goes into the kernel's table, several next hops together.
fn of_router(balancers: usize) -> String {
    let mut text = format!("router id {GATEWAY4};\nprotocol device {{ scan time 1; }}\n");
    for family in ["ipv4", "ipv6"] {
        let _ = writeln!(
            text,
            "protocol kernel {{ merge paths on; {family} {{ import none; export all; }}; }}"
        );
    }
    for member in 0..balancers {
        let (v4, v6) = (front4(member), front6(member));
        let _ = writeln!(
            text,
            "protocol bgp m{member}v4 {{ local {GATEWAY4} as {AS_OF_ROUTER}; neighbor {v4} as {AS_OF_FLEET}; {} \
             ipv4 {{ import all; export none; }}; }}\n\
             protocol bgp m{member}v6 {{ local {GATEWAY6} as {AS_OF_ROUTER}; neighbor {v6} as {AS_OF_FLEET}; {} \
             ipv6 {{ import all; export none; }}; }}",
            timers(),
            timers()
        );
    }
    text
}

/// A balancer's, as docs/announcing.md has it. The host's own table has nothing to do with it.
fn of_member(member: usize, announced: &Path) -> String {
    let (v4, v6) = (front4(member), front6(member));
    format!(
        "router id {v4};\nprotocol device {{ scan time 1; }}\ninclude \"{}*\";\n\
         protocol bgp router4 {{ local {v4} as {AS_OF_FLEET}; neighbor {GATEWAY4} as {AS_OF_ROUTER}; {} \
         ipv4 {{ import none; export where proto = \"weir4\"; }}; }}\n\
         protocol bgp router6 {{ local {v6} as {AS_OF_FLEET}; neighbor {GATEWAY6} as {AS_OF_ROUTER}; {} \
         ipv6 {{ import none; export where proto = \"weir6\"; }}; }}\n",
        announced.display(),
        timers(),
        timers()
    )
}

/// The same of a GoBGP, as docs/announcing.md has it.
fn of_gobgp(member: usize) -> String {
    let (v4, v6) = (front4(member), front6(member));
    let mut text = format!("[global.config]\n  as = {AS_OF_FLEET}\n  router-id = \"{v4}\"\n");
    let neighbours = [
        (GATEWAY4.to_string(), v4.to_string(), "ipv4-unicast"),
        (GATEWAY6.to_string(), v6.to_string(), "ipv6-unicast"),
    ];
    for (router, own, family) in neighbours {
        let _ = writeln!(
            text,
            "[[neighbors]]\n  [neighbors.config]\n    neighbor-address = \"{router}\"\n    peer-as = {AS_OF_ROUTER}\n  \
             [neighbors.transport.config]\n    local-address = \"{own}\"\n  \
             [neighbors.timers.config]\n    connect-retry = 1\n    hold-time = {HOLD}\n    keepalive-interval = 1\n  \
             [[neighbors.afi-safis]]\n    [neighbors.afi-safis.config]\n      afi-safi-name = \"{family}\""
        );
    }
    text
}

/// The next hops of what `ip route show` has printed.
fn hops(shown: &str) -> impl Iterator<Item = &str> {
    let mut words = shown.split_whitespace();
    std::iter::from_fn(move || {
        words.find(|word| *word == "via")?;
        words.next()
    })
}

/// The balancers that these routes of IPv4 lead to, in order.
fn members(shown: &str, balancers: usize) -> Vec<usize> {
    let of = |hop: &str| (0..balancers).find(|member| front4(*member).to_string() == hop);
    let mut found: Vec<usize> = hops(shown).filter_map(of).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_to_install() {
        let (here, none) = (Path::new("/"), Path::new("/none/bird"));
        let said = missing(&[(here, "gobgpd"), (none, "bird2")], here).expect("it is missing");
        assert!(said.contains("/none/bird: install the package bird2"), "{said}");
        let said = missing(&[(here, "bird2")], none).expect("it is missing");
        assert!(said.contains("Linux 6.11"), "{said}");
        assert_eq!(missing(&[(here, "bird2")], here), None);
    }

    #[test]
    fn next_hops_are_read_of_one_and_of_many() {
        let one = "10.77.0.100 via 10.77.0.3 dev eth0 proto bird metric 32 \n";
        let many = "10.77.0.100 proto bird metric 32 \n\tnexthop via 10.77.0.4 dev eth0 weight 1 \n\
                    \tnexthop via 10.77.0.2 dev eth0 weight 1 \n";
        assert_eq!((members(one, 3), members(many, 3)), (vec![1], vec![0, 2]));
        assert_eq!((members("", 3), hops(many).count()), (Vec::new(), 2));
    }

    #[test]
    fn each_balancer_has_two_sessions() {
        let router = of_router(3);
        for member in 0..3 {
            let own = of_member(member, Path::new("/run/x/m.weir"));
            assert!(own.contains("include \"/run/x/m.weir*\";"), "{own}");
            let other = of_gobgp(member);
            for neighbour in [front4(member).to_string(), front6(member).to_string()] {
                assert!(other.contains(&format!("local-address = \"{neighbour}\"")), "{other}");
                assert!(router.contains(&format!("neighbor {neighbour} as 65001;")), "{router}");
                assert!(own.contains(&format!("local {neighbour} as 65001;")), "{own}");
            }
        }
        assert_eq!(router.matches("hold time 3;").count(), 6);
    }
}
