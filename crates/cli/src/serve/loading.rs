//! Loads a model for the server, and replaces its backend if that is lost.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use rocmforge::ModelFile;
use rocmforge_engine::serve::{Restart, ServeOptions, serve};
use rocmforge_engine::{ConfigError, Device, Engine, EngineConfig, KvTokens};
use rocmforge_model::{Model, Purpose};
use rocmforge_runtime::gpu::WhenIdle;
use rocmforge_runtime::{RuntimeError, fit};
use rocmforge_server::{Costs, LoadError, Offer, Prepared};
use rocmforge_text::chat_template::ChatTemplate;

use super::catalog::Entry;
use crate::args::ServeArgs;
use crate::output::note;
use crate::peaks::Peaks;
use crate::session::{Loaded, Session, Vocabulary};
use crate::{conversation, model_file, resolve};

/// Contexts that the KV cache holds, unless a size is given: of a model on a CPU, whose memory is for other programs, too,
/// and of a model that shares a GPU with others.
const USUAL_CONTEXTS: usize = 4;

/// The first error of loading, as the program reports it.
pub type Failure = Arc<Mutex<Option<Error>>>;

/// Returns the first error of loading.
pub fn first_error(failure: &Failure) -> Option<Error> {
    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
    failure.take()
}

/// Offers a model. Several of them share `max_bytes`.
pub fn offer(
    entry: Entry,
    max_bytes: Option<u64>,
    peaks: &Arc<Option<Peaks>>,
    failure: &Failure,
) -> Offer {
    let Entry {
        name,
        aliases,
        defaults,
        at_start,
        path,
        file,
        file_bytes,
        args,
    } = entry;
    // A name that no model has yet is a path.
    let models_dir = args.load.store.models_dir.as_deref();
    let at =
        |path: &PathBuf| rocmforge_hub::resolve(path, models_dir).unwrap_or_else(|_| path.clone());
    let first_file = path.as_ref().map(at);
    let first = Mutex::new(file);
    let (args, peaks, failure) = (Arc::new(args), Arc::clone(peaks), Arc::clone(failure));
    let prepare_it = move || {
        let opened = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let file = match opened {
            Some(file) => Ok(file),
            None => model_file::open(path.as_ref(), &args.load),
        };
        let kept = Arc::clone(&failure);
        let told = move |error: Error| tell(&kept, error);
        let prepared = file.and_then(|file| prepare(&args, file, max_bytes));
        let (loaded, config, wanted) = prepared.map_err(&told)?;
        let (args, peaks) = (Arc::clone(&args), Arc::clone(&peaks));
        let start = move |bytes| {
            let config = match wanted {
                None => config,
                Some(wanted) => within(config, bytes, wanted),
            };
            start(&args, loaded, config, peaks.as_ref().as_ref()).map_err(told)
        };
        Ok(Prepared {
            bytes: wanted.unwrap_or(0),
            start: Box::new(start),
        })
    };
    Offer {
        name,
        aliases,
        defaults,
        at_start,
        file: first_file,
        file_bytes,
        prepare: Box::new(prepare_it),
    }
}

/// Keeps the first error for the program's own report.
fn tell(failure: &Failure, error: Error) -> LoadError {
    let text = format!("{error:#}");
    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
    first.get_or_insert(error);
    text.into()
}

/// Reads a file: what is to be loaded, its settings, and the bytes that it takes if it shares the memory with others.
fn prepare(
    args: &ServeArgs,
    file: ModelFile,
    max_bytes: Option<u64>,
) -> Result<(Loaded, EngineConfig, Option<u64>)> {
    let label = file.label.clone();
    let (purpose, speculation) = (purpose(&file)?, Some(&args.speculation.speculate));
    let loaded = Loaded::new(purpose, file, &args.device, &args.load, speculation)?;
    let model = &loaded.model;
    let config = resolve::answer_config(&args.device, &args.context, WhenIdle::Tune)?;
    let config = with_cache(config, args, model, max_bytes.is_none()).with_whole_texts(model);
    let fitted = max_bytes.map(|bytes| fit(model, &config, Some(bytes)));
    let fitted = fitted.transpose().map_err(|error| match args.memory {
        None => error.into(),
        Some(mib) => too_little(mib, &label, error),
    })?;
    Ok((loaded, config, fitted.map(|fit| fit.wanted_bytes)))
}

