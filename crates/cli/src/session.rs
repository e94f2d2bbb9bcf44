//! From the user's choices to a model that runs: opens the file, builds tokenizer and engine, and
//! turns every flag into the engine's own types, once.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rocmforge_cpu::Isa;
use rocmforge_engine::{
    ConfigError, ContextPolicy, Device as EngineDevice, DeviceError, Engine, EngineConfig,
    EngineError, PrefixSharing, PromptOutput, Request,
};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::{Error as GgufError, Gguf, LoadMode, escape_control};
use rocmforge_model::{Adapter, Model};
use rocmforge_plan::KvType;
use rocmforge_plan::{Dry, DynamicTemperature, Fusion, Mirostat, SamplingParams, Xtc};
use rocmforge_quantize::synthetic::{Synthetic, SyntheticError};
use rocmforge_runtime::BackendInfo;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{
    Experts, GpuConfig, GpuError, GpuLayers, Graphs, Offload, OpenOptions, WhenIdle,
};
use rocmforge_text::tokenizer::{
    EncodeOptions, LeadingSpace, SpecialText, Tokenizer, TokenizerError,
};

use crate::args::{
    AnswerArgs, AnswerContextArgs, CacheArgs, ContextArgs, ContextPolicyArg, Device, DeviceArgs,
    GpuArgs, IsaArg, KvTypeArg, LoadArgs, LoraArgs, ModelArgs, OffloadArgs, OnArgs, SamplingArgs,
};
use crate::exit::usage;
use crate::{embedded, gpu_check, hub, output, tuning_cache};

/// An open GGUF file and what to call it.
pub struct ModelFile {
    pub gguf: Arc<Gguf>,
    /// The file's name, safe to print.
    pub label: String,
}

impl ModelFile {
    /// Opens `path`, which may be the name of a model in the models folder, or the embedded model.
    pub fn open(path: Option<&PathBuf>, load: &LoadArgs) -> Result<ModelFile> {
        let Some(path) = path else {
            let gguf = embedded::open()
                .context("the embedded model is damaged; build the program again")?;
            return Ok(ModelFile {
                gguf: Arc::new(gguf),
                label: embedded::NAME.to_string(),
            });
        };
        let mode = if load.no_mmap {
            LoadMode::Read
        } else {
            LoadMode::Mmap
        };
        let path = &hub::resolve(path, load.store.models_dir.as_deref())?;
        let gguf = Gguf::open(path, mode).map_err(|error| name_file(error, path))?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let label = escape_control(&name.to_string_lossy()).into_owned();
        Ok(ModelFile {
            gguf: Arc::new(gguf),
            label,
        })
    }

    /// A model of random weights, made in memory: `SHAPE:TYPE`.
    pub fn synthetic(name: &str) -> Result<ModelFile> {
        let wrong = |error: SyntheticError| match error {
            SyntheticError::NoPair { .. }
            | SyntheticError::Shape { .. }
            | SyntheticError::Type { .. } => usage(format!("--synthetic: {error}")),
            other => other.into(),
        };
        let model: Synthetic = name.parse().map_err(wrong)?;
        Ok(ModelFile {
            gguf: Arc::new(model.open().map_err(wrong)?),
            label: format!("synthetic {name}"),
        })
    }

    /// The tokenizer of the file's vocabulary, with its notices told. `pre` replaces the pre-tokenizer
    /// that the file names.
    pub fn tokenizer(&self, pre: Option<&str>) -> Result<Arc<Tokenizer>> {
        let tokenizer =
            Tokenizer::from_gguf(&self.gguf, pre).with_context(|| self.label.clone())?;
        for notice in tokenizer.notices() {
            output::note(&format!("notice: {notice}"));
        }
        Ok(Arc::new(tokenizer))
    }

