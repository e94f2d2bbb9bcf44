//! The models folder and the hub that fills it.
//!
//! Invariant: a file with a model's name is complete. Downloads go to a `.part` file beside it, which gets the
//! final name only after its length, SHA-256 and GGUF magic were checked. No name from a server or a user leads
//! outside the folder.
//!
//! ```no_run
//! use rocmforge_hub::{ModelsFolder, resolve};
//!
//! # fn main() -> Result<(), rocmforge_hub::Error> {
//! let path = resolve("hf:owner/repo:Q4_K_M".as_ref(), None)?;
//! let folder = ModelsFolder::open(None)?;
//! for model in &folder.list()?.models {
//!     println!("{} in {} files", model.name, model.files.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `download`, [`ModelsFolder::pull`] downloads a model from a [`Hub`]:
//!
//! ```no_run
//! # #[cfg(feature = "download")]
//! # fn main() -> Result<(), rocmforge_hub::Error> {
//! use rocmforge_hub::{Event, Hub, HubConfig, ModelsFolder, Token};
//!
//! let hub = Hub::new(HubConfig { token: Token::from_env()?, ..HubConfig::default() })?;
//! let reference = "hf:owner/repo:Q4_K_M".parse()?;
//! let path = ModelsFolder::open(None)?.pull(&hub, &reference, &mut |event| {
//!     if let Event::Progress { done, total } = event {
//!         eprintln!("{done} of {total} bytes");
//!     }
//! })?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "download"))]
//! # fn main() {}
//! ```
#![forbid(unsafe_code)]

pub mod dirs;
pub mod display;
mod error;
mod folder;
mod names;
mod reference;

#[cfg(feature = "download")]
mod api;
#[cfg(feature = "download")]
mod client;
#[cfg(feature = "download")]
mod download;
#[cfg(feature = "download")]
mod event;
#[cfg(feature = "download")]
mod pull;
#[cfg(feature = "download")]
mod retry;

pub use error::{Available, Error};
pub use folder::{Listing, LocalFile, LocalModel, ModelsFolder, resolve};
pub use names::ModelFiles;
pub use reference::{Reference, Selection};

#[cfg(feature = "download")]
pub use api::Choice;
#[cfg(feature = "download")]
pub use client::{Hub, HubConfig, Token};
#[cfg(feature = "download")]
pub use event::Event;

/// Name of the lock file that a pull holds, in the repository's folder.
const LOCK_NAME: &str = ".pull.lock";
