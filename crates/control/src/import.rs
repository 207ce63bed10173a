//! `weir import`: a configuration made of what another balancer has.
//!
//! A reader for each form (`keepalived`, `ipvs`, `cilium`) makes drafts of services, and a [`Note`] with
//! its line for whatever has no counterpart here. What is written passes `weir check`: it is asked, and a
//! backend or service that it refuses is left out, with what was wrong as a note of its line.

#![forbid(unsafe_code)]

mod cilium;
mod draft;
mod ipvs;
mod keepalived;
#[cfg(test)]
mod tests;

use crate::config::plain;
use std::fmt;

/// The form of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// keepalived.conf.
    Keepalived,
    /// What `ipvsadm -S -n` prints.
    Ipvs,
    /// The file of cilium's `--lb-state-file`: services and endpoint slices, YAML or JSON.
    Cilium,
}

impl Form {
    /// All, by their names on the command line.
    pub const ALL: [(&'static str, Self); 3] =
        [("keepalived", Self::Keepalived), ("ipvsadm", Self::Ipvs), ("cilium", Self::Cilium)];

    /// Name of the form, as `weir import` takes it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, form)| *form == self).map_or("", |(name, _)| name)
    }

    /// What a text looks like; none if like none of them.
    pub fn guess(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.find_map(|line| {
            let first = line.split([' ', '\t', ':', '"', '{']).find(|word| !word.is_empty())?;
            match first {
                "-A" | "-a" | "--add-service" | "--add-server" | "ipvsadm" => Some(Self::Ipvs),
                "services" | "endpoints" => Some(Self::Cilium),
                "global_defs"
                | "virtual_server"
                | "virtual_server_group"
                | "vrrp_instance"
                | "vrrp_script"
                | "vrrp_sync_group"
                | "static_ipaddress" => Some(Self::Keepalived),
                _ => None,
            }
        })
    }
}

/// Something that was read and stands nowhere in what is written, or stands there otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Line of the file that was read, from 1.
    pub line: usize,
    /// What, and why.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// A configuration that passes `weir check`.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The file's text.
    pub text: String,
    /// What has no counterpart, by line.
    pub notes: Vec<Note>,
    /// Services in it.
    pub services: usize,
    /// Backends of all of them.
    pub backends: usize,
}

/// Why nothing can be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The text is not of the form.
    #[error("{line}: {wrong}")]
    Text {
        /// Line, from 1.
        line: usize,
        /// What is wrong with it, and what would be right.
        wrong: String,
    },
    /// No service could be taken over.
    #[error("no service in it can be taken over")]
    Nothing {
        /// Why each could not.
        notes: Vec<Note>,
    },
    /// What stands above the services is refused: the interfaces.
    #[error("{0}")]
    Refused(String),
}

/// What is wrong, as one line of a terminal: it may quote what was read.
fn shown(error: ImportError) -> ImportError {
    match error {
        ImportError::Text { line, wrong } => ImportError::Text { line, wrong: plain(wrong) },
        other => other,
    }
}

/// Reads a text and writes a configuration. `interfaces`: those of the balancer; none: what the text says, or
/// `eth0`.
///
/// # Errors
/// [`ImportError`].
pub fn import(form: Form, text: &str, interfaces: &[String]) -> Result<Imported, ImportError> {
    let draft = match form {
        Form::Keepalived => keepalived::read(text),
        Form::Ipvs => ipvs::read(text),
        Form::Cilium => cilium::read(text),
    };
    let mut draft = draft.map_err(shown)?;
    if !interfaces.is_empty() {
        draft.interfaces = interfaces.to_vec();
    }
    draft.settle(form)
}
