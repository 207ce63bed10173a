//! What withdraws the routes of an instance that does not answer any more (`weir announce guard`).

use crate::api::Client;
use crate::config::Config;
use crate::engine::announced_file;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use weir_announce::{Report, Speaker, SpeakerConfig, written_down};

/// From one question to the next.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The least from an answer to the next question, however soon routes are to be withdrawn.
const LEAST: Duration = Duration::from_millis(100);
/// A question that is not answered by then is asked anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// For how long a question waits, where routes are to be withdrawn in `due`. What is silent is so from its last answer on,
/// so that the last question ends when they are due, and not after a patience of its own.
fn patience(due: Option<Duration>) -> Duration {
    match due {
        // It is this process that has come too late: whoever lives is heard first.
        None | Some(Duration::ZERO) => PATIENCE,
        // Between its end and the time there would be none for another one.
        Some(due) if due <= PATIENCE + 2 * ASK_EVERY => due,
        Some(_) => PATIENCE,
    }
}

/// What becomes of the instance.
#[derive(Debug)]
pub enum Event {
    /// It answers again, and announces by itself.
    Answers,
    /// It has not answered for so long, and so many routes are withdrawn.
    Withdrawn {
        /// For how long.
        silent: Duration,
        /// Routes.
        routes: usize,
    },
    /// They could not be withdrawn; it is tried again.
    Failed(anyhow::Error),
}

/// The instance that is guarded, and its speaker.
#[derive(Debug)]
pub struct Guard {
    speaker: SpeakerConfig,
    socket: PathBuf,
    /// Where it is written what the instance has announced.
    file: PathBuf,
}

impl Guard {
    /// Of an instance by its file; none if that announces nothing.
    pub fn of(config: &Config) -> Option<Self> {
        let speaker = config.announce.as_ref()?.speaker.clone();
        let file = announced_file(&config.balancer.run_dir);
        Some(Self { speaker, socket: config.balancer.socket_path(), file })
    }

    /// Where the instance is talked to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks the instance again and again, and withdraws what it has announced when it has not answered for so
    /// long. It does not end by itself.
    pub async fn watch(&self, after: Duration, mut say: impl FnMut(Event)) {
        let client = Client::new(self.socket.clone());
        let mut answered = Instant::now();
        let mut withdrawn = false;
        loop {
            let due = (!withdrawn).then(|| after.saturating_sub(answered.elapsed()));
            let asked = client.request::<Report>("GET", "/v1/announce", None::<&()>);
            if matches!(timeout(patience(due), asked).await, Ok(Ok(_))) {
                if std::mem::take(&mut withdrawn) {
                    say(Event::Answers);
                }
                answered = Instant::now();
                sleep(ASK_EVERY.min(after / 2).max(LEAST)).await;
                continue;
            }
            let left = after.saturating_sub(answered.elapsed());
            if left.is_zero() && !withdrawn {
                match self.withdraw().await {
                    Ok(routes) => {
                        withdrawn = true;
                        say(Event::Withdrawn { silent: answered.elapsed(), routes });
                    }
                    Err(error) => say(Event::Failed(error)),
                }
            }
            // Whoever refuses to answer is asked for the last time when it is time.
            sleep(if left.is_zero() { ASK_EVERY } else { ASK_EVERY.min(left) }).await;
        }
    }

    async fn withdraw(&self) -> anyhow::Result<usize> {
        let known = written_down(&self.file).with_context(|| self.file.display().to_string())?;
        Ok(Speaker::new(&self.speaker).withdraw(&known).await?.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    /// Whoever hangs answers no question, each of which is waited for as long as it may take.
    #[test]
    fn routes_of_who_hangs_are_withdrawn_when_it_is_time() {
        let milliseconds = |all: Range<u64>| all.map(Duration::from_millis);
        for after in milliseconds(200..40_000).step_by(7) {
            // It has answered, and the next question comes a little later.
            let mut silent = ASK_EVERY.min(after / 2);
            loop {
                silent += patience(Some(after.saturating_sub(silent)));
                let left = after.saturating_sub(silent);
                if left.is_zero() {
                    break;
                }
                silent += ASK_EVERY.min(left);
            }
            assert_eq!(silent, after);
        }
    }

    /// A guard that was stopped itself, or whose host slept, asks before it withdraws.
    #[test]
    fn a_late_guard_hears_who_lives() {
        assert_eq!(patience(Some(Duration::ZERO)), PATIENCE);
        assert_eq!(patience(None), PATIENCE);
    }
}
