//! Threads for templates and tokenizers, so that neither the engine nor other clients wait for them.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::http::error::ApiError;

/// A bounded number of threads.
#[derive(Debug)]
pub(crate) struct Workers(Arc<Semaphore>);

impl Workers {
    pub(crate) fn new(n: usize) -> Workers {
        Workers(Arc::new(Semaphore::new(n)))
    }

    /// Runs `work` on a thread of its own once one is free. If the client leaves before, it does not run.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = Arc::clone(&self.0).acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let work = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(place);
            result
        });
        // A panic is a bug of this program, and harms this request only.
        let failed = |_| ApiError::internal("reading the request failed; please report this");
        work.await.map_err(failed)?
    }
}
