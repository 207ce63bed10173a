//! A check by a program of the operator's, in a process group of its own that is gone when the check is.

use std::io;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, User, geteuid};
use std::os::unix::process::ExitStatusExt;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::timeout;

use super::answer::{Good, Trouble};
use crate::config::Script;

/// Who scripts run as where weir runs as root, if nobody else is named.
const NOBODY: &str = "nobody";
/// Bytes of its output that are kept.
const OUTPUT: usize = 256;
/// How long its output may come after its end: what it left behind is killed then.
const AFTER: Duration = Duration::from_millis(100);

/// A process group, killed when this goes.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody is there any more, in the usual case. A number that was free for so short a time is not
        // given to another group: the kernel goes through all others first.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

/// Runs a script for one backend. Dropped half-way, it kills it.
pub(super) async fn run(script: &Script, address: SocketAddr) -> Result<Good, Trouble> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let filled = |word: &String| word.replace("{address}", &ip).replace("{port}", &port);
    let Some((program, arguments)) = script.command.split_first() else {
        return Err(Trouble::Host("no command".into()));
    };
    let cannot = |error: io::Error| Trouble::Host(format!("{program} cannot be run: {error}"));
    let (output, input) = io::pipe().map_err(cannot)?;
    let mut output = pipe::Receiver::from_owned_fd(output.into()).map_err(cannot)?;
    let mut command = Command::new(program);
    command
        .args(arguments.iter().map(filled))
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("WEIR_ADDRESS", &ip)
        .env("WEIR_PORT", &port)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(input.try_clone().map_err(cannot)?)
        .stderr(input)
        .process_group(0)
        .kill_on_drop(true);
    become_another(&mut command, script.user.as_deref())?;
    let mut child = command.spawn().map_err(cannot)?;
    // With it goes our end of its output.
    drop(command);
    let number = child.id().and_then(|id| i32::try_from(id).ok());
    let group = number.map(|id| Group(Pid::from_raw(id)));
    let mut said = Vec::new();
    let mut open = true;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(cannot)?,
            more = take(&mut output, &mut said), if open => open = more,
        }
    };
    drop(group);
    let rest = async { while open && take(&mut output, &mut said).await {} };
    let _ = timeout(AFTER, rest).await;
    judge(status, &said)
}

/// Reads on, and keeps the beginning. Whether there may be more.
async fn take(output: &mut pipe::Receiver, said: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 1024];
    match output.read(&mut bytes).await {
        Ok(0) | Err(_) => false,
        Ok(length) => {
            let room = OUTPUT - said.len();
            said.extend_from_slice(&bytes[..length.min(room)]);
            true
        }
    }
}

/// Who runs as root runs scripts as somebody else. Further groups are given up with the user.
fn become_another(command: &mut Command, user: Option<&str>) -> Result<(), Trouble> {
    let own = geteuid();
    if !own.is_root() && user.is_none() {
        return Ok(());
    }
    let name = user.unwrap_or(NOBODY);
    let found = User::from_name(name);
    let Ok(Some(user)) = found else {
        return Err(Trouble::Host(format!("there is no user {name} to run the script as")));
    };
    if own.is_root() {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    } else if own != user.uid {
        return Err(Trouble::Host(format!("only root can run a script as {name}")));
    }
    Ok(())
}

fn judge(status: ExitStatus, said: &[u8]) -> Result<Good, Trouble> {
    if status.success() {
        return Ok(Good::new("the script succeeded"));
    }
    let mut words = match (status.code(), status.signal()) {
        (Some(code), _) => format!("the script ended with {code}"),
        (None, Some(signal)) => format!("the script was killed by signal {signal}"),
        (None, None) => "the script has ended oddly".to_owned(),
    };
    let said = String::from_utf8_lossy(said);
    if let Some(line) = said.lines().map(str::trim).find(|line| !line.is_empty()) {
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        words += &format!(": {line}");
    }
    Err(Trouble::Answer(words))
}
