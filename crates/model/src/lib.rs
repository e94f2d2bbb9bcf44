//! Reads a model from a GGUF file: its configuration, its weights, and the plan of its computation.
//!
//! Invariant: a model is described once, as a plan that every backend runs. A file is loaded only if every
//! tensor has the shape its metadata implies and every tensor is used; anything else is an error that names it.

#![forbid(unsafe_code)]

mod blocks;
mod builder;
mod classifier;
mod embedding;
mod error;
mod experts;
mod facts;
mod families;
mod keys;
mod lora;
mod recurrent;
mod registry;
mod rope;
mod taps;
mod target;
mod weights;
mod windows;

use std::sync::Arc;

use rocmforge_gguf::{Gguf, TokenId};
use rocmforge_plan::{Fusion, KvTypes, Plan, Weights, fuse_adds, fuse_ops};

pub use embedding::{Embedding, PooledTokens, Pooling, Purpose, Reads};
pub use error::LoadError;
pub use facts::{
    DraftBlock, Experts, FeedForward, HeadNorm, Latent, LayerFacts, ModelConfig, Scales,
    SharedExpert,
};
pub use lora::{Adapter, AdapterError};
pub use recurrent::{
    ChannelDecay, LinearLayer, Recurrent, Selective, SelectiveForm, SelectiveNorms,
};
pub use registry::architectures;
pub use rope::{FrequencyFactors, Rope, RopeScaling};
pub use weights::SkippedTensor;

use builder::Builder;
use keys::{Keys, Part};
use registry::{Assistant, Family, RecordPlan, Takes};
use weights::Faults;

/// Everything a backend needs to run a model.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: ModelConfig,
    pub weights: Arc<Weights>,
    /// The recorded plan, with residual adds fused into products.
    pub plan: Plan,
    /// Tensors of the file that the plan leaves out.
    pub skipped: Vec<SkippedTensor>,
    /// Of a drafter, the token of each logit, if these are not all tokens in their order. Ids are those of the model for which it
    /// drafts, and below its number of tokens.
    pub output_ids: Option<Arc<[TokenId]>>,
    /// Of a drafter whose cache another plan writes, from what it imports, the model with that plan.
    pub context: Option<Arc<Model>>,
}

impl Model {
    /// Returns the plan as a backend runs it.
    pub fn compiled_plan(&self, fusion: Fusion) -> Plan {
        match fusion {
            Fusion::On => fuse_ops(self.plan.clone(), &self.weights),
            Fusion::Off => self.plan.clone(),
        }
    }

    /// Reads the configuration, checks the shape of every tensor and records the plan. Reads no weights.
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, LoadError> {
        Model::load_with(gguf, &[])
    }

    /// As [`Model::load`], with the LoRA `adapters` applied. Reads the adapters' weights.
    pub fn load_with(gguf: Arc<Gguf>, adapters: &[Adapter]) -> Result<Model, LoadError> {
        Model::load_for(Purpose::Text, gguf, adapters)
    }

    /// As [`Model::load_with`], for text or for embeddings.
    pub fn load_for(
        purpose: Purpose,
        gguf: Arc<Gguf>,
        adapters: &[Adapter],
    ) -> Result<Model, LoadError> {
        Model::load_as(purpose, gguf, (adapters, None))
    }

    /// As [`Model::load_for`]; the plan exports what the drafter in the file `drafter` takes, if that is one of
    /// [`Model::assistant`].
    ///
    /// # Errors
    /// [`LoadError::OtherTarget`] if that file was not made for this model, [`LoadError::NoLayerValues`] if the values that it
    /// takes are not known; others as [`Model::load`], also about that file.
    pub fn load_for_assistant(
        purpose: Purpose,
        gguf: Arc<Gguf>,
        adapters: &[Adapter],
        drafter: &Arc<Gguf>,
    ) -> Result<Model, LoadError> {
        Model::load_as(purpose, gguf, (adapters, Some(drafter)))
    }

