//! One request of a load: sends it, and notes when each piece of the answer came.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use super::LoadError;

/// Time after which a request counts as failed.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A server, and what to ask it for.
#[derive(Debug, Clone)]
pub struct Target {
    /// `host:port`
    authority: String,
    /// What stands before `/v1`.
    base: String,
    model: Option<String>,
    key: Option<String>,
    /// Added to the body of each request.
    extra: Map<String, Value>,
}

/// A completion to ask for.
pub(super) struct Asked {
    pub(super) prompt: String,
    pub(super) max_tokens: usize,
    pub(super) seed: u64,
}

/// What came of a request: its times, or why it failed.
pub(super) type Outcome = Result<Times, String>;

/// The times of an answer, since the request was sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// When each piece of text came.
    pub(super) pieces: Vec<Duration>,
    pub(super) whole: Duration,
    /// As the server counts them; else the number of pieces.
    pub(super) n_tokens: usize,
}

impl Target {
    /// Parses an address such as `http://127.0.0.1:8080`, with or without `/v1` at its end.
    ///
    /// # Errors
    /// It is no address of a server without TLS.
    pub fn new(url: &str, model: Option<String>, key: Option<String>) -> Result<Target, LoadError> {
        let wrong = || LoadError::Url(url.escape_debug().to_string());
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || authority.parse::<hyper::http::uri::Authority>().is_err() {
            return Err(wrong());
        }
        let authority = match authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_string(),
            _ => format!("{authority}:80"),
        };
        let path = path.trim_end_matches('/');
        let path = path
            .strip_suffix("v1")
            .unwrap_or(path)
            .trim_end_matches('/');
        Ok(Target {
            authority,
            base: if path.is_empty() {
                String::new()
            } else {
                format!("/{path}")
            },
            model,
            key,
            extra: Map::new(),
        })
    }

    /// Adds fields to the body of each request, in the place of those that are there.
    #[must_use]
    pub fn with_fields(self, extra: Map<String, Value>) -> Target {
        Target { extra, ..self }
    }

    pub(super) async fn ask(&self, asked: &Asked) -> Outcome {
        match tokio::time::timeout(TIMEOUT, self.answer(asked)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer in {} s", TIMEOUT.as_secs())),
        }
    }

    async fn answer(&self, asked: &Asked) -> Outcome {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let started = Instant::now();
        let stream = TcpStream::connect(&self.authority)
            .await
            .map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| failed(&error))?;
        // It ends when the sender is dropped; errors show in the answer.
        let connection = tokio::spawn(connection);
        let response = sender.send_request(self.request(asked)).await;
        let response = response.map_err(|error| failed(&error))?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let bytes = body
                .collect()
                .await
                .map_err(|error| failed(&error))?
                .to_bytes();
            let text: String = String::from_utf8_lossy(&bytes).chars().take(300).collect();
            return Err(format!("{status}: {text}"));
        }
        let mut times = Times::default();
        let mut events = Events::default();
        let mut counted = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| failed(&error))?;
            let Some(bytes) = frame.data_ref() else {
                continue;
            };
            for event in events.push(bytes) {
                let event: Value = serde_json::from_str(&event).map_err(|error| failed(&error))?;
                if let Some(message) = event.pointer("/error/message") {
                    return Err(message.to_string());
                }
                if let Some(n) = event.pointer("/usage/completion_tokens") {
                    counted = n.as_u64();
                }
                let text = event.pointer("/choices/0/text").and_then(Value::as_str);
                if text.is_some_and(|text| !text.is_empty()) {
                    times.pieces.push(started.elapsed());
                }
            }
        }
        connection.abort();
        times.whole = started.elapsed();
        if !events.is_done {
            return Err("the stream ended early".to_string());
        }
        times.n_tokens = counted.map_or(times.pieces.len(), |n| n as usize);
        Ok(times)
    }

    fn request(&self, asked: &Asked) -> Request<Full<Bytes>> {
        let mut body = json!({
            "prompt": asked.prompt,
            "max_tokens": asked.max_tokens,
            "seed": asked.seed,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(model) = &self.model {
            body["model"] = model.as_str().into();
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        let mut request = Request::post(format!("{}/v1/completions", self.base))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::from(body.to_string()));
        request.expect("the parts were checked")
    }
}

/// Splits a stream into its events.
#[derive(Default)]
struct Events {
    line: Vec<u8>,
    is_done: bool,
}

impl Events {
    /// Returns the data of the events that are complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            match data.trim_ascii() {
                b"[DONE]" => self.is_done = true,
                data => events.push(String::from_utf8_lossy(data).into_owned()),
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses() {
        let target = |url: &str| Target::new(url, None, None).map(|t| (t.authority, t.base));
        let parts = |authority: &str, base: &str| (authority.to_string(), base.to_string());
        assert_eq!(target("http://a:1").unwrap(), parts("a:1", ""));
        assert_eq!(target("http://a:1/v1/").unwrap(), parts("a:1", ""));
        assert_eq!(target("http://a/x/v1").unwrap(), parts("a:80", "/x"));
        assert_eq!(
            target("http://[::1]:8080").unwrap(),
            parts("[::1]:8080", "")
        );
        for url in ["", "a:1", "https://a", "http://", "http://a b"] {
            assert!(target(url).is_err(), "{url}");
        }
    }

    #[test]
    fn splits_events_wherever_the_bytes_are_cut() {
        let text = b": ping\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:{}\n\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let mut events = Events::default();
            let mut all = events.push(&text[..cut]);
            all.extend(events.push(&text[cut..]));
            assert_eq!(all, ["{\"a\": 1}", "{}"]);
            assert!(events.is_done);
        }
    }
}
