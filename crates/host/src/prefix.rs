//! What an administrator does for a service by prefix on its backends: an agent makes single addresses ready.

/// What is to be done by hand for all addresses of a prefix. `tunnel`: the name of what their packets come in, if
/// they do not come as they are.
pub fn by_hand(prefix: &str, tunnel: Option<&str>) -> String {
    let route = format!("ip route add local {prefix} dev lo");
    tunnel.map_or_else(
        || route.clone(),
        |tunnel| {
            format!(
                "{route}, and a tunnel device of the kernel's that takes their packets out of {tunnel}, with an \
                 IPv4 address and rp_filter = 2 (docs/services.md, \"Prefixes on backends\")"
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::by_hand;

    #[test]
    fn behind_a_tunnel_the_route_alone_is_not_enough() {
        let route = "ip route add local 10.1.0.0/24 dev lo";
        assert_eq!(by_hand("10.1.0.0/24", None), route);
        let more = by_hand("10.1.0.0/24", Some("gue"));
        assert!(more.starts_with(route) && more.contains("out of gue"), "{more}");
        assert!(more.contains("rp_filter = 2"), "{more}");
    }
}
