//! The access log: one line of JSON for each request, when its answer has ended. No text of a request is in it, unless the
//! server's owner asks for that.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use serde_json::json;

use crate::app::App;
use crate::http::caller::{Caller, REQUEST_ID};

/// Most bytes of a request, and of its answer, in a line.
const MAX_CONTENT_BYTES: usize = 256 << 10;

/// What the lines tell of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogContent {
    /// Nothing that a user or a model wrote.
    Leave,
    /// Its body and that of its answer.
    Write,
}

/// Writes a line about each request, if the server is to.
pub(crate) async fn log(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(write) = app.access_log else {
        return next.run(request).await;
    };
    let [asked, answered] = match app.log_content {
        LogContent::Leave => [None, None],
        LogContent::Write => [Some(Beginning::default()), Some(Beginning::default())],
    };
    let route = request.extensions().get::<MatchedPath>();
    let mut line = Line {
        write,
        began: Instant::now(),
        method: request.method().to_string(),
        // A path that is no route is a text of the client's.
        route: route.map(|route| route.as_str().to_string()),
        status: StatusCode::OK,
        key: None,
        id: String::new(),
        n_bytes: 0,
        is_whole: false,
        asked: asked.clone(),
        answered,
    };
    let request = match asked {
        None => request,
        Some(copy) => request.map(|body| Body::new(Copied { body, copy })),
    };
    let response = next.run(request).await;
    let id = response.headers().get(REQUEST_ID);
    line.id = id
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default()
        .to_string();
    line.status = response.status();
    let caller = response.extensions().get::<Caller>();
    line.key = caller.and_then(|caller| caller.key.as_ref().map(|key| key.name.to_string()));
    response.map(|body| Body::new(Logged { body, line }))
}

/// What is known of a request. Dropping it writes it.
struct Line {
    write: fn(&str),
    began: Instant,
    method: String,
    route: Option<String>,
    status: StatusCode,
    key: Option<String>,
    id: String,
    n_bytes: u64,
    /// Whether the client took the whole answer.
    is_whole: bool,
    /// The bodies, if the lines have them.
    asked: Option<Beginning>,
    answered: Option<Beginning>,
}

/// The first bytes of a body.
#[derive(Clone, Default)]
struct Beginning(Arc<Mutex<Vec<u8>>>);

impl Beginning {
    fn add(&self, frame: &Frame<Bytes>) {
        let Some(data) = frame.data_ref() else { return };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let n = data.len().min(MAX_CONTENT_BYTES - kept.len());
        kept.extend_from_slice(&data[..n]);
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut line = json!({
            "time": jiff::Timestamp::now().to_string(),
            "id": self.id,
            "method": self.method,
            "route": self.route,
            "status": self.status.as_u16(),
            "key": self.key,
            "ms": self.began.elapsed().as_secs_f64() * 1e3,
            "bytes": self.n_bytes,
            "complete": self.is_whole,
        });
        for (name, body) in [("request", &self.asked), ("answer", &self.answered)] {
            if let Some(body) = body {
                line[name] = body.text().into();
            }
        }
        (self.write)(&line.to_string());
    }
}

/// A body that notes what is sent of it.
struct Logged {
    body: Body,
    line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(answered) = &this.line.answered {
                    answered.add(frame);
                }
                this.line.n_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                this.line.is_whole |= this.body.is_end_stream();
            }
            Poll::Ready(None) => this.line.is_whole = true,
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose beginning is kept.
struct Copied {
    body: Body,
    copy: Beginning,
}

impl HttpBody for Copied {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            this.copy.add(frame);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