/// Names the flag if it, and not the machine, has too little memory for a model.
fn too_little(mib: u32, label: &str, error: RuntimeError) -> Error {
    let RuntimeError::Config(of_config) = &error else {
        return error.into();
    };
    let (free_mib, needed_mib, what) = match of_config {
        ConfigError::NoMemory {
            n_ctx,
            needed_mib,
            free_mib,
            ..
        } => (
            free_mib,
            needed_mib,
            format!("for a context of {n_ctx} tokens"),
        ),
        ConfigError::NoMemoryAtAll {
            needed_mib,
            free_mib,
        } => (
            free_mib,
            needed_mib,
            "in addition to its weights".to_string(),
        ),
        ConfigError::NoMemoryForWeights {
            needed_mib,
            free_mib,
        } => (free_mib, needed_mib, "for its weights".to_string()),
        _ => return error.into(),
    };
    anyhow!(
        "--memory {mib} leaves {free_mib} MiB for {label}, which needs {needed_mib} MiB {what}; use a larger --memory"
    )
}

/// Keeps a model that wants more within `bytes`.
fn within(mut config: EngineConfig, bytes: u64, wanted: u64) -> EngineConfig {
    match &mut config.device {
        Device::Gpu(gpu) => {
            let limit = gpu.open.memory_bytes.unwrap_or(u64::MAX);
            gpu.open.memory_bytes = Some(limit.min(bytes));
        }
        // What is left of the file's pages is read again.
        Device::Cpu if wanted > bytes => config.kv_tokens = KvTokens::OneContext,
        Device::Cpu => {}
    }
    config
}

/// Starts a model: for embeddings if its file is made for them, else for text.
fn start(
    args: &ServeArgs,
    loaded: Loaded,
    config: EngineConfig,
    peaks: Option<&Peaks>,
) -> Result<rocmforge_server::Model> {
    let needed = Vocabulary::Needed;
    let speculation = Some(&args.speculation.speculate);
    let loaded = (loaded, &args.load);
    let session = Session::start_loaded(loaded, None, &args.device, needed, config, speculation)?;
    let tokenizer = session.need_tokenizer()?.clone();
    let template = ChatTemplate::from_gguf(&session.file.gguf, &tokenizer, None)?;
    let template = template.in_sandbox(conversation::sandbox()?);
    template.check()?;
    if template.is_fallback() && session.model.config.embedding.is_none() {
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
        costs: Costs::new(&session.model, (&session.engine, &session.config), roofline),
        engine: serve(session.engine, options)?,
        tokenizer,
        template,
        gguf: session.file.gguf,
        embedding: session.model.config.embedding,
    })
}

/// Returns what a file is for. Only those made for embeddings say how they are pooled.
fn purpose(file: &ModelFile) -> Result<Purpose> {
    let metadata = file.gguf.metadata();
    let arch = metadata
        .opt_str("general.architecture")?
        .unwrap_or_default();
    Ok(match metadata.get(&format!("{arch}.pooling_type")) {
        Some(_) => Purpose::Embeddings(None),
        None => Purpose::Either,
    })
}

/// Sets the size of the KV cache. A model that is alone on a GPU may take all of its memory.
fn with_cache(
    config: EngineConfig,
    args: &ServeArgs,
    model: &Model,
    is_alone: bool,
) -> EngineConfig {
    let config = EngineConfig {
        max_seqs: args.max_seqs,
        ..config
    };
    let n_ctx = config.usual_ctx(model);
    let contexts = match config.device {
        Device::Gpu(_) if is_alone => args.max_seqs,
        Device::Cpu | Device::Gpu(_) => USUAL_CONTEXTS.min(args.max_seqs),
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rocmforge_engine::{Event, Request};

    use super::*;
    use crate::args::{Cli, Command, ModelArgs};

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
        let config = |loaded: &Model| with_cache(config, &args, loaded, true);
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