    /// As [`ModelFile::tokenizer`]; `None` if the file says that it has no vocabulary.
    pub fn opt_tokenizer(&self, pre: Option<&str>) -> Result<Option<Arc<Tokenizer>>> {
        match self.tokenizer(pre) {
            Ok(tokenizer) => Ok(Some(tokenizer)),
            Err(error) => match error.downcast_ref::<TokenizerError>() {
                Some(TokenizerError::NoVocab) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// Says which file an error is about, unless its message does.
fn name_file(error: GgufError, path: &Path) -> anyhow::Error {
    match error {
        GgufError::Io { .. } | GgufError::NotAFile { .. } => error.into(),
        other => anyhow!(other).context(escape_control(&path.to_string_lossy()).into_owned()),
    }
}

/// Whether a command can do without text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Vocabulary {
    Needed,
    /// A file without a vocabulary takes and gives ids.
    Optional,
}

/// A model that is ready to answer.
pub struct Session {
    pub file: ModelFile,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub engine: Engine,
    pub model: Model,
    /// Tokens of one step of a prompt.
    pub chunk_tokens: usize,
    /// What the engine runs with.
    pub config: EngineConfig,
    pub load_time: Duration,
}

impl Session {
    /// Loads the model. `n_ctx` is the context asked for, if any.
    pub fn start(
        model: &ModelArgs,
        device: &DeviceArgs,
        n_ctx: Option<usize>,
        vocabulary: Vocabulary,
    ) -> Result<Session> {
        let config = engine_config(device, n_ctx)?;
        Session::start_with(model, device, vocabulary, config)
    }

    /// As [`Session::start`], for answers that may go on past the end of the context. `when_idle` is what a GPU does
    /// while there is nothing to answer.
    pub fn start_to_answer(
        model: &ModelArgs,
        device: &DeviceArgs,
        context: &AnswerContextArgs,
        vocabulary: Vocabulary,
        when_idle: WhenIdle,
    ) -> Result<Session> {
        let mut config = answer_config(device, context)?;
        if let EngineDevice::Gpu(gpu) = &mut config.device {
            gpu.tuning.when_idle = when_idle;
        }
        Session::start_with(model, device, vocabulary, config)
    }

    /// As [`Session::start`], for an observer: every token of a prompt is computed, and every value is in a
    /// buffer once.
    pub fn start_observable(
        model: &ModelArgs,
        device: &DeviceArgs,
        n_ctx: Option<usize>,
        vocabulary: Vocabulary,
    ) -> Result<Session> {
        let config = EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            fusion: Fusion::Off,
            ..engine_config(device, n_ctx)?
        };
        Session::start_with(model, device, vocabulary, config)
    }

    /// As [`Session::start`], for measurements: a prompt that came before is computed again.
    pub fn start_measured(
        model: &ModelArgs,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: EngineConfig,
    ) -> Result<Session> {
        let config = EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            ..config
        };
        Session::start_with(model, device, vocabulary, config)
    }

    fn start_with(
        model: &ModelArgs,
        device: &DeviceArgs,
        vocabulary: Vocabulary,
        config: EngineConfig,
    ) -> Result<Session> {
        let started = Instant::now();
        let file = ModelFile::open(model.model.as_ref(), &model.load)?;
        if file.gguf.tensors().is_empty() {
            bail!(
                "{} has no weights; inspect and tokenize are all that can be done with it",
                file.label
            );
        }
        let adapters = adapters(&device.lora, &model.load)?;
        let loaded = Model::load_with(Arc::clone(&file.gguf), &adapters)
            .with_context(|| file.label.clone())?;
        let pre = model.pre.as_deref();
        let tokenizer = match vocabulary {
            Vocabulary::Needed => Some(file.tokenizer(pre)?),
            Vocabulary::Optional => file.opt_tokenizer(pre)?,
        };
        let Started { engine, config, .. } = start_or_on_cpu(config, device.on.device, |config| {
            Engine::start(&loaded, tokenizer.clone(), config)
        })?;
        if engine.n_ctx() > loaded.config.n_ctx_train {
            output::note(&format!(
                "notice: the model was trained for {} tokens; past them its text becomes worse",
                loaded.config.n_ctx_train
            ));
        }
        tell_backend(engine.backend_info());
        let config = settled(config, engine.backend_info());
        Ok(Session {
            file,
            tokenizer,
            engine,
            model: loaded,
            chunk_tokens: config.chunk_tokens,
            config,
            load_time: started.elapsed(),
        })
    }

    /// The tokenizer, where the command cannot do without.
    pub fn need_tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| {
            anyhow!(
                "{} has no vocabulary, so it takes and gives only token ids; give them with --ids",
                self.file.label
            )
        })
    }
}

