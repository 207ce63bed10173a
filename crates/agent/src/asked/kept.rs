//! What balancers have said last, in a file beside that of what was changed: whoever comes after an agent that was
//! killed goes on with it, also while balancers are away.

use super::Said;
use crate::error::{Context, Error};
use crate::ready::state;
use crate::speak::Balancer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weir_rpc::serving::Served;

/// Of the file's form: one that is not known is passed over.
const FORM: u32 = 1;
/// A file of that many bytes was not written by an agent.
const MOST_BYTES: u64 = 1 << 26;

#[derive(Serialize, Deserialize)]
struct Form {
    form: u32,
    /// Nothing of it is true after the next one.
    boot: String,
    said: BTreeMap<String, Vec<Served>>,
}

/// The file.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    boot: String,
    there: Said,
    /// Whether it says of this boot what was asked for.
    known: bool,
}

impl Kept {
    /// The file of this network namespace, with what stands in it; and in words, why that cannot be read.
    ///
    /// # Errors
    /// [`Error`], as this host does not say which namespace and boot this is.
    pub fn open(directory: &Path) -> Result<(Self, Option<String>), Error> {
        let path = directory.join(format!("asked-{}.json", state::network()?));
        let boot = state::boot()?;
        let (there, trouble) = match read(&path, &boot) {
            Ok(there) => (there, None),
            Err(why) => {
                let path = path.display();
                let why = format!("{path}: what balancers have asked for cannot be read ({why})");
                (None, Some(why))
            }
        };
        let known = there.is_some();
        Ok((Self { path, boot, there: there.unwrap_or_default(), known }, trouble))
    }

    /// Whether it says what was asked for, be it nothing. If not, nobody knows.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands in it.
    pub fn said(&self) -> &Said {
        &self.there
    }

    /// Writes what is said now, if that is something else: whole or not at all, and for its owner alone.
    ///
    /// # Errors
    /// [`Error`], with the file.
    pub fn keep(&mut self, said: &Said) -> Result<(), Error> {
        if *said == self.there {
            return Ok(());
        }
        let what = || format!("write {}", self.path.display());
        let all = said.iter().map(|(balancer, all)| (balancer.to_string(), all.clone()));
        let form = Form { form: FORM, boot: self.boot.clone(), said: all.collect() };
        let text = serde_json::to_string(&form).map_err(std::io::Error::other).context(what)?;
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).context(what)?;
        let new = self.path.with_extension("new");
        // Of one that was killed; nobody's link is followed.
        let _ = fs::remove_file(&new);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let mut file = file.context(what)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).context(what)?;
        fs::rename(&new, &self.path).context(what)?;
        self.there.clone_from(said);
        Ok(())
    }

    /// Removes it: nothing is ready any more.
    ///
    /// # Errors
    /// [`Error`], with the file.
    pub fn remove(&mut self) -> Result<(), Error> {
        self.there.clear();
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.context(|| format!("remove {}", self.path.display())),
        }
    }
}

/// None if there is none of this boot.
fn read(path: &Path, boot: &str) -> Result<Option<Said>, String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };
    let mut text = String::new();
    let length = file.take(MOST_BYTES).read_to_string(&mut text);
    if length.map_err(|error| error.to_string())? as u64 == MOST_BYTES {
        return Err("it is too long".into());
    }
    let form: Form = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if form.form != FORM {
        return Err(format!("it has form {}, and this weir knows {FORM}", form.form));
    }
    if form.boot != boot {
        return Ok(None);
    }
    let one = |(balancer, served): (String, Vec<Served>)| {
        let balancer = balancer.parse::<Balancer>().map_err(|error| error.to_string())?;
        Ok((balancer, served))
    };
    form.said.into_iter().map(one).collect::<Result<Said, String>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weir_rpc::serving::{Prefix, Transport, Way};

    #[test]
    fn what_was_said_is_there_at_the_next_start_and_not_after_a_boot() {
        let home = tempfile::tempdir().expect("a directory");
        let vip = Prefix { address: "10.0.0.1".parse().expect("an address"), bits: 32 };
        let served = Served {
            service: "web".into(),
            backend: "2001:db8::1".parse().expect("an address"),
            vips: vec![vip],
            transport: Transport::Udp,
            port: None,
            way: Some(Way::Fou(5555)),
            timestamps: true,
        };
        let said = Said::from([("[2001:db8::9]:80".parse().expect("a balancer"), vec![served])]);
        let open = || Kept::open(home.path()).expect("a namespace");
        let (mut kept, trouble) = open();
        assert!(kept.said().is_empty() && trouble.is_none() && !kept.is_known());
        kept.keep(&said).expect("written");
        let (again, trouble) = open();
        assert_eq!((again.said(), trouble), (&said, None));
        assert!(again.is_known());
        let mode = fs::metadata(&kept.path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let text = fs::read_to_string(&kept.path).expect("text");
        fs::write(&kept.path, text.replace(&kept.boot, "another")).expect("written");
        let (other, trouble) = open();
        assert!(other.said().is_empty() && trouble.is_none() && !other.is_known());
        let later = text.replace("\"form\":1", "\"form\":2");
        assert_ne!(later, text);
        for damaged in ["", "{", &text[..60], later.as_str()] {
            fs::write(&kept.path, damaged).expect("written");
            let (found, trouble) = open();
            assert!(trouble.expect(damaged).contains("cannot be read"));
            assert!(found.said().is_empty() && !found.is_known(), "{damaged}");
        }
        // What nothing is asked for is known, too.
        fs::write(&kept.path, &text).expect("written");
        kept.keep(&Said::new()).expect("written");
        assert!(open().0.is_known());
        kept.remove().expect("removed");
        assert!(open().1.is_none());
    }
}
