//! A session with each balancer that there is to be one with, as that changes.

use super::kept::Kept;
use super::roster::Roster;
use super::session::{News, Session};
use super::{Balancer, Common};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

struct Running {
    number: usize,
    task: JoinHandle<()>,
}

/// Goes on until it is stopped.
pub(super) async fn follow(
    common: Arc<Common>,
    mut roster: Roster,
    mut kept: Option<Kept>,
    mut news: mpsc::Receiver<(usize, News)>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut sessions: HashMap<Balancer, Running> = HashMap::new();
    let (mut numbers, mut trouble) = (0, String::new());
    loop {
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
            sessions
                .insert(balancer, Running { number: numbers, task: tokio::spawn(session.go_on()) });
            numbers += 1;
        }
        if let Some(file) = &mut kept {
            let found = file.keep(&roster).err().map(|error| error.to_string()).unwrap_or_default();
            if found != trouble && !found.is_empty() {
                (common.say)(format_args!(
                    "{found}; the next start will know only of the balancers that it is given"
                ));
            }
            trouble = found;
        }
        tokio::select! {
            // Who stops it may also have gone.
            _ = stopped.wait_for(|stopped| *stopped) => return,
            Some((number, news)) = news.recv() => {
                // One that was ended may have left word.
                let of = sessions.iter().find(|(_, running)| running.number == number);
                let Some((balancer, _)) = of else { continue };
                match news {
                    News::Says(list) => roster.says(balancer, list),
                    News::Lost => roster.lost(balancer),
                }
            }
        }
    }
}

/// Ends a session for good.
async fn end(common: &Common, balancer: &Balancer, running: Running) {
    running.task.abort();
    let _ = running.task.await;
    if let Err(error) = common.leave(running.number).await {
        (common.say)(format_args!("balancer {balancer}: {error}"));
    }
    (common.say)(format_args!(
        "balancer {balancer}: told no more, as its fleet names it no more, or by another address"
    ));
}
