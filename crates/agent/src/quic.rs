//! How this host's servers make QUIC connection ids, as balancers say it: a file for the servers, and word to them
//! when it has changed (docs/quic.md).

use crate::error::{Context, Error};
use crate::speak::{Balancer, Say};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use weir_rpc::quic::{Config, Service};

/// What each balancer has said last.
pub type Said = BTreeMap<Balancer, Vec<Service>>;

/// A command that takes longer is killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// What could not be written, or whom nobody could be told, is tried again after so long.
const AGAIN: Duration = Duration::from_secs(2);
/// A file that is there stays for so long after the start: the first balancer that speaks may be ahead of others in a
/// rotation, and servers are to make no id that one of these cannot read.
const SETTLES: Duration = Duration::from_secs(5);

/// Where it is written, and who is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The file.
    pub file: PathBuf,
    /// Who is told when it has changed.
    pub notify: Option<Notify>,
}

/// Who is told when the file has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notify {
    /// A program with its arguments, without a shell.
    Command(Vec<String>),
    /// The process whose number stands in a file gets a signal.
    Signal(Signal, PathBuf),
}

impl FromStr for Notify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, path)) = text.split_once(':')
            && !name.contains(['/', ' '])
        {
            let full = if name.starts_with("SIG") { name.into() } else { format!("SIG{name}") };
            let signal = full.parse::<Signal>();
            let signal = signal.map_err(|_| format!("{name} is no signal, as HUP or USR1 is"))?;
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                return Err(
                    "after a signal stands the absolute path of a file with a process's number"
                        .into(),
                );
            }
            return Ok(Self::Signal(signal, path));
        }
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if !words.first().is_some_and(|program| program.starts_with('/')) {
            return Err(
                "is not SIGNAL:PIDFILE, nor a command that begins with an absolute path".into()
            );
        }
        Ok(Self::Command(words))
    }
}

impl Notify {
    /// Tells them, and waits until a command has ended.
    fn tell(&self, file: &Path) -> Result<(), String> {
        match self {
            Self::Signal(signal, path) => {
                let text = fs::read_to_string(path).map_err(|error| wrong(path, &error))?;
                let pid = text.trim().parse::<i32>().ok().filter(|pid| *pid > 1);
                let pid =
                    pid.ok_or_else(|| format!("{}: it has no process's number", path.display()))?;
                kill(Pid::from_raw(pid), *signal)
                    .map_err(|error| format!("process {pid} of {}: {error}", path.display()))
            }
            Self::Command(words) => run(words, file),
        }
    }
}

fn wrong(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn run(words: &[String], file: &Path) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).env("WEIR_QUIC_LB_FILE", file);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|error| wrong(Path::new(program), &error))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{program}: {status}")),
            Ok(None) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "{program}: not ended within {} s, and killed",
                    PATIENCE.as_secs()
                ));
            }
            Err(error) => return Err(wrong(Path::new(program), &error)),
        }
    }
}

