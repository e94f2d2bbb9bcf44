//! Flags of serve and bench serve.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::BoolishValueParser;
use rocmforge_server::load::Slo;

use super::{AnswerContextArgs, BenchOutput, DeviceArgs, LoadArgs, SpeculationArgs};

/// A year: clocks cannot count every number of seconds.
const MAX_SECONDS: u64 = 365 * 24 * 3600;

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// GGUF file, or name of a downloaded model; may be repeated [default: the built-in forge-mini]
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub model: Vec<PathBuf>,
    /// Name by which clients ask for a model, one for each --model in their order [default: its file's name]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        env = "ROCMFORGE_ALIAS",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub alias: Vec<String>,
    /// Offer the models of the models folder, too; each is loaded when it is first asked for
    #[arg(long, env = "ROCMFORGE_ALL_MODELS", hide_env_values = true, value_parser = BoolishValueParser::new(), help_heading = "Model")]
    pub all_models: bool,
    /// Memory for the models that are loaded at the same time, in MiB [default: all that is free]
    #[arg(
        long,
        value_name = "MIB",
        value_parser = clap::value_parser!(u32).range(1..),
        env = "ROCMFORGE_MEMORY",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub memory: Option<u32>,
    /// Seconds after which a model that nobody uses leaves the memory; 0: none does
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=MAX_SECONDS),
        env = "ROCMFORGE_IDLE_UNLOAD",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub idle_unload: u64,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Read settings from a TOML file; flags and environment variables replace them
    #[arg(
        long,
        value_name = "FILE",
        env = "ROCMFORGE_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    /// Address to listen on; other machines need --keys
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1",
        env = "ROCMFORGE_HOST",
        hide_env_values = true
    )]
    pub host: IpAddr,
    /// Port to listen on; 0: a free one
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8080,
        env = "ROCMFORGE_PORT",
        hide_env_values = true
    )]
    pub port: u16,
    /// File with the keys of clients, one name:sha256 per line
    #[arg(
        long,
        value_name = "FILE",
        env = "ROCMFORGE_KEYS",
        hide_env_values = true
    )]
    pub keys: Option<PathBuf>,
    /// Text file with a system message that keys share in the cache; may be repeated. Without it, keys share nothing
    #[arg(
        long,
        value_name = "FILE",
        env = "ROCMFORGE_SHARED_PREFIX",
        hide_env_values = true
    )]
    pub shared_prefix: Vec<PathBuf>,
    /// Site whose pages may ask, such as https://example.com; may be repeated. *: all sites, with --keys
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "ROCMFORGE_CORS",
        hide_env_values = true
    )]
    pub cors: Vec<String>,
    /// Serve HTTPS with the certificates in this PEM file, the server's own first
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        env = "ROCMFORGE_TLS_CERT",
        hide_env_values = true
    )]
    pub tls_cert: Option<PathBuf>,
    /// Key of the server's certificate, a PEM file
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "ROCMFORGE_TLS_KEY",
        hide_env_values = true
    )]
    pub tls_key: Option<PathBuf>,
    /// Print a new key for a client and its line for the keys file, and exit
    #[arg(long, value_name = "NAME")]
    pub new_key: Option<String>,
    /// Requests served at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        env = "ROCMFORGE_MAX_SEQS",
        hide_env_values = true
    )]
    pub max_seqs: usize,
    /// Requests that may wait; more are refused
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        env = "ROCMFORGE_MAX_QUEUE",
        hide_env_values = true
    )]
    pub max_queue: usize,
    /// Tokens that the prompts of waiting requests may have
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4 << 20,
        env = "ROCMFORGE_MAX_QUEUE_TOKENS",
        hide_env_values = true
    )]
    pub max_queue_tokens: usize,
    /// Seconds that a request may wait for its turn
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS),
        env = "ROCMFORGE_QUEUE_TIMEOUT",
        hide_env_values = true
    )]
    pub queue_timeout: u64,
    /// Seconds that an answer may take; then it ends with what there is
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS),
        env = "ROCMFORGE_ANSWER_TIMEOUT",
        hide_env_values = true
    )]
    pub answer_timeout: u64,
    /// Seconds that a stream with X-Conversation-Id goes on without its client, and is kept (0: not)
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS),
        env = "ROCMFORGE_RESUME_TIMEOUT",
        hide_env_values = true
    )]
    pub resume_timeout: u64,
    /// Seconds for the head of a request, and for its body
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS),
        env = "ROCMFORGE_READ_TIMEOUT",
        hide_env_values = true
    )]
    pub read_timeout: u64,
    /// Seconds after which a client that reads nothing is disconnected
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS),
        env = "ROCMFORGE_WRITE_TIMEOUT",
        hide_env_values = true
    )]
    pub write_timeout: u64,
    /// Largest body of a request in MiB
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=1024),
        env = "ROCMFORGE_MAX_BODY",
        hide_env_values = true
    )]
    pub max_body: u32,
    /// Connections at the same time; further ones wait
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        env = "ROCMFORGE_MAX_CONNECTIONS",
        hide_env_values = true
    )]
    pub max_connections: u32,
    /// Answers that a request may ask for
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        value_parser = clap::value_parser!(u32).range(1..=4096),
        env = "ROCMFORGE_MAX_CHOICES",
        hide_env_values = true
    )]
    pub max_choices: u32,
    /// Seconds that a step of a model may take before /health/live fails
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS),
        env = "ROCMFORGE_STEP_TIMEOUT",
        hide_env_values = true
    )]
    pub step_timeout: u64,
    /// Size of the KV cache of all requests in tokens [default: what fits on a GPU; four contexts on a CPU]
    #[arg(
        long,
        value_name = "N",
        env = "ROCMFORGE_KV_TOKENS",
        hide_env_values = true
    )]
    pub kv_tokens: Option<usize>,
    /// Milliseconds between tokens that prompts of other requests should not exceed; 0 lets them
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(0..=1000 * MAX_SECONDS),
        env = "ROCMFORGE_ITL_TARGET",
        hide_env_values = true
    )]
    pub itl_target: u64,
    /// Milliseconds to the first token; a request that would wait longer is refused, 0: none is
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=1000 * MAX_SECONDS),
        env = "ROCMFORGE_TTFT_TARGET",
        hide_env_values = true
    )]
    pub ttft_target: u64,
    /// Seconds that running requests may take after the server is told to stop
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(0..=MAX_SECONDS),
        env = "ROCMFORGE_DRAIN_TIMEOUT",
        hide_env_values = true
    )]
    pub drain_timeout: u64,
    /// Send spans of requests to an OpenTelemetry collector, such as http://127.0.0.1:4318
    #[arg(
        long,
        value_name = "URL",
        env = "ROCMFORGE_OTLP",
        hide_env_values = true,
        help_heading = "Output"
    )]
    pub otlp: Option<String>,
    /// Print a line of JSON for each request on stderr
    #[arg(long, env = "ROCMFORGE_ACCESS_LOG", hide_env_values = true, value_parser = BoolishValueParser::new(), help_heading = "Output")]
    pub access_log: bool,
    /// Print these lines with the bodies of requests and answers
    #[arg(long, env = "ROCMFORGE_LOG_CONTENT", hide_env_values = true, value_parser = BoolishValueParser::new(), help_heading = "Output")]
    pub log_content: bool,
    /// Do not read power, temperature and clock of a GPU for /metrics
    #[arg(long, env = "ROCMFORGE_NO_SENSORS", hide_env_values = true, value_parser = BoolishValueParser::new(), help_heading = "Output")]
    pub no_sensors: bool,
    /// Print one line of JSON when the server is ready: url and models
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub context: AnswerContextArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("arrivals").required(true))]
pub struct BenchServeArgs {
    /// Address of the server, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// Model to ask for [default: the server's first]
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,
    /// Key to send
    #[arg(
        long,
        value_name = "KEY",
        env = "ROCMFORGE_API_KEY",
        hide_env_values = true
    )]
    pub key: Option<String>,
    /// Requests per second, at random times
    #[arg(long, value_name = "R", group = "arrivals", value_parser = rate)]
    pub rate: Option<f64>,
    /// Requests at the same time; the next is sent when one ends
    #[arg(long, value_name = "C", group = "arrivals", value_parser = clap::value_parser!(u32).range(1..))]
    pub concurrency: Option<u32>,
    /// Number of requests, with --turns of conversations
    #[arg(short, long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub n: u32,
    /// Hold conversations of N requests, as agents do: each request sends all earlier answers again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub turns: Option<u32>,
    /// Words that each turn adds to its conversation: a message or a tool's result
    #[arg(long, value_name = "T", default_value_t = 64, requires = "turns", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub turn_tokens: u32,
    /// Tools in each request of a conversation; with tools, every second answer must call one
    #[arg(long, value_name = "N", default_value_t = 0, requires = "turns", value_parser = clap::value_parser!(u32).range(..=128))]
    pub tools: u32,
    /// Words of each prompt, with --turns of the system message; a word is about a token
    #[arg(long, value_name = "P", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub prompt_tokens: u32,
    /// Tokens of each answer; those of conversations may end before
    #[arg(long, value_name = "T", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Times that a good answer keeps, as in ttft_ms=500,itl_ms=60; adds the good answers per second
    #[arg(long, value_name = "TIMES")]
    pub slo: Option<Times>,
    /// Fields to add to each request, as in {"temperature": 1}
    #[arg(long, value_name = "JSON", value_parser = fields)]
    pub extra_body: Option<Fields>,
    /// Seed of the prompts and times
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Table, help_heading = "Output")]
    pub output: BenchOutput,
}

/// The value of `--extra-body`.
pub type Fields = serde_json::Map<String, serde_json::Value>;

fn fields(text: &str) -> Result<Fields, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON object: {error}"))
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("use a number above 0".to_string()),
    }
}

/// The value of `--slo`.
#[derive(Debug, Clone, Copy)]
pub struct Times(pub Slo);

impl FromStr for Times {
    type Err = String;

    fn from_str(text: &str) -> Result<Times, String> {
        let mut slo = Slo {
            ttft_ms: f64::INFINITY,
            itl_ms: f64::INFINITY,
        };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = rate(value).map_err(|error| format!("{name}: {error}"))?;
            match name {
                "ttft_ms" => slo.ttft_ms = value,
                "itl_ms" => slo.itl_ms = value,
                _ => return Err("use ttft_ms=MS,itl_ms=MS".to_string()),
            }
        }
        Ok(Times(slo))
    }
}