/// The adapters asked for, the scaled ones last.
fn adapters(lora: &LoraArgs, load: &LoadArgs) -> Result<Vec<Adapter>> {
    let plain = lora.lora.iter().map(|path| (path, 1.0));
    let scaled = lora.lora_scaled.iter().map(|(path, scale)| (path, *scale));
    plain
        .chain(scaled)
        .map(|(path, scale)| {
            let file = ModelFile::open(Some(path), load)?;
            Ok(Adapter::new(&file.label, file.gguf, scale)?)
        })
        .collect()
}

/// What was started.
pub struct Started<T> {
    pub engine: T,
    pub config: EngineConfig,
    /// Why the CPU has the place of a GPU.
    pub not_on_gpu: Option<EngineError>,
}

/// Starts on the device of `config`, or on the CPU, and told, if that is a GPU which computes wrongly or not what this model
/// takes, and nobody `asked` for it.
pub fn start_or_on_cpu<T>(
    config: EngineConfig,
    asked: Device,
    start: impl Fn(&EngineConfig) -> Result<T, EngineError>,
) -> Result<Started<T>, EngineError> {
    match start(&config) {
        Err(
            error @ (EngineError::Device(DeviceError::WrongGpu { .. })
            | EngineError::Config(ConfigError::GpuLimit(_))),
        ) if asked == Device::Auto => {
            output::note(&format!("warning: {error}; the model runs on the CPU"));
            let config = EngineConfig {
                device: EngineDevice::Cpu,
                steps_in_flight: EngineConfig::default().steps_in_flight,
                chunk_tokens: EngineConfig::default().chunk_tokens,
                ..config
            };
            Ok(Started {
                engine: start(&config)?,
                config,
                not_on_gpu: Some(error),
            })
        }
        started => Ok(Started {
            engine: started?,
            config,
            not_on_gpu: None,
        }),
    }
}

/// `config` with the CPU as its device if nothing of the model went to a GPU.
pub fn settled(config: EngineConfig, info: &BackendInfo) -> EngineConfig {
    match info.is_on_gpu() {
        true => config,
        false => EngineConfig {
            device: EngineDevice::Cpu,
            ..config
        },
    }
}

/// No silent fallback: the user learns why the model is slow.
pub fn tell_backend(info: &BackendInfo) {
    for notice in &info.notices {
        output::note(&format!("notice: {notice}"));
    }
    if info.slow_ops.is_empty() {
        return;
    }
    let formats: Vec<&str> = info
        .slow_ops
        .iter()
        .map(|(format, _)| format.as_str())
        .collect();
    let n_ops: usize = info.slow_ops.iter().map(|(_, count)| count).sum();
    output::note(&format!(
        "notice: {} has no fast kernel for {}; {n_ops} operations of every step take a slower way",
        info.device,
        formats.join(", ")
    ));
}

/// Whether the start token stands before a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// If the file asks for it and the text has not one already.
    AsTheFileSays,
    Never,
}

/// The ids of a text as a prompt: an end token is never added, the model is to go on.
pub fn encode(tokenizer: &Tokenizer, text: &[u8], bos: Bos, parse_special: bool) -> Vec<TokenId> {
    let mut ids = tokenizer.encode_bytes(
        text,
        EncodeOptions {
            add_special: false,
            parse_special,
        },
    );
    if bos == Bos::AsTheFileSays
        && tokenizer.adds_bos()
        && let Some(start) = tokenizer.bos()
        && ids.first() != Some(&start)
    {
        ids.insert(0, start);
    }
    ids
}

