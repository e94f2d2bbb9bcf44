//! Streams of answers: server-sent events, or JSON lines.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use tokio::time::{Instant, Interval, interval_at, timeout};

use super::error::ApiError;
use crate::config::Limits;
use crate::serving::choices::{Choices, Totals, Update};
use crate::serving::lifecycle::{Lifecycle, Phase, Phases};

/// Bytes for the client that are not sent yet.
#[derive(Default)]
pub(crate) struct Out(Vec<u8>);

impl Out {
    /// Adds an event without a name.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        self.json(value);
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an event with a name.
    pub(crate) fn event(&mut self, name: &str, value: &impl Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.data(value);
    }

    /// Adds a line of JSON.
    pub(crate) fn line(&mut self, value: &impl Serialize) {
        self.json(value);
        self.0.push(b'\n');
    }

    /// Adds the mark that OpenAI's streams end with.
    pub(crate) fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Takes the bytes.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    fn json(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.0, value).expect("the answers of this server are JSON");
    }
}

/// Writes updates in the form of a route.
pub(crate) trait Encoder: Send + 'static {
    const CONTENT_TYPE: &'static str = "text/event-stream";
    /// What is sent while there is nothing to send; empty for nothing.
    const PING: &'static [u8] = b": ping\n\n";

    /// The first events, before the engine has computed anything.
    fn begin(&mut self, out: &mut Out);

    /// Events for an update. Returns the answer that needs no more tokens, if it is one.
    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize>;

    /// The last events.
    fn end(&mut self, totals: &Totals, out: &mut Out);

    /// The last events of a stream that failed.
    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.data(&error.body());
    }
}

struct Pump<E> {
    choices: Choices,
    encoder: E,
    phases: Phases,
    ping: Interval,
    step: Step,
}

#[derive(PartialEq, Eq)]
enum Step {
    Begin,
    Updates,
    Over,
}

/// Returns the response that streams `choices`, once the request has begun or its client should wait no longer for a head.
///
/// # Errors
/// The request failed before it began.
pub(crate) async fn events<E: Encoder>(
    mut choices: Choices,
    encoder: E,
    lifecycle: &Lifecycle,
    limits: &Limits,
) -> Result<Response, ApiError> {
    choices.are_streamed();
    tokio::select! {
        biased;
        begun = timeout(limits.head_timeout, choices.begun()) => {
            begun.unwrap_or(Ok(()))?;
        }
        () = lifecycle.aborting() => return Err(ApiError::stopping()),
    }
    let ping_interval = limits.ping_interval;
    let pump = Pump {
        choices,
        encoder,
        phases: lifecycle.phases(),
        ping: interval_at(Instant::now() + ping_interval, ping_interval),
        step: Step::Begin,
    };
    let bytes = stream::unfold(pump, async |mut pump| {
        let bytes = pump.next().await?;
        Some((Ok::<Bytes, Infallible>(bytes), pump))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(E::CONTENT_TYPE),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would hold the events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl<E: Encoder> Pump<E> {
    /// Returns the next bytes, `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Out::default();
        match self.step {
            Step::Begin => {
                self.encoder.begin(&mut out);
                self.step = Step::Updates;
            }
            Step::Updates => {}
            Step::Over => return None,
        }
        // An update may give no text yet.
        while out.0.is_empty() && self.step == Step::Updates {
            tokio::select! {
                biased;
                () = self.phases.reached(Phase::Aborting) => self.fail(&ApiError::stopping(), &mut out),
                update = self.choices.next() => match update {
                    Some(Ok(update)) => {
                        if let Some(choice) = self.encoder.update(update, &mut out) {
                            self.choices.end_early(choice);
                        }
                    }
                    Some(Err(error)) => self.fail(&error, &mut out),
                    None => {
                        self.encoder.end(&self.choices.totals(), &mut out);
                        self.step = Step::Over;
                    }
                },
                _ = self.ping.tick() => out.0.extend_from_slice(E::PING),
            }
        }
        self.ping.reset();
        Some(Bytes::from(out.take()))
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        self.encoder.fail(error, out);
        self.step = Step::Over;
    }
}