    fn load_as(
        purpose: Purpose,
        gguf: Arc<Gguf>,
        (adapters, drafter): (&[Adapter], Option<&Arc<Gguf>>),
    ) -> Result<Model, LoadError> {
        let (family, mut config) = read(purpose, Part::Text, &gguf)?;
        let mut builder = Builder::new(&config, &gguf, adapters, Faults::Refuse)?;
        let is_text = config.embedding.is_none();
        let assistant = drafter.and_then(|drafter| Some((drafter, assistant(drafter)?)));
        match assistant.filter(|_| is_text) {
            Some((drafter, assistant)) => match assistant.takes {
                Takes::Cache(of) => builder.exports = config.arch_name == of,
                Takes::Layers(read_taps) | Takes::Context(read_taps, _) => {
                    let keys = assistant_keys(drafter)?;
                    let its_config = read_config(&assistant.family, &keys)?;
                    builder.taps = Some(read_taps(&keys, drafter, [&its_config, &config])?);
                }
            },
            None => builder.exports = is_text && drafter_of(family, &config).is_ok(),
        }
        let logits = (family.record)(&mut builder)?;
        let recorded = builder.finish(logits)?;
        if let Some(embedding) = &mut config.embedding {
            embedding.classifier = recorded.classifier;
        }
        Ok(Model {
            config,
            weights: Arc::new(recorded.weights),
            plan: fuse_adds(recorded.plan),
            skipped: recorded.skipped,
            output_ids: None,
            context: None,
        })
    }

    /// Returns the model's own drafter: the first layer of its file that predicts further tokens ahead (multi-token prediction),
    /// as a model beside it. It imports what the model's plan exports. Reads no weights, except those of one matrix.
    ///
    /// # Errors
    /// [`LoadError::NoDrafter`] if the file has no such layer, [`LoadError::UnknownDrafter`] if it is not known how those of the
    /// architecture work; others as [`Model::load`].
    pub fn drafter(&self) -> Result<Model, LoadError> {
        let gguf = self.weights.gguf();
        let (family, config) = read(Purpose::Text, Part::Drafter, gguf)?;
        let record = drafter_of(family, &self.config)?;
        let mut builder = Builder::new(&config, gguf, &[], Faults::Refuse)?;
        builder.first_of_drafter = self.config.n_layers();
        builder.exports = true;
        let logits = record(&mut builder)?;
        let reason = "it belongs to the model";
        builder.loader.skip(reason, |_| true);
        let recorded = builder.finish(logits)?;
        Ok(Model {
            config,
            weights: Arc::new(recorded.weights),
            plan: fuse_adds(recorded.plan),
            skipped: Vec::new(),
            output_ids: None,
            context: None,
        })
    }

    /// Returns for which models a file drafts, if it does nothing else ([`Model::assistant`]).
    pub fn drafts_for(gguf: &Gguf) -> Option<DraftsFor> {
        Some(match assistant(gguf)?.takes {
            Takes::Cache(of) => DraftsFor::Architecture(of),
            Takes::Layers(_) | Takes::Context(..) => DraftsFor::Any,
        })
    }

    /// Returns the drafter in a file of its own that was made for this model. It imports what the plan of a model from
    /// [`Model::load_for_assistant`] exports, and may read that model's KV cache, or that of [`Model::context`]
    /// (`Plan::borrowed`). Reads no weights, except those of one matrix.
    ///
    /// # Errors
    /// [`LoadError::OtherArchitecture`], [`LoadError::OtherTarget`] or [`LoadError::UnknownToken`] if the file was not made for
    /// this model; others as [`Model::load`].
    pub fn assistant(&self, gguf: Arc<Gguf>) -> Result<Model, LoadError> {
        lora::refuse_adapter(&gguf)?;
        let keys = assistant_keys(&gguf)?;
        let Some(assistant) = assistant(&gguf) else {
            let arch = rocmforge_gguf::shown(keys.arch);
            return Err(LoadError::NoDrafter { arch });
        };
        let mut config = read_config(&assistant.family, &keys)?;
        match assistant.takes {
            Takes::Cache(of) if self.config.arch_name != of => {
                return Err(LoadError::OtherArchitecture {
                    arch: keys.arch.to_string(),
                    of,
                    target: self.config.arch_name.clone(),
                });
            }
            Takes::Cache(_) => {}
            // To refuse what that model's plan could not export.
            Takes::Layers(read_taps) | Takes::Context(read_taps, _) => {
                read_taps(&keys, &gguf, [&config, &self.config])?;
            }
        }
        if config.n_vocab == 0 {
            config.n_vocab = self.config.n_vocab;
        }
        let mut builder = Builder::new(&config, &gguf, &[], Faults::Refuse)?;
        builder.target = Some(self);
        let logits = (assistant.family.record)(&mut builder)?;
        let mut recorded = builder.finish(logits)?;
        let context = match assistant.takes {
            Takes::Cache(_) => {
                // Its tokens come after those in the cache.
                for table in &mut recorded.plan.rope {
                    table.ahead = 1;
                }
                None
            }
            Takes::Layers(_) => None,
            Takes::Context(_, record) => Some(Arc::new(context(record, &config, &gguf)?)),
        };
        Ok(Model {
            config,
            weights: Arc::new(recorded.weights),
            plan: fuse_adds(recorded.plan),
            skipped: recorded.skipped,
            output_ids: recorded.output_ids.map(Arc::from),
            context,
        })
    }

