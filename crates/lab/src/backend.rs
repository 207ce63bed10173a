//! The servers of one backend: an nginx with what takes uploads behind it, a UDP echo server, and one of QUIC where a
//! lab has them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::{Agent, AgentSpec};
use crate::echo::Echo;
use crate::error::{Doing, Error, Result};
use crate::events::PoolEvents;
use crate::lab::LabSpec;
use crate::quic::{Identity, QuicServer};
use crate::topology::{self, Role, Topology};
use crate::uploads::Uploads;
use crate::work::Work;
use weir_testbed::NetNs;
use weir_testbed::cgroup::Cgroup;
use weir_testbed::interrupt::interrupted;
use weir_testbed::process;

/// Generous: a machine may be busy with other things.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A backend: a namespace with the VIP on its loopback, in which servers run or do not.
#[derive(Debug)]
pub struct Backend {
    index: usize,
    topology: Topology,
    name: String,
    netns: NetNs,
    directory: PathBuf,
    events: Arc<PoolEvents>,
    cgroup: Option<Cgroup>,
    works: bool,
    /// What its server of QUIC shows, if it has one.
    quic: Option<Arc<Identity>>,
    servers: Mutex<Option<Servers>>,
    agent_spec: Option<AgentSpec>,
    agent: Mutex<Option<Agent>>,
}

#[derive(Debug)]
struct Servers {
    nginx: Child,
    /// Held for their drops.
    _echo: Echo,
    _quic: Option<QuicServer>,
    _uploads: Uploads,
    work: Option<Work>,
}

impl Backend {
    pub(crate) fn new(
        index: usize,
        netns: NetNs,
        home: &Path,
        spec: &LabSpec,
        events: Arc<PoolEvents>,
        cgroup: Option<Cgroup>,
        quic: Option<Arc<Identity>>,
    ) -> Result<Self> {
        let name = Role::Backend(index).name();
        let directory = home.join(&name);
        fs::create_dir(&directory).doing(|| format!("creating {}", directory.display()))?;
        let config = directory.join("nginx.conf");
        fs::write(&config, nginx_config(&name, &directory, home, spec))
            .doing(|| format!("writing {}", config.display()))?;
        let (servers, agent) = (Mutex::new(None), Mutex::new(None));
        let agent_spec = spec.agent.clone();
        let topology = spec.topology;
        Ok(Self {
            index,
            topology,
            name,
            netns,
            directory,
            events,
            cgroup,
            works: spec.work,
            quic,
            servers,
            agent_spec,
            agent,
        })
    }

    /// Its position, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its name, `b<index>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its own IPv4 address.
    pub fn address4(&self) -> Ipv4Addr {
        topology::backend4(self.index)
    }

    /// Its own IPv6 address.
    pub fn address6(&self) -> Ipv6Addr {
        topology::backend6(self.index)
    }

    /// The hardware address of its interface.
    pub fn mac(&self) -> [u8; 6] {
        Role::Backend(self.index).mac()
    }

    /// The namespace in which its servers run.
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// The control group of its nginx, if the lab was asked for one. (The echo server is a thread of
    /// this process.)
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// How long its application has worked since its servers were started, if it has one
    /// ([`LabSpec::work`]) and they run.
    pub fn worked(&self) -> Option<Duration> {
        self.lock().as_ref()?.work.as_ref().map(Work::worked)
    }

    /// Whether its servers were started and not killed.
    pub fn is_running(&self) -> bool {
        self.lock().is_some()
    }

    /// Starts its servers and waits until they listen; does nothing if they run.
    pub fn start(&self) -> Result<()> {
        self.launch()?;
        self.await_listening()?;
        // Not before: whoever comes while they start is refused.
        self.events.revive(self.index);
        Ok(())
    }

