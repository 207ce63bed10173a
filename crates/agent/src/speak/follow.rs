//! A session with each balancer that there is to be one with, as that changes.

use super::kept::Kept;
use super::roster::Roster;
use super::session::{News, Session};
use super::{Balancer, Common};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// What one balancer says is looked at so often, and the file is written so often: who changes its mind all the time
/// fills neither disc nor log.
const EVERY: Duration = Duration::from_secs(1);

struct Running {
    number: usize,
    task: JoinHandle<()>,
    /// What was heard last, and is not looked at yet. What came before it says nothing beyond it.
    later: Option<News>,
    /// Not before then.
    after: Instant,
}

impl Running {
    /// What is to be looked at now.
    fn due(&mut self, now: Instant) -> Option<News> {
        if self.after > now {
            return None;
        }
        let news = self.later.take()?;
        self.after = now + EVERY;
        Some(news)
    }

    /// When there is something to look at, if nothing more is heard.
    fn next(&self) -> Option<Instant> {
        self.later.as_ref().map(|_| self.after)
    }
}

/// The file, and what was wrong with it.
struct Keeping {
    file: Option<Kept>,
    trouble: String,
    /// When there may be something to write; none: all is written.
    due: Option<Instant>,
}

impl Keeping {
    fn keep(&mut self, common: &Common, roster: &Roster) {
        self.due = None;
        let Some(file) = &mut self.file else { return };
        let found = file.keep(roster).err().map(|error| error.to_string()).unwrap_or_default();
        if found != self.trouble && !found.is_empty() {
            (common.say)(format_args!(
                "{found}; the next start will not know all balancers of the fleet that this one knows"
            ));
        }
        self.trouble = found;
    }
}

/// What was heard of those that are told no more counts no more.
fn forget(common: &Common, roster: &Roster) {
    let wanted = roster.wanted();
    common.said.send_if_modified(|said| {
        let before = said.len();
        said.retain(|balancer, _| wanted.contains(balancer));
        said.len() != before
    });
}

/// Goes on until it is stopped. `forgets`: whether the roster has all that were told before; if not, none of them is
/// forgotten before one has spoken.
pub(super) async fn follow(
    common: Arc<Common>,
    (mut roster, mut forgets): (Roster, bool),
    kept: Option<Kept>,
    mut news: mpsc::Receiver<(usize, News)>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut sessions: HashMap<Balancer, Running> = HashMap::new();
    let (mut numbers, mut written) = (0, Instant::now());
    let mut keeping = Keeping { file: kept, trouble: String::new(), due: Some(written) };
    if forgets {
        forget(&common, &roster);
    }
    loop {
        let now = Instant::now();
        let mut spoken = false;
        for (balancer, running) in &mut sessions {
            let Some(news) = running.due(now) else { continue };
            match news {
                News::Says(certificate, list) => {
                    roster.says(balancer, &certificate, list);
                    spoken = true;
                }
                News::Lost => roster.lost(balancer),
                News::Away => roster.away(balancer),
            }
            keeping.due = Some(keeping.due.unwrap_or(written + EVERY));
        }
        if spoken && !forgets {
            forgets = true;
            forget(&common, &roster);
        }
        // Whoever goes may take others along.
        loop {
            let wanted = roster.wanted();
            let gone = sessions.keys().find(|one| !wanted.contains(one)).cloned();
            let Some((balancer, running)) = gone.and_then(|one| sessions.remove_entry(&one)) else {
                break;
            };
            end(&common, &balancer, running).await;
            roster.lost(&balancer);
        }
        for balancer in roster.wanted() {
            if sessions.contains_key(&balancer) {
                continue;
            }
            if !common.options.balancers.contains(&balancer) {
                (common.say)(format_args!(
                    "balancer {balancer}: one of the fleet, as others have said"
                ));
            }
            let session = Session::new(numbers, balancer.clone(), Arc::clone(&common));
            let task = tokio::spawn(session.go_on());
            sessions.insert(balancer, Running { number: numbers, task, later: None, after: now });
            numbers += 1;
        }
        if keeping.due.is_some_and(|due| due <= now) {
            keeping.keep(&common, &roster);
            written = now;
        }
        let next = sessions.values().filter_map(Running::next).chain(keeping.due).min();
        let later = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Who stops it may also have gone.
            _ = stopped.wait_for(|stopped| *stopped) => {
                if keeping.due.is_some() {
                    keeping.keep(&common, &roster);
                }
                return;
            }
            () = later => {}
            Some((number, news)) = news.recv() => {
                // One that was ended may have left word.
                let of = sessions.values_mut().find(|running| running.number == number);
                if let Some(running) = of {
                    running.later = Some(news);
                }
            }
        }
    }
}

/// Ends a session for good.
async fn end(common: &Common, balancer: &Balancer, running: Running) {
    running.task.abort();
    let _ = running.task.await;
    common.said.send_if_modified(|said| said.remove(balancer).is_some());
    common.quic.send_if_modified(|said| said.remove(balancer).is_some());
    if let Err(error) = common.leave(running.number).await {
        (common.say)(format_args!("balancer {balancer}: {error}"));
    }
    (common.say)(format_args!(
        "balancer {balancer}: told no more, as its fleet names it no more, or by another address"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_changes_its_mind_all_the_time_is_looked_at_once_a_second() {
        let start = Instant::now();
        let task = tokio::spawn(async {});
        let mut running = Running { number: 0, task, later: None, after: start };
        assert!(running.next().is_none() && running.due(start).is_none());
        let mut looked = 0;
        for millisecond in 0..10_000 {
            running.later = Some(News::Lost);
            looked +=
                usize::from(running.due(start + Duration::from_millis(millisecond)).is_some());
        }
        assert_eq!(looked, 10);
        // What was said last is not forgotten, and comes in its time.
        running.later = Some(News::Away);
        let next = running.next().expect("there is something");
        assert_eq!(next, start + 10 * EVERY);
        assert!(matches!(running.due(next), Some(News::Away)));
        assert!(running.next().is_none());
    }
}
