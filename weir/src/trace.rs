//! `weir trace`: packets as they come, with what became of each and why.

use crate::control::block_on;
use crate::out;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use weir_cli::{Instance, TraceOptions};
use weir_control::engine::{TraceLine, TraceRequest, TraceTotals};
use weir_watch::{Capture, Sentences, may_create, sentence};

pub fn run(instance: Instance, options: TraceOptions) -> anyhow::Result<()> {
    block_on(follow(instance, options))?
}

async fn follow(instance: Instance, options: TraceOptions) -> anyhow::Result<()> {
    let TraceOptions { wanted, count, duration, rules, write, force, json } = options;
    // What would be refused anyway is refused before packets go through the slower program.
    write.iter().try_for_each(|path| may_create(path, force))?;
    let mut capture: Option<Capture> = None;
    let sentences = if rules { Sentences::of_rules()? } else { Sentences::default() };
    let client = instance.client();
    let request = TraceRequest::from(wanted);
    let (mut shown, mut totals, mut ended) = (0u64, TraceTotals::default(), None);
    let mut failure = None;
    let (began, mut since) = oneshot::channel();
    let mut began = Some(began);
    let looking = client.trace(&request, |line| {
        match line {
            TraceLine::Packet(packet) => {
                shown += 1;
                let told = match &mut capture {
                    Some(capture) => capture.add(&packet, &sentence(&packet)),
                    None if json => out::compact_json(&packet),
                    None => {
                        out::text(weir_watch::packet(&packet, &sentences));
                        Ok(())
                    }
                };
                failure = told.err();
                failure.is_none() && count.is_none_or(|count| shown < count)
            }
            TraceLine::Counts(counts) => {
                if let Some(began) = began.take() {
                    // Where nobody answers, no file is made, and none is lost.
                    match write.as_deref().map(|path| Capture::create(path, force)).transpose() {
                        Ok(made) => capture = made,
                        Err(error) => {
                            failure = Some(error);
                            return false;
                        }
                    }
                    let _ = began.send(());
                    out::note("looking at packets; Ctrl-C ends it");
                }
                totals = counts;
                // Whoever looks at the file meanwhile finds what is there.
                failure = capture.as_mut().and_then(|capture| capture.flush().err());
                failure.is_none()
            }
            TraceLine::Ended(why) => {
                ended = Some(why);
                false
            }
        }
    });
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stopped = tokio::select! {
        looked = looking => { looked?; false }
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
        () = enough(duration, &mut since) => true,
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    if let Some(capture) = capture {
        capture.finish()?;
    }
    let TraceTotals { seen, lost, .. } = totals;
    let what = if shown == 1 { "packet" } else { "packets" };
    out::note(format_args!(
        "{shown} {what} told; up to the last second {seen} came, and {lost} were not told since they \
         came too fast"
    ));
    if let Some(why) = ended {
        anyhow::bail!("the trace has ended: {why}");
    }
    anyhow::ensure!(
        stopped || count.is_some_and(|count| shown >= count),
        "the trace has ended: the instance has stopped"
    );
    Ok(())
}

/// Ends so long after the first packets may have come; without a time never.
async fn enough(duration: Option<Duration>, began: &mut oneshot::Receiver<()>) {
    match duration {
        Some(duration) if began.await.is_ok() => tokio::time::sleep(duration).await,
        _ => std::future::pending().await,
    }
}