/// As [`engine_config`], for answers that may go on past the end of the context.
pub fn answer_config(device: &DeviceArgs, context: &AnswerContextArgs) -> Result<EngineConfig> {
    let n_sinks = context.context_sinks;
    if let (ContextPolicyArg::Stop, Some(n)) = (context.context_policy, n_sinks) {
        return Err(usage(format!(
            "--context-sinks {n} says what is kept where the context shifts, and nothing shifts it; add \
             --context-policy shift, or leave it out"
        )));
    }
    Ok(EngineConfig {
        context_policy: match context.context_policy {
            ContextPolicyArg::Stop => ContextPolicy::Stop,
            ContextPolicyArg::Shift => ContextPolicy::Shift {
                n_sinks: n_sinks.unwrap_or(ContextPolicy::DEFAULT_SINKS),
            },
        },
        ..engine_config(device, context.context.n_ctx())?
    })
}

/// The engine's configuration for these choices.
pub fn engine_config(device: &DeviceArgs, n_ctx: Option<usize>) -> Result<EngineConfig> {
    let config = EngineConfig {
        isa: isa(device.isa)?,
        n_threads: device.threads,
        ..cache_config(&device.cache, n_ctx)
    };
    Ok(run_on(offloaded(device)?, config))
}

/// The device asked for, and what of the model goes there.
fn offloaded(device: &DeviceArgs) -> Result<EngineDevice> {
    let offload = offload(&device.offload);
    if offload.layers == GpuLayers::Count(0) {
        refuse_without_layers(&device.on.gpu, offload.experts)?;
        return Ok(EngineDevice::Cpu);
    }
    refuse_without_gpu(&device.on, offload)?;
    let found = engine_device(&device.on)?;
    if let (EngineDevice::Cpu, Some(flag)) = (&found, flag_of_gpu(&device.on.gpu, offload)) {
        output::note(&format!(
            "notice: there is no GPU for {flag}; the model runs on the CPU"
        ));
    }
    Ok(with_offload(found, offload))
}

/// Refuses flags that say what a GPU does where `--device cpu` takes none.
pub fn refuse_without_gpu(on: &OnArgs, offload: Offload) -> Result<()> {
    match flag_of_gpu(&on.gpu, offload) {
        Some(flag) if on.device == Device::Cpu => Err(usage(format!(
            "{flag} needs a GPU, and --device cpu takes none; leave one of them out"
        ))),
        _ => Ok(()),
    }
}

/// Refuses flags that say what a GPU does where `--gpu-layers 0` gives it nothing.
pub fn refuse_without_layers(gpu: &GpuArgs, experts: Experts) -> Result<()> {
    let flag = match (experts, gpu.gpu_memory, gpu.kernel_variant) {
        (Experts::OnCpu, ..) => "--cpu-moe".to_string(),
        (_, Some(mib), _) => format!("--gpu-memory {mib}"),
        (.., Some(_)) => "--kernel-variant".to_string(),
        (_, None, None) => return Ok(()),
    };
    Err(usage(format!(
        "{flag} says what a GPU does, and --gpu-layers 0 leaves it nothing to do; leave one of them out"
    )))
}

/// A flag that divides a model or a GPU's memory, as it was given.
fn flag_of_gpu(gpu: &GpuArgs, offload: Offload) -> Option<String> {
    match (offload.layers, offload.experts, gpu.gpu_memory) {
        (GpuLayers::Count(n), ..) => Some(format!("--gpu-layers {n}")),
        (_, Experts::OnCpu, _) => Some("--cpu-moe".to_string()),
        (.., Some(mib)) => Some(format!("--gpu-memory {mib}")),
        (.., None) => None,
    }
}

/// What of a model goes to a GPU.
pub fn offload(args: &OffloadArgs) -> Offload {
    Offload {
        layers: args.gpu_layers,
        experts: match args.cpu_moe {
            true => Experts::OnCpu,
            false => Experts::WithTheirLayer,
        },
    }
}

/// `device` with this of the model on it; the CPU, if that is nothing.
pub fn with_offload(device: EngineDevice, offload: Offload) -> EngineDevice {
    match device {
        EngineDevice::Gpu(_) if offload.layers == GpuLayers::Count(0) => EngineDevice::Cpu,
        EngineDevice::Gpu(gpu) => EngineDevice::Gpu(GpuConfig { offload, ..gpu }),
        EngineDevice::Cpu => EngineDevice::Cpu,
    }
}

