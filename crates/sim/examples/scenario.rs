//! Plays a scenario file: `cargo run --release -p weir-sim --example scenario -- FILE [--json|--csv]`.

use std::path::Path;
use std::time::Instant;
use weir_sim::{Scenario, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.first().ok_or("usage: scenario FILE [--json|--csv]")?;
    let began = Instant::now();
    let report = run(&Scenario::load(Path::new(file))?)?;
    match arguments.get(1).map(String::as_str) {
        Some("--json") => println!("{}", serde_json::to_string_pretty(&report)?),
        Some("--csv") => print!("{}", report.to_csv()?),
        _ => print!("{}", report.to_table()),
    }
    eprintln!("{:.1} s for {} runs", began.elapsed().as_secs_f64(), report.rows.len());
    Ok(())
}
