//! A server in this process, and a client for it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rocmforge_engine::serve::{ServeOptions, serve};
use rocmforge_engine::{Engine, EngineConfig, KvTokens};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Purpose;
use rocmforge_plan::Roofline;
use rocmforge_server::{Config, Costs, Model, Offer, Prepared, Server, ServerError, Stopper};
use rocmforge_text::chat_template::ChatTemplate;
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};

pub(crate) const FORGE_MINI: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/forge-mini-Q4_K_M.gguf"
);

/// Peaks of no real device.
const PEAKS: Roofline = Roofline {
    read_bytes_per_s: 1e9,
    f32_ops_per_s: 1e9,
    i8_ops_per_s: 1e9,
};

/// A server on a thread of this process. It stops when it is dropped.
pub(crate) struct TestServer {
    pub(crate) url: String,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// The error object of a failure with this status.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string(), "{}", self.text);
        error
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The events of a stream, the last of which is `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text);
        let mut lines: Vec<&str> = self
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{}", self.text);
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Small caches and steps, so that tests start fast.
pub(crate) fn small() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(512),
        max_seqs: 32,
        kv_tokens: KvTokens::Exactly(4096),
        max_batch_tokens: 64,
        n_threads: Some(1),
        ..EngineConfig::default()
    }
}

/// A context in which an answer takes seconds.
pub(crate) fn roomy() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(16_384),
        kv_tokens: KvTokens::Exactly(65_536),
        ..small()
    }
}

/// Offers a model file, loaded at the start.
pub(crate) fn model(
    name: &str,
    path: &Path,
    purpose: Purpose,
    config: EngineConfig,
    options: ServeOptions,
) -> Offer {
    offer(name, loaded(path, purpose, config, options))
}

/// Offers a loaded model, once.
pub(crate) fn offer(name: &str, model: Model) -> Offer {
    let once = Mutex::new(Some(model));
    Offer {
        name: name.to_string(),
        aliases: Vec::new(),
        defaults: Map::new(),
        at_start: true,
        file: None,
        file_bytes: 0,
        prepare: Box::new(move || {
            let model = once.lock().unwrap().take().ok_or("it was loaded before")?;
            let start = Box::new(|_| Ok(model));
            Ok(Prepared { bytes: 1, start })
        }),
    }
}

/// Loads a model file for a server.
pub(crate) fn loaded(
    path: &Path,
    purpose: Purpose,
    config: EngineConfig,
    options: ServeOptions,
) -> Model {
    let gguf = Arc::new(Gguf::open(path, LoadMode::Mmap).unwrap());
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap());
    let loaded = rocmforge_model::Model::load_for(purpose, Arc::clone(&gguf), &[]).unwrap();
    let config = config.with_whole_texts(&loaded);
    let engine = Engine::start(&loaded, Some(Arc::clone(&tokenizer)), &config).unwrap();
    let costs = Costs::new(&loaded, (&engine, &config), Some(PEAKS));
    Model {
        engine: serve(engine, options).unwrap(),
        template: ChatTemplate::from_gguf(&gguf, &tokenizer, None).unwrap(),
        tokenizer,
        gguf,
        costs,
        embedding: loaded.config.embedding,
    }
}

pub(crate) fn forge_mini(config: EngineConfig) -> Offer {
    model(
        "forge-mini",
        FORGE_MINI.as_ref(),
        Purpose::Text,
        config,
        ServeOptions::default(),
    )
}

/// A free port on loopback.
pub(crate) fn local() -> Config {
    Config {
        address: "127.0.0.1:0".parse().unwrap(),
        drain_timeout: Duration::from_secs(20),
        ..Config::default()
    }
}

/// Starts a server with forge-mini.
pub(crate) fn start() -> TestServer {
    TestServer::start(local(), vec![forge_mini(small())])
}

impl TestServer {
    pub(crate) fn start(config: Config, models: Vec<Offer>) -> TestServer {
        let server = Server::bind(config, models).unwrap();
        let url = server.url();
        let (to, ready) = mpsc::channel();
        let thread =
            std::thread::spawn(move || server.run(|stopper| to.send(stopper.clone()).unwrap()));
        let stopper = ready.recv().expect("the server is ready");
        TestServer {
            url,
            stopper,
            thread: Some(thread),
        }
    }

    fn agent() -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(120)));
        config.build().into()
    }

    fn reply(response: ureq::http::Response<ureq::Body>) -> Reply {
        let (parts, mut body) = response.into_parts();
        Reply {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: body.read_to_string().unwrap(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send_get(path, &[])
    }

    pub(crate) fn send_get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Self::agent().get(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::reply(request.call().unwrap())
    }

    pub(crate) fn options(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Self::agent().options(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::reply(request.call().unwrap())
    }

    /// Sends a request without a body.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        Self::reply(Self::agent().run(request).unwrap())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(path, body.to_string().as_bytes(), &[])
    }

    pub(crate) fn send(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) -> Reply {
        let mut request = Self::agent().post(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::reply(request.send(body).unwrap())
    }

    /// Begins a stream and returns its lines, one by one.
    pub(crate) fn lines(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> impl Iterator<Item = String> + use<> {
        let mut request = Self::agent().post(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send(body.to_string().as_bytes()).unwrap();
        assert_eq!(response.status(), 200);
        let reader = BufReader::new(response.into_body().into_reader());
        reader.lines().map_while(Result::ok)
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits for the end of a server that was asked to stop.
    pub(crate) fn join(mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Returns the value of a metric, summed over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' '])
                .then(|| rest.rsplit_once(' '))?
        });
        values.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        for _ in 0..400 {
            if self.metric(name) == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        panic!("{name} is {} instead of {value}", self.metric(name));
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
