//! The server over real connections, with forge-mini on the CPU.

mod admin;
mod anthropic;
mod browser;
mod caps;
mod chaos;
mod chat;
mod client;
mod completions;
mod cors;
mod device;
mod embeddings;
mod hostile;
mod identity;
mod keys;
mod lifecycle;
mod llama;
mod load;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod page;
mod responses;
mod structured;
mod timings;
mod tls;
