//! Writes what Rust and C share into headers, compiles the BPF programs with clang, and generates
//! their skeletons.

mod header;
mod layout;
#[path = "../src/numbers.rs"]
mod numbers;
mod rules;

use libbpf_cargo::SkeletonBuilder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/numbers.rs");
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let include = out.join("include");
    fs::create_dir_all(include.join("weir")).expect("OUT_DIR is writable");
    write(&include.join("weir/shared.h"), &header::shared());
    write(&include.join("weir/methods.h"), &header::methods(Path::new("bpf/methods")));
    write(&include.join("weir/aes.h"), &header::aes());
    let numbers = header::method_numbers(Path::new("bpf/methods"));
    write(&out.join("methods.rs"), &numbers);
    let compiler = Compiler::find(&include);
    compiler.tell();
    let names =
        ["weir", "guard", "hold", "hops", "lost", "bench", "crypto", "xsk", "front", "card"];
    for name in names {
        let object = out.join(format!("{name}.bpf.o"));
        compiler
            .builder(name, &object)
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|error| panic!("bpf/{name}.bpf.c: {error:?}"));
    }
    assert_eq!(
        layout::constants(&out.join("weir.bpf.o")),
        layout::constants(&out.join("front.bpf.o")),
        "both programs get their sizes at the same places"
    );
    by_interface(&compiler, &out);
    trace(&compiler, &out);
    // Of the build with the most maps: which of them one is given is a setting, and may be another at each start.
    let layout = header::layout() + &layout::of_object(&out.join("by_interface.bpf.o"));
    write(&out.join("stamp.rs"), &format!("{:#x}", layout::stamp(&layout)));
    write(&out.join("layout.txt"), &layout);
    // What is written beside memory, for versions to come; also what a ring does not name.
    let event = layout::of_structure(&out.join("weir.bpf.o"), "event");
    write(&out.join("described.txt"), &(layout + &event));
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The program that counts frames by interface: the same sources, built with that.
fn by_interface(compiler: &Compiler, out: &Path) {
    let object = out.join("by_interface.bpf.o");
    let mut arguments = vec!["-DWEIR_BY_INTERFACE".to_owned()];
    arguments.extend_from_slice(&compiler.arguments);
    compiler
        .builder("weir", &object)
        .clang_args(&arguments)
        .build_and_generate(out.join("by_interface.skel.rs"))
        .unwrap_or_else(|error| panic!("bpf/weir.bpf.c by interface: {error:?}"));
    assert_eq!(
        layout::constants(&out.join("weir.bpf.o")),
        layout::constants(&object),
        "both programs get their sizes at the same places"
    );
}

/// Rules of the functions that the most others lead to: with their marks, a verifier of Linux 6.1 finds that
/// these need more than the 512 bytes of stack that there are.
const UNMARKED: [&str; 11] = [
    "mapping.*",
    "full.*",
    "nat.no_quote",
    "nat.quote_truncated6",
    "nat.quote6",
    "nat.quote_fragment6",
    "nat.quote_truncated4",
    "nat.quote4",
    "nat.quote_short",
    "nat.quote_udp",
    "nat.quote_tcp",
];

/// The program that notes what it does with packets: the sources with a mark in the place of each rule.
fn trace(compiler: &Compiler, out: &Path) {
    let copies = out.join("traced");
    let mut names = Vec::new();
    for directory in ["", "forward", "methods"] {
        let from = Path::new("bpf").join(directory);
        let to = copies.join(directory);
        fs::create_dir_all(&to).expect("OUT_DIR is writable");
        let entries = fs::read_dir(&from).unwrap_or_else(|error| panic!("{from:?}: {error}"));
        let mut files: Vec<_> = entries.map(|entry| entry.expect("it is listed").path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "h")) {
            copy_marked(file, &to, &mut names);
        }
    }
    copy_marked(Path::new("bpf/weir.bpf.c"), &copies, &mut names);
    let object = out.join("traced.bpf.o");
    let mut arguments = vec![format!("-I{}", copies.display()), "-DWEIR_TRACED".into()];
    arguments.extend_from_slice(&compiler.arguments);
    SkeletonBuilder::new()
        .source(copies.join("weir.bpf.c"))
        .obj(&object)
        .clang(&compiler.clang)
        .clang_args(&arguments)
        .build_and_generate(out.join("traced.skel.rs"))
        .unwrap_or_else(|error| panic!("the traced bpf/weir.bpf.c: {error:?}"));
    assert_eq!(
        layout::constants(&out.join("weir.bpf.o")),
        layout::constants(&object),
        "both programs get their sizes at the same places"
    );
    let list = names.iter().map(|name| format!("    {name:?},\n"));
    write(&out.join("rules.rs"), &format!("&[\n{}]", list.collect::<String>()));
}

fn copy_marked(file: &Path, to: &Path, names: &mut Vec<String>) {
    let source = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let name = file.file_name().expect("it is a file");
    write(&to.join(name), &rules::mark(&source, names, &UNMARKED));
}

struct Compiler {
    clang: PathBuf,
    arguments: Vec<String>,
}

impl Compiler {
    fn find(include: &Path) -> Self {
        // clang -target bpf does not search Debian's multiarch directory, where asm/types.h is.
        let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
        let arguments = [
            format!("-I{}", include.display()),
            "-Ibpf".into(),
            format!("-I/usr/include/{arch}-linux-gnu"),
            "-mcpu=v3".into(),
            "-O2".into(),
            "-Wall".into(),
            "-Werror".into(),
        ];
        Self { clang: find_clang(), arguments: arguments.into() }
    }

    /// Tells builds of crates that have programs of their own what this one compiles with, and where the
    /// sources are that they share.
    fn tell(&self) {
        let sources = env::current_dir().expect("cargo sets it").join("bpf");
        let sources = sources.display();
        let arguments = self.arguments.join("\u{1f}").replace("-Ibpf", &format!("-I{sources}"));
        println!("cargo::metadata=sources={sources}");
        println!("cargo::metadata=clang={}", self.clang.display());
        println!("cargo::metadata=arguments={arguments}");
        // For tests of this crate that build the program in other ways.
        println!("cargo::rustc-env=WEIR_BPF_CLANG={}", self.clang.display());
        println!("cargo::rustc-env=WEIR_BPF_ARGUMENTS={}", self.arguments.join("\u{1f}"));
    }

    fn builder(&self, name: &str, object: &Path) -> SkeletonBuilder {
        let mut builder = SkeletonBuilder::new();
        builder
            .source(format!("bpf/{name}.bpf.c"))
            .obj(object)
            .clang(&self.clang)
            .clang_args(&self.arguments);
        builder
    }
}

/// `$CLANG`, or the newest clang that can build BPF.
fn find_clang() -> PathBuf {
    if let Some(clang) = env::var_os("CLANG") {
        return clang.into();
    }
    ["clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14", "clang"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
        .unwrap_or_else(|| panic!("no clang found: install clang-19, or set CLANG"))
        .into()
}
