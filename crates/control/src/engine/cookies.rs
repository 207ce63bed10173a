//! Keys of Cheetah's cookies: what a service's are drawn from, and how they change.
//!
//! A cookie is good for as long as every balancer that it may come to reads it. So a key is read before it issues,
//! and read on when another one does; and in a fleet each of these steps waits until all have made the one before.

use super::service::{ServiceRuntime, vip_of};
use super::turn::{InForce, ROTATION};
use super::{Engine, EngineError};
use crate::config::{Config, CookieKeys, Service};
use weir_plane::{Plane, VipKey};
use weir_steering::Settings;
use xxhash_rust::xxh3::xxh3_64;

/// The seed of a service whose cookies other balancers have to read, from the key that all of them are given. No
/// two services of a file have the same.
pub(super) fn shared_seed(service: &Service) -> Option<u64> {
    let mut bytes = service.cookie_key.as_ref()?.bytes()?.to_vec();
    bytes.extend(place_of(service));
    Some(xxh3_64(&bytes))
}

/// What tells a service from the others of a file, to draw keys.
fn place_of(service: &Service) -> Vec<u8> {
    let VipKey { address, protocol, port } = vip_of(service);
    let mut bytes = address.to_vec();
    bytes.push(protocol.number());
    bytes.extend(port.unwrap_or(0).to_be_bytes());
    bytes
}

/// The same in words; where they stay, so do the keys that are drawn.
pub(super) fn place_words(service: &Service) -> String {
    match service.port {
        Some(port) => format!("{} port {port}", service.vip),
        None => service.vip.to_string(),
    }
}

/// The settings of a service's method, with the keys of its cookies if they may change.
pub(super) fn settings_of(service: &Service) -> Settings {
    let keys = service.cookie_keys.as_ref();
    let keys = keys.and_then(|keys| keys.of_tables(&place_of(service)));
    service.method.settings().clone().with_cookie_keys(keys)
}

impl<P: Plane> Engine<P> {
    /// Whether the whole fleet is ready for the keys that a configuration has: no balancer may be led cookies that it
    /// does not read, nor issue by a key that the others read no longer.
    pub(super) fn keys_may_turn(&self, config: &Config) -> Result<(), EngineError> {
        for (wanted, now) in config.services.iter().zip(self.pairs(&config.services)) {
            let Some(now) = now.filter(|now| now.in_force.turns_keys(&InForce::of(wanted))) else {
                continue;
            };
            let (Some(had), Some(keys)) = (&now.in_force.cookie_keys, &wanted.cookie_keys) else {
                continue;
            };
            let refused = |why: String| {
                let name = &wanted.name;
                EngineError::Conflict(format!(
                    "service {name}: {why}; nothing has changed ({ROTATION})"
                ))
            };
            if let Some(why) = wrong_step(had, keys) {
                return Err(refused(why));
            }
            if let Some(why) = self.not_ready() {
                return Err(refused(format!("cookie_keys: {why}")));
            }
        }
        Ok(())
    }

    /// Who has not followed the last change, and so may read other cookies than this balancer.
    fn not_ready(&self) -> Option<String> {
        let fleet = self.fleet.as_ref()?;
        if let Some(why) = self.turning_keys() {
            return Some(why);
        }
        let own = &self.config.balancer.name;
        fleet.with_report(|report| {
            let late = report.members.iter().filter(|name| *name != own).find(|name| {
                report.balancers.get(*name).is_none_or(|sign| {
                    sign.change != fleet.change() || sign.trouble.is_some()
                })
            })?;
            Some(format!(
                "{late} has not followed change {} of the fleet, so that it may read other cookies than the others; \
                 wait for it (weir fleet forget, if it does not come back)",
                fleet.change()
            ))
        })
    }

    /// Why the keys of the configuration are not yet those that packets go by.
    pub(super) fn turning_keys(&self) -> Option<String> {
        let turns = |one: &&ServiceRuntime| {
            one.turn.is_some() && one.in_force.turns_keys(&InForce::of(&one.configured))
        };
        let one = self.services.values().find(turns)?;
        Some(format!("packets of service {} follow a table of other keys yet", one.configured.name))
    }
}

/// What a step of a fleet would leave out.
fn wrong_step(had: &CookieKeys, keys: &CookieKeys) -> Option<String> {
    if had.issuing() != keys.key(had.issue) {
        return Some(format!(
            "cookie_keys: key {} issues; let another one issue before it goes",
            had.issue
        ));
    }
    if had.key(keys.issue) != keys.issuing() {
        return Some(format!(
            "issue_key: key {} is new, and has to be read by all balancers before it issues; add it first, with \
             issue_key = {}",
            keys.issue, had.issue
        ));
    }
    if let Some(number) = had.replaced_by(keys) {
        return Some(format!(
            "cookie_keys: key {number} is read yet, and another one in its place would read its cookies; remove it \
             first, when its connections have ended"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Key;

    fn keys(keys: [&str; 2], issue: u8) -> CookieKeys {
        let key = |digit: &str| Key::from_hex(&digit.repeat(32));
        CookieKeys { keys: keys.map(key), issue }
    }

    #[test]
    fn a_rotation_has_three_steps_and_leaves_none_out() {
        let steps = [
            keys(["a", ""], 0),
            keys(["a", "b"], 0),
            keys(["a", "b"], 1),
            keys(["", "b"], 1),
            keys(["c", "b"], 1),
            keys(["c", "b"], 0),
        ];
        for pair in steps.windows(2) {
            assert_eq!(wrong_step(&pair[0], &pair[1]), None);
        }
        for (from, to, why) in [
            (0, 2, "key 1 is new"),
            (1, 3, "key 0 issues"),
            (3, 5, "key 0 is new"),
            (0, 3, "key 0 issues"),
            (2, 4, "key 0 is read yet"),
        ] {
            let said = wrong_step(&steps[from], &steps[to]).expect("a step is left out");
            assert!(said.contains(why), "{said}");
        }
    }
}
