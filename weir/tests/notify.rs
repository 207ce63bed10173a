//! What a service manager hears: ready once the socket answers, alive while the engine answers, stopping.

mod common;

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Instant;

use common::{PATIENCE, WEIR, stdout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hear(socket: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 256];
    let length = socket.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

#[test]
fn a_service_manager_is_told() {
    let _alone = common::alone();
    let lab = common::lab(2);
    // An instance with its file, whose process is then another one.
    let balancer = common::start(&lab, "concury", 2);
    balancer.kill();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = lab.balancer_command(WEIR).unwrap();
    command.args(["run", "--config"]).arg(balancer.config());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut running = Running(command.stdin(Stdio::null()).stderr(log).spawn().unwrap());
    assert_eq!(hear(&socket).as_deref(), Some("READY=1"));
    let said = common::weir(&["status", "--socket", balancer.socket().to_str().unwrap()]);
    assert!(said.status.success(), "{}", stdout(&said));
    for _ in 0..3 {
        assert_eq!(hear(&socket).as_deref(), Some("WATCHDOG=1"));
    }
    // One that does not go on says nothing.
    let pid = Pid::from_raw(i32::try_from(running.0.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    let begin = Instant::now();
    // What was on its way is heard; then nothing is.
    while hear(&socket).is_some() {
        assert!(begin.elapsed() < PATIENCE, "it is stopped, and says that it is alive");
    }
    kill(pid, Signal::SIGCONT).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(hear(&socket).as_deref(), Some("WATCHDOG=1"));
    kill(pid, Signal::SIGTERM).unwrap();
    let last = std::iter::from_fn(|| hear(&socket)).find(|said| said != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    assert!(running.0.wait().unwrap().success());
}
