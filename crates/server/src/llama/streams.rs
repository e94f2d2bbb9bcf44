//! Streams whose client may come back, as in llama-server: `X-Conversation-Id` on a request keeps its stream,
//! `GET /v1/stream?conv_id=ID&from=BYTES` reads it from an offset, and `DELETE` ends it.
//!
//! The handler of such a request runs on a task of its own, so it goes on when the connection ends, also while the model is
//! loaded, unless an older stream has its id until then. A stream that is not kept goes to its client directly.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::response::Parts;
use axum::http::{HeaderName, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::anthropic;
use crate::app::{App, Body};
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::stream::Out;
use crate::serving::lifecycle::{Phase, Phases};
use crate::serving::resume::{Kept, MAX_READERS, Read, Reader, Streams, Unreadable};

/// Says that a stream is to be kept, and under which id.
const CONVERSATION_ID: HeaderName = HeaderName::from_static("x-conversation-id");
/// Longest id that a client may choose.
const MAX_ID_BYTES: usize = 256;
/// Ids that a client may ask for at once.
const MAX_IDS: usize = 1024;

/// Keeps the stream that answers a request, if the client wants it.
pub(crate) async fn keep(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let keeps_any = app.limits.max_unread_time > Duration::ZERO;
    let id = request.headers().get(CONVERSATION_ID);
    let Some(id) = id.filter(|_| request.method() == Method::POST && keeps_any) else {
        return next.run(request).await;
    };
    let id = match id.to_str() {
        Ok(id) if is_id(id) => id.to_string(),
        _ => {
            let what = format!("{CONVERSATION_ID}: use 1 to {MAX_ID_BYTES} plain characters");
            return ApiError::bad(what).into_response();
        }
    };
    let caller = request.extensions().get::<Caller>();
    let owner = caller.and_then(Caller::owner);
    let route = request.uri().path();
    let (kept, reader) = Streams::open(&owner, &id, route);
    if let Some(caller) = request.extensions_mut().get_mut::<Caller>() {
        caller.kept = Some(Arc::clone(&kept));
    }
    let (to_client, answer) = oneshot::channel();
    tokio::spawn(async move {
        let mut work = Work {
            phases: app.lifecycle.phases(),
            kept,
            app,
            is_to_end: false,
        };
        if work.run(next.run(request), to_client).await {
            // For a client that comes back.
            work.unless_abandoned(std::future::pending::<()>()).await;
        }
    });
    // The client reads from here on: it has left when this is dropped.
    match answer.await {
        Ok(Answer::Stream(head)) => Response::from_parts(head, body(reader)),
        Ok(Answer::NotKept(response)) => response,
        Err(_) => ApiError::internal("the request has failed").into_response(),
    }
}

/// What the client of a request gets.
enum Answer {
    /// The head of a stream that is kept.
    Stream(Parts),
    /// What is no stream, or not kept.
    NotKept(Response),
}

/// A request whose stream may be kept. Dropping it forgets the stream.
struct Work {
    app: Arc<App>,
    kept: Arc<Kept>,
    phases: Phases,
    /// Whether the server ends, so that nobody can come back.
    is_to_end: bool,
}

impl Work {
    /// Waits for something, unless nobody may come back for it.
    async fn unless_abandoned<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(what);
        let time = self.app.limits.max_unread_time;
        loop {
            tokio::select! {
                biased;
                what = &mut what => return Some(what),
                () = self.phases.reached(Phase::Draining), if !self.is_to_end => self.is_to_end = true,
                () = self.kept.abandoned(time, self.is_to_end) => return None,
            }
        }
    }

    /// Fills the stream. Returns whether there is one that has come to its end.
    async fn run(
        &mut self,
        response: impl Future<Output = Response>,
        client: oneshot::Sender<Answer>,
    ) -> bool {
        // Where nobody waits any more, nobody gets this.
        let cancelled = || ApiError::bad("the request was cancelled").code("cancelled");
        let response = self.unless_abandoned(response).await;
        let response = response.unwrap_or_else(|| cancelled().into_response());
        let is_stream =
            response.status().is_success() && response.body().size_hint().exact().is_none();
        if !is_stream || !self.kept.goes_on() {
            let _ = client.send(Answer::NotKept(response));
            return false;
        }
        let (head, mut body) = response.into_parts();
        self.kept.set_head(head.headers.clone());
        // A client that has left may come back.
        let _ = client.send(Answer::Stream(head));
        let (app, kept) = (Arc::clone(&self.app), Arc::clone(&self.kept));
        while let Some(frame) = self.unless_abandoned(body.frame()).await {
            match frame {
                Some(Ok(frame)) => {
                    let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
                    app.streams.append(&kept, bytes);
                    if self
                        .unless_abandoned(app.streams.room(&kept))
                        .await
                        .is_none()
                    {
                        return false;
                    }
                }
                None | Some(Err(_)) => {
                    kept.complete();
                    return true;
                }
            }
        }
        false
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.app.streams.remove(&self.kept);
    }
}

