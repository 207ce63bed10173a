//! Direct server return on one link: other MAC addresses.

/// A backend's next hop on its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NextHop {
    /// The backend's MAC address.
    pub mac: [u8; 6],
    /// Our own MAC address on that link.
    pub source_mac: [u8; 6],
}

/// Direct server return: the frame gets the MAC addresses of the next hop and ours, and is
/// otherwise left as it is. A frame shorter than the two addresses is left alone.
pub fn l2(frame: &mut [u8], hop: &NextHop) {
    if let Some(addresses) = frame.get_mut(..12) {
        addresses[..6].copy_from_slice(&hop.mac);
        addresses[6..].copy_from_slice(&hop.source_mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_addresses_change() {
        let hop = NextHop { mac: [2, 0, 0, 0, 0, 1], source_mac: [2, 0, 0, 0, 0, 9] };
        let mut frame: Vec<u8> = (0..60).collect();
        l2(&mut frame, &hop);
        assert_eq!(frame[..6], hop.mac);
        assert_eq!(frame[6..12], hop.source_mac);
        assert_eq!(frame[12..], (12..60).collect::<Vec<u8>>());
        let mut short = [1; 11];
        l2(&mut short, &hop);
        assert_eq!(short, [1; 11]);
    }
}
