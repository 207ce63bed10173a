//! `weir fib`: two forwarders that run and are watched (docs/fib.md).

use crate::out;
use weir_cli::FibVerb;
use weir_forwarders::{Report, content, switch};

/// Whether what was promised held.
pub fn run(what: FibVerb) -> anyhow::Result<bool> {
    weir_lab::catch_interrupts();
    match what {
        FibVerb::Switch(args) if args.compare_sockets => {
            finish(switch::compare(&args.options()), args.json)
        }
        FibVerb::Switch(args) => finish(switch::run(&args.options()), args.json),
        FibVerb::Content(args) => finish(content::run(&args.options()), args.json),
    }
}

fn finish(result: weir_forwarders::Result<impl Report>, json: bool) -> anyhow::Result<bool> {
    let report = result?;
    if json {
        out::json(&report)?;
    } else {
        out::line(report.text());
    }
    Ok(report.held())
}
