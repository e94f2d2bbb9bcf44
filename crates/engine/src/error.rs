//! The engine's errors. Each says what to do.

use crate::backend::check::OpCheck;
use crate::chat_template::TemplateError;
use crate::model::AdapterError;
use crate::tokenizer::TokenizerError;

/// Why a model could not be loaded or a request not be served.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error("LoRA adapter {name}: {error}")]
    Adapter { name: String, error: AdapterError },
    #[error("architecture `{name}` is not supported; supported are: {supported}")]
    UnsupportedArchitecture {
        name: String,
        supported: &'static str,
    },
    #[error("this {arch} model uses {feature}, which is not supported")]
    UnsupportedFeature { arch: String, feature: String },
    #[error(
        "the model has no tensor `{name}`, which {arch} needs; the file is incomplete or of another architecture"
    )]
    MissingTensor { name: String, arch: String },
    #[error(
        "tensor `{name}` has shape {got:?}, expected {expected:?}; the file does not fit its own metadata"
    )]
    TensorShape {
        name: String,
        got: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error(
        "tensor `{name}` has type {ty}, which cannot be computed with; convert the model to another quantization"
    )]
    TensorType { name: String, ty: &'static str },
    #[error(
        "tensor `{name}` is not part of the {arch} wiring; running without it would give wrong text, so the model is refused"
    )]
    UnusedTensor { name: String, arch: String },
    #[error(
        "metadata `{key}` is {value}, expected {wanted}; the file is damaged or of a newer format"
    )]
    BadMetadata {
        key: String,
        value: String,
        wanted: &'static str,
    },
    #[error("{name} is {value}, expected {wanted}")]
    BadParameter {
        name: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("the prompt is empty and the model adds no start token; give at least one token")]
    EmptyPrompt,
    #[error(
        "the prompt has {n_tokens} tokens, the context holds {n_ctx}; shorten it or ask for more with --ctx"
    )]
    PromptTooLong { n_tokens: usize, n_ctx: usize },
    #[error(
        "a context of {n_ctx} tokens with {n_sinks} that are never forgotten has no room to shift; it takes two more than those: use a larger --ctx or a smaller --context-sinks"
    )]
    TooManySinks { n_sinks: usize, n_ctx: usize },
    #[error(
        "this model has learned a vector for each position, so what it has computed cannot take others; use --context-policy stop"
    )]
    FixedPositions,
    #[error(
        "the text has {n_tokens} tokens, a window has {n_ctx}; take a longer text or a smaller --ctx"
    )]
    TextTooShort { n_tokens: usize, n_ctx: usize },
    #[error("token id {id} is outside the vocabulary of {n_vocab} tokens")]
    TokenOutOfRange { id: u32, n_vocab: usize },
    #[error(
        "a context of {n_ctx} tokens: this model has learned {n_positions} positions and knows none beyond; use --ctx {n_positions} or less"
    )]
    TooFewPositions { n_ctx: usize, n_positions: usize },
    #[error(
        "a context of {n_ctx} tokens needs {needed_mib} MiB of KV cache, {free_mib} MiB are free; use --ctx {fitting} or less"
    )]
    NoMemory {
        n_ctx: usize,
        needed_mib: u64,
        free_mib: u64,
        fitting: usize,
    },
    #[error(
        "a KV cache of {kv_type} keeps blocks of {block_len} values, but this model has heads of {head_dim} values; use --kv-type f16 or fp8"
    )]
    KvTypeHeadDim {
        kv_type: &'static str,
        block_len: usize,
        head_dim: usize,
    },
    #[error(
        "{needed_mib} MiB are needed beside the weights to run this model at all, {free_mib} MiB are free; close other programs, take a smaller model or, on a GPU, --gpu-layers auto"
    )]
    NoMemoryAtAll { needed_mib: u64, free_mib: u64 },
    #[error("the compute thread ended unexpectedly: {reason}")]
    WorkerGone { reason: String },
    #[error("the file has no vocabulary, so it takes and gives only ids (--ids)")]
    NoTokenizer,
    #[error(
        "the model computes no numbers (NaN or infinite logits); its weights are damaged, get the file again"
    )]
    NotFinite,
    #[error(
        "the GPU answered step {step} with the results of another ({found}); its driver is at fault, try --no-graphs"
    )]
    LostStep { step: u64, found: u32 },
    #[error("the GPU: {0}")]
    Gpu(#[from] rocmforge_gpu::GpuError),
    #[error(
        "{device} ({id}) computes wrongly: {n_failed} of {n_checked} operations differ from the CPU, first {} ({}, {}){}: {:.1e} of at most {:.0e}; use --device cpu, and see what `rocmforge check --device {id}` says of this model",
        first.op, first.shape, first.format, of_tensor(first.tensor.as_deref()), first.max_rel, first.bound
    )]
    WrongGpu {
        device: String,
        /// As `--device` takes it.
        id: String,
        n_failed: usize,
        n_checked: usize,
        first: Box<OpCheck>,
    },
    #[error("there is no GPU to run on: {reasons}")]
    NoGpu { reasons: String },
    #[error(
        "the weights need {needed_mib} MiB on the GPU, {free_mib} MiB are free; use --gpu-layers auto, which leaves the rest to the CPU, or take a smaller quantization"
    )]
    NoMemoryForWeights { needed_mib: u64, free_mib: u64 },
    #[error(
        "{n} layers on the GPU: this model has {n_layers}; give --gpu-layers a number up to {n_layers}, all or auto"
    )]
    TooManyGpuLayers { n: usize, n_layers: usize },
    #[error(
        "--cpu-moe leaves the experts of a mixture to the CPU, and this model has none; leave the flag out, or divide its layers with --gpu-layers"
    )]
    NoExperts,
    #[error(
        "a GPU keeps its KV cache in f16, q8_0 or fp8, not in {kv_type}; use --kv-type f16, or --device cpu"
    )]
    GpuKvType { kv_type: &'static str },
    #[error("the GPU's kernels take {0}; use --device cpu")]
    GpuLimit(rocmforge_gpu::Limit),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

fn of_tensor(name: Option<&str>) -> String {
    name.map_or(String::new(), |name| format!(" of {name}"))
}
