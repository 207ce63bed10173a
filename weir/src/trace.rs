//! `weir trace`: packets as they come, with what became of each and why.

use crate::cli::{Instance, TraceOptions};
use crate::out;
use anyhow::Context;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use weir_control::engine::{TraceLine, TraceRequest, TraceTotals, TracedPacket};
use weir_watch::{Capture, may_create, sentence};

/// What each rule of the program says.
const RULES: &str = include_str!("../../corpus/rules.toml");

pub fn run(instance: Instance, options: TraceOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(follow(instance, options))
}

async fn follow(instance: Instance, options: TraceOptions) -> anyhow::Result<()> {
    let TraceOptions { wanted, count, duration, rules, write, force, json } = options;
    // What would be refused anyway is refused before packets go through the slower program.
    write.iter().try_for_each(|path| may_create(path, force))?;
    let mut capture: Option<Capture> = None;
    let sentences = if rules { rule_sentences()? } else { BTreeMap::new() };
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
                        tell(&packet, &sentences);
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

fn rule_sentences() -> anyhow::Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Rules {
        rules: BTreeMap<String, String>,
    }
    let rules: Rules = toml::from_str(RULES).context("the rules of this build")?;
    Ok(rules.rules)
}

fn tell(packet: &TracedPacket, sentences: &BTreeMap<String, String>) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(packet.time);
    let time = humantime::format_rfc3339_micros(time).to_string();
    let time = time.split_once('T').map_or(&time[..], |(_, time)| time);
    out::line(format_args!("{time} {} {}", packet.interface, sentence(packet)));
    if sentences.is_empty() {
        return;
    }
    if packet.more_rules {
        out::line("    ...");
    }
    for rule in &packet.rules {
        let sentence = sentences.get(rule).map_or("", |sentence| sentence);
        out::line(format_args!("    {rule:<26} {sentence}"));
    }
}
