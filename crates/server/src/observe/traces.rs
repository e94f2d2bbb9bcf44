//! Spans of requests for an OpenTelemetry collector (OTLP as JSON over HTTP): a span for each request that was let in, and
//! within it the parts of its answer. Nothing that a user or a model wrote is in them.
//!
//! Requests put their spans into a bounded queue and never wait; a task sends them in batches. What a collector does not
//! take is dropped. Without a collector, a request costs nothing.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use crate::http::caller::Caller;

/// Spans that wait to be sent, at most.
const MAX_WAITING: usize = 4096;
/// Spans of a batch, at most.
const MAX_BATCH: usize = 512;
/// Time between batches.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time for a batch.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where spans are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    /// `host:port`
    authority: String,
    path: String,
}

/// A text that is no address of a collector.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no address of a collector; use one such as http://127.0.0.1:4318")]
pub struct CollectorError(String);

impl Collector {
    /// Reads the address of a collector, without TLS. Spans go to `/v1/traces` below it.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(url: &str) -> Result<Collector, CollectorError> {
        let wrong = || CollectorError(url.escape_debug().to_string());
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let authority: hyper::http::uri::Authority = host.parse().map_err(|_| wrong())?;
        let is_path = path
            .bytes()
            .all(|c| c.is_ascii_graphic() && !b"?#".contains(&c));
        if authority.host().is_empty() || host.contains('@') || !is_path {
            return Err(wrong());
        }
        let path = path.trim_end_matches('/');
        Ok(Collector {
            authority: match authority.port() {
                Some(_) => host.to_string(),
                None => format!("{host}:4318"),
            },
            path: match path {
                "" => "/v1/traces".to_string(),
                path => format!("/{path}/v1/traces"),
            },
        })
    }

    async fn send(&self, spans: &[Value]) -> Result<(), String> {
        let sent = tokio::time::timeout(TIMEOUT, self.post(spans)).await;
        sent.unwrap_or_else(|_| Err("no answer in time".into()))
    }

    async fn post(&self, spans: &[Value]) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let resource = json!([
            attribute("service.name", "rocmforge".into()),
            attribute("service.version", env!("CARGO_PKG_VERSION").into()),
        ]);
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": { "name": "rocmforge" }, "spans": spans }],
        }] });
        let stream = TcpStream::connect(&self.authority)
            .await
            .map_err(|e| text(&e))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| text(&e))?;
        // It ends when the sender is dropped; errors show in the answer.
        tokio::spawn(connection);
        let request = Request::post(&self.path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|e| text(&e))?;
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        match response.status().is_success() {
            true => Ok(()),
            false => Err(format!("it answers {}", response.status())),
        }
    }
}

/// Takes spans, and sends them.
#[derive(Debug, Clone)]
pub(crate) struct Traces {
    spans: mpsc::Sender<Value>,
    /// Told when the server ends.
    end: Arc<Notify>,
}

impl Traces {
    /// Returns what takes spans, and what sends them.
    pub(crate) fn new(collector: Collector, notice: fn(&str)) -> (Traces, Sending) {
        let (spans, waiting) = mpsc::channel(MAX_WAITING);
        let end = Arc::new(Notify::new());
        let sending = Sending {
            collector,
            waiting,
            end: Arc::clone(&end),
            notice,
        };
        (Traces { spans, end }, sending)
    }

    /// Has the spans that wait be sent at once, as the last ones.
    pub(crate) fn end(&self) {
        self.end.notify_one();
    }

    /// Begins the span of a request; `None` if its client does not want one.
    pub(crate) fn begin(&self, caller: &Caller) -> Option<Trace> {
        let parent = match caller.trace_parent.as_deref().map(Parent::parse) {
            Some(Some(parent)) if !parent.is_sampled => return None,
            Some(parent) => parent,
            None => None,
        };
        let (trace_id, parent) = match parent {
            Some(parent) => (parent.trace_id, Some(parent.span_id)),
            None => (format!("{}{}", random_id(), random_id()), None),
        };
        let mut attributes = vec![
            attribute("http.route", caller.route.as_str().into()),
            attribute("rocmforge.request.id", caller.id.as_str().into()),
        ];
        if let Some(key) = &caller.key {
            attributes.push(attribute("rocmforge.key", (&*key.name).into()));
        }
        Some(Trace {
            spans: self.spans.clone(),
            trace_id,
            span_id: random_id(),
            parent,
            name: caller.route.clone(),
            clock: (Instant::now(), SystemTime::now()),
            error: None,
            attributes,
        })
    }
}

/// Sends spans.
pub(crate) struct Sending {
    collector: Collector,
    waiting: mpsc::Receiver<Value>,
    end: Arc<Notify>,
    notice: fn(&str),
}

impl Sending {
    /// Sends what comes, in batches, until [`Traces::end`].
    pub(crate) async fn run(mut self) {
        let (mut is_reached, mut is_over) = (true, false);
        while !is_over {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.end.notified() => is_over = true,
            }
            let mut batch = Vec::new();
            while let Ok(span) = self.waiting.try_recv() {
                batch.push(span);
                if batch.len() < MAX_BATCH && !self.waiting.is_empty() {
                    continue;
                }
                let sent = self.collector.send(&std::mem::take(&mut batch)).await;
                match &sent {
                    Err(error) if is_reached => (self.notice)(&format!(
                        "notice: spans do not reach the collector at {}: {error}",
                        self.collector.authority
                    )),
                    Ok(()) if !is_reached => {
                        (self.notice)("notice: spans reach the collector again")
                    }
                    _ => {}
                }
                is_reached = sent.is_ok();
                if !is_reached {
                    break;
                }
            }
        }
    }
}

