//! Prime numbers, for table sizes.

/// Whether `n` is prime. Trial division: at most 32,768 steps, and only when a table is sized.
pub const fn is_prime(n: u32) -> bool {
    if n < 4 {
        return n >= 2;
    }
    if n.is_multiple_of(2) {
        return false;
    }
    let mut divisor: u32 = 3;
    while divisor as u64 * divisor as u64 <= n as u64 {
        if n.is_multiple_of(divisor) {
            return false;
        }
        divisor += 2;
    }
    true
}

/// The smallest prime that is at least `n`. `None` above 4,294,967,291, the largest in 32 bits.
pub const fn next_prime(n: u32) -> Option<u32> {
    let mut candidate = n;
    while !is_prime(candidate) {
        candidate = match candidate.checked_add(1) {
            Some(next) => next,
            None => return None,
        };
    }
    Some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_primes() {
        let primes: Vec<u32> = (0..40).filter(|&n| is_prime(n)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]);
    }

    #[test]
    fn agrees_with_the_sieve_of_eratosthenes() {
        const LIMIT: usize = 100_000;
        let mut composite = vec![false; LIMIT];
        for n in 2..LIMIT {
            assert_eq!(is_prime(n as u32), !composite[n], "{n}");
            (n * n..LIMIT).step_by(n).for_each(|m| composite[m] = true);
        }
    }

    #[test]
    fn next_is_the_number_itself_or_the_one_after() {
        assert_eq!(next_prime(0), Some(2));
        assert_eq!(next_prime(65_536), Some(65_537));
        assert_eq!(next_prime(65_537), Some(65_537));
        assert_eq!(next_prime(65_538), Some(65_539));
        assert_eq!(next_prime(u32::MAX - 4), Some(4_294_967_291));
        assert_eq!(next_prime(u32::MAX), None);
    }
}
