//! A P4 switch in the balancer's namespace: compiled, started, ended.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use weir_testbed::interrupt::sleep;
use weir_testbed::{NetNs, process};

const COMPILER: &str = "p4c-bm2-ss";
const SWITCH: &str = "simple_switch";
/// Where it is told what to do, on the loopback of its namespace.
const THRIFT: u16 = 9090;
const PATIENCE: Duration = Duration::from_secs(60);

/// The text of a program for a P4 switch.
#[derive(Clone, Copy)]
pub struct Program {
    /// Files by their paths. The first is compiled, and includes the others.
    pub files: &'static [(&'static str, &'static str)],
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.files.iter().map(|(name, _)| name)).finish()
    }
}

/// What a switch runs, in a namespace whose interfaces are to be its ports. Whoever fills it adds them.
#[derive(Debug)]
pub(crate) struct P4Switch {
    netns: NetNs,
    program: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

impl P4Switch {
    /// Compiles the program.
    pub(crate) fn compile(netns: NetNs, directory: &Path, program: Program) -> Result<Self> {
        for tool in [COMPILER, SWITCH] {
            if !is_in_path(tool) {
                return Err(Error::Missing(missing(tool)));
            }
        }
        let text = directory.join("p4");
        for (name, lines) in program.files {
            let file = text.join(name);
            let folder = file.parent().unwrap_or(&text);
            fs::create_dir_all(folder).doing(|| format!("creating {}", folder.display()))?;
            fs::write(&file, lines).doing(|| format!("writing {}", file.display()))?;
        }
        let compiled = directory.join("weir.json");
        let mut compiler = Command::new(COMPILER);
        compiler.args(["--std", "p4-16", "--Wdisable=unused", "-o"]).arg(&compiled);
        compiler.args(program.files.first().map(|(name, _)| text.join(name)));
        process::run(compiler, "")?;
        let log = directory.join("switch.log");
        Ok(Self { netns, program: compiled, log, process: None })
    }

    /// Starts it, empty, and waits until it can be filled.
    pub(crate) fn start(&mut self) -> Result<()> {
        self.kill();
        // It looks at its ports in /sys, which has to be this namespace's.
        let line = format!(
            "mount -t sysfs sysfs /sys && exec {SWITCH} \"$0\" --thrift-port {THRIFT} -L error"
        );
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.doing(|| format!("opening {}", self.log.display()))?;
        let second = log.try_clone().doing(|| format!("opening {}", self.log.display()))?;
        let mut switch = self.netns.command("unshare")?;
        switch.args(["--mount", "sh", "-c", &line]).arg(&self.program);
        switch.stdin(Stdio::null()).stdout(log).stderr(second);
        self.process = Some(process::spawn(switch)?);
        let started = Instant::now();
        let attempt = || TcpStream::connect((Ipv4Addr::LOCALHOST, THRIFT));
        while let Err(error) = self.netns.enter(attempt)? {
            let ended = self.process.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || started.elapsed() > PATIENCE {
                let ended = ended.map_or(error.to_string(), |status| status.to_string());
                return Err(Error::NotReady {
                    what: "the switch".into(),
                    seconds: started.elapsed().as_secs_f64(),
                    detail: format!(" ({ended}); its log is {}", self.log.display()),
                });
            }
            if !sleep(Duration::from_millis(20)) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Ends it: nothing is forwarded, and all that it held is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            process::kill(&mut child);
        }
    }
}

impl Drop for P4Switch {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_in_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

fn missing(tool: &str) -> String {
    format!(
        "{tool} is not in PATH. {COMPILER} is the compiler of P4 (the project p4lang/p4c, 1.2.5 or newer), \
         {SWITCH} the software switch of P4 (the project p4lang/behavioral-model, 1.15 or newer, with Thrift). \
         Where no package has them, build them from source and add both to PATH"
    )
}
