//! A model on a device, ready to answer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rocmforge_engine::serve::{Handle, ServeOptions, Server, serve};
use rocmforge_engine::{ContextPolicy, Engine, EngineConfig};
use rocmforge_gguf::TokenId;
use rocmforge_grammar::{Grammar, Source, Vocabulary};
use rocmforge_plan::{KvTypes, SamplingParams};
use rocmforge_runtime::check::{PassedFolder, SelfCheck};
use rocmforge_runtime::gpu::{DeviceId, GpuConfig, GpuLayers, OpenOptions, TuningUse, WhenIdle};
use rocmforge_runtime::tuning::{TuningFiles, TuningStore};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

use rocmforge_model::Embedding;

use crate::device::{Started, backend_notices, settled, start_or_fall_back};
use crate::{Chat, Device, Error, Generate, Model, ModelFile};

/// Settings for starting a model. [`Start::start`] applies them.
pub struct Start {
    model: Model,
    device: Device,
    config: EngineConfig,
    gpu_layers: GpuLayers,
    cache_dir: Option<PathBuf>,
}

impl Start {
    pub(crate) fn new(model: Model) -> Start {
        Start {
            model,
            device: Device::default(),
            config: EngineConfig::default(),
            gpu_layers: GpuLayers::default(),
            cache_dir: rocmforge_hub::dirs::cache(),
        }
    }

    /// Chooses the device.
    pub fn device(self, device: Device) -> Start {
        Start { device, ..self }
    }

    /// Sets the context in tokens. Default: the smallest of the trained context, 8192, and what fits into memory.
    pub fn context(mut self, n_ctx: usize) -> Start {
        self.config.n_ctx = Some(n_ctx);
        self
    }

    /// Sets what happens when the context is full.
    pub fn context_policy(mut self, policy: ContextPolicy) -> Start {
        self.config.context_policy = policy;
        self
    }

    /// Sets the type of the KV cache.
    pub fn kv_type(mut self, kv_types: impl Into<KvTypes>) -> Start {
        self.config.kv_types = kv_types.into();
        self
    }

    /// Sets the number of CPU threads. Default: one for each core that this process may use.
    pub fn threads(mut self, n_threads: usize) -> Start {
        self.config.n_threads = Some(n_threads);
        self
    }

    /// Sets how many layers a GPU runs. Default: all.
    pub fn gpu_layers(self, gpu_layers: GpuLayers) -> Start {
        Start { gpu_layers, ..self }
    }

    /// Keeps GPU checks and autotuning results below `dir` instead of the user's cache folder.
    pub fn cache_dir(self, dir: impl Into<PathBuf>) -> Start {
        Start {
            cache_dir: Some(dir.into()),
            ..self
        }
    }

    /// Starts the model.
    ///
    /// # Errors
    /// The model does not fit into memory, the device is missing, fails or computes wrong results.
    pub fn start(self) -> Result<Session, Error> {
        let Start {
            model,
            device,
            config,
            gpu_layers,
            cache_dir,
        } = self;
        let cache_dir = cache_dir.as_deref();
        let id = match device {
            Device::Id(id) => Some(id),
            Device::Auto | Device::Cpu | Device::Gpu => None,
        };
        let mut gpu = GpuConfig {
            open: OpenOptions::from_env(),
            self_check: first_use_check(cache_dir, id),
            tuning: TuningUse {
                store: tuning_files(cache_dir, id)
                    .map(|files| Arc::new(files) as Arc<dyn TuningStore>),
                when_idle: WhenIdle::Wait,
            },
            ..GpuConfig::default()
        };
        gpu.offload.layers = gpu_layers;
        let found = device.find(gpu);
        Session::start(model, config.on(found.device), device, found.notices)
    }
}

/// Returns when a GPU is checked: at its first use with a driver, a build and a model's formats, remembered in
/// `cache_dir`. Emulated GPUs are slow and are checked only on demand.
pub fn first_use_check(cache_dir: Option<&Path>, id: Option<DeviceId>) -> SelfCheck {
    match (cache_dir, id) {
        (_, Some(DeviceId::Host(_))) => SelfCheck::Never,
        (Some(dir), _) => SelfCheck::FirstUse(Arc::new(PassedFolder::below(dir))),
        (None, _) => SelfCheck::Always,
    }
}

/// Returns the autotuning results in `cache_dir`. Results of an emulated GPU say nothing about a GPU and are not kept.
pub fn tuning_files(cache_dir: Option<&Path>, id: Option<DeviceId>) -> Option<TuningFiles> {
    match id {
        Some(DeviceId::Host(_)) => None,
        _ => cache_dir.map(TuningFiles::below),
    }
}

/// A model on a device, ready to answer. Any number of answers can be generated at once.
pub struct Session {
    pub(crate) file: ModelFile,
    pub(crate) server: Server,
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
    /// What the model returns for a text, if it was opened for embeddings.
    pub(crate) embedding: Option<Embedding>,
    config: EngineConfig,
    notices: Vec<String>,
    /// The tokens as grammars need them, after the first grammar.
    vocabulary: OnceLock<Arc<Vocabulary>>,
}

