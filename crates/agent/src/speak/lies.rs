//! What the agent of a laboratory leaves out, or says wrongly, so that it can be seen what becomes of such connections
//! and of no others. A program without the feature `laboratory` cannot lie: there is nothing here then.

/// Of which connections an agent says something else than is so; the same at all balancers, in events and in lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lies {
    /// Nothing is said of connections whose client's port this number divides.
    #[cfg(feature = "laboratory")]
    pub omit_one_in: Option<u16>,
    /// Connections whose client's port this number divides are said to have ended as soon as they are open.
    #[cfg(feature = "laboratory")]
    pub end_one_in: Option<u16>,
}

#[cfg(feature = "laboratory")]
impl Lies {
    /// Whether nothing is said of connections from this port of their clients.
    pub(super) fn omits(self, port: u16) -> bool {
        divides(self.omit_one_in, port)
    }

    /// Whether those that are said to be open are said to have ended at once.
    pub(super) fn ends(self, port: u16) -> bool {
        divides(self.end_one_in, port)
    }

    /// In words, for the log of an agent that lies.
    pub(super) fn words(self) -> Vec<String> {
        let of = |number: Option<u16>, what| {
            let said = |number| format!("{what} connections whose client's port {number} divides");
            number.map(said)
        };
        let all = [
            of(self.omit_one_in, "says nothing of"),
            of(self.end_one_in, "says that they have ended at once of"),
        ];
        all.into_iter().flatten().collect()
    }
}

#[cfg(feature = "laboratory")]
fn divides(number: Option<u16>, port: u16) -> bool {
    number.is_some_and(|number| number != 0 && port.is_multiple_of(number))
}

#[cfg(not(feature = "laboratory"))]
impl Lies {
    pub(super) fn omits(self, _port: u16) -> bool {
        false
    }

    pub(super) fn ends(self, _port: u16) -> bool {
        false
    }

    pub(super) fn words(self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(all(test, feature = "laboratory"))]
mod tests {
    use super::*;

    #[test]
    fn ports_that_the_number_divides_are_lied_about_and_no_others() {
        let lies = Lies { omit_one_in: Some(5), end_one_in: None };
        let omitted: Vec<u16> = (1..=20).filter(|port| lies.omits(*port)).collect();
        assert_eq!(omitted, [5, 10, 15, 20]);
        assert!((1..=20).all(|port| !lies.ends(port)));
        assert!((0..=20).all(|port| !Lies::default().omits(port) && !Lies::default().ends(port)));
        assert_eq!(lies.words().len(), 1);
        assert!(Lies::default().words().is_empty());
    }
}
