//! Other builds of the program, for tests: the tree's C, changed.

use libbpf_rs::libbpf_sys;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the program by their names, from `bpf/` on.
///
/// # Panics
/// If the tree is not there that this was built from.
pub fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let mut all = BTreeMap::new();
    for directory in ["", "forward", "methods"] {
        let entries = fs::read_dir(root.join(directory)).expect("the sources are there");
        for path in entries.map(|entry| entry.expect("it is listed").path()) {
            let name = path.strip_prefix(&root).expect("it is below").display().to_string();
            if path.extension().is_some_and(|end| end == "h" || end == "c") {
                all.insert(name, fs::read_to_string(&path).expect("it is text"));
            }
        }
    }
    all
}

/// A directory of this process, removed when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The program as an object file.
///
/// # Errors
/// What the compiler says.
///
/// # Panics
/// If there is no room for the files, or no compiler.
pub fn build(sources: &BTreeMap<String, String>, name: &str) -> Result<Vec<u8>, String> {
    let scratch = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
    let scratch = Scratch(scratch);
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
        fs::write(path, text).expect("there is room");
    };
    for (name, text) in sources {
        write(scratch.0.join("bpf").join(name), text);
    }
    for (name, text) in libbpf_sys::API_HEADERS {
        write(scratch.0.join("include/bpf").join(name), text);
    }
    let object = scratch.0.join("weir.bpf.o");
    let arguments = env!("WEIR_BPF_ARGUMENTS").split('\u{1f}').filter(|one| *one != "-Ibpf");
    let output = Command::new(env!("WEIR_BPF_CLANG"))
        .args(arguments)
        // A mutation may leave something unused.
        .args(["-Wno-error", "-g", "-target", "bpf", "-fno-stack-protector", "-I"])
        .arg(scratch.0.join("bpf"))
        .arg("-I")
        .arg(scratch.0.join("include"))
        .arg("-c")
        .arg(scratch.0.join("bpf/weir.bpf.c"))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("the compiler of the build is there");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::read(&object).map_err(|error| error.to_string())
}

#[path = "../build/layout.rs"]
#[allow(dead_code, reason = "the build needs more of it")]
mod layout;

/// What the memory of such a program is made of, as the build describes it. Numbers are this build's.
///
/// # Panics
/// If there is no room for the files, or it is no such program.
pub fn describe(object: &[u8], name: &str) -> String {
    let scratch = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
    let scratch = Scratch(scratch);
    fs::create_dir_all(&scratch.0).expect("there is room");
    let path = scratch.0.join("weir.bpf.o");
    fs::write(&path, object).expect("there is room");
    let numbers = crate::kernel::DESCRIBED.lines().filter(|line| !line.contains(": "));
    let numbers: String = numbers.map(|line| format!("{line}\n")).collect();
    numbers + &layout::of_object(&path) + &layout::of_structure(&path, "event")
}