/// Tokens of a step on a GPU: enough that its matrix units have work.
const GPU_CHUNK_TOKENS: usize = 512;

/// `config` on this device. With a GPU the host prepares a step while the one before runs.
pub fn run_on(device: EngineDevice, config: EngineConfig) -> EngineConfig {
    match device {
        EngineDevice::Cpu => config,
        EngineDevice::Gpu(_) => EngineConfig {
            device,
            steps_in_flight: 2,
            chunk_tokens: GPU_CHUNK_TOKENS,
            ..config
        },
    }
}

/// The device asked for. A GPU that cannot be used is an error where one is insisted on, and else is told.
pub fn engine_device(args: &OnArgs) -> Result<EngineDevice> {
    let open = open_options(&args.gpu);
    let id = match args.device {
        Device::Cpu => return Ok(EngineDevice::Cpu),
        Device::Id(id) => Some(id),
        Device::Gpu => None,
        Device::Auto => match gpu::first(&open) {
            Ok(id) => Some(id),
            Err(errors) => {
                for error in errors.iter().filter(|error| is_news(error)) {
                    output::note(&format!("notice: {error}; the model runs on the CPU"));
                }
                return Ok(EngineDevice::Cpu);
            }
        },
    };
    Ok(EngineDevice::Gpu(GpuConfig {
        id,
        open,
        graphs: match args.gpu.no_graphs {
            true => Graphs::Off,
            false => Graphs::On,
        },
        self_check: gpu_check::self_check(&args.gpu, id),
        offload: Offload::default(),
        tuning: tuning_cache::tuning(&args.gpu, id, WhenIdle::Wait),
    }))
}

/// How GPUs are opened.
pub fn open_options(args: &GpuArgs) -> OpenOptions {
    OpenOptions {
        image: args.gpu_image.clone(),
        variants: args.kernel_variant.unwrap_or_default(),
        memory_bytes: args.gpu_memory.map(|mib| u64::from(mib) << 20),
        ..OpenOptions::from_env()
    }
}

/// Whether an error is about a GPU that this machine has.
pub fn is_news(error: &GpuError) -> bool {
    !matches!(
        error,
        GpuError::NoLibrary { .. } | GpuError::NoDevice { .. }
    )
}

/// As far as the cache's size goes.
pub fn cache_config(cache: &CacheArgs, n_ctx: Option<usize>) -> EngineConfig {
    EngineConfig {
        n_ctx,
        max_seqs: 1,
        page: cache.page,
        kv_type: match cache.kv_type {
            KvTypeArg::F16 => KvType::F16,
            KvTypeArg::F32 => KvType::F32,
            KvTypeArg::Q8_0 => KvType::Q8_0,
            KvTypeArg::F8E4M3 => KvType::F8E4M3,
        },
        ..EngineConfig::default()
    }
}

/// The instruction set asked for.
pub fn isa(wanted: IsaArg) -> Result<Isa> {
    let name = match wanted {
        IsaArg::Auto => return Ok(Isa::detect()),
        IsaArg::Scalar => "scalar",
        IsaArg::Avx2 => "avx2",
    };
    let available = Isa::available();
    let found = available.iter().find(|isa| isa.name() == name).copied();
    found.ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        anyhow!(
            "this CPU does not have {name}; it has: {}",
            names.join(", ")
        )
    })
}

