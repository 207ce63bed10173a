//! Whether the agent's own certificate holds, and that of its authority. Whoever refuses one that has ended says nothing
//! of certificates that the agent would hear, so that it is looked at here.

use super::Say;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;
use weir_rpc::tls::{self, Files, Identity, now};

/// Seconds before its end from which a certificate is warned of.
const SOON: i64 = 14 * 86_400;
/// It is looked at so often, beside each session that does not come about: one may go on for weeks.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// How a certificate stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stand {
    /// It holds for longer than is warned of, or cannot be read, which a session says.
    Holds,
    EndsSoon,
    NotYet,
    Ended,
}

/// What there is to say of a certificate: that it has ended, ends soon, or does not hold yet.
pub(super) fn warning(path: &Path, one: &Identity) -> Option<String> {
    look(path, one, now()).1
}

/// Why the agent's own certificate does not hold now, if it can be read and does not.
pub(super) fn lapsed(files: &Files) -> Option<String> {
    let (stand, words) = look(&files.certificate, &files.identity().ok()?, now());
    words.filter(|_| matches!(stand, Stand::Ended | Stand::NotYet))
}

/// Warns when one of the two begins to end soon, or has ended, for as long as the agent runs. What is so at the start,
/// whoever starts it has said.
pub(super) async fn look_after(files: Files, say: Say) {
    let mut before = stands(&files);
    loop {
        sleep(LOOK_EVERY).await;
        let after = stands(&files);
        for ((was, _), (is, words)) in before.iter().zip(&after) {
            if let Some(words) = words.as_ref().filter(|_| was != is) {
                say(format_args!("warning: {words}"));
            }
        }
        before = after;
    }
}

fn stands(files: &Files) -> [(Stand, Option<String>); 2] {
    [&files.certificate, &files.ca].map(|path| {
        let read = Identity::of_file(path).ok();
        read.map_or((Stand::Holds, None), |one| look(path, &one, now()))
    })
}

/// `now`: seconds since 1970.
fn look(path: &Path, one: &Identity, now: i64) -> (Stand, Option<String>) {
    let (what, left) = (path.display(), one.ends.saturating_sub(now));
    if left <= 0 {
        let ago = lasting(left.saturating_neg());
        let words = format!(
            "{what} has ended: nobody takes it (that was {ago} ago; put a new one in its place, which is read with \
             the next session)"
        );
        return (Stand::Ended, Some(words));
    }
    if one.begins > now {
        let words = format!("{what} does not hold yet, by this host's clock: is that right?");
        return (Stand::NotYet, Some(words));
    }
    if left < SOON {
        return (Stand::EndsSoon, Some(format!("{what} ends in {}", lasting(left))));
    }
    (Stand::Holds, None)
}

/// So many seconds in words.
fn lasting(seconds: i64) -> String {
    tls::lasting(seconds).unwrap_or_else(|| "less than two minutes".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_rpc::pki::{Request, Role, init, issue};

    #[test]
    fn an_end_is_said_with_its_file_two_weeks_before_and_afterwards() {
        let (path, ends) = (Path::new("/etc/weir/pki/b0.pem"), 100 * 86_400);
        let one = Identity { begins: 86_400, ends, ..Identity::default() };
        let at = |now: i64| look(path, &one, now);
        assert_eq!(at(ends - SOON), (Stand::Holds, None));
        for (now, stand, words) in [
            (ends - SOON + 1, Stand::EndsSoon, "b0.pem ends in 13 days"),
            (ends - 7200, Stand::EndsSoon, "b0.pem ends in 2 hours"),
            (
                ends,
                Stand::Ended,
                "b0.pem has ended: nobody takes it (that was less than two minutes ago",
            ),
            (ends + 172_800, Stand::Ended, "nobody takes it (that was 2 days ago"),
            (80_000, Stand::NotYet, "b0.pem does not hold yet"),
        ] {
            let (found, said) = at(now);
            assert_eq!(found, stand, "{now}");
            let said = said.expect("there is something to say");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn the_agents_own_certificate_is_looked_at_anew() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = home.path();
        let ca = init(directory, "test", 30).expect("an authority").certificate;
        let made = |name: &str, days| {
            let addresses = vec!["192.0.2.7".parse().expect("an address")];
            let (name, hosts) = (name.into(), Vec::new());
            let request = Request { name, role: Role::Agent, addresses, hosts, days };
            issue(directory, directory, &request).expect("a certificate")
        };
        let (late, good) = (made("late", 0), made("good", 20));
        let files = Files { certificate: late.certificate.clone(), key: late.key, ca };
        let said = lapsed(&files).expect("it has ended");
        assert!(said.contains("late.pem has ended"), "{said}");
        assert_eq!(stands(&files).map(|(stand, _)| stand), [Stand::Ended, Stand::Holds]);
        // Another one in its place counts from then on.
        std::fs::copy(good.certificate, late.certificate).expect("copied");
        assert_eq!(lapsed(&files), None);
        assert_eq!(stands(&files)[0].0, Stand::Holds);
        let gone = Files { certificate: "/nonexistent/b0.pem".into(), ..files };
        assert_eq!(lapsed(&gone), None);
    }
}