/// Returns the rest of a stream as the body of a response.
fn body(reader: Reader) -> axum::body::Body {
    let bytes = stream::unfold(Some(reader), async |reader| {
        let mut reader = reader?;
        let (bytes, rest) = match reader.next().await {
            Read::Bytes(bytes) => (bytes, Some(reader)),
            Read::Lost => {
                let mut out = Out::default();
                tell(&lost(), reader.kept().path(), &mut out);
                (out.take().into(), None)
            }
            Read::End => return None,
        };
        Some((Ok::<_, Infallible>(bytes), rest))
    });
    axum::body::Body::from_stream(bytes)
}

fn lost() -> ApiError {
    let what =
        "the stream was ended, or does not have this offset any more; send the request again";
    ApiError::field("from", what).code("offset_lost")
}

/// Adds an error to a stream in the form of its route.
fn tell(error: &ApiError, route: &str, out: &mut Out) {
    match route {
        route if route.starts_with("/v1/messages") => out.event("error", &anthropic::body(error)),
        "/v1/responses" | "/responses" => {
            let body = json!({
                "type": "error",
                "code": error.code,
                "message": error.message,
                "param": error.param,
            });
            out.event("error", &body);
        }
        route if route.starts_with("/api/") => out.line(&json!({ "error": error.message })),
        _ => out.data(&error.body()),
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len())
}

/// Which stream is meant, and from which byte on.
#[derive(Deserialize)]
pub(super) struct Wanted {
    conv_id: String,
    #[serde(default)]
    from: usize,
}

impl Wanted {
    fn read(query: Result<Query<Wanted>, QueryRejection>) -> Result<Wanted, ApiError> {
        let Query(wanted) = query.map_err(|error| ApiError::bad(error.body_text()))?;
        match is_id(&wanted.conv_id) {
            true => Ok(wanted),
            false => {
                let what = format!("use 1 to {MAX_ID_BYTES} characters");
                Err(ApiError::field("conv_id", what))
            }
        }
    }
}

/// `GET /v1/stream`: what a kept stream has had since an offset, and what comes.
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, ApiError> {
    let wanted = Wanted::read(wanted)?;
    let none = || {
        ApiError::new(
            StatusCode::NOT_FOUND,
            "there is no such stream, or not any more",
        )
    };
    let kept = app.streams.find(&caller.owner(), &wanted.conv_id);
    let (headers, reader) =
        kept.ok_or_else(none)?
            .read_from(wanted.from)
            .map_err(|why| match why {
                Unreadable::NotYet => {
                    let what = "the stream has not begun; try again";
                    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, what)
                        .code("not_begun")
                        .retry_after(1)
                }
                Unreadable::Offset => lost(),
                Unreadable::Readers => {
                    let what = format!("the stream has {MAX_READERS} readers; end one of them");
                    ApiError::new(StatusCode::TOO_MANY_REQUESTS, what).code("too_many_readers")
                }
            })?;
    let mut response = Response::new(body(reader));
    *response.headers_mut() = headers;
    Ok(response)
}

/// `DELETE /v1/stream`: ends a stream, if it is still there.
pub(super) async fn end(
    State(app): State<Arc<App>>,
    caller: Caller,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<StatusCode, ApiError> {
    let wanted = Wanted::read(wanted)?;
    app.streams.end(&caller.owner(), &wanted.conv_id);
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /v1/streams/lookup`: which of some streams there are. A client has to know their ids.
pub(super) async fn lookup(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ids: Vec<String> = fields.need("conversation_ids")?;
    if ids.len() > MAX_IDS {
        let what = format!("use at most {MAX_IDS} ids");
        return Err(ApiError::field("conversation_ids", what));
    }
    let owner = caller.owner();
    let streams = ids.iter().flat_map(|id| app.streams.lookup(&owner, id));
    let streams: Value = streams
        .map(|stream| {
            json!({
                "conversation_id": stream.id,
                "is_done": stream.completed.is_some(),
                "total_bytes": stream.total_bytes,
                "started_at": stream.began.as_second(),
                "completed_at": stream.completed.map_or(0, Timestamp::as_second),
            })
        })
        .collect();
    Ok(app.answer(streams, &fields))
}
