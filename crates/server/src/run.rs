//! Starts the server, and ends it in order.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::json;
use tower::ServiceExt as _;

use crate::app::App;
use crate::config::Config;
use crate::http::caller::Caller;
use crate::http::connections;
use crate::http::tls::Tls;
use crate::observe::traces::{Sending, Traces};
use crate::openai;
use crate::openai::generation::Generation;
use crate::routes;
use crate::serving::lifecycle::Phase;
use crate::serving::model::Served;
use crate::serving::slot::Offer;

/// Time for the errors of requests after their model has failed.
const LAST_ERRORS: Duration = Duration::from_secs(2);
/// Time for the last spans of requests: as much as there is for draining, within these bounds.
const SENDING_TIME: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    #[error("cannot listen on {address}: {error}; choose another port")]
    Listen {
        address: SocketAddr,
        error: io::Error,
    },
    #[error(
        "{address} can be reached from other machines; give the server a keys file, or listen on 127.0.0.1"
    )]
    NoKeys { address: SocketAddr },
    #[error(
        "pages of all sites could use this server, since it has no keys; give it a keys file, or list the sites"
    )]
    OpenToPages,
    #[error("the server needs at least one model")]
    NoModel,
    #[error("two models are called {name}; give one of them another name")]
    SameName { name: String },
    #[error("the defaults of {name} cannot be used: {message}")]
    Defaults { name: String, message: String },
    #[error("{name} cannot be loaded: {message}")]
    Load { name: String, message: String },
    #[error("{name} does not answer: {message}")]
    SelfTest { name: String, message: String },
    /// The only model has failed while the server ran.
    #[error("{name} has failed: {message}; the server has ended, start it again")]
    ModelFailed { name: String, message: String },
    #[error("cannot start the server's threads: {0}")]
    Threads(io::Error),
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    tls: Option<Tls>,
    /// Sends the spans of requests.
    sending: Option<Sending>,
}

/// Ends a server.
#[derive(Clone)]
pub struct Stopper {
    runtime: tokio::runtime::Handle,
    app: Arc<App>,
}

impl Stopper {
    /// Refuses new requests, finishes running ones within the configured time, and ends the server. Does not wait.
    pub fn stop(&self) {
        let app = Arc::clone(&self.app);
        self.runtime
            .spawn(async move { app.control.drain(&app.lifecycle).await });
    }

    /// Reads keys and certificates again. A server without either stops, as programs do whose terminal is closed.
    fn reload(&self) {
        let app = &self.app;
        match app.control.has_files() {
            true => drop(app.control.reload(|keys| app.set_keys(keys))),
            false => self.stop(),
        }
    }
}

impl Server {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// The address is in use or open to other machines without keys, or the names of the models are not good.
    pub fn bind(config: Config, models: Vec<Offer>) -> Result<Server, ServerError> {
        let address = config.address;
        if config.keys.is_empty() && !address.ip().is_loopback() {
            return Err(ServerError::NoKeys { address });
        }
        if config.keys.is_empty() && config.origins.are_all() {
            return Err(ServerError::OpenToPages);
        }
        if models.is_empty() {
            return Err(ServerError::NoModel);
        }
        for model in &models {
            let checked = Generation::check_defaults(&model.defaults, &config.limits);
            checked.map_err(|error| ServerError::Defaults {
                name: model.name.clone(),
                message: error.message,
            })?;
        }
        let mut names = HashSet::new();
        for model in &models {
            for name in model.aliases.iter().chain([&model.name]) {
                if !names.insert(name) {
                    let name = name.clone();
                    return Err(ServerError::SameName { name });
                }
            }
        }
        let cannot = |error| ServerError::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let traces = config.collector.clone();
        let traces = traces.map(|collector| Traces::new(collector, config.notice));
        let (traces, sending) = traces.unzip();
        Ok(Server {
            listener,
            address,
            app: Arc::new(App::new(&config, models, traces)),
            sending,
            tls: config.tls,
        })
    }

    /// Returns the server's address as a link.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Loads the models and serves until it is told to stop. `on_ready` is called once the server has answered a request of
    /// its own with each model that is loaded at the start; SIGINT and SIGTERM stop it, and a second one ends it at once. SIGHUP
    /// reads keys and certificates again.
    ///
    /// # Errors
    /// A model cannot be loaded or gives no answer, or the system has no threads.
    pub fn run(self, on_ready: impl FnOnce(&Stopper)) -> Result<(), ServerError> {
        allow_open_files();
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // The engine computes on all cores; these only pass bytes on.
            .worker_threads(n_cores.div_ceil(8).clamp(2, 8))
            .thread_name("rocmforge-http")
            .enable_all()
            .build()
            .map_err(ServerError::Threads)?;
        let ended = runtime.block_on(self.serve(on_ready));
        // Work on a template that nobody waits for must not hold the program up.
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended
    }

