//! `POST /v1/chat/completions`

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rocmforge::parts::with_bos;
use rocmforge_gguf::TokenId;
use rocmforge_grammar::Source;
use rocmforge_text::answer::{AnswerParser, Format};
use rocmforge_text::chat_template::{Conversation, RenderError, Rendered, TemplateError};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde_json::{Map, Value, json};

use super::chat_events::{ChatEvents, choice, object};
use super::generation::{Form, Generation};
use super::generic;
use super::messages::{check_tools, for_template, with_text_arguments};
use super::usage::{Timings, usage};
use crate::app::{App, Body};
use crate::config::Limits;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::events;
use crate::serving::choices::{Choices, PromptTimes};
use crate::serving::model::Served;
use crate::serving::reader::{Calls, Parts, Reader};
use crate::serving::structured::{self, Forced, Structure, source};

/// The best tokens that log-probabilities may have, at most.
const MAX_TOP_LOGPROBS: usize = 20;

/// A conversation to answer.
#[derive(Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Value>,
    /// Descriptions of functions, in OpenAI's form.
    pub(crate) tools: Vec<Value>,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether the last message is the beginning of the answer.
    pub(crate) continues: bool,
    /// Which tools the answer must call.
    pub(crate) forced: Option<Forced>,
}

/// A conversation as the model reads it.
pub(crate) struct Encoded {
    pub(crate) ids: Arc<[TokenId]>,
    text: String,
    tools: Vec<Value>,
    times: PromptTimes,
}

/// A conversation as the model reads it, and how to read its answer.
pub(crate) struct Prompt {
    pub(crate) ids: Arc<[TokenId]>,
    /// Its text, of which the end says whether the answer begins with reasoning.
    text: String,
    tools: Vec<Value>,
    format: Format,
    calls: Calls,
    structure: Option<Structure>,
    pub(crate) times: PromptTimes,
}

impl Prompt {
    /// Returns a reader of the answer.
    pub(crate) fn reader(&self) -> Reader {
        let parser = AnswerParser::new(self.format, &self.text, &self.tools);
        Reader::new(parser, self.calls)
    }

    /// Returns the form of an answer that [`Prompt::reader`] reads.
    pub(crate) fn form(&self, logprobs: Option<usize>) -> Form {
        Form {
            // Marks of reasoning and calls may be control tokens.
            special_text: match self.format.has_marks() {
                true => SpecialText::Show,
                false => SpecialText::Hide,
            },
            leading_space: LeadingSpace::Strip,
            logprobs,
            structure: self.structure.clone(),
        }
    }
}

