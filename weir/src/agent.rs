//! `weir agent`: what weir has on backends (docs/agent.md).

use crate::out;
use clap::Args;
use std::time::Duration;
use weir_agent::{Agent, CLOCK_BITS, Counts, FLOWS, MOST_FLOWS, Options, Service};

/// From one look at the interfaces to the next: somebody may have taken the programs away.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(after_help = "\
Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; bpffs at /sys/fs/bpf; Linux 5.15.

SIGINT and SIGTERM end it, and take the programs away with all that they know, unless --keep is given: \
connections that carry cookies lose them then. Killed by SIGKILL it leaves both, and the next one takes \
them over without a packet between the two.")]
pub struct AgentOptions {
    /// Write cookies into timestamps, and nothing else. There is no other work for an agent yet.
    #[arg(long, required = true)]
    pub timestamps_only: bool,
    /// An interface by which clients' packets come or answers leave; may be given more than once.
    #[arg(long = "interface", value_name = "NAME", required = true)]
    pub interfaces: Vec<String>,
    /// A service with answers = "backend", as ADDRESS:PORT, or ADDRESS for all ports; may be given more
    /// than once. Connections to anything else are left alone.
    #[arg(long = "service", value_name = "ADDRESS[:PORT]", required = true)]
    pub services: Vec<Service>,
    /// Open connections that are remembered, of 128 bytes each; the one that was silent for longest goes
    /// first. It should hold all that are open.
    #[arg(long, value_name = "N", default_value_t = FLOWS,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_FLOWS)))]
    pub flows: u32,
    /// Leave the programs at the interfaces when SIGINT or SIGTERM ends it, as SIGKILL does: for a
    /// restart that breaks nothing.
    #[arg(long)]
    pub keep: bool,
    /// Bits of the clock that stay in a timestamp, so that it wraps more often: for tests.
    #[arg(long, hide = true, default_value_t = CLOCK_BITS,
        value_parser = clap::value_parser!(u32).range(8..=i64::from(CLOCK_BITS)))]
    pub clock_bits: u32,
}

pub fn run(options: &AgentOptions) -> anyhow::Result<()> {
    weir_lab::catch_interrupts();
    let AgentOptions { interfaces, services, flows, clock_bits, .. } = options;
    let wanted = Options {
        interfaces: interfaces.clone(),
        services: services.clone(),
        flows: *flows,
        clock_bits: *clock_bits,
    };
    let mut agent = Agent::start(&wanted)?;
    let names = interfaces.join(", ");
    out::note(format_args!(
        "weir agent: writes cookies into timestamps at {names}; remembers {} connections; maps in {}",
        agent.flows(),
        agent.pins().display()
    ));
    if agent.took_over() {
        let size = match agent.flows() == *flows {
            true => String::new(),
            false => format!(", in a table of {}, not of {flows}", agent.flows()),
        };
        out::note(format_args!(
            "weir agent: took over what an agent before this one knew of connections{size}"
        ));
    }
    while weir_lab::sleep(LOOK_EVERY) {
        match agent.mend() {
            Ok(mended) => {
                for name in mended {
                    out::note(format_args!(
                        "weir agent: the programs were gone from {name}; put back"
                    ));
                }
            }
            Err(error) => out::note(format_args!("weir agent: {error}; tried again")),
        }
    }
    if options.keep {
        say(&agent.counts()?);
        out::note(format_args!("weir agent: ended; the programs go on at {names} (--keep)"));
        return Ok(());
    }
    say(&agent.end()?);
    out::note(format_args!("weir agent: ended; the programs are gone from {names}"));
    Ok(())
}

fn say(counts: &Counts) {
    let Counts { opened, written, restored, resumed, foreign, failed } = counts;
    out::note(format_args!(
        "weir agent: {opened} SYNs with a cookie, {written} answers written, {restored} timestamps \
         restored, {resumed} connections brought back by their cookies, {foreign} packets with another \
         cookie than their connection's, {failed} packets that could not be changed"
    ));
}
