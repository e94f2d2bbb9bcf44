//! Makes what `--speculate` asks for.

use std::sync::Arc;

use anyhow::{Context, Error, Result, bail};
use rocmforge::ModelFile;
use rocmforge_engine::speculate::{
    AssistantDrafter, BlockDrafter, DraftLength, Drafter, ModelDrafter, NgramDrafter,
};
use rocmforge_engine::{
    ContextPolicy, Device, DraftCounts, EngineConfig, KvTokens, RequestProgress,
};
use rocmforge_gguf::TokenId;
use rocmforge_model::{Model, Purpose};
use rocmforge_runtime::gpu::{Offload, WhenIdle};
use rocmforge_runtime::{SharedCache, Started, start_beside};
use rocmforge_text::tokenizer::Tokenizer;
use serde::Serialize;

use crate::args::{DraftBy, LoadArgs, LoraArgs, Speculation};
use crate::{model_file, output};

/// Sequences whose drafts a model makes at a time. More have none: drafts seldom pay then.
const DRAFTING_SEQUENCES: usize = 4;

/// The context with which a drafter holds its memory until it starts.
const HELD_CTX: usize = 256;

/// A drafter, and how much it drafts.
pub struct Drafting {
    by: By,
    length: DraftLength,
    /// What it takes of a GPU's memory.
    device_bytes: u64,
}

enum By {
    Drafter(Box<dyn Drafter>),
    /// One that starts after the model, whose cache it reads.
    Assistant(Box<Assistant>),
}

impl By {
    fn drafts_at_once(&self) -> bool {
        match self {
            By::Drafter(drafter) => drafter.drafts_at_once(),
            By::Assistant(_) => false,
        }
    }
}

/// A drafter that reads the cache of its model.
struct Assistant {
    label: String,
    drafts: Model,
    /// Of its model.
    n_vocab: usize,
    hidden_width: usize,
    /// Has its weights on the GPU until it starts, so that the model leaves the memory.
    held: Option<Started>,
}

impl Drafting {
    /// Returns the drafter beside its model, which runs with `config` and has this cache and context.
    ///
    /// # Errors
    /// It does not start there.
    pub fn start(
        self,
        (cache, n_ctx): (&SharedCache, usize),
        config: &EngineConfig,
    ) -> Result<(Box<dyn Drafter>, DraftLength)> {
        let drafter = match self.by {
            By::Drafter(drafter) => drafter,
            By::Assistant(assistant) => assistant.start((cache, n_ctx), config)?,
        };
        Ok((drafter, self.length))
    }
}

impl Assistant {
    fn start(
        self,
        (cache, n_ctx): (&SharedCache, usize),
        config: &EngineConfig,
    ) -> Result<Box<dyn Drafter>> {
        let config = its_config([n_ctx, n_ctx], config);
        let started = start_beside(&self.drafts, &config, cache);
        let started = started.with_context(|| cannot_start(&self.label))?;
        drop(self.held);
        let (n_vocab, width) = (self.n_vocab, self.hidden_width);
        let drafter = AssistantDrafter::new(started, config.page, n_vocab, width);
        Ok(Box::new(drafter))
    }
}

fn cannot_start(label: &str) -> String {
    format!("cannot start {label}, which is to draft")
}

/// Returns the settings of an engine whose sequences draft up to `n_most` tokens.
pub fn with_drafts(config: EngineConfig, n_most: usize) -> EngineConfig {
    EngineConfig {
        max_draft: n_most,
        ..config
    }
}

/// Returns the settings of an engine beside a drafter that has been started.
pub fn beside(config: EngineConfig, drafting: Option<&Drafting>) -> EngineConfig {
    let Some(drafting) = drafting else {
        return config;
    };
    let (DraftLength::UpTo(n_most) | DraftLength::Always(n_most)) = drafting.length;
    let mut config = with_drafts(config, n_most);
    spare(&mut config, drafting.device_bytes);
    config
}

