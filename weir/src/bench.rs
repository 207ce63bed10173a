//! `weir bench`
use crate::cli::BenchVerb;
pub fn run(_what: BenchVerb) -> anyhow::Result<()> {
    Ok(())
}