/// The sampler's parameters; a seed is drawn where none was given.
pub fn sampling(args: &SamplingArgs) -> Result<Arc<SamplingParams>> {
    let mirostat = match args.mirostat {
        0 => None,
        2 => Some(Mirostat {
            tau: args.mirostat_ent,
            eta: args.mirostat_lr,
        }),
        n => return Err(usage(format!("mirostat is {n}, expected 0 or 2"))),
    };
    let defaults = SamplingParams::default();
    let params = SamplingParams {
        samplers: args.samplers.0.clone(),
        logit_bias: args.logit_bias.clone(),
        temperature: args.temp,
        dynamic_temperature: DynamicTemperature {
            range: args.dynatemp_range,
            exponent: args.dynatemp_exp,
        },
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        typical_p: args.typical_p,
        top_n_sigma: args.top_n_sigma,
        xtc: Xtc {
            probability: args.xtc_probability,
            threshold: args.xtc_threshold,
        },
        repeat_penalty: args.repeat_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        penalty_last_n: look_back(args.repeat_last_n),
        dry: Dry {
            multiplier: args.dry_multiplier,
            base: args.dry_base,
            allowed_length: args.dry_allowed_length,
            last_n: look_back(args.dry_penalty_last_n),
            sequence_breakers: args
                .sequence_breakers()
                .unwrap_or(defaults.dry.sequence_breakers),
        },
        mirostat,
        seed: args.seed.unwrap_or_else(random_seed),
    };
    params
        .validate()
        .map_err(|error| usage(error.to_string()))?;
    Ok(Arc::new(params))
}

/// Negative numbers mean all tokens.
fn look_back(n_tokens: i64) -> usize {
    usize::try_from(n_tokens).unwrap_or(usize::MAX)
}

/// Short enough to be typed again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(Instant::now()) >> 32
}

impl AnswerArgs {
    /// A request for the answer to `prompt`.
    pub fn request(
        &self,
        prompt: Vec<TokenId>,
        sampling: &Arc<SamplingParams>,
        leading_space: LeadingSpace,
    ) -> Request {
        Request {
            prompt,
            // Negative numbers mean no bound.
            max_tokens: usize::try_from(self.max_tokens).unwrap_or(usize::MAX),
            sampling: Arc::clone(sampling),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            special_text: if self.special {
                SpecialText::Show
            } else {
                SpecialText::Hide
            },
            leading_space,
            logprobs: None,
            prompt_output: PromptOutput::Nothing,
            context_policy: None,
        }
    }
}

/// Longest text that is read; endless files and pipes end here with an error.
const MAX_TEXT_BYTES: u64 = 256 << 20;

/// Reads a file byte for byte, with an error that names it.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let shown = || escape_control(&path.to_string_lossy()).into_owned();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::IsADirectory => anyhow!("cannot read '{}': it is a directory", shown()),
        _ => anyhow!("cannot read '{}': {error}", shown()),
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    read_bounded(file).map_err(failed)
}

/// Reads to the end, or fails past 256 MiB.
pub fn read_bounded(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(std::io::Error::other(
            "it is longer than 256 MiB; give a part of it",
        ));
    }
    Ok(bytes)
}

impl ContextArgs {
    /// The context asked for; 0 means the default, as llama.cpp has it.
    pub fn n_ctx(&self) -> Option<usize> {
        self.ctx.filter(|&n| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use rocmforge_runtime::gpu::Limit;

    use super::*;

    #[test]
    fn a_model_that_a_gpu_does_not_take_runs_on_the_cpu_unless_the_gpu_was_asked_for() {
        let config = || EngineConfig {
            device: EngineDevice::Gpu(GpuConfig::default()),
            ..EngineConfig::default()
        };
        let start = |config: &EngineConfig| match config.device {
            EngineDevice::Cpu => Ok("the CPU"),
            EngineDevice::Gpu(_) => Err(ConfigError::GpuLimit(Limit {
                wanted: "heads of an even number of values".into(),
                value: 15,
            })
            .into()),
        };
        let started = start_or_on_cpu(config(), Device::Auto, start).unwrap();
        assert_eq!(started.engine, "the CPU");
        assert!(matches!(started.config.device, EngineDevice::Cpu));
        // The GPU itself is fine, and another model may run there.
        assert!(matches!(
            started.not_on_gpu,
            Some(EngineError::Config(ConfigError::GpuLimit(_)))
        ));
        for asked in [Device::Gpu, Device::Id(gpu::DeviceId::Cuda(0))] {
            let error = start_or_on_cpu(config(), asked, start).err().unwrap();
            assert_eq!(
                error.to_string(),
                "the GPU's kernels take heads of an even number of values, not 15; use --device cpu"
            );
        }
    }
}
