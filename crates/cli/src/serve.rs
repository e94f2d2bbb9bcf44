//! `rocmforge serve`: answers requests over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rocmforge_engine::serve::{Restart, ServeOptions, serve};
use rocmforge_engine::{Device, Engine, EngineConfig, KvTokens};
use rocmforge_model::{Model, Purpose};
use rocmforge_runtime::gpu::WhenIdle;
use rocmforge_server::{Config, Costs, Keys, Limits, NewKey, Origins, Server, Tls};
use rocmforge_text::chat_template::ChatTemplate;
use serde_json::json;

use crate::args::{ModelArgs, ServeArgs};
use crate::exit::usage;
use crate::output::{Out, note, say};
use crate::peaks::Peaks;
use crate::session::{Session, Vocabulary};
use crate::{conversation, model_file, resolve};

/// Contexts that the KV cache holds on a CPU, unless a size is given. A GPU's memory is for the model; that of a computer
/// is for other programs, too.
const CONTEXTS_ON_CPU: usize = 4;

/// Name of the built-in model.
const BUILT_IN: &str = "forge-mini";

pub fn run(args: &ServeArgs) -> Result<()> {
    if let Some(name) = &args.new_key {
        return print_new_key(name);
    }
    if !args.alias.is_empty() && args.alias.len() != args.model.len().max(1) {
        return Err(usage("--alias: give one name for each --model"));
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
    let config = Config {
        address: SocketAddr::new(args.host, args.port),
        keys,
        origins,
        tls,
        keys_file: args.keys.clone(),
        access_log: args.access_log.then_some(say as fn(&str)),
        notice: note,
        drain_timeout: Duration::from_secs(args.drain_timeout),
        limits: Limits {
            max_first_token_time: (args.ttft_target > 0)
                .then(|| Duration::from_millis(args.ttft_target)),
            max_queue_time: Duration::from_secs(args.queue_timeout),
            ..Limits::default()
        },
    };
    let paths: Vec<Option<&PathBuf>> = match args.model.is_empty() {
        true => vec![None],
        false => args.model.iter().map(Some).collect(),
    };
    // Before the models are loaded. Without them, the server tells no share of the peaks.
    let engine_config = resolve::answer_config(&args.device, &args.context, WhenIdle::Tune)?;
    let peaks = Peaks::measure(&engine_config).ok();
    let mut models = Vec::new();
    for (at, path) in paths.into_iter().enumerate() {
        let name = args.alias.get(at).cloned();
        models.push(start(args, path, name, peaks.as_ref())?);
    }
    let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let server = Server::bind(config, models)?;
    let url = server.url();
    let mut told = Ok(());
    server.run(|_| told = tell_ready(args, &url, &names))?;
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

/// Starts a model: for embeddings if its file is made for them, else for text.
fn start(
    args: &ServeArgs,
    path: Option<&PathBuf>,
    name: Option<String>,
    peaks: Option<&Peaks>,
) -> Result<rocmforge_server::Model> {
    let model = ModelArgs {
        model: path.cloned(),
        load: args.load.clone(),
        pre: None,
    };
    let purpose = purpose(args, path)?;
    let config = resolve::answer_config(&args.device, &args.context, WhenIdle::Tune)?;
    let session = Session::start_for(
        purpose,
        &model,
        &args.device,
        Vocabulary::Needed,
        |loaded| with_cache(config, args, loaded).with_whole_texts(loaded),
    )?;
    let tokenizer = session.need_tokenizer()?.clone();
    let template = ChatTemplate::from_gguf(&session.file.gguf, &tokenizer, None)?;
    let template = template.in_sandbox(conversation::sandbox()?);
    template.check()?;
    if template.is_fallback() && purpose == Purpose::Text {
        note(
            "notice: the file has no chat template; chats use ChatML, which the model may not know",
        );
    }
    let options = ServeOptions {
        max_waiting: args.max_queue,
        max_waiting_tokens: args.max_queue_tokens,
        restart: Some(restart(
            &session.engine,
            session.model.clone(),
            session.config.clone(),
        )),
    };
    let applies = |peaks: &&Peaks| peaks.are_of(&session.engine, &session.config);
    let roofline = peaks
        .filter(applies)
        .and_then(|peaks| peaks.ceilings?.roofline());
    Ok(rocmforge_server::Model {
        costs: Costs::new(&session.model, &session.config, roofline),
        name: name.unwrap_or_else(|| default_name(path.map(PathBuf::as_path), &session.file.label)),
        engine: serve(session.engine, options)?,
        tokenizer,
        template,
        gguf: session.file.gguf,
        embedding: session.model.config.embedding,
    })
}

/// Returns what a file is for. Only those made for embeddings say how they are pooled.
fn purpose(args: &ServeArgs, path: Option<&PathBuf>) -> Result<Purpose> {
    let file = model_file::open(path, &args.load)?;
    let metadata = file.gguf.metadata();
    let arch = metadata
        .opt_str("general.architecture")?
        .unwrap_or_default();
    Ok(match metadata.get(&format!("{arch}.pooling_type")) {
        Some(_) => Purpose::Embeddings(None),
        None => Purpose::Either,
    })
}

fn with_cache(config: EngineConfig, args: &ServeArgs, model: &Model) -> EngineConfig {
    let config = EngineConfig {
        max_seqs: args.max_seqs,
        ..config
    };
    let n_ctx = config.usual_ctx(model);
    let contexts = match config.device {
        Device::Cpu => CONTEXTS_ON_CPU.min(args.max_seqs),
        Device::Gpu(_) => args.max_seqs,
    };
    let kv_tokens = match args.kv_tokens {
        Some(n) => KvTokens::Exactly(n),
        None => KvTokens::AtMost(n_ctx.saturating_mul(contexts)),
    };
    EngineConfig {
        kv_tokens,
        step_target: (args.itl_target > 0).then(|| Duration::from_millis(args.itl_target)),
        ..config
    }
}

/// Returns what replaces a lost backend: another one with the same context and KV cache.
fn restart(engine: &Engine, model: Model, config: EngineConfig) -> Restart {
    let config = EngineConfig {
        n_ctx: Some(engine.n_ctx()),
        kv_tokens: KvTokens::Exactly(engine.stats().blocks.total * config.page),
        ..config
    };
    Box::new(move || {
        let started = rocmforge_runtime::start(&model, &config)?;
        Ok(started.executor)
    })
}

/// Returns the name of a file's model: the file's name without `.gguf`.
fn default_name(path: Option<&Path>, label: &str) -> String {
    match path {
        None => BUILT_IN.to_string(),
        Some(_) => label.strip_suffix(".gguf").unwrap_or(label).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rocmforge_engine::{Event, Request};

    use super::*;
    use crate::args::{Cli, Command};

    /// Returns the tokens of an answer, whose backend is replaced after some of them.
    fn answer(replaced_after: Option<usize>) -> Vec<u32> {
        let flags = ["rocmforge", "serve", "--device", "cpu", "--ctx", "64"];
        let Command::Serve(args) = Cli::parse_from(flags).command else {
            unreachable!("the command is serve");
        };
        let model = ModelArgs {
            model: None,
            load: args.load.clone(),
            pre: None,
        };
        let config = resolve::answer_config(&args.device, &args.context, WhenIdle::Tune).unwrap();
        let config = |loaded: &Model| with_cache(config, &args, loaded);
        let (purpose, needed) = (Purpose::Text, Vocabulary::Needed);
        let session = Session::start_for(purpose, &model, &args.device, needed, config).unwrap();
        let mut engine = session.engine;
        let mut restart = restart(&engine, session.model, session.config);
        let request = Request::greedy(vec![1, 2, 3], 20);
        engine.submit(request).unwrap();
        let mut tokens = Vec::new();
        while !engine.is_idle() {
            let events = engine.step().unwrap();
            tokens.extend(events.iter().filter_map(|event| match event {
                Event::Token { id, .. } => Some(*id),
                _ => None,
            }));
            if replaced_after.is_some_and(|n| n == tokens.len()) {
                let n_blocks = engine.stats().blocks.total;
                engine.close_backend();
                engine.restart(restart().unwrap());
                assert_eq!(engine.stats().blocks.total, n_blocks);
            }
        }
        tokens
    }

    #[test]
    fn an_answer_goes_on_after_the_backend_is_replaced() {
        let expected = answer(None);
        assert!(expected.len() > 5, "{expected:?}");
        for n in [1, 4] {
            assert_eq!(answer(Some(n)), expected);
        }
    }
}
