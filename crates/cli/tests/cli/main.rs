//! End-to-end tests: each runs the built binary, most on the built-in model.
#![allow(
    unreachable_pub,
    reason = "nothing of a program is reachable from outside; pub is for its other files"
)]

mod bad_input;
mod baseline;
mod bench;
mod chat;
mod check;
mod commands;
mod compare;
mod doctor;
#[cfg(unix)]
mod embed;
mod external;
mod generate;
mod gpu;
mod gpu_faults;
mod inspect;
mod lora;
mod manual;
#[cfg(feature = "pull")]
mod mock_hub;
mod models;
mod profile;
mod program;
#[cfg(feature = "pull")]
mod pull;
#[cfg(feature = "pull")]
mod pull_hostile;
mod quantize;
mod ranges;
#[cfg(unix)]
mod regression;
mod serve;
mod states;
mod structured;
mod suites;
mod templates;
mod terminal;
mod tune;
mod usage;
mod version;
