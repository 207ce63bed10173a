//! The control plane of weir: configuration, health, persistence and the state of the host.

pub mod agents;
pub mod api;
pub mod backend;
mod certificates;
pub mod config;
mod discovery;
pub mod doctor;
pub mod engine;
pub mod frames;
pub mod guard;
pub mod health;
pub mod history;
pub mod import;
pub mod init;
mod last_good;
pub mod metrics;
pub mod neigh;
pub mod notify;
pub mod otlp;
mod owners;
mod pace;
pub mod process;
pub mod run;
pub mod snapshot;
pub mod stdio;
pub mod store;
pub mod tables;
pub mod unload;

#[cfg(test)]
mod testnet;
