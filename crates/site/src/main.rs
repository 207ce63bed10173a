//! `make site`: the documentation as pages for a browser.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let mut next = || arguments.next();
    let (Some(root), Some(said), Some(out), None) = (next(), next(), next(), next()) else {
        eprintln!(
            "weir-site REPOSITORY SAID DIRECTORY: SAID has what weir man and weir schema print"
        );
        return ExitCode::from(2);
    };
    match weir_site::write(&root, Some(&said), &out) {
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
