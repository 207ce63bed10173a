//! Rules of a card, beside a plane in user space: how a laboratory asks for them, and what became of them.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::api;

/// Packets that rules lead in a run, at least.
pub(crate) const LEAST_LED: u64 = 1_000;
/// The methods whose packets planes in user space decide: no others' get rules.
pub(crate) const METHODS: [&str; 3] = ["concury", "residue", "jet"];

/// The card that a program plays in the kernel, at the switch's end of the balancer's interface.
pub(crate) const AT_VETH: &str = "emulated-veth";
/// Queues of the balancer's interface then: as many as the configuration takes of a card.
pub(crate) const QUEUES: u16 = 16;

/// The rules that are wanted, in the words of the configuration's `[offload]`. The card is an emulated one: the
/// laboratory's interfaces have none.
#[derive(Clone, Debug)]
pub struct RulesSpec {
    /// Whose they are: `emulated`, a card of memory, or `emulated-veth`.
    pub card: String,
    /// How the card behaves: `sound` or `hostile`.
    pub profile: String,
    /// Rules at a time; none: as the configuration has it.
    pub rules: Option<u32>,
    /// Which connections get one: `all`, `heavy` or `sampled`.
    pub choice: String,
}

impl RulesSpec {
    /// The table of the configuration.
    pub(crate) fn table(&self) -> String {
        let rules = self.rules.map_or(String::new(), |rules| format!("rules = {rules}\n"));
        let Self { card, profile, choice, .. } = self;
        format!("\n[offload]\ncard = {card:?}\nprofile = {profile:?}\nchoice = {choice:?}\n{rules}")
    }
}

/// What became of rules, and of packets with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ruled {
    /// Rules in force when it was looked.
    pub rules: u64,
    /// Rules that the card was asked for.
    pub asked: u64,
    /// Those that it refused.
    pub refused: u64,
    /// Packets of connections that were worth a rule and got none.
    pub unplaced: u64,
    /// Rules that went as the software said something else, or could have.
    pub doubted: u64,
    /// Packets that rules led.
    pub led: u64,
    /// Packets that no rule matched.
    pub steered: u64,
    /// Packets that the software decided though a rule matched them.
    pub steered_apart: u64,
}

impl Ruled {
    /// What a balancer at this socket says; nothing while none answers, or if it wants no rules.
    pub(crate) fn of(socket: &Path) -> Option<Self> {
        Self::read(&api::get(socket, "/v1/status").ok()?)
    }

    fn read(status: &Value) -> Option<Self> {
        let plane = &status["plane"];
        plane["offload"].as_str()?;
        let count = |name: &str| plane["counts"][name].as_u64();
        Some(Self {
            rules: count("rules")?,
            asked: count("rules_asked")?,
            refused: count("rules_refused")?,
            unplaced: count("rules_unplaced")?,
            doubted: count("rules_doubted")?,
            led: count("led")?,
            steered: count("steered")?,
            steered_apart: count("steered_apart")?,
        })
    }

    /// The same in words.
    pub(crate) fn words(&self) -> String {
        let Self { rules, asked, refused, unplaced, doubted, led, steered, steered_apart } = self;
        format!(
            "rules of a card (emulated): {rules} in force, {asked} asked for, {refused} refused, {doubted} doubted; \
             packets: {led} led, {steered} steered, {steered_apart} steered in a backend's queue, {unplaced} of \
             connections that found no place"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_a_table_of_the_configuration() {
        let mut spec = RulesSpec {
            card: "emulated".into(),
            profile: "hostile".into(),
            rules: None,
            choice: "all".into(),
        };
        let table = "\n[offload]\ncard = \"emulated\"\nprofile = \"hostile\"\nchoice = \"all\"\n";
        assert_eq!(spec.table(), table);
        spec.rules = Some(8);
        assert_eq!(spec.table(), format!("{table}rules = 8\n"));
    }

    #[test]
    fn counts_are_those_of_a_plane_with_rules() {
        let counts = serde_json::json!({
            "rules": 3, "rules_asked": 9, "rules_refused": 2, "rules_unplaced": 5, "rules_doubted": 1,
            "led": 70, "steered": 40, "steered_apart": 4,
        });
        let plane = serde_json::json!({"plane": {"offload": "emulated", "counts": counts}});
        let ruled = Ruled::read(&plane).unwrap();
        assert_eq!((ruled.rules, ruled.asked, ruled.led, ruled.steered_apart), (3, 9, 70, 4));
        let packets =
            "packets: 70 led, 40 steered, 4 steered in a backend's queue, 5 of connections that";
        assert!(ruled.words().contains(packets), "{}", ruled.words());
        let without = serde_json::json!({"plane": {"counts": counts}});
        assert_eq!(Ruled::read(&without), None);
    }
}
