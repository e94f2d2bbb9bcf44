//! Models by name: the models folder, and the hub that fills it.
//!
//! `reference` reads what the user calls a model, `names` knows how repositories name their files, `store` is
//! the folder, `models` the command that shows it. With the feature `pull`: `client` speaks HTTP, `api` asks
//! the hub what a repository holds, `download` brings one file, `pull` is the command.

pub mod models;
mod names;
mod reference;
mod store;

#[cfg(feature = "pull")]
mod api;
#[cfg(feature = "pull")]
mod client;
#[cfg(feature = "pull")]
mod download;
#[cfg(feature = "pull")]
mod failure;
#[cfg(feature = "pull")]
pub mod pull;

#[cfg(feature = "pull")]
pub use client::Token;
#[cfg(feature = "pull")]
pub use reference::Reference;
pub use store::resolve;

/// The file that a pull locks, in the folder of the repository.
const LOCK_NAME: &str = ".pull.lock";
