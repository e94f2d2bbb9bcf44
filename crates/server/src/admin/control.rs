//! Ends the server in order, and reads its files again: by a signal, or by a route of its owner.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::config::Config;
use crate::http::keys::Keys;
use crate::http::tls::Tls;
use crate::serving::lifecycle::Lifecycle;

/// What the server needs for its end and for reading its files again.
pub(crate) struct Control {
    drain_timeout: Duration,
    keys_file: Option<PathBuf>,
    tls: Option<Tls>,
    notice: fn(&str),
}

/// What came of reading files again.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Reloaded {
    /// What was read.
    pub(crate) read: Vec<&'static str>,
    /// Why other files were not. What was read before stays.
    pub(crate) errors: Vec<String>,
}

impl Control {
    pub(crate) fn new(config: &Config) -> Control {
        Control {
            drain_timeout: config.drain_timeout,
            keys_file: config.keys_file.clone(),
            tls: config.tls.clone(),
            notice: config.notice,
        }
    }

    /// Whether there is anything to read again.
    pub(crate) fn has_files(&self) -> bool {
        self.keys_file.is_some() || self.tls.is_some()
    }

    /// The configured time for running requests at the end.
    pub(crate) fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// Refuses new requests, finishes running ones within the configured time, and ends the server.
    pub(crate) async fn drain(&self, lifecycle: &Lifecycle) {
        lifecycle.drain(self.drain_timeout).await;
    }

    /// Reads keys and certificates again. What is damaged stays as it was.
    pub(crate) fn reload(&self, set_keys: impl FnOnce(Keys)) -> Reloaded {
        let keys = self.keys_file.as_deref().map(|path| {
            let keys = Keys::read(path).map_err(|error| error.to_string())?;
            set_keys(keys);
            Ok::<_, String>("keys")
        });
        let tls = self.tls.as_ref().map(|tls| {
            tls.read_again().map_err(|error| error.to_string())?;
            Ok::<_, String>("certificates")
        });
        let mut reloaded = Reloaded::default();
        for result in [keys, tls].into_iter().flatten() {
            match result {
                Ok(what) => {
                    (self.notice)(&format!("notice: the {what} were read again"));
                    reloaded.read.push(what);
                }
                Err(error) => {
                    (self.notice)(&format!("error: {error}; what was read before stays"));
                    reloaded.errors.push(error);
                }
            }
        }
        reloaded
    }
}
