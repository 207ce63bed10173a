//! Numbers of backends: each stands for one backend at a time.

/// A set of small numbers.
#[derive(Clone, Debug, Default)]
struct Set(Vec<u64>);

impl Set {
    fn has(&self, number: u32) -> bool {
        self.0.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    fn insert(&mut self, number: u32) {
        let at = number as usize / 64;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (number % 64);
    }
}

/// Numbers that are given out, and those that wait for their former owner to come back.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    given: Set,
    reserved: Set,
    /// No number below is free of both.
    lowest: u32,
}

impl Numbers {
    /// With these given, and those kept for former owners as long as others are free.
    pub fn counted(
        given: impl IntoIterator<Item = u32>,
        reserved: impl IntoIterator<Item = u32>,
    ) -> Self {
        let mut numbers = Self::default();
        given.into_iter().for_each(|number| numbers.given.insert(number));
        reserved.into_iter().for_each(|number| numbers.reserved.insert(number));
        numbers
    }

    /// Gives the number to its former owner, if nobody has it.
    pub fn give_again(&mut self, former: u32) -> bool {
        let free = !self.given.has(former);
        self.given.insert(former);
        free
    }

    /// Gives the lowest number below `limit` that is neither given nor reserved.
    pub fn give(&mut self, limit: u32) -> Option<u32> {
        let free = |number: &u32| !self.given.has(*number) && !self.reserved.has(*number);
        let number = (self.lowest..limit).find(free)?;
        self.lowest = number + 1;
        self.given.insert(number);
        Some(number)
    }

    /// Gives the lowest number below `limit` that is not given, though one may want it back.
    pub fn give_reserved(&mut self, limit: u32) -> Option<u32> {
        let number = (0..limit).find(|number| !self.given.has(*number))?;
        self.given.insert(number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_numbers_are_given_last() {
        let mut numbers = Numbers::counted([0, 2], [1, 4]);
        assert_eq!([numbers.give(6), numbers.give(6), numbers.give(6)], [Some(3), Some(5), None]);
        assert!(numbers.give_again(4) && !numbers.give_again(4));
        assert_eq!([numbers.give_reserved(6), numbers.give_reserved(6)], [Some(1), None]);
    }
}
