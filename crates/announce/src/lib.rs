//! Which addresses of services a balancer announces to routers, and through which BGP speaker.
//!
//! ```text
//! what is served, how many backends are up ─> Gate ─> routes that are wanted ─┐
//!                                                                              ├─> Keeper ─> Speaker
//! what the speaker announces for us ──────────────────────────────────────────┘
//! ```
//! - [`Gate`] decides, and knows no clock and no sockets: an address is announced while each service
//!   at it is served by a table and has as many backends up as it needs, unless the balancer is
//!   drained, takes no packets yet, or still learns which connections live.
//! - [`Speaker`] is one that is there already: GoBGP by its API, BIRD by its control socket, or none,
//!   where something else (keepalived) asks what was decided.
//! - [`Keeper`] compares the two, again and again: a speaker that was restarted is told anew, and what
//!   an earlier run has left behind is taken away.
#![forbid(unsafe_code)]

mod bird;
mod gate;
mod gobgp;
mod keeper;
mod route;
mod speaker;

pub use gate::{Fact, Facts, Gate, Verdict, Why};
pub use keeper::{Keeper, LOOK_EVERY, Report, RouteReport, Wanted, withdraw_all, written_down};
pub use route::{Route, RouteError};
pub use speaker::{Attributes, Community, CommunityError, Error, Speaker, SpeakerConfig};