    /// Starts its servers without waiting.
    pub(crate) fn launch(&self) -> Result<()> {
        let mut servers = self.lock();
        if servers.is_some() {
            return Ok(());
        }
        let log = self.directory.join("error.log");
        let log = File::create(&log).doing(|| format!("creating {}", log.display()))?;
        let own = self.topology.is_nat().then(|| (self.address4(), self.address6()));
        let echo = Echo::start(&self.netns, &self.name, own)?;
        let quic = self
            .quic
            .as_ref()
            .map(|identity| QuicServer::start(&self.netns, &self.name, identity, &self.quic_ids()));
        let quic = quic.transpose()?;
        let uploads = Uploads::start(&self.directory, &self.name)?;
        let work = self.works.then(|| Work::start(&self.directory, &self.name)).transpose()?;
        let mut nginx = self.netns.command("nginx")?;
        nginx
            .arg("-c")
            .arg(self.directory.join("nginx.conf"))
            .args(["-e", "stderr"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut nginx = process::spawn(nginx)?;
        let joined = self.cgroup.as_ref().map_or(Ok(()), |group| group.add(nginx.id()));
        if joined.is_err() {
            process::kill(&mut nginx);
        }
        joined?;
        *servers = Some(Servers { nginx, _echo: echo, _quic: quic, _uploads: uploads, work });
        Ok(())
    }

    pub(crate) fn await_listening(&self) -> Result<()> {
        let started = Instant::now();
        let address = SocketAddr::from((self.address4(), self.topology.web_port()));
        let listens = self.netns.enter(|| {
            while started.elapsed() < START_LIMIT && !interrupted() {
                if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                    return true;
                }
                if self.has_exited() {
                    return false;
                }
                thread::sleep(Duration::from_millis(5));
            }
            false
        })?;
        if listens {
            return Ok(());
        }
        if interrupted() {
            return Err(Error::Interrupted);
        }
        let log = fs::read_to_string(self.directory.join("error.log")).unwrap_or_default();
        Err(Error::NotReady {
            what: format!("nginx of {}", self.name),
            seconds: started.elapsed().as_secs_f64(),
            detail: format!(": {}", log.trim()),
        })
    }

    fn has_exited(&self) -> bool {
        match self.lock().as_mut() {
            Some(servers) => !matches!(servers.nginx.try_wait(), Ok(None)),
            None => true,
        }
    }

    /// Kills its servers as a crash would: SIGKILL, and the kernel resets what they had open. The
    /// kill is in [`PoolEvents`]. Does nothing if they do not run.
    pub fn kill(&self) {
        let mut servers = self.lock();
        if let Some(mut running) = servers.take() {
            self.events.kill(self.index, move || {
                process::kill(&mut running.nginx);
                drop(running);
            });
        }
    }

    /// Starts its agent, with these arguments beside those of the lab, and waits until its programs are
    /// attached; does nothing if one runs.
    ///
    /// # Errors
    /// [`Error::BadSpec`] in a lab without agents, [`Error::NotReady`] with what the agent said.
    pub fn start_agent(&self, arguments: &[&str]) -> Result<()> {
        let Some(spec) = &self.agent_spec else {
            return Err(Error::BadSpec("the lab's backends have no agents".into()));
        };
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        if agent.is_none() {
            let mut spec = spec.clone();
            spec.arguments.extend(arguments.iter().map(|&one| one.to_owned()));
            *agent = Some(Agent::start(&spec, &self.netns, &self.agent_log())?);
        }
        Ok(())
    }

    /// Kills its agent with SIGKILL; what that attached stays attached.
    pub fn kill_agent(&self) {
        drop(self.take_agent());
    }

    /// Asks its agent to end (SIGTERM). Returns whether it has ended by itself.
    pub fn stop_agent(&self) -> bool {
        self.take_agent().is_some_and(Agent::stop)
    }

    /// What its agents have said, one after the other.
    pub fn agent_log(&self) -> PathBuf {
        self.directory.join("agent.log")
    }

    /// Where its agent writes how its server of QUIC makes connection ids.
    pub fn quic_ids(&self) -> PathBuf {
        self.directory.join("quic-ids.toml")
    }

    fn take_agent(&self) -> Option<Agent> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Servers>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.kill_agent();
        self.kill();
    }
}

/// `master_process off` makes it one process, so that one SIGKILL takes it and none is left over.
fn nginx_config(name: &str, directory: &Path, home: &Path, spec: &LabSpec) -> String {
    let mut text = format!(
        "daemon off;\nmaster_process off;\nerror_log stderr warn;\n\
         pid {0}/nginx.pid;\nevents {{ worker_connections 16000; multi_accept on; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nodelay on;\n  keepalive_timeout 1h;\n  \
         keepalive_requests 1000000000;\n  lingering_close off;\n  server_tokens off;\n  \
         default_type text/plain;\n",
        directory.display()
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "  {kind}_temp_path {}/tmp;", directory.display());
    }
    text.push_str("  server {\n");
    for port in std::iter::once(&spec.topology.web_port()).chain(&spec.more_ports) {
        let _ = writeln!(text, "    listen {port} backlog=8192;");
        let _ = writeln!(text, "    listen [::]:{port} backlog=8192;");
    }
    if spec.work {
        let socket = Work::socket(directory);
        let _ = writeln!(
            text,
            "    location /work/ {{ proxy_pass http://unix:{}:; proxy_read_timeout 1h; }}",
            socket.display()
        );
    }
    let _ = writeln!(
        text,
        "    location = /upload {{ proxy_pass http://unix:{}:; proxy_request_buffering off; \
         client_max_body_size 0; client_body_timeout 1h; proxy_send_timeout 1h; proxy_read_timeout 1h; }}",
        Uploads::socket(directory).display()
    );
    let _ = write!(
        text,
        "    add_header X-Backend {name} always;\n    \
         location = / {{ return 200 \"{name}\\n\"; }}\n    \
         location = /big {{ root {home}; limit_rate {rate}; }}\n  }}\n}}\n",
        home = home.display(),
        rate = spec.big_rate,
    );
    text
}
