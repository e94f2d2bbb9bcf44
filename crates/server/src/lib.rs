//! The HTTP server: OpenAI's API, and some routes of llama-server, over any number of models.
//!
//! A request takes this way: `http` reads it and knows who asks; a handler in `openai` or `llama` turns it into requests of
//! the engine; `serving` runs them and gives back updates; the handler's encoder turns each update into the wire's form.
//! The engine's thread does none of this, and waits for none of it: templates and tokenizers run on threads of their own,
//! and what a slow client has not read is merged.
#![forbid(unsafe_code)]

mod admin;
mod anthropic;
mod app;
mod base64;
mod bodies;
mod config;
mod http;
mod llama;
pub mod load;
mod observe;
mod ollama;
mod openai;
mod openapi;
mod page;
mod routes;
mod run;
mod serving;

pub use bodies::read_body;
pub use config::{Config, Limits, SharedPrefix};
pub use http::cors::{OriginError, Origins};
pub use http::keys::{Keys, KeysError, NewKey};
pub use http::tls::{Tls, TlsError};
pub use observe::access_log::LogContent;
pub use observe::sensors::{SensorReading, Sensors};
pub use observe::traces::{Collector, CollectorError};
pub use run::{Server, ServerError, Stopper};
pub use serving::costs::Costs;
pub use serving::model::Model;
pub use serving::slot::{LoadError, Offer, Prepared};
