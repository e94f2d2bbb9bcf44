//! Places for the compilers of grammars. A compiler that was too slow keeps its place until its thread has ended, so the
//! slow schemas of one client take no place of another's, and no thread that templates need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::http::error::ApiError;

/// Compilers at the same time.
pub(crate) const MAX_COMPILERS: usize = 8;
/// Compilers of one tenant at the same time. Without keys, all are one.
const MAX_OF_TENANT: usize = 2;
/// Time that a request waits for a place.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The places.
pub(crate) struct Compilers {
    all: Arc<Semaphore>,
    of_tenants: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    max_wait: Duration,
}

/// The right to run a compiler. It ends when this is dropped.
pub(crate) struct Place {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Compilers {
    fn default() -> Compilers {
        Compilers {
            all: Arc::new(Semaphore::new(MAX_COMPILERS)),
            of_tenants: Mutex::default(),
            max_wait: MAX_WAIT,
        }
    }
}

impl Compilers {
    /// Waits for a place, in turn.
    ///
    /// # Errors
    /// There is none in time.
    pub(crate) async fn place(&self, tenant: &Arc<str>) -> Result<Place, ApiError> {
        let places = async {
            let of_tenant = self.of_tenant(tenant).acquire_owned().await;
            let of_all = Arc::clone(&self.all).acquire_owned().await;
            let open = "the semaphore is never closed";
            Place {
                _of_tenant: of_tenant.expect(open),
                _of_all: of_all.expect(open),
            }
        };
        let place = timeout(self.max_wait, places).await;
        place.map_err(|_| busy())
    }

    fn of_tenant(&self, tenant: &Arc<str>) -> Arc<Semaphore> {
        let of_tenants = self.of_tenants.lock();
        let mut of_tenants = of_tenants.unwrap_or_else(PoisonError::into_inner);
        // There are as many as keys that compile now.
        of_tenants.retain(|_, places| Arc::strong_count(places) > 1);
        let new = || Arc::new(Semaphore::new(MAX_OF_TENANT));
        Arc::clone(of_tenants.entry(Arc::clone(tenant)).or_insert_with(new))
    }
}

/// Too many grammars are being compiled.
pub(crate) fn busy() -> ApiError {
    let message = "other grammars that take long are being compiled; try again later";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        .code("grammar_busy")
        .retry_after(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_takes_no_place_of_another() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let compilers = Compilers {
            max_wait: Duration::from_millis(1),
            ..Compilers::default()
        };
        runtime.unwrap().block_on(async {
            let (slow, other): (Arc<str>, Arc<str>) = ("slow".into(), "other".into());
            let mut held = Vec::new();
            for _ in 0..MAX_OF_TENANT {
                held.push(compilers.place(&slow).await.unwrap());
            }
            let refused = compilers.place(&slow).await.err().unwrap();
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refused.code, Some("grammar_busy"));
            drop(compilers.place(&other).await.unwrap());
            held.pop();
            held.push(compilers.place(&slow).await.unwrap());
            drop(held);
            drop(compilers.place(&other).await.unwrap());
            assert_eq!(compilers.of_tenants.lock().unwrap().len(), 1);
        });
    }
}
