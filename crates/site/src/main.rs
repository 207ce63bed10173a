//! `make site`: the documentation as pages for a browser.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(root), Some(out), None) = (arguments.next(), arguments.next(), arguments.next())
    else {
        eprintln!("weir-site REPOSITORY DIRECTORY");
        return ExitCode::from(2);
    };
    match weir_site::write(&root, &out) {
        Ok(pages) => {
            println!("{}: {pages} pages", out.join("index.html").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
