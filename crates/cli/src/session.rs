//! Starts a model for the commands that run one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rocmforge::ModelFile;
use rocmforge::parts::{Started, backend_notices, settled, start_or_fall_back};
use rocmforge_engine::serve::{ServeOptions, Server, serve};
use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_model::{Model, Purpose};
use rocmforge_runtime::BackendInfo;
use rocmforge_text::tokenizer::Tokenizer;

use crate::args::{DeviceArgs, DraftBy, LoadArgs, ModelArgs, Speculation};
use crate::speculation::{Drafting, Target};
use crate::{found_drafter, model_file, output, speculation};

/// Whether a command needs a vocabulary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Vocabulary {
    Needed,
    /// Without a vocabulary the command reads and prints token ids.
    Optional,
}

/// A model whose file is read, and which no device has yet.
pub struct Loaded {
    pub file: ModelFile,
    pub model: Model,
    /// The drafter that is given, or found beside the model.
    drafter: Option<ModelFile>,
    since: Instant,
}

impl Loaded {
    /// Loads a file for text or for embeddings, and for what drafts.
    pub fn new(
        purpose: Purpose,
        file: ModelFile,
        device: &DeviceArgs,
        load: &LoadArgs,
        speculation: Option<&Speculation>,
    ) -> Result<Loaded> {
        let since = Instant::now();
        let lora = &device.lora;
        let (model, drafter) = match speculation.map(|speculation| &speculation.by) {
            Some(DraftBy::Model(path)) => {
                let drafter = model_file::open(Some(path), load)?;
                let args = (lora, load);
                let model = model_file::load_for_assistant(purpose, &file, args, &drafter)?;
                (model, Some(drafter))
            }
            Some(DraftBy::Auto) => found_drafter::load(purpose, &file, (lora, load))?,
            _ => (model_file::load(purpose, &file, lora, load)?, None),
        };
        Ok(Loaded {
            file,
            model,
            drafter,
            since,
        })
    }
}

/// A model that is ready to answer. `E` is the [`Engine`], or its [`Server`].
pub struct Session<E = Engine> {
    pub file: ModelFile,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub engine: E,
    pub model: Model,
    /// The settings that the engine runs with.
    pub config: EngineConfig,
    pub load_time: Duration,
}

impl Session {
    /// Loads the model and starts it with `config`. Notices are printed.
    pub fn start(
        model: &ModelArgs,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: EngineConfig,
    ) -> Result<Session> {
        Session::start_for(Purpose::Text, model, device, vocabulary, |_| config)
    }

    /// As [`Session::start`], for text or for embeddings, with the settings that `config` makes for the model.
    pub fn start_for(
        purpose: Purpose,
        model: &ModelArgs,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: impl FnOnce(&Model) -> EngineConfig,
    ) -> Result<Session> {
        let since = Instant::now();
        let file = model_file::open(model.model.as_ref(), &model.load)?;
        let loaded = Loaded {
            since,
            ..Loaded::new(purpose, file, device, &model.load, None)?
        };
        let config = config(&loaded.model);
        let pre = model.pre.as_deref();
        Session::start_loaded((loaded, &model.load), pre, device, vocabulary, config, None)
    }

    /// As [`Session::start`], with what drafts the tokens of answers.
    pub fn start_drafting(
        model: &ModelArgs,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: EngineConfig,
        speculation: &Speculation,
    ) -> Result<Session> {
        let since = Instant::now();
        let file = model_file::open(model.model.as_ref(), &model.load)?;
        let loaded = Loaded {
            since,
            ..Loaded::new(Purpose::Text, file, device, &model.load, Some(speculation))?
        };
        let (loaded, pre) = ((loaded, &model.load), model.pre.as_deref());
        Session::start_loaded(loaded, pre, device, vocabulary, config, Some(speculation))
    }

    /// As [`Session::start_drafting`], with a loaded file.
    pub fn start_loaded(
        (loaded, load): (Loaded, &LoadArgs),
        pre: Option<&str>,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: EngineConfig,
        speculation: Option<&Speculation>,
    ) -> Result<Session> {
        let Loaded {
            file,
            mut model,
            drafter,
            since,
        } = loaded;
        let tokenizer = match vocabulary {
            Vocabulary::Needed => Some(model_file::need_tokenizer(&file, pre)?),
            Vocabulary::Optional => model_file::tokenizer(&file, pre)?,
        };
        // First: the model may take what memory is left.
        let mut drafting = match speculation {
            Some(speculation) => {
                let target = Target {
                    model: &model,
                    tokenizer: tokenizer.as_deref(),
                    drafter: drafter.as_ref(),
                };
                speculation::drafter(speculation, target, load, &config)?
            }
            None => None,
        };
        let is_auto = speculation.is_some_and(|speculation| speculation.by == DraftBy::Auto);
        // What nothing takes is not computed.
        let alone = |model: Model| match &drafter {
            Some(_) if is_auto => model_file::load(Purpose::Text, &file, &device.lora, load),
            _ => Ok(model),
        };
        if drafting.is_none() {
            model = alone(model)?;
        }
        let start = |model: &Model, drafting: Option<&Drafting>| {
            let config = speculation::beside(config.clone(), drafting);
            start_or_fall_back(config, device.on.device, |config| {
                Engine::start(model, tokenizer.clone(), config)
            })
        };
        let mut engine = start(&model, drafting.as_ref());
        // Nobody asked for drafts: the model gets the memory.
        let is_cramped = match &engine {
            Ok(Started { started, .. }) => !started.backend_info().parts.is_empty(),
            Err(_) => true,
        };
        if is_cramped && is_auto && drafting.take().is_some() {
            drop(engine);
            model = alone(model)?;
            engine = start(&model, None);
        }
        let Started {
            started: mut engine,
            config,
            not_on_gpu,
        } = engine?;
        if let Some(error) = not_on_gpu {
            tell_fallback(&error);
        }
        if engine.n_ctx() > model.config.n_ctx_train {
            output::note(&format!(
                "notice: the model was trained for {} tokens; quality drops beyond that",
                model.config.n_ctx_train
            ));
        }
        tell_backend(engine.backend_info());
        let config = settled(config, engine.backend_info());
        if let Some(drafting) = drafting {
            match drafting.start((engine.cache(), engine.n_ctx()), &config) {
                Ok((drafter, length)) => engine.speculate(drafter, length),
                Err(error) if is_auto => speculation::tell_without(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(Session {
            file,
            tokenizer,
            engine,
            model,
            config,
            load_time: since.elapsed(),
        })
    }

    /// Serves the engine on a thread of its own.
    pub fn serve(self) -> Result<Session<Server>> {
        Ok(Session {
            file: self.file,
            tokenizer: self.tokenizer,
            engine: serve(self.engine, ServeOptions::default())?,
            model: self.model,
            config: self.config,
            load_time: self.load_time,
        })
    }
}

impl<E> Session<E> {
    /// Returns the tokenizer, for commands that need one.
    pub fn need_tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| {
            anyhow!(
                "{} has no vocabulary, so it reads and prints only token ids; use --ids",
                self.file.label
            )
        })
    }
}

/// Says why the CPU runs the model instead of a GPU.
pub fn tell_fallback(error: &rocmforge_engine::EngineError) {
    output::note(&format!("warning: {error}; running on the CPU"));
}

/// Says how the model runs, slow operations included.
pub fn tell_backend(info: &BackendInfo) {
    for notice in backend_notices(info) {
        output::note(&format!("notice: {notice}"));
    }
}