    /// Returns every reason for which [`Model::load_for`] refuses the file; none if it loads for text or embeddings. Of
    /// metadata, the first reason only: what follows from it is not known.
    pub fn refusals(gguf: &Arc<Gguf>) -> Vec<LoadError> {
        let (family, config) = match read(Purpose::Either, Part::Text, gguf) {
            Ok(read) => read,
            Err(error) => return vec![error],
        };
        let mut builder = match Builder::new(&config, gguf, &[], Faults::Collect(Vec::new())) {
            Ok(builder) => builder,
            Err(error) => return vec![error],
        };
        let recorded = (family.record)(&mut builder);
        builder.loader.into_faults(recorded)
    }

    /// Returns the bytes that one token takes in a KV cache of these types.
    pub fn kv_bytes_per_token(&self, kv_types: impl Into<KvTypes>) -> u64 {
        self.plan.kv_bytes_per_token(kv_types)
    }
}

/// Returns the model that writes the cache of a drafter.
fn context(record: RecordPlan, config: &ModelConfig, gguf: &Arc<Gguf>) -> Result<Model, LoadError> {
    let mut builder = Builder::new(config, gguf, &[], Faults::Refuse)?;
    let rows = record(&mut builder)?;
    builder.loader.skip("it belongs to the drafter", |_| true);
    let recorded = builder.finish(rows)?;
    Ok(Model {
        config: config.clone(),
        weights: Arc::new(recorded.weights),
        plan: fuse_adds(recorded.plan),
        skipped: Vec::new(),
        output_ids: None,
        context: None,
    })
}

/// For which models a file drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftsFor {
    /// Those of an architecture.
    Architecture(&'static str),
    /// The one of any architecture for which it was made.
    Any,
}

/// Returns what is known of a drafter in a file of its own.
fn assistant(gguf: &Gguf) -> Option<&'static Assistant> {
    let arch = gguf.metadata().opt_str("general.architecture").ok()??;
    registry::assistant(arch)
}

fn assistant_keys(gguf: &Gguf) -> Result<Keys<'_>, LoadError> {
    let meta = gguf.metadata();
    Ok(Keys {
        gguf,
        meta,
        arch: meta.str("general.architecture")?,
        part: Part::Assistant,
    })
}

/// Returns how the drafter in a file is recorded.
fn drafter_of(family: &Family, config: &ModelConfig) -> Result<RecordPlan, LoadError> {
    let arch = || config.arch_name.clone();
    match family.drafter {
        Some(record) if config.n_nextn > 0 => Ok(record),
        Some(_) => Err(LoadError::NoDrafter { arch: arch() }),
        None if config.n_nextn == 0 => Err(LoadError::NoDrafter { arch: arch() }),
        None => Err(LoadError::UnknownDrafter { arch: arch() }),
    }
}

/// Reads the metadata of a model, and finds its architecture.
fn read(
    purpose: Purpose,
    part: Part,
    gguf: &Gguf,
) -> Result<(&'static Family, ModelConfig), LoadError> {
    lora::refuse_adapter(gguf)?;
    let meta = gguf.metadata();
    let arch = meta.str("general.architecture")?;
    let family = registry::family(arch)?;
    let keys = Keys {
        gguf,
        meta,
        arch,
        part,
    };
    let mut config = read_config(family, &keys)?;
    let facts = &family.key_facts.embedding;
    let embedding = |pooling| Embedding::read(&keys, facts, config.reads, pooling);
    config.embedding = match purpose {
        Purpose::Text if config.reads == Reads::BothSides => {
            let arch = arch.to_string();
            return Err(LoadError::EmbeddingsOnly { arch });
        }
        Purpose::Text => None,
        Purpose::Either if config.reads == Reads::Backward => None,
        Purpose::Either => Some(embedding(None)?),
        Purpose::Embeddings(pooling) => Some(embedding(pooling)?),
    };
    Ok((family, config))
}

/// Reads what the metadata says about the layers.
fn read_config(family: &Family, keys: &Keys<'_>) -> Result<ModelConfig, LoadError> {
    let config = (family.facts)(keys, &family.key_facts)?;
    config.check_ropes(keys)?;
    Ok(config)
}
