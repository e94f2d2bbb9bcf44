//! The settings of a server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::http::cors::Origins;
use crate::http::keys::Keys;
use crate::http::tls::Tls;
use crate::observe::access_log::LogContent;
use crate::observe::sensors::Sensors;
use crate::observe::traces::Collector;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Who may ask. Without keys everyone may, and the server listens on loopback only.
    pub keys: Keys,
    /// The file of `keys`, which is read again on SIGHUP.
    pub keys_file: Option<PathBuf>,
    /// System messages that the caches of all keys share.
    pub shared_prefixes: Vec<SharedPrefix>,
    /// Sites whose pages may ask.
    pub origins: Origins,
    /// Without it, connections are not encrypted.
    pub tls: Option<Tls>,
    pub limits: Limits,
    /// Bytes that the models in memory may take together.
    pub max_model_bytes: Option<u64>,
    /// A model that nobody has used for this long leaves the memory.
    pub idle_unload: Option<Duration>,
    /// Writes a line of JSON about each request; see [`Config::notice`] for other messages. Threads that serve clients call
    /// both, so they must not wait.
    pub access_log: Option<fn(&str)>,
    /// What these lines tell of requests.
    pub log_content: LogContent,
    /// Where spans of requests are sent; nowhere without it.
    pub collector: Option<Collector>,
    /// Of the device that the models run on, for the metrics.
    pub sensors: Option<Arc<dyn Sensors>>,
    /// Takes what the owner of the server should know.
    pub notice: fn(&str),
    /// How long the server waits for running requests when it is told to stop.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            keys: Keys::default(),
            keys_file: None,
            shared_prefixes: Vec::new(),
            origins: Origins::default(),
            tls: None,
            limits: Limits::default(),
            max_model_bytes: None,
            idle_unload: None,
            access_log: None,
            log_content: LogContent::Leave,
            collector: None,
            sensors: None,
            notice: |_| {},
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A system message that the caches of all keys share.
#[derive(Debug, Clone)]
pub struct SharedPrefix {
    /// What notices call it.
    pub name: String,
    pub text: String,
}

/// Bounds of what clients may ask for.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Connections at the same time. Further ones wait.
    pub max_connections: usize,
    /// Time for the head of a request, and for its body.
    pub read_timeout: Duration,
    /// A client that reads nothing for this long is disconnected.
    pub write_timeout: Duration,
    /// Time between comments on a silent stream.
    pub ping_interval: Duration,
    /// Messages in a conversation.
    pub max_messages: usize,
    /// Tools in a conversation.
    pub max_tools: usize,
    /// Answers to one prompt (`n`), and prompts of one request.
    pub max_choices: usize,
    /// Stop strings.
    pub max_stops: usize,
    /// Bytes of all stop strings.
    pub max_stop_bytes: usize,
    /// Tokens that end an answer.
    pub max_stop_ids: usize,
    /// Tokens with a bias.
    pub max_biases: usize,
    /// Time to the first token. A request that would probably take longer is refused.
    pub max_first_token_time: Option<Duration>,
    /// Time after which the head of a stream is sent, whether or not its request has begun. Before, a failure is a status.
    pub head_timeout: Duration,
    /// Time that a request may wait for its turn.
    pub max_queue_time: Duration,
    /// Time for an answer; what there is then is returned.
    pub max_answer_time: Duration,
    /// Time that a kept stream goes on without a client, and that it is kept after its end; zero to
    /// keep none.
    pub max_unread_time: Duration,
    /// Time for a step of a model. The server says that it hangs when one takes longer.
    pub max_step_time: Duration,
    /// Time after which loading a model is tried again that could not be loaded.
    pub load_retry_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_body_bytes: 8 << 20,
            max_connections: 4096,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(15),
            max_messages: 4096,
            max_tools: 256,
            max_choices: 128,
            max_stops: 32,
            max_stop_bytes: 4096,
            max_stop_ids: 1024,
            max_biases: 4096,
            max_first_token_time: None,
            head_timeout: Duration::from_secs(5),
            // As long as OpenAI's clients wait.
            max_queue_time: Duration::from_secs(600),
            max_answer_time: Duration::from_secs(3600),
            max_unread_time: Duration::from_secs(300),
            max_step_time: Duration::from_secs(60),
            load_retry_time: Duration::from_secs(10),
        }
    }
}
