//! A model that the server answers with.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use rocmforge_engine::StepWatcher;
use rocmforge_engine::serve::Server as Engine;
use rocmforge_gguf::{Gguf, TokenId};
use rocmforge_model::Embedding;
use rocmforge_text::answer::Format;
use rocmforge_text::chat_template::{ChatTemplate, TemplateError};
use rocmforge_text::infill::{Gap, gap_prompt};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::config::SharedPrefix;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::observe::metrics::ModelMetrics;
use crate::observe::steps::Steps;
use crate::serving::costs::Costs;
use crate::serving::identity::Identity;
use crate::serving::shared::SharedPrefixes;
use crate::serving::structured::Grammars;

/// The field with variables for the chat template.
pub(crate) const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

/// A model for the server: a running engine and what its file says about text.
pub struct Model {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    /// The template of its file, in a sandbox.
    pub template: ChatTemplate,
    pub gguf: Arc<Gguf>,
    /// What it returns for a text, if it was loaded for embeddings.
    pub embedding: Option<Embedding>,
    /// What its steps cost at least.
    pub costs: Costs,
}

/// A model in memory.
pub(crate) struct Served {
    /// What clients call it.
    pub(crate) name: String,
    pub(crate) identity: Identity,
    /// Fields for requests that leave them out.
    defaults: Map<String, Value>,
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
    pub(crate) gguf: Arc<Gguf>,
    pub(crate) embedding: Option<Embedding>,
    pub(crate) costs: Costs,
    /// What its engine computed.
    pub(crate) steps: Arc<Steps>,
    /// How it writes reasoning and calls of tools.
    pub(crate) format: Format,
    pub(crate) grammars: Grammars,
    pub(crate) shared: SharedPrefixes,
    pub(crate) metrics: ModelMetrics,
    /// Ends with the model. The last field is dropped last, when the engine's memory is free.
    life: watch::Sender<()>,
}

impl Served {
    pub(crate) fn new(
        name: &str,
        model: Model,
        defaults: Map<String, Value>,
        shared: Arc<[SharedPrefix]>,
        metrics: ModelMetrics,
    ) -> Served {
        let identity = Identity::of(&model);
        let Model {
            engine,
            tokenizer,
            template,
            gguf,
            embedding,
            costs,
        } = model;
        let is_text = embedding.is_none();
        let format = Format::of_template(template.source());
        let steps = Arc::new(metrics.steps());
        let to = Arc::clone(&steps);
        let watcher: StepWatcher = Box::new(move |step| to.add(step));
        let masks = metrics.masks();
        // An engine that has ended has no steps.
        let _ = engine.with_engine(|engine| {
            engine.watch_steps(Some(watcher));
            engine.watch_masks(Some(masks));
        });
        Served {
            name: name.to_string(),
            identity,
            defaults,
            engine,
            tokenizer,
            template,
            gguf,
            embedding,
            costs,
            steps,
            format,
            grammars: Grammars::default(),
            // Texts to embed are no conversations.
            shared: SharedPrefixes::new(match is_text {
                true => shared,
                false => Arc::default(),
            }),
            metrics,
            life: watch::Sender::new(()),
        }
    }

    /// Returns a receiver that fails once the model is not in memory any more.
    pub(crate) fn gone(&self) -> watch::Receiver<()> {
        self.life.subscribe()
    }

    /// Renders the beginnings of prompts that keys share, once a day. Returns the messages that the template does not take.
    pub(crate) fn render_shared(&self) -> Vec<(&str, TemplateError)> {
        let variables = self.defaults.get(TEMPLATE_VARIABLES);
        let variables = variables.and_then(Value::as_object);
        self.shared
            .render(&self.template, &self.tokenizer, variables)
    }

    /// Returns the fields for requests that leave them out.
    pub(crate) fn defaults(&self) -> &Map<String, Value> {
        &self.defaults
    }

    /// Adds the defaults to a request.
    pub(crate) fn put_defaults(&self, fields: &mut Fields) {
        for (name, value) in &self.defaults {
            fields.put_default(name, value.clone());
        }
    }

    /// Adds the default that changes prompts to a request without an answer.
    pub(crate) fn put_template_defaults(&self, fields: &mut Fields) {
        if let Some(value) = self.defaults.get(TEMPLATE_VARIABLES) {
            fields.put_default(TEMPLATE_VARIABLES, value.clone());
        }
    }

    /// Returns the prompt for a gap, whose answer has up to `max_tokens`. Without a number, half of the context is left
    /// for it.
    ///
    /// # Errors
    /// The model was not made to fill gaps.
    pub(crate) fn gap_prompt(
        &self,
        gap: &Gap,
        max_tokens: Option<usize>,
    ) -> Result<Vec<TokenId>, ApiError> {
        let n_ctx = self.engine.n_ctx();
        let for_answer = max_tokens.map_or(n_ctx / 2, |n| n.min(n_ctx / 2));
        gap_prompt(&self.tokenizer, gap, n_ctx - for_answer).ok_or_else(|| {
            let message = "this model has no tokens that mark a gap, so it cannot fill one; use a model for code";
            ApiError::new(StatusCode::NOT_IMPLEMENTED, message).code("wrong_model")
        })
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
