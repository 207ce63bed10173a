//! The methods that can be measured, and how each is made ready.

mod baselines;
mod concury;
mod jet;
mod residue;

use super::bound::Reads;
use super::subject::Subject;
use super::world::{Control, World};
use crate::error::demand;
use crate::{Error, Result};
use weir_steering::MethodId::{
    self, Chain, Consistent, Digest, Ecmp, FullTracking, Jet, MultiDigest, Residue,
};

/// A method made ready: its flows are known, its pool has changed once since they began.
pub struct Ready {
    /// The method as each thread runs it.
    pub readers: Vec<Box<dyn Subject>>,
    /// The backend of each flow, by the flow's number.
    pub owners: Vec<u16>,
    /// Changes the pool, and learns of new flows.
    pub control: Box<dyn Control>,
    /// The memory reads that a lookup cannot do without.
    pub reads: Reads,
    /// Bytes that packets may read and [`Steer::bytes`](weir_steering::Steer::bytes) leaves out.
    pub more_bytes: usize,
    /// Packets write the tables, so each thread has its own for its part of the flows.
    pub sharded: bool,
    /// Share of the flows whose packets may go astray, as the method's documentation says.
    pub tolerated: f64,
}

/// A method of the registry, in one of its forms.
pub struct Method {
    /// Which method of the registry it is.
    pub id: MethodId,
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// What holds its states, where there is a choice.
    pub codec: Option<&'static str>,
    /// A table of digests, with which others are compared.
    pub digest: bool,
    /// Backends that it can have here.
    pub most_backends: u16,
    /// Makes the method ready to be measured.
    pub make: fn(&World) -> Result<Ready>,
}

const fn method(id: MethodId, name: &'static str, make: fn(&World) -> Result<Ready>) -> Method {
    Method { id, name, codec: None, digest: false, most_backends: u16::MAX, make }
}

const fn digest(id: MethodId, name: &'static str, make: fn(&World) -> Result<Ready>) -> Method {
    Method { digest: true, ..method(id, name, make) }
}

const fn concury(codec: &'static str, make: fn(&World) -> Result<Ready>) -> Method {
    Method {
        codec: Some(codec),
        most_backends: self::concury::MOST_BACKENDS,
        ..method(MethodId::Concury, MethodId::Concury.name(), make)
    }
}

/// All of them. A new method is one more line here, and its `make`.
pub const METHODS: &[Method] = &[
    method(Ecmp, "ecmp", baselines::ecmp),
    method(Consistent, "maglev", baselines::maglev),
    method(Consistent, "hrw-table", baselines::hrw_table),
    method(Consistent, "ring", baselines::ring),
    method(Consistent, "anchor", baselines::anchor),
    method(Chain, "chain", baselines::chain),
    digest(Digest, "digest", baselines::digest::<4>),
    digest(Digest, "digest-6", baselines::digest::<6>),
    digest(MultiDigest, "multi-digest", baselines::multi_digest),
    method(FullTracking, "full-tracking", jet::full_tracking),
    method(Jet, "jet-hrw", jet::hrw),
    method(Jet, "jet-ring", jet::ring),
    method(Jet, "jet-table", jet::table),
    method(Jet, "jet-anchor", jet::anchor),
    concury("othello", self::concury::othello),
    concury("fuse", self::concury::fuse),
    method(Residue, "residue", residue::exact),
];

/// Methods of the registry that are measured by another command, and that.
const ELSEWHERE: &[(MethodId, &str)] = &[
    (MethodId::Tracked, "weir bench xdp; here its form without a kernel is full-tracking"),
    (MethodId::Cheetah, "weir reproduce cheetah-fig5, whose packets carry cookies"),
    (MethodId::CheetahStateful, "weir reproduce cheetah-fig5, whose packets carry cookies"),
];

/// Methods of the registry that have no row here, each with the command that measures it; none for
/// one that nothing measures yet. So a new method needs no change of this bench, and is seen to be
/// missing.
pub fn without_row() -> impl Iterator<Item = (MethodId, Option<&'static str>)> {
    let has_row = |id| METHODS.iter().any(|method| method.id == id);
    let command =
        |id| ELSEWHERE.iter().find(|(other, _)| *other == id).map(|(_, command)| *command);
    MethodId::ALL.iter().filter(move |&&id| !has_row(id)).map(move |&id| (id, command(id)))
}

/// The methods of these names; `concury` means both codecs, `concury-fuse` one of them, and a name
/// of the registry that none has, such as `jet`, all its forms. All if there are none.
///
/// # Errors
///
/// A name that no method has, or that of one without a row.
pub fn find(names: &[String]) -> Result<Vec<&'static Method>> {
    let exactly = |method: &Method, name: &str| {
        let whole = method.codec.map(|codec| format!("{}-{codec}", method.name));
        method.name == name || whole.as_deref() == Some(name)
    };
    let called = |method: &Method, name: &str| {
        let exact = METHODS.iter().any(|method| exactly(method, name));
        if exact { exactly(method, name) } else { method.id.name() == name }
    };
    for name in names {
        if let Some((id, command)) = without_row().find(|(id, _)| id.name() == name) {
            let command = command.map_or_else(String::new, |command| format!(": {command}"));
            let words = format!("{id} is not measured by weir bench lookup{command}");
            return Err(Error::Request(words));
        }
        demand!(
            METHODS.iter().any(|method| called(method, name)),
            "no method is called {name}; there are {}",
            METHODS.iter().map(|m| m.label()).collect::<Vec<_>>().join(", ")
        );
    }
    let wanted =
        |method: &&Method| names.is_empty() || names.iter().any(|name| called(method, name));
    Ok(METHODS.iter().filter(wanted).collect())
}

impl Method {
    /// Name of the method, with its codec if it has a choice: `concury-fuse`.
    pub fn label(&self) -> String {
        match self.codec {
            Some(codec) => format!("{}-{codec}", self.name),
            None => self.name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_row_or_is_listed_without_and_then_refused_by_name() {
        let without: Vec<_> = without_row().collect();
        for &id in MethodId::ALL {
            let found = find(&[id.name().to_owned()]).map(|rows| rows.len());
            match without.iter().find(|(other, _)| *other == id) {
                None => assert!(found.expect("it has rows") > 0, "{id}"),
                Some((_, command)) => {
                    let refused = found.expect_err("it has no row").to_string();
                    assert!(refused.starts_with(id.name()), "{refused}");
                    assert!(command.is_none_or(|command| refused.ends_with(command)), "{refused}");
                }
            }
        }
        // Whoever gets a row leaves the list.
        for (id, _) in ELSEWHERE {
            assert!(without.iter().any(|(other, _)| other == id), "{id} is measured here");
        }
        assert!(find(&["ekmp".to_owned()]).is_err());
    }
}