/// Leaves these bytes of a GPU's memory to others.
fn spare(config: &mut EngineConfig, n_bytes: u64) {
    if let Device::Gpu(gpu) = &mut config.device
        && let Some(limit) = &mut gpu.open.memory_bytes
    {
        *limit = limit.saturating_sub(n_bytes);
    }
}

/// Says why answers are not drafted, which nobody asked for.
pub fn tell_without(error: &Error) {
    output::note(&format!("notice: answers are not drafted: {error:#}"));
}

/// The model for which tokens are drafted.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub model: &'a Model,
    pub tokenizer: Option<&'a Tokenizer>,
    /// The file of a drafter that was open when the model was loaded: the one that is given, or was found.
    pub drafter: Option<&'a ModelFile>,
}

/// Starts what drafts for the model of `target`, which will run with `config`.
///
/// # Errors
/// The file of a drafter cannot be used.
pub fn drafter(
    speculation: &Speculation,
    target: Target<'_>,
    load: &LoadArgs,
    config: &EngineConfig,
) -> Result<Option<Drafting>> {
    let Target {
        model,
        tokenizer,
        drafter,
    } = target;
    let (by, device_bytes) = match &speculation.by {
        DraftBy::Nothing => return Ok(None),
        DraftBy::Auto if model.plan.export().is_none() => return Ok(None),
        DraftBy::Auto => {
            let started = match drafter {
                Some(file) => assistant(file, model, config),
                None if model.config.n_nextn == 0 => return Ok(None),
                None => own_drafter(model, config),
            };
            match started {
                Ok(started) => started,
                Err(error) => {
                    tell_without(&error);
                    return Ok(None);
                }
            }
        }
        DraftBy::Ngram => (By::Drafter(Box::new(NgramDrafter::default())), 0),
        DraftBy::Mtp => own_drafter(model, config)?,
        DraftBy::Model(_) => {
            let file = drafter.expect("it is opened before the model is loaded");
            check_vocabulary(file, tokenizer)?;
            match Model::drafts_for(&file.gguf) {
                Some(_) => assistant(file, model, config)?,
                None => model_drafter(file, model, load, config)?,
            }
        }
    };
    let n_most = match by.drafts_at_once() && model.plan.states.is_empty() {
        true => speculation.n_most_at_once(),
        false => speculation.n_most(),
    };
    Ok(Some(Drafting {
        by,
        length: DraftLength::UpTo(n_most),
        device_bytes,
    }))
}

/// Starts the layers of the model's file that predict further tokens ahead. Also returns what they take of a GPU's memory.
fn own_drafter(model: &Model, config: &EngineConfig) -> Result<(By, u64)> {
    let drafts = model.drafter()?;
    let n_ctx = config.usual_ctx(model);
    let (started, page) = start(&drafts, [n_ctx, n_ctx], config).context(
        "cannot start the layers that predict further tokens ahead; --speculate off does without",
    )?;
    let (n_vocab, width) = (model.config.n_vocab, model.config.n_embd);
    let n_bytes = device_bytes(&started);
    let drafter = ModelDrafter::of_hidden(started, page, n_vocab, width);
    Ok((By::Drafter(Box::new(drafter)), n_bytes))
}

/// Starts a model that drafts, with a context and a cache of these numbers of tokens.
fn start(drafts: &Model, sizes: [usize; 2], config: &EngineConfig) -> Result<(Started, usize)> {
    let config = its_config(sizes, config);
    let started = rocmforge_runtime::start(drafts, &config)?;
    Ok((started, config.page))
}