/// `POST /v1/chat/completions`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(&mut fields).await?;
    model.put_defaults(&mut fields);
    let generation = Generation::read(&mut fields, &caller, &app.limits)?;
    let logprobs = logprobs(&mut fields)?;
    let structure = source(&mut fields)?;
    let chat = Chat::read(&mut fields, &app.limits)?;
    let calls = match fields.take("parallel_tool_calls")? {
        Some(false) => Calls::One,
        None | Some(true) => Calls::Any,
    };
    for (name, harmless) in [
        ("functions", json!([])),
        ("function_call", json!("none")),
        ("audio", json!({})),
        ("modalities", json!(["text"])),
    ] {
        fields.refuse(name, &[harmless])?;
    }
    let ignored = fields.unread();
    let tenant = ticket.tenant();
    let prompt = chat.prompt(&app, &model, &tenant, structure, calls);
    let prompt = prompt.await?;
    let mut readers: Vec<Reader> = (0..generation.n).map(|_| prompt.reader()).collect();
    let requests = generation.requests(&prompt.ids, &prompt.form(logprobs));
    let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
    let choices = choices.after(prompt.times);
    let id = app.new_id("chatcmpl-");
    let head = object(&id, "chat.completion.chunk", &model);
    let mut response = match generation.stream {
        true => {
            let include_usage = generation.include_usage;
            let encoder = ChatEvents::new(head, model, readers, logprobs.is_some(), include_usage);
            events(choices, encoder, &app.lifecycle, &app.limits).await?
        }
        false => {
            let mut parts: Vec<Parts> = readers.iter().map(|_| Parts::default()).collect();
            let whole = choices.whole_until(|at, text| readers[at].gather(text, &mut parts[at]));
            let (wholes, totals) = app.unless_aborted(whole).await?;
            let answers = readers.into_iter().zip(parts).zip(wholes).enumerate();
            let choices: Vec<Value> = answers
                .map(|(index, (answer, whole))| {
                    choice(index, answer, &model.tokenizer, whole, logprobs.is_some())
                })
                .collect();
            let mut body = object(&id, "chat.completion", &model);
            body["choices"] = choices.into();
            body["usage"] = usage(&totals);
            body["timings"] = json!(Timings::new(&totals));
            Json(body).into_response()
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
}

/// Reads the name of the tool to call, in the form of chat completions or of responses.
pub(crate) fn named(choice: &Value) -> Result<Forced, ApiError> {
    let name = choice.pointer("/function/name").or(choice.get("name"));
    match name.and_then(Value::as_str) {
        Some(name) => Ok(Forced::Named(name.to_string())),
        None => Err(ApiError::field(
            "tool_choice",
            "use auto, none, required or {\"type\": \"function\", \"function\": {\"name\": ...}}",
        )),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    match (wanted, top) {
        (_, Some(top)) if top > MAX_TOP_LOGPROBS => Err(ApiError::field(
            "top_logprobs",
            format!("use 0 to {MAX_TOP_LOGPROBS}"),
        )),
        (false, Some(1..)) => Err(ApiError::field("top_logprobs", "set logprobs to true, too")),
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, _) => Ok(None),
    }
}

impl Chat {
    /// Reads the conversation.
    ///
    /// # Errors
    /// A message or a tool has a wrong form.
    pub(crate) fn read(fields: &mut Fields, limits: &Limits) -> Result<Chat, ApiError> {
        let messages = for_template(fields.need("messages")?, limits)?;
        let mut tools: Vec<Value> = fields.take("tools")?.unwrap_or_default();
        check_tools(&tools, limits)?;
        let choice = fields.take::<Value>("tool_choice")?;
        let forced = match choice.as_ref().map(|choice| (choice, choice.as_str())) {
            None | Some((_, Some("auto"))) => None,
            Some((_, Some("none"))) => {
                tools.clear();
                None
            }
            Some((_, Some("required"))) => Some(Forced::Any),
            Some((choice, _)) => Some(named(choice)?),
        };
        let mut variables: Map<String, Value> =
            fields.take("chat_template_kwargs")?.unwrap_or_default();
        if let Some(effort) = fields.take::<String>("reasoning_effort")? {
            let thinks = effort != "none";
            variables.entry("enable_thinking").or_insert(thinks.into());
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        // As in vLLM: the last message is the beginning of the answer.
        let continues = fields.take("continue_final_message")?.unwrap_or(false);
        let prompts = fields.take("add_generation_prompt")?.unwrap_or(!continues);
        if continues && prompts {
            let what =
                "the last message is continued or an answer begins; set one of them to false";
            return Err(ApiError::field("add_generation_prompt", what));
        }
        Ok(Chat {
            messages,
            tools,
            variables,
            continues: !prompts,
            forced,
        })
    }

    /// Renders the conversation with the model's template, on a thread of its own.
    ///
    /// # Errors
    /// The template refuses the conversation or is damaged.
    pub(crate) async fn encode(self, app: &App, model: &Arc<Served>) -> Result<Encoded, ApiError> {
        let model = Arc::clone(model);
        let work = move || {
            let began = Instant::now();
            model.render_shared();
            let rendered = self.rendered(&model)?;
            let template = began.elapsed();
            let tokenizer = &model.tokenizer;
            let ids = with_bos(tokenizer, rendered.encode(tokenizer));
            let tokenize = began.elapsed() - template;
            Ok(Encoded {
                ids: ids.into(),
                text: rendered.text().to_string(),
                tools: self.tools,
                times: PromptTimes { template, tokenize },
            })
        };
        app.workers.run(work).await
    }

    /// As [`Chat::encode`], and compiles what the answer must be.
    ///
    /// # Errors
    /// Those of [`Chat::encode`]; the structure is not supported.
    pub(crate) async fn prompt(
        mut self,
        app: &App,
        model: &Arc<Served>,
        tenant: &Arc<str>,
        structure: Option<Source>,
        calls: Calls,
    ) -> Result<Prompt, ApiError> {
        let forced = self.forced.as_ref();
        if forced.is_some() && structure.is_some() {
            let what = "an answer that must call a tool has no structure of its own; leave one out";
            return Err(ApiError::field("tool_choice", what));
        }
        if structure.is_some() && !model.format.has_calls() {
            // The answer has the client's structure, and none that calls could have.
            self.tools.clear();
        }
        let (format, structure) = match forced {
            _ if self.is_generic(model) => {
                let source = structured::generic(&self.tools, forced, calls)?;
                let format = model.format.with_calls_of(structured::generic_format());
                (format, Some(source))
            }
            Some(forced) => {
                let source = structured::calls(&self.tools, forced, calls)?;
                let format = model.format.with_calls_of(structured::forced_format());
                (format, Some(source))
            }
            None => (model.format, structure),
        };
        let Encoded {
            ids,
            text,
            tools,
            times,
        } = self.encode(app, model).await?;
        let reasoning = format.reasoning_marks(&text);
        let compilers = (&app.compilers, tenant);
        let structure = model.structure(structure, reasoning, compilers);
        Ok(Prompt {
            ids,
            times,
            format,
            tools,
            calls,
            structure: structure.await?,
            text,
        })
    }

    /// Whether tools are described to a model whose template has no calls.
    fn is_generic(&self, model: &Served) -> bool {
        // An answer that goes on from the client's text has its form.
        !self.tools.is_empty() && !model.format.has_calls() && !self.continues
    }

    /// [`Chat::prompt`] as text, with the template's control tokens apart from the conversation's.
    pub(crate) fn rendered(&self, model: &Served) -> Result<Rendered, ApiError> {
        if !self.is_generic(model) {
            return Ok(self.render(model, &self.messages, &self.tools)?);
        }
        let described = generic::described(&self.messages, &self.tools, self.forced.is_some());
        match self.render(model, &described, &[]) {
            Ok(rendered) if generic::is_in(rendered.text()) => Ok(rendered),
            // A template without system prompts refuses them or leaves them out.
            Ok(_) | Err(TemplateError::Render(RenderError::Refused { .. })) => {
                Ok(self.render(model, &generic::without_system(described), &[])?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn render(
        &self,
        model: &Served,
        messages: &[Value],
        tools: &[Value],
    ) -> Result<Rendered, TemplateError> {
        let render = |messages: &[Value]| {
            let conversation = Conversation {
                messages,
                tools,
                add_generation_prompt: !self.continues,
                variables: Some(&self.variables),
            };
            model.template.prompt(&conversation, &model.tokenizer)
        };
        match render(messages) {
            Err(error @ TemplateError::Render(RenderError::Refused { .. })) => Err(error),
            Err(error) => {
                let with_text = with_text_arguments(messages);
                match with_text == messages {
                    true => Err(error),
                    false => render(&with_text),
                }
            }
            Ok(rendered) => Ok(rendered),
        }
    }
}
