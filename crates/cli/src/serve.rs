//! `rocmforge serve`: answers requests over HTTP.

mod catalog;
mod loading;
pub mod log;
mod sensors;
mod settings;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rocmforge_gguf::escape_control;
use rocmforge_runtime::free_bytes;
use rocmforge_runtime::gpu::WhenIdle;
use rocmforge_server::{
    Collector, Config, Keys, Limits, LogContent, NewKey, Origins, Server, ServerError,
    SharedPrefix, Tls,
};
use serde_json::json;

use crate::args::{ServeArgs, with_long_names};
use crate::exit::{Early, usage};
use crate::input::read_text;
use crate::output::{Out, note};
use crate::peaks::Peaks;
use crate::resolve;
use settings::Settings;

pub fn run(args: &ServeArgs) -> Result<()> {
    let settings = args.config.as_deref().map(Settings::read).transpose()?;
    let given = with_long_names(std::env::args_os());
    match &settings {
        None => serve(args, None),
        Some(settings) => serve(&settings.applied(&given)?, Some((settings, &given))),
    }
}

fn serve(args: &ServeArgs, settings: Option<(&Settings, &[OsString])>) -> Result<()> {
    if let Some(name) = &args.new_key {
        return print_new_key(name);
    }
    let keys = match &args.keys {
        Some(path) => Keys::read(path)?,
        None => Keys::default(),
    };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificates), Some(key)) => Some(Tls::read(certificates.clone(), key.clone())?),
        _ => None,
    };
    let origins = Origins::parse(&args.cors).map_err(|error| usage(format!("--cors: {error}")))?;
    let collector = args.otlp.as_deref().map(Collector::parse).transpose();
    let collector = collector.map_err(|error| usage(format!("--otlp: {error}")))?;
    let read = |path: &PathBuf| {
        let name = escape_control(&path.to_string_lossy()).into_owned();
        read_text(path).map(|text| SharedPrefix { name, text })
    };
    let shared = args.shared_prefix.iter();
    let shared_prefixes = shared.map(read).collect::<Result<_>>()?;
    let config = Config {
        address: SocketAddr::new(args.host, args.port),
        keys,
        shared_prefixes,
        origins,
        tls,
        keys_file: args.keys.clone(),
        access_log: (args.access_log || args.log_content).then_some(log::line as fn(&str)),
        log_content: match args.log_content {
            true => LogContent::Write,
            false => LogContent::Leave,
        },
        collector,
        sensors: None,
        notice: log::note,
        drain_timeout: Duration::from_secs(args.drain_timeout),
        limits: Limits {
            max_first_token_time: (args.ttft_target > 0)
                .then(|| Duration::from_millis(args.ttft_target)),
            max_queue_time: Duration::from_secs(args.queue_timeout),
            max_step_time: Duration::from_secs(args.step_timeout),
            max_answer_time: Duration::from_secs(args.answer_timeout),
            max_unread_time: Duration::from_secs(args.resume_timeout),
            read_timeout: Duration::from_secs(args.read_timeout),
            write_timeout: Duration::from_secs(args.write_timeout),
            max_body_bytes: (args.max_body as usize) << 20,
            max_connections: args.max_connections as usize,
            max_choices: args.max_choices as usize,
            ..Limits::default()
        },
        max_model_bytes: None,
        idle_unload: (args.idle_unload > 0).then(|| Duration::from_secs(args.idle_unload)),
    };
    // Before the models are loaded. Without them, the server tells no share of the peaks.
    let engine_config = resolve::answer_config(&args.device, &args.context, WhenIdle::Tune)?;
    let peaks = Arc::new(Peaks::measure(&engine_config).ok());
    let entries = catalog::of(args, settings)?;
    let max_model_bytes = match (args.memory, entries.len()) {
        (Some(mib), _) => Some(u64::from(mib) << 20),
        // All of the memory is for the only model.
        (None, 1) => None,
        (None, _) => free_bytes(&engine_config)?,
    };
    let config = Config {
        max_model_bytes,
        sensors: match args.no_sensors {
            true => None,
            false => sensors::follow(&engine_config.device),
        },
        ..config
    };
    let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let failure = Arc::default();
    let offer = |entry| loading::offer(entry, max_model_bytes, &peaks, &failure);
    let server = Server::bind(config, entries.into_iter().map(offer).collect())?;
    let url = server.url();
    log::start().context("cannot start the thread of the log")?;
    let mut told = Ok(());
    let ended = server.run(|_| told = tell_ready(args, &url, &names));
    log::finish();
    if let Err(ServerError::Load { .. }) = &ended
        && let Some(error) = loading::first_error(&failure)
    {
        return Err(error);
    }
    if let Err(error @ ServerError::ModelFailed { .. }) = &ended {
        return Err(Early::ModelFailed(error.to_string()).into());
    }
    ended?;
    told
}

/// Says that the server is ready.
fn tell_ready(args: &ServeArgs, url: &str, names: &[String]) -> Result<()> {
    if args.json {
        let mut out = Out::new();
        out.line(&json!({ "url": url, "models": names }).to_string())?;
        return out.finish();
    }
    note(&format!("{} at {url}; Ctrl-C stops it", names.join(", ")));
    Ok(())
}

fn print_new_key(name: &str) -> Result<()> {
    let NewKey { key, line } = NewKey::create(name)?;
    let mut out = Out::new();
    out.line(&key)?;
    out.line(&line)?;
    out.finish()?;
    note(
        "notice: the first line is the key, shown only now; put the second one into the keys file",
    );
    Ok(())
}
