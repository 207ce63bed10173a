//! `weir lab`: a demonstration that is a test.

use crate::cli::LabOptions;
use std::process::ExitCode;
use std::time::Duration;
use weir_lab::demo::{self, DemoSpec};

pub fn run(options: LabOptions) -> ExitCode {
    weir_lab::catch_interrupts();
    let seed = options.seed.unwrap_or_else(rand::random);
    let weir = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            eprintln!("weir: cannot find this program's own file: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !options.json {
        println!("lab: method {}, WEIR_SEED={seed}", options.method.name());
    }
    let mut spec = DemoSpec::new(weir, seed);
    spec.lab.backends = options.backends;
    spec.balancer.pool = (options.backends * 3 / 4).max(2);
    spec.balancer.method = options.method.name().into();
    spec.traffic.connections = options.connections;
    spec.duration = options.duration;
    spec.plain = options.plain || options.json;
    if let Some(seconds) = options.change_every {
        let mean = Duration::from_secs_f64(seconds.clamp(0.05, 3600.0));
        spec.churn.gap = mean / 2..mean * 3 / 2;
    }
    match demo::run(spec) {
        Ok(report) => {
            if options.json {
                match serde_json::to_string_pretty(&report) {
                    Ok(text) => println!("{text}"),
                    Err(error) => eprintln!("weir: {error}"),
                }
            } else {
                println!("{}\n{}", report.table(), report.line());
            }
            if report.held() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("weir: {error}");
            ExitCode::FAILURE
        }
    }
}
