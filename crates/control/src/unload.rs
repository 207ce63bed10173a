//! What `weir unload` does about routes. What an instance has announced stays announced when it ends, as forwarding
//! goes on; before that is ended, routes are withdrawn, or packets would be drawn to a host that forwards nothing.

use crate::config::{Config, PlaneKind};
use crate::engine::{announced_file, pin_directory};
use crate::last_good::{in_force, noted};
use crate::store::{RunLock, StoreError};
use std::path::Path;
use weir_announce::{SpeakerConfig, withdraw_all, written_down};
use weir_host::files;

/// Where it stands, in the run directory, that a data plane was removed whose routes could not be withdrawn.
const LEFT: &str = "routes_left";

/// What became of the routes that an instance may have announced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Routes {
    /// There are none, or nobody was told of them.
    None,
    /// They are not announced any more.
    Withdrawn {
        /// By whom.
        speaker: String,
        /// The routes, in words.
        routes: String,
    },
    /// They may still be announced: by whom, why, and what to do, in a sentence.
    Left(String),
}

/// Withdraws what an instance has announced that does not run: by the speaker that was in force last, else by that of
/// `file`. `loaded`: its data plane is there, and its name is held; else what is left of an earlier try is withdrawn.
pub async fn withdraw(name: &str, file: Option<&Config>, loaded: bool) -> Routes {
    let run_dir = noted(&pin_directory(name));
    let Some(run_dir) = run_dir.or_else(|| file.map(|file| file.balancer.run_dir.clone())) else {
        return Routes::None;
    };
    if !RunLock::is_used(&run_dir) {
        return Routes::None;
    }
    // What is not seen here may forward all the same: a switch, or what is pinned under another name, or in another
    // mount namespace.
    let left = run_dir.join(LEFT);
    if !loaded && !left.exists() {
        return Routes::None;
    }
    let lock = if loaded { RunLock::await_free(&run_dir) } else { RunLock::acquire(&run_dir) };
    let _lock = match lock {
        Ok(lock) => lock,
        // Whoever has it looks after the routes.
        Err(StoreError::Locked { .. }) => return Routes::None,
        Err(error) => {
            let file = announced_file(&run_dir);
            return Routes::Left(unknown(&file, &error));
        }
    };
    let known = in_force(&run_dir);
    // A switch goes on, whatever is in the kernel.
    if known.as_ref().or(file).is_some_and(|config| config.balancer.plane == PlaneKind::P4) {
        return Routes::None;
    }
    let all = [known.as_ref(), file];
    let announce = all.into_iter().flatten().find_map(|config| config.announce.as_ref());
    let speaker = announce.map(|announce| &announce.speaker);
    let routes = withdraw_by(speaker, &announced_file(&run_dir)).await;
    let _ = match routes {
        Routes::Left(_) => files::write(&left, b""),
        _ => files::gone(&left),
    };
    routes
}

/// An instance looks after its routes again, also after those that an earlier `weir unload` has left.
pub fn taken_up(run_dir: &Path) {
    // Where it cannot be removed, a later unload asks the speaker once too often.
    let _ = files::gone(&run_dir.join(LEFT));
}

async fn withdraw_by(speaker: Option<&SpeakerConfig>, file: &Path) -> Routes {
    let routes = match written_down(file) {
        Ok(routes) if routes.is_empty() => return Routes::None,
        Ok(routes) => routes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Err(error) => return Routes::Left(unknown(file, &error)),
    };
    let Some(speaker) = speaker else {
        return Routes::Left(format!(
            "{routes} may still be announced ({}), and no configuration is found that says by whom: `weir unload \
             --config FILE` with one that has [announce] withdraws them",
            file.display()
        ));
    };
    // Who asks what was decided gets no answer since the instance has ended, and has given the addresses up.
    let Some(by_hand) = speaker.by_hand() else { return Routes::None };
    match withdraw_all(speaker, file).await {
        Ok(()) => Routes::Withdrawn { speaker: speaker.to_string(), routes },
        Err(error) => Routes::Left(format!(
            "{routes} may still be announced by {speaker}, which draws packets to a host that does not forward them: \
             {error}; `weir unload --config FILE` once more tries again, or withdraw them by hand: {by_hand}"
        )),
    }
}

/// It cannot be read what may be announced.
fn unknown(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "routes may still be announced, and {} does not tell which: {error}; ask the speaker, and withdraw them by \
         hand",
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_announce::Attributes;

    #[tokio::test(flavor = "current_thread")]
    async fn what_cannot_be_withdrawn_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("announced.json");
        let (socket, include) = (folder.path().join("bird.ctl"), folder.path().join("bird.conf"));
        let attributes = Attributes::default();
        let bird = SpeakerConfig::Bird { socket, file: include, attributes };
        // Nothing was announced, so nobody is asked.
        assert_eq!(withdraw_by(Some(&bird), &file).await, Routes::None);
        std::fs::write(&file, "[]").unwrap();
        assert_eq!(withdraw_by(Some(&bird), &file).await, Routes::None);

        std::fs::write(&file, r#"["192.0.2.1/32"]"#).unwrap();
        let Routes::Left(said) = withdraw_by(Some(&bird), &file).await else {
            panic!("nobody is there")
        };
        for words in ["192.0.2.1/32", "BIRD at ", "cannot reach", "birdc -s ", "bird.conf"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), r#"["192.0.2.1/32"]"#);
        let Routes::Left(said) = withdraw_by(None, &file).await else { panic!("by whom?") };
        assert!(said.contains("192.0.2.1/32") && said.contains("--config FILE"), "{said}");
        // keepalived asks, and has got no answer for long.
        assert_eq!(withdraw_by(Some(&SpeakerConfig::None), &file).await, Routes::None);
        std::fs::write(&file, "nonsense").unwrap();
        assert!(matches!(withdraw_by(Some(&bird), &file).await, Routes::Left(_)));
    }
}
