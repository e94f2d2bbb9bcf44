//! What all requests share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::Json;
use axum::body::{Bytes, HttpBody as _, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use rocmforge_engine::Failure;
use serde_json::Value;

use crate::admin::control::Control;
use crate::config::{Config, Limits};
use crate::http::caller::Caller;
use crate::http::cors::Origins;
use crate::http::error::ApiError;
use crate::http::fields::{Fields, IGNORED};
use crate::http::keys::Keys;
use crate::observe::access_log::LogContent;
use crate::observe::metrics::Metrics;
use crate::observe::requests::Requests;
use crate::observe::traces::Traces;
use crate::openai::responses::store::Store;
use crate::serving::choices::Ticket;
use crate::serving::compilers::Compilers;
use crate::serving::fleet::{Asker, Fleet};
use crate::serving::lifecycle::Lifecycle;
use crate::serving::model::Served;
use crate::serving::resume::Streams;
use crate::serving::slot::Offer;
use crate::serving::workers::Workers;

/// Larger bodies are parsed on a thread of their own; these take less than a millisecond.
const MAX_PARSED_BYTES: usize = 64 << 10;

/// The state of the server.
pub(crate) struct App {
    pub(crate) fleet: Arc<Fleet>,
    keys: RwLock<Keys>,
    pub(crate) limits: Limits,
    /// Writes a line of the access log.
    pub(crate) access_log: Option<fn(&str)>,
    pub(crate) log_content: LogContent,
    /// Sites whose pages may ask.
    pub(crate) origins: Origins,
    /// Whether the server listens on loopback only.
    pub(crate) is_local: bool,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) control: Control,
    pub(crate) workers: Workers,
    pub(crate) compilers: Compilers,
    /// Responses that clients may continue.
    pub(crate) responses: Store,
    /// Streams that clients may read again.
    pub(crate) streams: Arc<Streams>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) metrics: Arc<Metrics>,
    /// Takes the spans of requests, if they are sent anywhere.
    pub(crate) traces: Option<Traces>,
    /// Ids begin with it, so that those of two servers differ.
    instance: u64,
    n_ids: AtomicU64,
}

impl App {
    pub(crate) fn new(config: &Config, offers: Vec<Offer>, traces: Option<Traces>) -> App {
        let metrics = Arc::new(Metrics::new(config.sensors.clone()));
        let fleet = Fleet::new(offers, config, Arc::clone(&metrics));
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        App {
            fleet: Arc::new(fleet),
            keys: RwLock::new(config.keys.clone()),
            access_log: config.access_log,
            log_content: config.log_content,
            limits: config.limits.clone(),
            origins: config.origins.clone(),
            is_local: config.address.ip().is_loopback(),
            lifecycle: Arc::new(Lifecycle::new()),
            control: Control::new(config),
            workers: Workers::new(n_cores.clamp(2, 32)),
            compilers: Compilers::default(),
            responses: Store::default(),
            streams: Arc::default(),
            requests: Arc::default(),
            metrics,
            traces,
            instance: rocmforge::parts::random_seed(),
            n_ids: AtomicU64::new(0),
        }
    }

    /// Returns who may ask now.
    pub(crate) fn keys(&self) -> Keys {
        self.keys
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes who may ask. What keys use goes on.
    pub(crate) fn set_keys(&self, keys: Keys) {
        let mut now = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        *now = keys.going_on_from(&now);
    }

    /// Returns an id that no other request has.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let n = self.n_ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:08x}{n:08x}", self.instance)
    }

    /// Takes the name of the model from a request, and returns the model; the first one without a name. One that is not in
    /// memory is loaded.
    ///
    /// # Errors
    /// There is no such model, it cannot be loaded, or not in time.
    pub(crate) async fn model(&self, fields: &mut Fields) -> Result<Arc<Served>, ApiError> {
        let name: Option<String> = fields.take("model")?;
        self.model_named(name.as_deref(), Asker::Client).await
    }

    /// As [`App::model`], with a name.
    pub(crate) async fn model_named(
        &self,
        name: Option<&str>,
        asker: Asker,
    ) -> Result<Arc<Served>, ApiError> {
        let model = self.fleet.model(self.fleet.slot(name)?, asker);
        let model = tokio::time::timeout(self.limits.max_queue_time, model);
        let late = |_| ApiError::from(Failure::NotStarted);
        self.unless_aborted(async { model.await.map_err(late)? })
            .await
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// The server is about to end, or the key has reached a limit.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<Ticket, ApiError> {
        Ok(Ticket {
            place: caller.key.as_ref().map(|key| key.admit()).transpose()?,
            under_way: self.lifecycle.admit()?,
            connection: caller.connection.clone(),
            stream: caller
                .kept
                .clone()
                .map(|kept| (Arc::clone(&self.streams), kept)),
            trace: self.traces.as_ref().and_then(|traces| traces.begin(caller)),
            listed: self.requests.begin(caller.asked(), || self.new_id("req")),
        })
    }

    /// Waits for an answer, unless running requests are to end.
    ///
    /// # Errors
    /// Those of `answer`, or the server ends.
    pub(crate) async fn unless_aborted<T>(
        &self,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.lifecycle.aborting() => Err(ApiError::stopping()),
        }
    }

    /// Returns an answer that names the fields of its request that nothing has read.
    pub(crate) fn answer(&self, body: Value, fields: &Fields) -> Response {
        let mut response = Json(body).into_response();
        self.tell_ignored(&mut response, fields.unread());
        response
    }

    /// Names the fields of a request that nothing has read.
    pub(crate) fn tell_ignored(&self, response: &mut Response, ignored: Option<String>) {
        let value = ignored.and_then(|names| HeaderValue::from_str(&names).ok());
        if let Some(value) = value {
            response.headers_mut().insert(IGNORED, value);
        }
    }
}

/// The body of a request: a JSON object.
pub(crate) struct Body(pub(crate) Fields);

impl FromRequest<Arc<App>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Body, ApiError> {
        let limits = &app.limits;
        let kept = request.extensions().get::<Caller>();
        let kept = kept.and_then(|caller| caller.kept.clone());
        // Ollama's streams are on unless turned off.
        let default = request.uri().path().starts_with("/api/");
        let body = read(request.into_body(), limits.max_body_bytes);
        let body = tokio::time::timeout(limits.read_timeout, body).await;
        let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body came too slowly");
        let too_large = || {
            let message = format!("the body has more than {} bytes", limits.max_body_bytes);
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let bytes = body.map_err(late)?.ok_or_else(too_large)?;
        // The streams of others wait for a thread that reads a large body.
        let fields = match bytes.len() > MAX_PARSED_BYTES {
            true => app.workers.run(move || Fields::parse(&bytes)).await?,
            false => Fields::parse(&bytes)?,
        };
        if let Some(kept) = kept.filter(|_| fields.asks_for_stream().unwrap_or(default)) {
            app.streams.keep_early(&kept);
        }
        Ok(Body(fields))
    }
}

/// Reads a body; `None` if it is too large or ends early. One that says that it is too large is read to its end, so that
/// its client gets the answer, but not kept.
async fn read(mut body: axum::body::Body, max_bytes: usize) -> Option<Bytes> {
    if body.size_hint().lower() <= max_bytes as u64 {
        return to_bytes(body, max_bytes).await.ok();
    }
    while let Some(Ok(_)) = body.frame().await {}
    None
}
