//! The last document that was followed, on a balancer's own disc, so that one which cannot reach the store
//! goes on with it: also after a restart, and after the machine has been off.

use crate::{Document, FleetError, Step};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use weir_host::files;

/// What a balancer keeps of its fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// Tells this balancer from another one of the same name.
    pub id: String,
    /// The document that it follows; none if it has followed none yet.
    pub document: Option<Document>,
    /// The last step of the pools whose pools are in force here; none if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
}

/// Where it is kept: beside the configuration file, which outlives the machine's being off, as a run
/// directory does not.
pub fn cache_path(config: &Path) -> PathBuf {
    let mut name = config.as_os_str().to_owned();
    name.push(".fleet");
    PathBuf::from(name)
}

impl Cache {
    /// What is kept there; a new one if there is nothing.
    ///
    /// # Errors
    /// [`FleetError::Io`] or [`FleetError::Copy`] if there is something that cannot be used: to go on
    /// without would be to decide otherwise than the fleet does.
    pub fn load(path: &Path) -> Result<Self, FleetError> {
        let bytes = match files::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let id = format!("{:016x}", rand::random::<u64>());
                return Ok(Self { id, document: None, step: None });
            }
            bytes => bytes.map_err(FleetError::io("read", path))?,
        };
        let corrupt = |reason: String| {
            FleetError::Copy(format!(
                "{} cannot be used: {reason}; move it away to begin with what the store has",
                path.display()
            ))
        };
        #[derive(Deserialize)]
        struct Kept {
            id: String,
            document: Option<serde_json::Value>,
            #[serde(default)]
            step: Option<Step>,
        }
        let kept: Kept =
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        let document = kept.document.filter(|document| !document.is_null());
        let document = document.map(|document| Document::parse(document.to_string().as_bytes()));
        Ok(Self { id: kept.id, document: document.transpose().map_err(corrupt)?, step: kept.step })
    }

    /// Keeps it, whole or not at all, through a loss of power too. Only its owner may read it: there are seeds
    /// in it.
    ///
    /// # Errors
    /// [`FleetError::Io`]; what was kept before is still there.
    pub fn save(&self, path: &Path) -> Result<(), FleetError> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        files::write_through(path, &bytes).map_err(FleetError::io("write", path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_kept_whole_and_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = cache_path(&folder.path().join("weir.toml"));
        let mut cache = Cache::load(&path).unwrap();
        assert_eq!((cache.document.clone(), cache.id.len()), (None, 16));
        cache.document = Some(Document::new(3, "text".into(), BTreeMap::new()));
        cache.save(&path).unwrap();
        assert_eq!(Cache::load(&path).unwrap(), cache);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "{\"id\": \"1\", \"document\": {\"version\": 9}}").unwrap();
        let said = Cache::load(&path).unwrap_err().to_string();
        assert!(said.contains("weir.toml.fleet cannot be used: it is of version 9"), "{said}");
        fs::write(&path, "{").unwrap();
        assert!(Cache::load(&path).is_err());
    }
}