/// Returns the settings of a model that drafts for one with `config`.
fn its_config([n_ctx, n_cached]: [usize; 2], config: &EngineConfig) -> EngineConfig {
    let mut its_config = EngineConfig {
        n_ctx: Some(n_ctx),
        max_seqs: config.max_seqs.min(DRAFTING_SEQUENCES),
        kv_tokens: KvTokens::Exactly(n_cached),
        context_policy: ContextPolicy::Stop,
        max_draft: 0,
        max_batch_tokens: config.max_batch_tokens.min(ModelDrafter::MAX_TOKENS),
        // One draft is made after the other.
        steps_in_flight: 1,
        ..config.clone()
    };
    if let Device::Gpu(gpu) = &mut its_config.device {
        // Those of the model that checks are about its own layers.
        gpu.offload = Offload::default();
        // It would measure beside the model's steps.
        gpu.tuning.when_idle = WhenIdle::Wait;
    }
    its_config
}

fn device_bytes(started: &Started) -> u64 {
    let memory = started.executor.info().device_memory;
    memory.map_or(0, |memory| memory.total)
}

/// Takes a drafter in a file of its own that was made for its model.
fn assistant(file: &ModelFile, model: &Model, config: &EngineConfig) -> Result<(By, u64)> {
    let label = &file.label;
    let drafts = model.assistant(Arc::clone(&file.gguf));
    let drafts = drafts.with_context(|| label.clone())?;
    if model.plan.export().is_none() {
        bail!("{label} drafts text, and the model computes something else; use --speculate off");
    }
    if let Some(context) = drafts.context.clone() {
        return of_blocks(label, [&context, &drafts], model, config);
    }
    match drafts.plan.borrowed.is_empty() {
        true => of_layers((label, drafts), model, config),
        false => of_cache((label, drafts), model, config),
    }
}

/// Starts a drafter that predicts blocks, and the model that writes its cache.
fn of_blocks(
    label: &str,
    [context, drafts]: [&Model; 2],
    model: &Model,
    config: &EngineConfig,
) -> Result<(By, u64)> {
    let n_ctx = config.usual_ctx(model);
    let (context, page) =
        start(context, [n_ctx; 2], config).with_context(|| cannot_start(label))?;
    if !context.executor.info().parts.is_empty() {
        bail!(
            "the GPU has no room for {label}, which is to draft; use a shorter context, or draft with ngram"
        );
    }
    let block = drafts.config.draft_block;
    let n_block = block.map_or(1, |block| block.n_tokens);
    let mut its_config = its_config([n_ctx; 2], config);
    its_config.max_batch_tokens = n_block * its_config.max_seqs;
    spare(&mut its_config, device_bytes(&context));
    let predictor = start_beside(drafts, &its_config, context.executor.cache())
        .with_context(|| cannot_start(label))?;
    let n_bytes = device_bytes(&context) + device_bytes(&predictor);
    let started = [context, predictor];
    let drafter = BlockDrafter::new(started, page, drafts, model.config.n_vocab);
    Ok((By::Drafter(Box::new(drafter)), n_bytes))
}

/// Starts a drafter that takes values of its model's layers, and has a cache of its own.
fn of_layers(
    (label, drafts): (&str, Model),
    model: &Model,
    config: &EngineConfig,
) -> Result<(By, u64)> {
    let n_ctx = config.usual_ctx(model);
    let (started, page) =
        start(&drafts, [n_ctx, n_ctx], config).with_context(|| cannot_start(label))?;
    let n_bytes = device_bytes(&started);
    let n_vocab = [drafts.config.n_vocab, model.config.n_vocab];
    let (width, ids) = (drafts.config.n_embd, drafts.output_ids);
    let drafter = ModelDrafter::eagle3(started, page, n_vocab, width, ids);
    Ok((By::Drafter(Box::new(drafter)), n_bytes))
}

/// Takes a drafter that reads the cache of its model. On a GPU, it takes its memory at once.
fn of_cache(
    (label, drafts): (&str, Model),
    model: &Model,
    config: &EngineConfig,
) -> Result<(By, u64)> {
    // A short context, of whose cache it makes no use.
    let held = match &config.device {
        Device::Cpu => None,
        Device::Gpu(_) => {
            let (held, _) =
                start(&drafts, [HELD_CTX; 2], config).with_context(|| cannot_start(label))?;
            Some(held)
        }
    };
    let n_bytes = held.as_ref().map_or(0, device_bytes);
    let assistant = Assistant {
        label: label.to_string(),
        drafts,
        n_vocab: model.config.n_vocab,
        hidden_width: model.config.n_embd,
        held,
    };
    Ok((By::Assistant(Box::new(assistant)), n_bytes))
}

