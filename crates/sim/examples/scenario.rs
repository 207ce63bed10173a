//! Plays a scenario, a file or a built-in one:
//! `cargo run --release -p weir-sim --example scenario -- FILE|NAME [smoke|normal|full] [--json|--csv|--series]`.

use std::path::Path;
use std::time::Instant;
use weir_sim::{BUILTIN, Scenario, Size, builtin, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file =
        arguments.first().ok_or("usage: scenario FILE|NAME [SIZE] [--json|--csv|--series]")?;
    let size = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    let size: Size = size.map_or(Ok(Size::Normal), |size| size.parse())?;
    let began = Instant::now();
    let scenario = match BUILTIN.contains(&file.as_str()) {
        true => builtin(file, size)?,
        false => Scenario::load_sized(Path::new(file), size)?,
    };
    let report = run(&scenario)?;
    match arguments.iter().find(|argument| argument.starts_with('-')).map(String::as_str) {
        Some("--json") => println!("{}", report.to_json()),
        Some("--csv") => print!("{}", report.to_csv()?),
        Some("--series") => print!("{}", report.series_to_csv()?),
        _ => print!("{}", report.to_table()),
    }
    eprintln!("{:.1} s for {} runs", began.elapsed().as_secs_f64(), report.rows.len());
    Ok(())
}
