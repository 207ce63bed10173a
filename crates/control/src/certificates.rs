//! When certificates end, and what is said of those that end soon.

use std::time::{SystemTime, UNIX_EPOCH};

/// Certificates that end sooner are warned of.
const ENDS_SOON: i64 = 14 * 86_400;

/// When a certificate in DER ends, in seconds since 1970; none if it cannot be read.
pub(crate) fn ends(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// What there is to say of somebody's certificate that ends then; none if it holds for two weeks more.
pub(crate) fn warning(whose: &str, ends: i64) -> Option<String> {
    let left = ends.saturating_sub(now());
    if left <= 0 {
        return Some(format!("{whose} has ended"));
    }
    (left < ENDS_SOON).then(|| format!("{whose} ends in {}", lasting(left)))
}

/// So many seconds in words, in the largest unit of which there are two.
fn lasting(seconds: i64) -> String {
    match seconds {
        172_800.. => format!("{} days", seconds / 86_400),
        7200.. => format!("{} hours", seconds / 3600),
        120.. => format!("{} minutes", seconds / 60),
        _ => "two minutes at most".into(),
    }
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_warned_of_two_weeks_before_and_afterwards() {
        let said = |days: i64| warning("it", now() + days * 86_400 + 3600);
        assert_eq!(said(14), None);
        assert_eq!(said(13).as_deref(), Some("it ends in 13 days"));
        assert_eq!(said(0).map(|said| said.ends_with(" minutes")), Some(true));
        for (seconds, words) in [
            (172_800, "2 days"),
            (172_799, "47 hours"),
            (86_400, "24 hours"),
            (7199, "119 minutes"),
            (119, "two minutes at most"),
        ] {
            assert_eq!(lasting(seconds), words);
        }
        assert_eq!(said(-1).as_deref(), Some("it has ended"));
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut wanted = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        wanted.not_after = rcgen::date_time_ymd(2001, 9, 9);
        let made = wanted.self_signed(&key).expect("a certificate");
        assert_eq!(ends(made.der()), Some(999_993_600));
        assert_eq!(ends(b"no certificate"), None);
    }
}
