//! What files that list sources said when that came into force. Somebody writes such a file while weir runs, as feeds
//! do, and nothing reads it until the next reload or start. A start over a running data plane that cannot use one goes
//! on with what is kept here (`last_good.rs`), as the text that was in force names the same file.
//!
//! A file for each list, named by what it says: what is there is not written again, and one that no service has any
//! more is removed. Which of them a service had, `runtime.json` says.

use crate::config::{Config, KeptLists, Lists, Service};
use crate::engine::Engine;
use crate::engine::document::Document;
use crate::history::private;
use crate::store::{StoreError, write_whole};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use tracing::{info, warn};
use weir_host::files;
use weir_plane::Plane;

/// The folder of a run directory that they are in.
const FOLDER: &str = "lists";

/// What the lists of an instance's services said when they came into force, as far as it is kept.
pub(crate) fn kept_lists(run_dir: &Path) -> KeptLists {
    let services = Document::read(run_dir).unwrap_or_default().services;
    let folder = run_dir.join(FOLDER);
    // Many services may have one list.
    let mut read: HashMap<String, Option<Lists>> = HashMap::new();
    let of_service = |(name, lists): (String, Lists)| {
        let found = read.entry(lists.key()).or_insert_with_key(|key| {
            let text = files::read_text(&folder.join(key)).ok()?;
            // What somebody has changed is not what was in force.
            Lists::from_text(&text).filter(|found| *found == lists)
        });
        Some((name, found.clone()?))
    };
    let had =
        services.into_iter().filter_map(|(name, saved)| Some((name, saved.configured.lists?)));
    had.filter_map(of_service).collect()
}

/// Keeps what the lists of services say that stand in files of their own. Returns how many were not kept yet.
fn keep<'a>(
    run_dir: &Path,
    services: impl IntoIterator<Item = &'a Service>,
) -> Result<usize, StoreError> {
    let folder = run_dir.join(FOLDER);
    let mut written = 0;
    let lists = services.into_iter().filter_map(|service| service.lists.as_ref());
    for lists in lists.filter(|lists| lists.are_of_files()) {
        let path = folder.join(lists.key());
        if fs::symlink_metadata(&path).is_ok_and(|about| about.is_file() && about.len() > 0) {
            continue;
        }
        let Some(text) = lists.text() else { continue };
        private(&folder)?;
        write_whole(&path, text.as_bytes())?;
        written += 1;
    }
    Ok(written)
}

impl<P: Plane> Engine<P> {
    /// Keeps what the lists of a configuration say, before it is written down that they are in force. A disc without
    /// room for them keeps nobody from following the file: it is tried again, and said until then.
    pub(in crate::engine) fn keep_lists_of(&self, config: &Config) {
        if let Err(error) = keep(&config.balancer.run_dir, &config.services) {
            warn!(%error, "a start that cannot use the files of lists will not know what they said");
        }
    }

    /// The same of what is in force, if it is not kept, as somebody has removed it or there was no room. Returns why it
    /// cannot be.
    pub(super) fn keep_lists_again(&self) -> Option<String> {
        let services = self.services.values().map(|service| &service.configured);
        match keep(&self.config.balancer.run_dir, services) {
            Ok(0) => None,
            Ok(_) => {
                info!("what lists of sources said when they came into force is kept again");
                None
            }
            Err(error) => Some(format!(
                "what lists of sources say is not kept, and a start that cannot use their files will not know it: \
                 {error}; tried again"
            )),
        }
    }

    /// Removes what is kept of lists that no service has any more.
    pub(in crate::engine) fn forget_lists(&self) {
        let folder = self.config.balancer.run_dir.join(FOLDER);
        // Where it is a link, what it leads to is somebody else's.
        if !fs::symlink_metadata(&folder).is_ok_and(|about| about.is_dir()) {
            return;
        }
        let running = self.services.values().map(|service| &service.configured);
        let saved = self.document.services.values().map(|saved| &saved.configured);
        let lists = running.chain(saved).filter_map(|service| service.lists.as_ref());
        let used: HashSet<String> = lists.map(Lists::key).collect();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let is_used = entry.file_name().to_str().is_some_and(|name| used.contains(name));
            if !is_used && let Err(error) = fs::remove_file(entry.path()) {
                warn!(path = %entry.path().display(), %error, "cannot remove what no service has any more");
            }
        }
        // With the last of them; what is in it keeps it there.
        let _ = fs::remove_dir(&folder);
    }
}
