//! What requests know of the connection that they came on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection, as its requests see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    is_slow: Arc<AtomicBool>,
}

impl Connection {
    /// Notes that the client has read nothing for too long, which ends the connection.
    pub(crate) fn set_slow(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }
}
