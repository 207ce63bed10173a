//! How many connections the driver holds on this machine, without a balancer: each client talks
//! straight to a backend of its own. `load [CONNECTIONS [SECONDS]]`

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use weir_lab::{Lab, LabSpec, Traffic, TrafficSpec, catch_interrupts, interrupted, sleep};

fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return f64::NAN;
    };
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

fn main() -> weir_lab::Result<()> {
    catch_interrupts();
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().ok());
    let connections = arguments.next().flatten().unwrap_or(8000);
    let seconds = arguments.next().flatten().unwrap_or(20);
    let lab = Lab::create(LabSpec { backends: 2, ..LabSpec::default() })?;
    for client in 0..2 {
        lab.bypass(client, Some(client))?;
    }
    let traffic = Traffic::start(&lab, TrafficSpec { connections, ..TrafficSpec::default() })?;
    let (mut answers, mut cpu) = (0, cpu_seconds());
    for second in 1..=seconds {
        sleep(Duration::from_secs(1));
        let (now, used) = (traffic.stats().snapshot(), cpu_seconds());
        println!(
            "{second:3} s: {} open, {} answers/s, {} ended, {} broken, driver's CPU {:.0} %",
            now.open,
            now.answers - answers,
            now.ended(),
            now.broken,
            (used - cpu) * 100.0
        );
        (answers, cpu) = (now.answers, used);
        if interrupted() {
            break;
        }
    }
    let report = traffic.finish()?;
    println!("connect {:?}\nanswer {:?}", report.totals.connect, report.totals.answer);
    println!(
        "{} connections, {} broken, peak {}",
        report.totals.ended(),
        report.totals.broken,
        report.totals.peak
    );
    for broken in report.broken_connections.iter().take(5) {
        println!("{broken:?}");
    }
    Ok(())
}
