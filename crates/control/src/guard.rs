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
/// An instance that has not answered by then does not.
const PATIENCE: Duration = Duration::from_secs(5);

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
            let asked = client.request::<Report>("GET", "/v1/announce", None::<&()>);
            if matches!(timeout(PATIENCE, asked).await, Ok(Ok(_))) {
                if std::mem::take(&mut withdrawn) {
                    say(Event::Answers);
                }
                answered = Instant::now();
            } else if answered.elapsed() >= after && !withdrawn {
                match self.withdraw().await {
                    Ok(routes) => {
                        withdrawn = true;
                        say(Event::Withdrawn { silent: answered.elapsed(), routes });
                    }
                    Err(error) => say(Event::Failed(error)),
                }
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn withdraw(&self) -> anyhow::Result<usize> {
        let known = written_down(&self.file).with_context(|| self.file.display().to_string())?;
        Ok(Speaker::new(&self.speaker).withdraw(&known).await?.len())
    }
}
