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
    let (mut shown, mut totals, mut ended) = (0u64, None, None);
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
                } else {
                    // The first one only says that it has begun.
                    totals = Some(counts);
                }
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
    out::note(summary(shown, totals));
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

/// What a trace has told of. `totals`: as they were counted last, if they were.
fn summary(shown: u64, totals: Option<TraceTotals>) -> String {
    let what = if shown == 1 { "packet" } else { "packets" };
    match totals {
        Some(TraceTotals { seen, lost, .. }) => format!(
            "{shown} {what} told; when it was counted last, as it is once a second, {seen} had come, and {lost} were \
             not told since they came too fast"
        ),
        None => format!(
            "{shown} {what} told; it ended before all that came was counted, as it is once a second"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_is_no_number() {
        let said = summary(370, None);
        assert!(said.starts_with("370 packets told; it ended before"), "{said}");
        let said = summary(1, Some(TraceTotals { seen: 90, matched: 4, lost: 3 }));
        assert!(said.starts_with("1 packet told; ") && said.contains("90 had come"), "{said}");
        assert!(said.ends_with("and 3 were not told since they came too fast"), "{said}");
    }
}