/// A request that has a span. Dropping it ends the span.
#[derive(Debug)]
pub(crate) struct Trace {
    spans: mpsc::Sender<Value>,
    trace_id: String,
    span_id: String,
    parent: Option<String>,
    name: String,
    /// When it began.
    clock: (Instant, SystemTime),
    error: Option<&'static str>,
    attributes: Vec<Value>,
}

impl Trace {
    /// Adds a fact.
    pub(crate) fn set(&mut self, name: &str, value: Fact<'_>) {
        self.attributes.push(attribute(name, value));
    }

    /// Notes that the request has not come to its end.
    pub(crate) fn fail(&mut self, error: &'static str) {
        self.error = Some(error);
    }

    /// Adds a part of the request, from `from` on.
    pub(crate) fn part(&self, name: &str, from: Instant, time: Duration) {
        let span = json!({
            "traceId": self.trace_id,
            "spanId": random_id(),
            "parentSpanId": self.span_id,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": self.nanoseconds(from),
            "endTimeUnixNano": self.nanoseconds(from + time),
        });
        self.send(span);
    }

    /// Returns a time as OTLP writes it in JSON: nanoseconds since 1970, as a text.
    fn nanoseconds(&self, at: Instant) -> String {
        let (began, then) = self.clock;
        let at = match at.checked_duration_since(began) {
            Some(after) => then + after,
            None => then - began.duration_since(at),
        };
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_nanos().to_string()
    }

    fn send(&self, span: Value) {
        // A full queue takes no more.
        let _ = self.spans.try_send(span);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut span = json!({
            "traceId": self.trace_id,
            "spanId": self.span_id,
            "name": self.name,
            "kind": 2,
            "startTimeUnixNano": self.nanoseconds(self.clock.0),
            "endTimeUnixNano": self.nanoseconds(Instant::now()),
            "attributes": std::mem::take(&mut self.attributes),
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = parent.as_str().into();
        }
        if let Some(error) = self.error {
            span["status"] = json!({ "code": 2, "message": error });
        }
        self.send(span);
    }
}

/// A value of an attribute.
pub(crate) enum Fact<'a> {
    Text(&'a str),
    Number(usize),
}

impl<'a> From<&'a str> for Fact<'a> {
    fn from(text: &'a str) -> Fact<'a> {
        Fact::Text(text)
    }
}

impl From<usize> for Fact<'_> {
    fn from(number: usize) -> Self {
        Fact::Number(number)
    }
}

fn attribute(name: &str, value: Fact<'_>) -> Value {
    let value = match value {
        Fact::Text(text) => json!({ "stringValue": text }),
        // In JSON, OTLP writes numbers of 64 bits as texts.
        Fact::Number(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": name, "value": value })
}

/// Returns 16 hexadecimal digits, not all of which are 0.
fn random_id() -> String {
    format!("{:016x}", rocmforge::parts::random_seed().max(1))
}

/// The span of the client that a request belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Parent {
    trace_id: String,
    span_id: String,
    is_sampled: bool,
}

impl Parent {
    /// Reads the header `traceparent` of W3C's Trace Context; `None` if it is none.
    fn parse(text: &str) -> Option<Parent> {
        let mut parts = text.split('-');
        let mut part = |n_digits: usize| {
            let part = parts.next()?;
            let is_hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
            (part.len() == n_digits && part.bytes().all(is_hex)).then_some(part)
        };
        let (version, trace_id) = (part(2)?, part(32)?);
        let (span_id, flags) = (part(16)?, part(2)?);
        let is_zero = |id: &str| id.bytes().all(|c| c == b'0');
        if version == "ff" || is_zero(trace_id) || is_zero(span_id) {
            return None;
        }
        // Later versions may add parts.
        if version == "00" && parts.next().is_some() {
            return None;
        }
        Some(Parent {
            trace_id: trace_id.to_string(),
            span_id: span_id.to_string(),
            is_sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_addresses() {
        let parse = |url: &str| {
            let collector = Collector::parse(url).ok()?;
            Some((collector.authority, collector.path))
        };
        let at = |authority: &str, path: &str| Some((authority.to_string(), path.to_string()));
        assert_eq!(parse("http://a"), at("a:4318", "/v1/traces"));
        assert_eq!(parse("http://[::1]:9/"), at("[::1]:9", "/v1/traces"));
        assert_eq!(parse("http://a:80/x/y/"), at("a:80", "/x/y/v1/traces"));
        for url in [
            "",
            "a:4318",
            "https://a",
            "http://",
            "http://u@a",
            "http://a/b?c",
            "http://a b",
        ] {
            assert_eq!(parse(url), None, "{url}");
        }
    }

    /// The examples of W3C's Trace Context.
    #[test]
    fn knows_parents() {
        let [trace, span] = ["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"];
        let parse =
            |version: &str, rest: &str| Parent::parse(&format!("{version}-{trace}-{span}-{rest}"));
        let parent = parse("00", "01").unwrap();
        assert_eq!(
            (parent.trace_id.as_str(), parent.span_id.as_str()),
            (trace, span)
        );
        assert!(parent.is_sampled && !parse("00", "00").unwrap().is_sampled);
        assert!(parse("cc", "01-what-the-future-will-be-like").is_some());
        assert_eq!(parse("00", "01-x"), None);
        assert_eq!(parse("ff", "01"), None);
        assert_eq!(parse("00", "1"), None);
        for text in [
            "",
            "00",
            &format!("00-{}-{span}-01", "0".repeat(32)),
            &format!("00-{trace}-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(Parent::parse(text), None);
        }
    }
}
