//! What a plane in user space, beside the one in the kernel, tells of itself.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What a plane in user space counts, since its page was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct UserCounts { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl UserCounts {
            /// All counts, in their order.
            pub fn words(&self) -> Vec<u64> {
                vec![$(self.$name),*]
            }

            /// Of such words; what is missing is 0.
            pub fn of_words(mut words: impl Iterator<Item = u64>) -> Self {
                Self { $($name: words.next().unwrap_or_default(),)* }
            }

            /// Each with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Frames that came by its sockets.
    received,
    /// Frames that it sent to backends.
    sent,
    /// Frames that it gave back to the program in the kernel, which decided them.
    returned,
    /// Those that were lost as the kernel did not take them back.
    return_failed,
    /// Frames that were lost as a socket's ring of received frames was full.
    rx_ring_full,
    /// Frames that were lost as there was no free memory for them.
    no_chunk,
    /// Frames that were lost as an interface took none.
    device_full,
    /// Descriptors that made no sense.
    bad_descriptors,
    /// Bursts with a frame at least.
    bursts,
    /// Times that it slept until a frame came.
    sleeps,
    /// Nanoseconds that it was at bursts.
    busy_nanoseconds,
    /// Nanoseconds that it ran, asleep or not.
    nanoseconds,
    /// Of the last second, the share of time that it was at bursts, in millionths.
    utilisation,
    /// The same weighted by how full bursts were (HNLB's util+), in millionths.
    utilisation_plus,
    /// Sockets that it has.
    sockets,
    /// Times that a plane began.
    starts,
    /// Rules in force at its card (docs/hnlb.md).
    rules,
    /// Rules that the card was asked for.
    rules_asked,
    /// Those that it refused, at once or later, or took no command for.
    rules_refused,
    /// Packets of connections that were worth a rule and got none, as there was no place, no queue, or none to be
    /// trusted.
    rules_unplaced,
    /// Rules that went as the software said something else, or could have.
    rules_doubted,
    /// Frames that rules led: sent without a look-up.
    led,
    /// Frames of the queue of what no rule matches, which the software decided, or gave back.
    steered,
    /// The same of other queues: these were in doubt, or the frames not plain.
    steered_apart,
}

/// What a plane in user space tells of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserStatus {
    /// The number of its process, if packets are handed to it.
    pub process: Option<u32>,
    /// What it has counted.
    pub counts: UserCounts,
}