/// All that balancers say, each service once, and in words where they disagree.
///
/// New ids are made by a configuration that all have by which packets come, so that each of them can read what any
/// server has made: while balancers follow a rotation one after the other, the one before stays.
fn merge(said: &Said, before: &[Service]) -> (Vec<Service>, BTreeSet<String>) {
    let mut words = BTreeSet::new();
    let mut all: BTreeMap<(&str, std::net::IpAddr), Vec<(&Balancer, &Service)>> = BTreeMap::new();
    for (balancer, one) in said.iter().flat_map(|(at, all)| all.iter().map(move |one| (at, one))) {
        all.entry((&one.service, one.address)).or_default().push((balancer, one));
    }
    let merged = all.into_iter().map(|((name, address), each)| {
        let mut configs: BTreeMap<u8, &Config> = BTreeMap::new();
        for (balancer, config) in
            each.iter().flat_map(|(at, one)| one.configs.iter().map(move |config| (at, config)))
        {
            let first = configs.entry(config.config_id).or_insert(config);
            if *first != config {
                words.insert(format!(
                    "service {name}: balancer {balancer} has another configuration {} of QUIC ids than \
                     {}, which counts",
                    config.config_id, each[0].0
                ));
            }
        }
        let common = |issue: u8| {
            each.iter().all(|(_, one)| {
                one.configs.iter().any(|own| own.config_id == issue && configs[&issue] == own)
            })
        };
        let wanted: BTreeSet<u8> = each.iter().map(|(_, one)| one.issue).collect();
        let old = before.iter().find(|one| one.service == name && one.address == address);
        let old = old.map(|one| one.issue).filter(|issue| configs.contains_key(issue));
        let issue = match (wanted.len(), each[0].1.issue) {
            (1, issue) if common(issue) => issue,
            (_, first) => {
                // Not all are there yet.
                let rest = old.into_iter().chain(wanted.iter().copied());
                rest.into_iter().find(|issue| common(*issue)).unwrap_or(first)
            }
        };
        Service {
            service: name.to_owned(),
            backend: each[0].1.backend.clone(),
            address,
            issue,
            configs: configs.into_values().cloned().collect(),
        }
    });
    (merged.collect(), words)
}

/// A text as TOML has it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The file for the servers, as docs/quic.md describes it.
fn text(all: &[Service]) -> String {
    let mut out = "# Written by weir agent for the servers on this host: how they make connection ids, as\n\
                   # draft-ietf-quic-load-balancers-21 says. docs/quic.md describes it. Keys are secret.\n"
        .to_owned();
    for one in all {
        let Service { service, backend, address, issue, configs } = one;
        let (service, backend) = (quoted(service), quoted(backend));
        let _ = write!(
            out,
            "\n[[service]]\nname = {service}\nbackend = {backend}\naddress = \"{address}\"\nissue = {issue}\n"
        );
        for config in configs {
            let _ = write!(
                out,
                "\n[[service.config]]\nconfig_id = {}\nserver_id = \"{}\"\nserver_id_length = {}\n\
                 nonce_length = {}\nencode_length = {}\n",
                config.config_id,
                hex(&config.server_id),
                config.server_id.len(),
                config.nonce_length,
                config.encode_length
            );
            if let Some(key) = &config.key {
                let _ = writeln!(out, "key = \"{}\"", hex(&key.0));
            }
        }
    }
    out
}

/// Whole or not at all, and for its owner alone; whoever owns the file before it owns this one.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let what = || format!("write {}", path.display());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Of one that was killed; nobody's link is followed.
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new).context(what)?;
    if let Ok(before) = fs::symlink_metadata(path)
        && before.is_file()
    {
        use std::os::unix::fs::MetadataExt;
        // The server may run as somebody else, who may read it once the file was given to him.
        std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid())).context(what)?;
    }
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).context(what)?;
    fs::rename(&new, path).context(what)
}

/// Writes the file whenever balancers say something else, and tells who is to be told, until nobody speaks any more.
pub(crate) async fn keep(options: Options, said: watch::Receiver<Said>, say: Say) {
    keep_after(SETTLES, options, said, say).await;
}