impl Session {
    /// Starts `model` with `config`, or on the CPU if its GPU cannot run it and `asked` left the choice open.
    pub(crate) fn start(
        model: Model,
        config: EngineConfig,
        asked: Device,
        mut notices: Vec<String>,
    ) -> Result<Session, Error> {
        let Model {
            file,
            loaded,
            tokenizer,
        } = model;
        let config = config.with_whole_texts(&loaded);
        if let Some(tokenizer) = &tokenizer {
            notices.extend(tokenizer.notices().iter().map(ToString::to_string));
        }
        let Started {
            started: engine,
            config,
            not_on_gpu,
        } = start_or_fall_back(config, asked, |config| {
            Engine::start(&loaded, tokenizer.clone(), config)
        })?;
        notices.extend(not_on_gpu.map(|error| format!("{error}; running on the CPU")));
        let n_ctx_train = loaded.config.n_ctx_train;
        if engine.n_ctx() > n_ctx_train {
            notices.push(format!(
                "the model was trained for {n_ctx_train} tokens; text gets worse beyond them"
            ));
        }
        notices.extend(backend_notices(engine.backend_info()));
        let config = settled(config, engine.backend_info());
        Ok(Session {
            file,
            server: serve(engine, ServeOptions::default())?,
            tokenizer,
            embedding: loaded.config.embedding,
            config,
            notices,
            vocabulary: OnceLock::new(),
        })
    }

    /// Returns what the user should know: fallbacks, slow formats, what fits on the GPU.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Returns the device in words, such as `CPU (avx512, 8 threads)`.
    pub fn device(&self) -> &str {
        &self.server.backend_info().device
    }

    /// Returns the settings that the engine runs with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Returns the context in tokens.
    pub fn n_ctx(&self) -> usize {
        self.server.n_ctx()
    }

    /// Returns access to the engine, for front ends that build their own requests. It can be cloned and sent to other
    /// threads; the engine ends with the session.
    pub fn handle(&self) -> &Handle {
        &self.server
    }

    /// Returns `text` as the tokens of a prompt, with a start token if the file asks for one. Control tokens in it are
    /// parsed, so it must be trusted; [`Session::chat`] parses none in messages.
    ///
    /// # Errors
    /// The file has no vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, Error> {
        let tokenizer = self.need_tokenizer()?;
        Ok(encode_prompt(
            tokenizer,
            text.as_bytes(),
            Bos::AsFileSays,
            true,
        ))
    }

    /// Prepares to continue `prompt`, encoded as [`Session::encode`] does. Nothing runs until the answer is read.
    pub fn generate(&self, prompt: &str) -> Generate<'_> {
        Generate::new(self, prompt)
    }

    /// Begins a conversation that follows the chat template of the file.
    ///
    /// # Errors
    /// The file has no vocabulary, or its template is damaged.
    pub fn chat(&self) -> Result<Chat<'_>, Error> {
        Chat::new(self)
    }

    /// Compiles a grammar for answers of this session; any number of them can follow it
    /// ([`Generate::constrained`]). The first one also prepares the vocabulary, which may take a second.
    ///
    /// # Errors
    /// The source is invalid or too complex, uses what is not supported, or allows no text; the file has no vocabulary.
    pub fn grammar(&self, source: &Source) -> Result<Grammar, Error> {
        let vocabulary = match self.vocabulary.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let vocabulary = Vocabulary::new(self.need_tokenizer()?)?;
                self.vocabulary.get_or_init(|| vocabulary)
            }
        };
        Ok(Grammar::compile(vocabulary, source)?)
    }

    pub(crate) fn need_tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        let tokenizer = self.tokenizer.as_ref();
        tokenizer.ok_or_else(|| rocmforge_engine::RequestError::NoTokenizer.into())
    }
}

/// Whether the start token is put before a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// Adds it if the file asks for it and the text does not begin with it.
    AsFileSays,
    Never,
}

/// Returns the token ids of `text` as a prompt. An end token is never added: the model is to continue.
pub fn encode_prompt(
    tokenizer: &Tokenizer,
    text: &[u8],
    bos: Bos,
    parse_special: bool,
) -> Vec<TokenId> {
    let options = EncodeOptions {
        add_special: false,
        parse_special,
    };
    let ids = tokenizer.encode_bytes(text, options);
    match bos {
        Bos::AsFileSays => with_bos(tokenizer, ids),
        Bos::Never => ids,
    }
}

/// Adds the start token if the file asks for it and `ids` do not begin with it.
pub fn with_bos(tokenizer: &Tokenizer, mut ids: Vec<TokenId>) -> Vec<TokenId> {
    if tokenizer.adds_bos()
        && let Some(start) = tokenizer.bos()
        && ids.first() != Some(&start)
    {
        ids.insert(0, start);
    }
    ids
}

/// Returns the default sampling parameters with a random seed.
pub(crate) fn random_sampling() -> SamplingParams {
    SamplingParams {
        seed: random_seed(),
        ..SamplingParams::default()
    }
}

/// Returns a random seed, short enough to be typed again.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::time::Instant::now()) >> 32
}