fn model_drafter(
    file: &ModelFile,
    model: &Model,
    load: &LoadArgs,
    config: &EngineConfig,
) -> Result<(By, u64)> {
    let label = &file.label;
    // Adapters are of the model that checks.
    let adapters = LoraArgs {
        lora: Vec::new(),
        lora_scaled: Vec::new(),
    };
    let drafts = model_file::load(Purpose::Text, file, &adapters, load)?;
    if !drafts.plan.states.is_empty() {
        bail!(
            "{label} has recurrent layers, which cannot draft; use a drafter with attention in all layers"
        );
    }
    let n_ctx = config.usual_ctx(model).min(drafts.config.n_ctx_train);
    let n_cached = n_ctx * config.max_seqs.min(DRAFTING_SEQUENCES);
    let (started, page) =
        start(&drafts, [n_ctx, n_cached], config).with_context(|| cannot_start(label))?;
    let n_bytes = device_bytes(&started);
    let (own_vocab, n_vocab) = (drafts.config.n_vocab, model.config.n_vocab);
    let drafter = ModelDrafter::new(started, page, own_vocab, n_vocab);
    Ok((By::Drafter(Box::new(drafter)), n_bytes))
}

/// Refuses a drafter whose tokens are not those of the model.
fn check_vocabulary(file: &ModelFile, tokenizer: Option<&Tokenizer>) -> Result<()> {
    let its_tokenizer = model_file::tokenizer(file, None)?;
    if let (Some(tokenizer), Some(its)) = (tokenizer, &its_tokenizer)
        && let Some(id) = first_difference(tokenizer, its)
    {
        bail!(
            "{} has another vocabulary: token {id} is not the same; use a drafter of the same family",
            file.label
        );
    }
    Ok(())
}

/// Returns the first token that differs. Vocabularies may be padded to another length.
fn first_difference(a: &Tokenizer, b: &Tokenizer) -> Option<TokenId> {
    let n = a.n_vocab().min(b.n_vocab()) as TokenId;
    (0..n).find(|&id| a.token_bytes(id) != b.token_bytes(id))
}

/// The drafts of an answer, for `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    drafter: &'static str,
    #[serde(flatten)]
    counts: DraftCounts,
    /// Whether the drafter was switched off at the end, because drafts did not pay or it failed.
    switched_off: bool,
}

impl Report {
    /// Tells if the drafter has failed. `None` without one.
    pub fn of(
        server: &rocmforge_engine::serve::Handle,
        progress: RequestProgress,
    ) -> Result<Option<Report>> {
        let Some(drafter) = server.with_engine(|engine| engine.drafter())? else {
            return Ok(None);
        };
        if let Some(failure) = &drafter.failure {
            output::note(&format!(
                "warning: the drafter failed and is off: {failure}"
            ));
        }
        Ok(Some(Report {
            drafter: drafter.name,
            counts: progress.drafts,
            switched_off: progress.drafts_off || drafter.pauses || drafter.failure.is_some(),
        }))
    }

    /// `drafted 120, accepted 84 (70 %)`.
    pub fn line(&self) -> String {
        let DraftCounts {
            n_drafted,
            n_accepted,
        } = self.counts;
        let off = if self.switched_off {
            ", switched off"
        } else {
            ""
        };
        match n_drafted {
            0 => format!("{}: nothing drafted{off}", self.drafter),
            _ => format!(
                "{}: {n_accepted} of {n_drafted} drafted tokens right ({:.0} %){off}",
                self.drafter,
                100.0 * n_accepted as f64 / n_drafted as f64
            ),
        }
    }
}