/// The same; a file that is there stays for this time.
async fn keep_after(
    settles: Duration,
    options: Options,
    mut said: watch::Receiver<Said>,
    say: Say,
) {
    let Options { file, notify } = options;
    let begun = Instant::now();
    let settles = if file.exists() { settles } else { Duration::ZERO };
    let (mut before, mut words, mut trouble) = (Vec::new(), BTreeSet::new(), String::new());
    let mut told = true;
    loop {
        let all = said.borrow_and_update().clone();
        // Before anybody has spoken nothing is known, and the file of an agent before this one stays.
        if !all.is_empty() {
            let left = settles.saturating_sub(begun.elapsed());
            if !left.is_zero() {
                match timeout(left, said.changed()).await {
                    Ok(Err(_)) => return,
                    _ => continue,
                }
            }
            let (now, new) = merge(&all, &before);
            for word in BTreeSet::difference(&new, &words) {
                say(format_args!("warning: {word}"));
            }
            (before, words) = (now, new);
            let (path, text) = (file.clone(), text(&before));
            let (notify, untold) = (notify.clone(), !told);
            let done =
                tokio::task::spawn_blocking(move || bring(&path, &text, notify.as_ref(), untold));
            let done =
                done.await.unwrap_or_else(|_| Err((false, "the writer has panicked".into())));
            let found = match done {
                Ok(true) => {
                    let services = before.len();
                    let path = file.display();
                    say(format_args!("{path}: written, with {services} services with QUIC ids"));
                    (true, String::new())
                }
                Ok(false) => (true, String::new()),
                Err((written, why)) => (!written, why),
            };
            if found.1 != trouble && !found.1.is_empty() {
                say(format_args!("QUIC ids: {}; tried again", found.1));
            }
            (told, trouble) = found;
        }
        let changed = said.changed();
        let over = match trouble.is_empty() {
            true => changed.await.is_err(),
            false => matches!(timeout(AGAIN, changed).await, Ok(Err(_))),
        };
        if over {
            return;
        }
    }
}

