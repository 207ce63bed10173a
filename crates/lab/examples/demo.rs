//! A whole run with a balancer program: `demo WEIR [SECONDS [SEED]]`. `weir lab` does the same
//! with more to choose.

use std::process::ExitCode;
use std::time::Duration;

use weir_lab::demo::{self, DemoSpec};

fn main() -> ExitCode {
    weir_lab::catch_interrupts();
    let mut arguments = std::env::args().skip(1);
    let Some(weir) = arguments.next() else {
        eprintln!("usage: demo WEIR [SECONDS [SEED]]");
        return ExitCode::from(2);
    };
    let mut numbers = arguments.map(|argument| argument.parse().ok());
    let seconds = numbers.next().flatten().unwrap_or(30);
    let seed = numbers.next().flatten().unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut spec = DemoSpec::new(weir, seed);
    spec.duration = Duration::from_secs(seconds);
    match demo::run(spec) {
        Ok(report) => {
            println!("{}\n{}", report.table(), report.line());
            if report.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
