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
        FibVerb::Switch(mut args) => {
            begin(&mut args.seed, args.json);
            finish(switch::run(&args.options()), args.json)
        }
        FibVerb::Content(mut args) => {
            begin(&mut args.seed, args.json);
            finish(content::run(&args.options()), args.json)
        }
    }
}

/// The seed of a run, which its text has; beside JSON it is said at once, so that a run that fails can be repeated,
/// too.
fn begin(seed: &mut Option<u64>, json: bool) {
    let seed = *seed.get_or_insert_with(weir_lab::draw_seed);
    if json {
        out::note(format_args!("fib: WEIR_SEED={seed}"));
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