    async fn serve(self, on_ready: impl FnOnce(&Stopper)) -> Result<(), ServerError> {
        let cannot = |error| ServerError::Listen {
            address: self.address,
            error,
        };
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(cannot)?;
        let lifecycle = Arc::clone(&self.app.lifecycle);
        let sending = self.sending.map(|sending| tokio::spawn(sending.run()));
        let stopper = Stopper {
            runtime: tokio::runtime::Handle::current(),
            app: Arc::clone(&self.app),
        };
        let router = routes::router(Arc::clone(&self.app));
        let connections = connections::serve(
            listener,
            router,
            (&self.app.limits, self.tls.as_ref()),
            &lifecycle,
        );
        let life = async {
            signals::listen(stopper.clone()).map_err(ServerError::Threads)?;
            tokio::select! {
                tested = prepare(&self.app) => tested?,
                () = lifecycle.draining() => {}
            }
            lifecycle.enter(Phase::Ready);
            let fleet = Arc::clone(&self.app.fleet);
            tokio::spawn(async move { fleet.unload_idle().await });
            on_ready(&stopper);
            tokio::select! {
                () = lifecycle.ended() => Ok(()),
                (name, message) = self.app.fleet.lost() => {
                    // All requests have failed; this lets their clients know.
                    lifecycle.drain(LAST_ERRORS).await;
                    Err(ServerError::ModelFailed { name, message })
                }
            }
        };
        tokio::pin!(life, connections);
        let ended = tokio::select! {
            ended = &mut life => {
                // A failed test ends the server; an ordered end lets connections write their last bytes.
                if lifecycle.phase() == Phase::Ended {
                    connections.await;
                }
                ended
            }
            // Connections end in the last phase.
            () = &mut connections => life.await,
        };
        if let (Some(traces), Some(sending)) = (&self.app.traces, sending) {
            traces.end();
            // A collector that does not answer holds nothing up; what it has not got is lost.
            let [least, most] = SENDING_TIME;
            let time = self.app.control.drain_timeout().clamp(least, most);
            let _ = tokio::time::timeout(time, sending).await;
        }
        ended
    }
}

/// Raises this process's limit on open files, of which each connection is one. Many systems start with 1,024.
#[cfg(unix)]
fn allow_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it, fewer connections are served at once.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(not(unix))]
fn allow_open_files() {}

/// Loads the models that are to be there from the start, and tests them.
async fn prepare(app: &Arc<App>) -> Result<(), ServerError> {
    let loaded = app.fleet.load_first().await;
    loaded.map_err(|(name, message)| ServerError::Load { name, message })?;
    for model in app.fleet.in_memory() {
        self_test(app, &model).await?;
    }
    Ok(())
}

/// Sends a model a request through the routes that clients use.
async fn self_test(app: &Arc<App>, model: &Served) -> Result<(), ServerError> {
    let (path, body) = match &model.embedding {
        None => (
            "/v1/completions",
            json!({ "model": model.name, "prompt": "Hello", "max_tokens": 1 }),
        ),
        Some(_) => (
            "/v1/embeddings",
            json!({ "model": model.name, "input": "Hello" }),
        ),
    };
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .extension(Caller::default())
        .body(Body::from(body.to_string()));
    let request = request.expect("the request is valid");
    let routes = openai::routes().with_state(Arc::clone(app));
    let Ok(response) = routes.oneshot(request).await;
    if response.status() != StatusCode::OK {
        let body = axum::body::to_bytes(response.into_body(), 64 << 10).await;
        let message = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
        let name = model.name.clone();
        return Err(ServerError::SelfTest { name, message });
    }
    Ok(())
}

#[cfg(unix)]
mod signals {
    use std::io;

    use tokio::signal::unix::{SignalKind, signal};

    use super::Stopper;

    /// Exit code after a second signal, as in shells: 128 + SIGINT.
    const INTERRUPTED: i32 = 130;

    /// Stops the server at the first signal, and ends the program at the second.
    pub(super) fn listen(stopper: Stopper) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            let mut is_first = true;
            loop {
                let received = tokio::select! {
                    received = terminate.recv() => received,
                    received = interrupt.recv() => received,
                    Some(()) = hangup.recv() => {
                        stopper.reload();
                        continue;
                    }
                };
                if received.is_none() {
                    return;
                }
                if !std::mem::take(&mut is_first) {
                    std::process::exit(INTERRUPTED);
                }
                stopper.stop();
            }
        });
        Ok(())
    }
}

#[cfg(not(unix))]
mod signals {
    pub(super) fn listen(stopper: super::Stopper) -> std::io::Result<()> {
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stopper.stop();
            }
        });
        Ok(())
    }
}
