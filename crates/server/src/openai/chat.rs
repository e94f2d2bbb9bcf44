//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use rocmforge::parts::with_bos;
use rocmforge_gguf::TokenId;
use rocmforge_text::answer::AnswerParser;
use rocmforge_text::chat_template::{Conversation, RenderError, Rendered, TemplateError};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde_json::{Map, Value, json};

use super::chat_events::{Answer, ChatEvents, object};
use super::generation::{Form, Generation, refuse_constraints};
use super::messages::{check_tools, for_template, with_text_arguments};
use super::usage::{Timings, usage};
use crate::app::{App, Body};
use crate::config::Limits;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::stream::events;
use crate::serving::choices::Choices;
use crate::serving::model::Served;

/// The best tokens that log-probabilities may have, at most.
const MAX_TOP_LOGPROBS: usize = 20;

/// A conversation to answer.
pub(crate) struct Chat {
    messages: Vec<Value>,
    tools: Vec<Value>,
    variables: Map<String, Value>,
    continues: bool,
}

/// A conversation as the model reads it.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<TokenId>,
    /// Its text, of which the end says whether the answer begins with reasoning.
    pub(crate) text: String,
}

/// `POST /v1/chat/completions`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Body(mut fields): Body,
) -> Result<Response, ApiError> {
    let ticket = app.admit(&caller)?;
    let model = app.model(fields.take::<String>("model")?.as_deref())?;
    let generation = Generation::read(&mut fields, &caller, &app.limits)?;
    let logprobs = logprobs(&mut fields)?;
    let chat = Chat::read(&mut fields, &app.limits)?;
    let one_call = fields.take("parallel_tool_calls")? == Some(false);
    for (name, harmless) in [
        ("functions", json!([])),
        ("function_call", json!("none")),
        ("audio", json!({})),
        ("modalities", json!(["text"])),
    ] {
        fields.refuse(name, &[harmless])?;
    }
    refuse_constraints(&mut fields)?;
    let ignored = fields.unread();
    let (of_model, tools) = (Arc::clone(&model), chat.tools.clone());
    let prompt = app.workers.run(move || chat.prompt(&of_model)).await?;
    let form = Form {
        // Marks of reasoning and calls may be control tokens.
        special_text: match model.format.name() {
            "plain" => SpecialText::Hide,
            _ => SpecialText::Show,
        },
        leading_space: LeadingSpace::Strip,
        logprobs,
    };
    let parser = || AnswerParser::new(model.format, &prompt.text, &tools);
    let answers: Vec<Answer> = (0..generation.n)
        .map(|_| Answer::new(parser(), one_call))
        .collect();
    let requests = generation.requests(prompt.ids, form);
    let choices = Choices::submit(Arc::clone(&model), vec![requests], ticket)?;
    let id = app.new_id("chatcmpl");
    let head = object(&id, "chat.completion.chunk", &model.name);
    let mut response = match generation.stream {
        true => {
            let include_usage = generation.include_usage;
            let encoder = ChatEvents::new(head, model, answers, logprobs.is_some(), include_usage);
            events(choices, encoder, &app.lifecycle, app.limits.ping_interval)
        }
        false => {
            let (wholes, totals) = app.unless_aborted(choices.whole()).await?;
            let answers = answers.into_iter().zip(wholes).enumerate();
            let choices: Vec<Value> = answers
                .map(|(index, (answer, whole))| {
                    answer.whole(index, &model.tokenizer, whole, logprobs.is_some())
                })
                .collect();
            let mut body = object(&id, "chat.completion", &model.name);
            body["choices"] = choices.into();
            body["usage"] = usage(&totals);
            body["timings"] = json!(Timings::new(&totals));
            Json(body).into_response()
        }
    };
    app.tell_ignored(&mut response, ignored);
    Ok(response)
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
        match fields.take::<Value>("tool_choice")? {
            None => {}
            Some(choice) if choice == "auto" => {}
            Some(choice) if choice == "none" => tools.clear(),
            Some(_) => {
                let error = ApiError::field("tool_choice", "use auto or none");
                return Err(error.code("unsupported_parameter"));
            }
        }
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
        Ok(Chat {
            messages,
            tools,
            variables,
            continues: !prompts,
        })
    }

    /// Renders the conversation with the model's template.
    ///
    /// # Errors
    /// The template refuses the conversation or is damaged.
    pub(crate) fn prompt(&self, model: &Served) -> Result<Prompt, ApiError> {
        let rendered = self.rendered(model)?;
        let tokenizer = &model.tokenizer;
        Ok(Prompt {
            ids: with_bos(tokenizer, rendered.encode(tokenizer)),
            text: rendered.text().to_string(),
        })
    }

    /// [`Chat::prompt`] as text, with the template's control tokens apart from the conversation's.
    pub(crate) fn rendered(&self, model: &Served) -> Result<Rendered, ApiError> {
        let render = |messages: &[Value]| {
            let conversation = Conversation {
                messages,
                tools: &self.tools,
                add_generation_prompt: !self.continues,
                variables: Some(&self.variables),
            };
            model.template.prompt(&conversation, &model.tokenizer)
        };
        match render(&self.messages) {
            Err(error @ TemplateError::Render(RenderError::Refused { .. })) => Err(error.into()),
            Err(error) => {
                let messages = with_text_arguments(&self.messages);
                match messages == self.messages {
                    true => Err(error.into()),
                    false => Ok(render(&messages)?),
                }
            }
            Ok(rendered) => Ok(rendered),
        }
    }
}
