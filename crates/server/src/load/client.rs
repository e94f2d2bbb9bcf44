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

/// What came of a request: its times, or why it failed.
pub(super) type Outcome = Result<Times, String>;

/// The times of an answer, since the request was sent, and its tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// When each piece of text or of a call came.
    pub(super) pieces: Vec<Duration>,
    pub(super) whole: Duration,
    /// As the server counts them; else the number of pieces.
    pub(super) n_tokens: usize,
    /// 0 if the server does not say.
    pub(super) prompt_tokens: usize,
    /// Tokens of the prompt that the server had in its cache, if it says so.
    pub(super) cached_tokens: Option<usize>,
    /// Index in its conversation.
    pub(super) turn: usize,
    /// Prompt and answer of the turn before.
    pub(super) earlier_tokens: usize,
}

/// An answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) times: Times,
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
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

    /// Sends a request for a stream to a route and reads the answer. `body` lacks what all requests have.
    pub(super) async fn ask(&self, route: &str, body: Value) -> Result<Answer, String> {
        match tokio::time::timeout(TIMEOUT, self.answer(route, body)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer in {} s", TIMEOUT.as_secs())),
        }
    }

    async fn answer(&self, route: &str, body: Value) -> Result<Answer, String> {
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
        let response = sender.send_request(self.request(route, body)).await;
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
        let mut answer = Answer::default();
        let mut events = Events::default();
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
                if answer.take(&event) {
                    answer.times.pieces.push(started.elapsed());
                }
            }
        }
        connection.abort();
        if !events.is_done {
            return Err("the stream ended early".to_string());
        }
        let times = &mut answer.times;
        times.whole = started.elapsed();
        if times.n_tokens == 0 {
            times.n_tokens = times.pieces.len();
        }
        Ok(answer)
    }

    fn request(&self, route: &str, mut body: Value) -> Request<Full<Bytes>> {
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        if let Some(model) = &self.model {
            body["model"] = model.as_str().into();
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        let mut request = Request::post(format!("{}/v1/{route}", self.base))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::from(body.to_string()));
        request.expect("the parts were checked")
    }
}

impl Answer {
    /// Takes an event of a completion or of a chat. Returns whether it has a piece of the answer.
    fn take(&mut self, event: &Value) -> bool {
        let number = |path: &str| event.pointer(path)?.as_u64().map(|n| n as usize);
        if let Some(n) = number("/usage/completion_tokens") {
            self.times.n_tokens = n;
        }
        if let Some(n) = number("/usage/prompt_tokens") {
            self.times.prompt_tokens = n;
        }
        let cached = number("/usage/prompt_tokens_details/cached_tokens");
        // llama-server's name for it.
        if let Some(n) = cached.or_else(|| number("/timings/cache_n")) {
            self.times.cached_tokens = Some(n);
        }
        let text = |path: &str| {
            event
                .pointer(path)?
                .as_str()
                .filter(|text| !text.is_empty())
        };
        let mut has_piece = text("/choices/0/delta/reasoning_content").is_some();
        for path in ["/choices/0/text", "/choices/0/delta/content"] {
            if let Some(text) = text(path) {
                self.text.push_str(text);
                has_piece = true;
            }
        }
        let calls = event.pointer("/choices/0/delta/tool_calls");
        for piece in calls.and_then(Value::as_array).into_iter().flatten() {
            self.take_call(piece);
            has_piece = true;
        }
        has_piece
    }

    fn take_call(&mut self, piece: &Value) {
        // A new call has the next index.
        let index = piece["index"].as_u64().map_or(0, |index| index as usize);
        let index = index.min(self.calls.len());
        if index == self.calls.len() {
            self.calls.push(Call::default());
        }
        let call = &mut self.calls[index];
        let text = |path: &str| piece.pointer(path).and_then(Value::as_str).unwrap_or("");
        call.id.push_str(text("/id"));
        call.name.push_str(text("/function/name"));
        call.arguments.push_str(text("/function/arguments"));
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
    fn joins_the_pieces_of_an_answer() {
        let mut answer = Answer::default();
        let call = |piece: Value| json!({"choices": [{"delta": {"tool_calls": [piece]}}]});
        let events = [
            json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
            json!({"choices": [{"delta": {"content": "a"}}]}),
            call(json!({"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}})),
            call(json!({"index": 0, "function": {"arguments": "}"}})),
            call(json!({"index": 1, "id": "y", "function": {"name": "g", "arguments": "{}"}})),
            call(json!({"index": u64::MAX, "id": "z"})),
            json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}, "timings": {"cache_n": 7}}),
        ];
        let pieces = events.iter().map(|event| answer.take(event));
        assert_eq!(
            pieces.collect::<Vec<_>>(),
            [false, true, true, true, true, true, false]
        );
        let calls = answer.calls.iter();
        let calls: Vec<_> = calls
            .map(|call| [&*call.id, &*call.name, &*call.arguments])
            .collect();
        assert_eq!(calls, [["x", "f", "{}"], ["y", "g", "{}"], ["z", "", ""]]);
        assert_eq!(answer.text, "a");
        let times = &answer.times;
        assert_eq!((times.prompt_tokens, times.cached_tokens), (9, Some(7)));
        assert_eq!(times.n_tokens, 4);
        // OpenAI's field goes first.
        let usage = json!({"prompt_tokens_details": {"cached_tokens": 5}});
        answer.take(&json!({"usage": usage, "timings": {"cache_n": 7}}));
        assert_eq!(answer.times.cached_tokens, Some(5));
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