/// Writes the file if it is another one, and tells who is to be told of that, or was not told the last time. Returns
/// whether anything was done; an error with whether the file stands there and nobody was told of it.
fn bring(
    path: &Path,
    text: &str,
    notify: Option<&Notify>,
    untold: bool,
) -> Result<bool, (bool, String)> {
    let same = match fs::read(path) {
        Ok(there) => there == text.as_bytes(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err((untold, wrong(path, &error))),
    };
    if same && !untold {
        return Ok(false);
    }
    if !same {
        write(path, text).map_err(|error| (untold, error.to_string()))?;
    }
    let told = notify.map_or(Ok(()), |notify| notify.tell(path));
    told.map(|()| true).map_err(|why| (true, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_rpc::quic::Key;

    fn config(config_id: u8, key: u8) -> Config {
        Config {
            config_id,
            server_id: vec![10, 91],
            nonce_length: 8,
            key: Some(Key([key; 16])),
            encode_length: false,
        }
    }

    fn service(issue: u8, configs: &[Config]) -> Service {
        Service {
            service: "h\"3".into(),
            backend: "b1".into(),
            address: "10.0.0.11".parse().expect("an address"),
            issue,
            configs: configs.to_vec(),
        }
    }

    fn said(all: &[(&str, Service)]) -> Said {
        let one = |(who, service): &(&str, Service)| {
            (who.parse().expect("a balancer"), vec![service.clone()])
        };
        all.iter().map(one).collect()
    }

    /// At every step of a rotation over two balancers new ids are of a configuration that both can read.
    #[test]
    fn a_rotation_goes_over_all_balancers() {
        let (old, new) = (config(0, 1), config(1, 2));
        let both = [old.clone(), new.clone()];
        let mut before = Vec::new();
        let old_only = std::slice::from_ref(&old);
        let new_only = std::slice::from_ref(&new);
        for (first, second, issue, configs) in [
            (service(0, old_only), service(0, old_only), 0, 1),
            (service(0, &both), service(0, old_only), 0, 2),
            // One is ahead of all steps: what the other cannot read is not made.
            (service(1, &both), service(0, old_only), 0, 2),
            (service(0, &both), service(0, &both), 0, 2),
            (service(0, &both), service(1, &both), 0, 2),
            (service(1, &both), service(1, &both), 1, 2),
            (service(1, new_only), service(1, &both), 1, 2),
            (service(1, new_only), service(1, new_only), 1, 1),
        ] {
            let (merged, words) = merge(&said(&[("lb1", first), ("lb2", second)]), &before);
            assert_eq!((merged[0].issue, merged[0].configs.len()), (issue, configs));
            assert!(words.is_empty(), "{words:?}");
            before = merged;
        }
        let (merged, words) = merge(
            &said(&[("lb1", service(0, old_only)), ("lb2", service(0, &[config(0, 9)]))]),
            &[],
        );
        assert_eq!(merged[0].configs, [old]);
        assert!(words.iter().any(|word| word.contains("lb2:4479 has another configuration 0")));
    }

    #[test]
    fn the_file_is_whole_its_owners_alone_and_whoever_is_to_be_told_is_told_of_each_change() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, seen) = (home.path().join("quic.toml"), home.path().join("seen"));
        let script = home.path().join("tell");
        let text_of = format!("#!/bin/sh\ncat $WEIR_QUIC_LB_FILE >> {}\n", seen.display());
        fs::write(&script, text_of).expect("written");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("set");
        let notify: Notify = script.display().to_string().parse().expect("a command");
        let first = text(&[service(0, &[config(0, 1)])]);
        assert_eq!(bring(&path, &first, Some(&notify), false), Ok(true));
        assert_eq!(bring(&path, &first, Some(&notify), false), Ok(false));
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(fs::read_to_string(&seen).expect("told"), first);
        for line in ["name = \"h\\\"3\"", "server_id = \"0a5b\"", "key = \"0101010101"] {
            assert!(first.contains(line), "{line}: {first}");
        }
        let second = text(&[service(1, &[config(0, 1), config(1, 2)])]);
        // A command that fails is told of, and the next try tells, though the file is there.
        let failing: Notify = "/bin/false".parse().expect("a command");
        let failed = bring(&path, &second, Some(&failing), false).expect_err("it fails");
        assert!(failed.0 && failed.1.contains("/bin/false"), "{failed:?}");
        assert_eq!(bring(&path, &second, Some(&notify), true), Ok(true));
        assert_eq!(fs::read_to_string(&seen).expect("told"), format!("{first}{second}"));
    }

    /// An agent that was started anew may hear first of the balancer that is ahead of the others.
    #[tokio::test]
    async fn a_file_that_is_there_stays_until_all_may_have_spoken() {
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("ids.toml");
        for (settles, there, stays) in [
            (Duration::from_secs(3600), true, true),
            (Duration::from_secs(3600), false, false),
            (Duration::from_millis(50), true, false),
        ] {
            let _ = fs::remove_file(&file);
            if there {
                fs::write(&file, "of before").expect("written");
            }
            let (tell, heard) = watch::channel(Said::new());
            let options = Options { file: file.clone(), notify: None };
            let keeps = tokio::spawn(keep_after(settles, options, heard, |_| ()));
            tell.send(said(&[("lb1", service(1, &[config(1, 2)]))])).expect("it listens");
            if stays {
                tokio::time::sleep(Duration::from_millis(300)).await;
                assert_eq!(fs::read_to_string(&file).expect("there"), "of before");
            } else {
                let text = || fs::read_to_string(&file).unwrap_or_default();
                let begun = Instant::now();
                while !text().contains("issue = 1") {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{}", text());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            drop(tell);
            keeps.await.expect("it ends with those who speak");
        }
    }

    #[test]
    fn who_is_told_is_read_as_it_is_written() {
        let signal = |text: &str| text.parse::<Notify>();
        let hup = Notify::Signal(Signal::SIGHUP, "/run/h3.pid".into());
        assert_eq!(signal("HUP:/run/h3.pid"), Ok(hup.clone()));
        assert_eq!(signal("SIGHUP:/run/h3.pid"), Ok(hup));
        let command = Notify::Command(vec!["/bin/systemctl".into(), "reload".into(), "h3".into()]);
        assert_eq!(signal("/bin/systemctl reload h3"), Ok(command));
        for text in ["", "HUP:h3.pid", "HOP:/run/h3.pid", "systemctl reload h3"] {
            assert!(signal(text).is_err(), "{text}");
        }
        let none = Notify::Signal(Signal::SIGHUP, "/none.pid".into()).tell(Path::new("/none"));
        assert!(none.expect_err("no such file").contains("/none.pid"));
    }
}
