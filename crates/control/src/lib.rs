//! The control plane of weir: configuration, health, persistence and the state of the host.

pub mod agents;
pub mod api;
mod certificates;
pub mod config;
mod discovery;
pub mod doctor;
pub mod engine;
pub mod frames;
pub mod health;
pub mod history;
pub mod import;
pub mod init;
mod last_good;
pub mod metrics;
pub mod neigh;
pub mod notify;
mod owners;
pub mod process;
pub mod run;
pub mod snapshot;
pub mod store;
pub mod tables;

#[cfg(test)]
mod testnet;
