//! How values of options are read.

use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use weir_control::config::PlaneKind;

/// What decides packets, by its name.
pub(crate) fn plane_kind(name: &str) -> Result<PlaneKind, String> {
    let known = PlaneKind::ALL.into_iter().find(|(known, _)| *known == name);
    known.map(|(_, kind)| kind).ok_or_else(|| {
        let names = PlaneKind::ALL.map(|(name, _)| name).join(", ");
        format!("there are {names}")
    })
}

/// The socket of an instance, of an option or of the environment.
pub(crate) fn socket() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text: OsString| match text.is_empty() {
        true => Err("it is empty: give the path of a socket, or unset WEIR_SOCKET".to_owned()),
        false => Ok(PathBuf::from(text)),
    })
}

/// The number of a change.
pub(crate) fn change(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        "give the number of a change, as `weir history` lists them; `weir rollback` without one goes back to the \
         file before"
            .into()
    })
}

/// An end of a flow.
pub(crate) fn flow_end(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "give an address with a port, such as 192.0.2.7:4711 or [2001:db8::7]:4711".into()
    })
}

/// An address, with a port or without.
pub(crate) fn address_and_port(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if let Some(address) = bare.and_then(|text| text.parse::<IpAddr>().ok()) {
        return Ok((address, None));
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Ok((address.ip(), Some(address.port()))),
        Ok(address) => Err(format!("0 is not a port: give 1 to 65535, or {} alone", address.ip())),
        Err(_) => {
            Err("give an address, such as 10.0.0.11, 10.0.0.11:8080 or [2001:db8::11]:8080".into())
        }
    }
}

/// An address, or a route with the length of its prefix.
pub(crate) fn address_or_route(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let wrong = || "give an address or a route, such as 192.0.2.1 or 192.0.2.0/24".to_owned();
    let Some((address, length)) = text.split_once('/') else {
        return text.parse::<IpAddr>().map(|address| (address, None)).map_err(|_| wrong());
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length: u8 = length.parse().map_err(|_| wrong())?;
    match length <= longest {
        true => Ok((address, Some(length))),
        false => Err(format!("/{length} is no length of a prefix: give 0 to {longest}")),
    }
}

/// The name of a service or a backend.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if weir_control::config::is_name(text) {
        return Ok(text.to_owned());
    }
    Err("a name has 1 to 64 letters, digits and - _ .".into())
}

/// How often something is looked at.
pub(crate) fn look_every(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time);
    fits.then_some(time).ok_or_else(|| "give 100ms to 1h".into())
}

/// For how long packets are looked at.
pub(crate) fn look_for(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let looks = time > Duration::ZERO;
    looks.then_some(time).ok_or_else(|| "nothing comes in no time: give one such as 10s".into())
}

/// How long something may go on, or be waited for.
pub(crate) fn up_to_a_month(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = time <= Duration::from_secs(30 * 24 * 3600);
    fits.then_some(time).ok_or_else(|| "give 30d at most".into())
}

/// For how long nothing need be heard.
pub(crate) fn patience(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    (time >= Duration::from_secs(1)).then_some(time).ok_or_else(|| "give 1s or more".into())
}

/// For how long a prefix is on a list.
pub(crate) fn list_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let fits = (Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600)).contains(&time);
    fits.then_some(time).ok_or_else(|| "give 1s to 365d".into())
}

/// The weight of a backend.
pub(crate) fn weight(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("a weight is a whole number from 0 to {}", u16::MAX))
}

/// The load of a backend.
pub(crate) fn load(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let allowed = number.filter(|load| load.is_finite() && *load >= 0.0);
    allowed.ok_or_else(|| "a load is a number of 0 or more, for example 0.75".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_ends_within_a_month() {
        for (good, seconds) in [("0s", 0), ("90s", 90), ("30d", 30 * 24 * 3600)] {
            assert_eq!(up_to_a_month(good), Ok(Duration::from_secs(seconds)), "{good}");
        }
        for bad in ["30d 1s", "99999999999d"] {
            assert_eq!(up_to_a_month(bad), Err("give 30d at most".to_owned()), "{bad}");
        }
        assert!(up_to_a_month("a while").is_err());
    }

    #[test]
    fn addresses_and_routes_are_read() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (text, of, length) in [
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1/32", "192.0.2.1", Some(32)),
            ("192.0.2.0/24", "192.0.2.0", Some(24)),
            ("2001:db8::/64", "2001:db8::", Some(64)),
        ] {
            assert_eq!(address_or_route(text), Ok((address(of), length)), "{text}");
        }
        for text in ["", "/32", "192.0.2.1/", "192.0.2.1/33", "::/129", "web/32", "1.2.3.4/a"] {
            assert!(address_or_route(text).is_err(), "{text}");
        }
    }
}
