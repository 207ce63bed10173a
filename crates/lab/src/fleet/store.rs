//! The store of a fleet: a real etcd on the router, which stands still, is killed, is started again and forgets.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Fleet, lock};
use crate::api;
use crate::error::{Doing, Error, Result};
use crate::topology::STORE4;
use weir_testbed::process;

/// Where etcd listens for balancers.
const CLIENT_PORT: u16 = 2379;
/// Where it would listen for other members of its cluster.
const PEER_PORT: u16 = 2380;

/// Where balancers find it.
pub(super) fn endpoint() -> String {
    format!("http://{STORE4}:{CLIENT_PORT}")
}

impl Fleet {
    /// Starts etcd, with the data that it has.
    pub(super) fn launch_store(&self) -> Result<()> {
        let Some(router) = self.lab.router() else {
            return Err(Error::BadSpec("the topology fleet has a router".into()));
        };
        let path = self.folder.join("log");
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.doing(|| format!("opening {}", path.display()))?;
        let second = log.try_clone().doing(|| format!("opening {}", path.display()))?;
        let (client, peer) = (endpoint(), format!("http://127.0.0.1:{PEER_PORT}"));
        let mut etcd = router.command("etcd")?;
        etcd.arg("--data-dir")
            .arg(self.folder.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second);
        *lock(&self.store) = Some(process::spawn(etcd)?);
        Ok(())
    }

    /// Kills etcd with SIGKILL.
    pub fn kill_store(&self) {
        if let Some(mut store) = lock(&self.store).take() {
            process::kill(&mut store);
        }
    }

    /// Starts it again, with the data that it had.
    ///
    /// # Errors
    /// What the system said.
    pub fn revive_store(&self) -> Result<()> {
        self.launch_store()
    }

    /// Lets etcd stand still, or go on.
    pub fn pause_store(&self, pause: bool) {
        if let Some(store) = &*lock(&self.store) {
            let signal = if pause { Signal::SIGSTOP } else { Signal::SIGCONT };
            // It may have ended, which its next use shows.
            let _ = kill(Pid::from_raw(store.id() as i32), signal);
        }
    }

    /// The folder of etcd's data and log.
    pub fn store_folder(&self) -> &Path {
        &self.folder
    }

    /// Lets etcd forget all that was before what it has now. Whoever was away and goes on from there is told so.
    ///
    /// # Errors
    /// What the system said, or etcd.
    pub fn compact_store(&self) -> Result<()> {
        // The header of any answer has the revision.
        let found = self.ask_store("range", r#"{"key":"AA==","limit":"1"}"#)?;
        let revision = found["header"]["revision"].as_str().unwrap_or_default();
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.ask_store("compaction", &body).map(drop)
    }

    fn ask_store(&self, what: &str, body: &str) -> Result<Value> {
        let Some(router) = self.lab.router() else {
            return Err(Error::BadSpec("the topology fleet has a router".into()));
        };
        let path = format!("/v3/kv/{what}");
        let ask = || {
            let at = SocketAddr::from((STORE4, CLIENT_PORT));
            let stream = TcpStream::connect_timeout(&at, api::PATIENCE)?;
            stream.set_read_timeout(Some(api::PATIENCE))?;
            api::ask(stream, "POST", &path, body)
        };
        let answer = router.enter(ask)?.doing(|| format!("asking etcd for {what}"))?;
        let refused = |answer| Error::Refused { request: format!("POST {path} at etcd"), answer };
        let text = answer.map_err(refused)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::BadFile { path: path.into(), what: error.to_string() })
    }
}
