//! Accepts connections and serves each, up to a number, until the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connection::Connection;
use super::timed_io::TimedIo;
use super::tls::Tls;
use crate::config::Limits;
use crate::serving::lifecycle::Lifecycle;

/// Bytes of a request's head, at most.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Headers of a request, at most.
const MAX_HEADERS: usize = 100;
/// Time after an error of `accept`, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves connections until `lifecycle` ends. Connections that are open then get their answers, but no further ones.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    (limits, tls): (&Limits, Option<&Tls>),
    lifecycle: &Lifecycle,
) {
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let graceful = GracefulShutdown::new();
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_header_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = lifecycle.ended() => break,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        // Tokens are small writes that must not wait for each other.
        let _ = stream.set_nodelay(true);
        let connection = Connection::default();
        let stream = TimedIo::new(stream, limits.write_timeout, connection.clone());
        let router = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(connection.clone());
            router.call(request)
        });
        let (server, watcher) = (server.clone(), graceful.watcher());
        let acceptor = tls.map(Tls::acceptor);
        let read_timeout = limits.read_timeout;
        // Errors are those of the client: it left, or wrote something else than HTTP.
        tokio::spawn(async move {
            match acceptor {
                None => {
                    let connection = server.serve_connection(TokioIo::new(stream), service);
                    let _ = watcher.watch(connection).await;
                }
                Some(acceptor) => {
                    let greeting = timeout(read_timeout, acceptor.accept(stream)).await;
                    if let Ok(Ok(stream)) = greeting {
                        let connection = server.serve_connection(TokioIo::new(stream), service);
                        let _ = watcher.watch(connection).await;
                    }
                }
            }
            drop(place);
        });
    }
    drop(listener);
    // All answers have ended; what remains is to write their last bytes.
    let _ = timeout(Duration::from_secs(2), graceful.shutdown()).await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.expect("the semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}
