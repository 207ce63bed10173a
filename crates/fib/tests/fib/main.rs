//! The promises of the forwarders, from outside.

mod aliens;
mod common;
mod histories;
mod network;
