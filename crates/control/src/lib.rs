//! The control plane of weir: configuration, health, persistence and the state of the host.

pub mod config;
pub mod doctor;
pub mod health;
pub mod neigh;
pub mod store;

#[cfg(test)]
mod testnet;
