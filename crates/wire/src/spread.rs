//! A number of a flow by which its packets are spread where no secret is needed: the source port, flow
//! label or source address of a tunnel, which receivers choose their queue by.

/// Odd factor of the lower half of the source address.
pub const SPREAD_LOW: u64 = 0xaef1_7502_108e_f2d9;
/// Odd factor of all of it.
pub const SPREAD_FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
/// Odd factor of that, folded.
pub const SPREAD_SECOND: u64 = 0xd1b5_4a32_d192_ed03;

/// Of a packet's source address in two words, the second word of its destination, and its ports, each
/// word as it stands in memory on a little-endian machine. The address of IPv4 is the second word of its
/// kind. The same in the BPF program.
pub const fn spread(source: [u64; 2], destination: u64, ports: u32) -> u32 {
    let low = source[1].wrapping_mul(SPREAD_LOW);
    let hash = (source[0] ^ low ^ destination ^ ports as u64).wrapping_mul(SPREAD_FIRST);
    ((hash ^ hash >> 32).wrapping_mul(SPREAD_SECOND) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows that differ in one of their parts alone, over 16 queues: none has twice its share, or half.
    #[test]
    fn flows_spread_over_queues() {
        let count = 16_000u32;
        let alike: [fn(u32) -> u32; 4] = [
            |n| spread([0, 0x0a00_0001], 0x0a00_0002, n << 16 | 0x5000),
            |n| spread([0, (n.to_be() as u64) | 10], 0x0a00_0002, 0x5000_0004),
            |n| spread([0x1122_3344, (n as u64) << 40], 7, 0x5000_0004),
            |n| spread([(n as u64) << 32, 1 << 56], 7, 0x5000_0004),
        ];
        for (which, of) in alike.into_iter().enumerate() {
            for shift in [0, 10, 28] {
                let mut queues = [0; 16];
                (0..count).for_each(|n| queues[(of(n) >> shift & 15) as usize] += 1);
                let share = count / 16;
                let even = queues.iter().all(|n| (share / 2..share * 2).contains(n));
                assert!(even, "{which}, bit {shift}: {queues:?}");
            }
        }
    }
}
