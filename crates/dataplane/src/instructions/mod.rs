//! BPF instructions that the program takes for a packet, on every path through it.
//!
//! An interpreter runs the loaded program on a packet, with the maps of a data plane of its own, and
//! counts what it executes: exactly, on any machine, whatever else goes on there. The kernel runs
//! the same kind of packet, and both must come to the verdict that the path has. What helpers of the
//! kernel do inside (a lookup in a hash map, say) is not counted, only the call. So two builds of
//! the program can be told apart by an instruction.

mod machine;
mod paths;
mod stack;

use crate::error::Error;
use crate::run::{Verdict, run_frame};
use paths::{Beside, Path, World};
use std::io;

/// The instructions of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// What the packet meets.
    pub path: &'static str,
    /// Of each build of the program.
    pub instructions: Vec<u64>,
}

/// Counts on every path, for this build of the program and then for others (object files).
///
/// # Errors
/// The kernel refuses a program; or a packet met another verdict than its path has, which makes the
/// counts worthless.
pub fn count(others: &[Vec<u8>]) -> Result<Vec<Row>, Error> {
    let mut worlds = vec![World::new(None, Beside::All)?];
    for other in others {
        worlds.push(World::new(Some(other), Beside::All)?);
    }
    rows(&paths::all(), &worlds)
}

/// Counts on the paths of services that use no feature, one number for each of what may stand beside them:
/// services with every feature; nothing; nothing, but these services themselves had each feature before; prefixes,
/// ranges of ports and translated answers, for which packets are looked up that are no service's.
///
/// # Errors
/// As [`count`].
pub fn count_plain() -> Result<Vec<Row>, Error> {
    let besides = [Beside::All, Beside::Nothing, Beside::Former, Beside::Unusual];
    let worlds = besides.into_iter().map(|beside| World::new(None, beside));
    let plain: Vec<Path> = paths::all().into_iter().filter(Path::is_plain).collect();
    rows(&plain, &worlds.collect::<Result<Vec<_>, _>>()?)
}

fn rows(paths: &[Path], worlds: &[World]) -> Result<Vec<Row>, Error> {
    let row = |path: &Path| {
        let counts = worlds.iter().map(|world| one(path, world));
        Ok(Row { path: path.name, instructions: counts.collect::<Result<_, _>>()? })
    };
    paths.iter().map(row).collect()
}

/// Bytes of stack that the deepest chain of calls takes, of the balancer and of the program that it goes on in, as
/// kernels before 6.8 add it up: they round each function up to 32 bytes, and refuse more than 512.
///
/// # Errors
/// The kernel refuses the programs.
pub fn stacks(object: &[u8]) -> Result<[u32; 2], Error> {
    Ok(World::new(Some(object), Beside::All)?.code.stacks())
}

fn one(path: &Path, world: &World) -> Result<u64, Error> {
    let frame = world.frame(path, 0)?;
    let found = run_frame(world.plane.program(), &frame)?.verdict;
    let (verdict, executed) = world.code.run(&world.frame(path, 1)?)?;
    for (who, found) in [("kernel", found), ("interpreter", Verdict::of(verdict as u32))] {
        if found != path.verdict {
            let (name, wanted) = (path.name, path.verdict);
            return Err(broken(&format!("{name}: {who}: {found:?} instead of {wanted:?}")));
        }
    }
    world.drain()?;
    Ok(executed)
}

fn broken(text: &str) -> Error {
    Error::System { what: "count instructions".into(), source: io::Error::other(text.to_owned()) }
}
