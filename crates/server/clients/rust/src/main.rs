//! Talks to a running server through `async-openai`. Usage: client URL

use std::error::Error;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    CreateChatCompletionRequest, CreateChatCompletionResponse, CreateChatCompletionStreamResponse,
};
use futures::StreamExt as _;
use serde_json::{Value, json};

const MODEL: &str = "forge-mini";

fn asked(more: Value) -> CreateChatCompletionRequest {
    let mut body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "Hi" }],
        "temperature": 0.0,
        "max_completion_tokens": 16,
    });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    serde_json::from_value(body).expect("a request of this client")
}

fn text(answer: CreateChatCompletionResponse) -> String {
    let choice = answer.choices.into_iter().next().expect("a choice");
    choice.message.content.unwrap_or_default()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).expect("the URL of the server");
    let config = OpenAIConfig::new()
        .with_api_base(format!("{url}/v1"))
        .with_api_key("none");
    let client = Client::with_config(config);
    let models = client.models().list().await?;
    assert_eq!(models.data[0].id, MODEL);

    let whole = client.chat().create(asked(json!({}))).await?;
    assert!(
        whole
            .usage
            .as_ref()
            .is_some_and(|usage| usage.completion_tokens > 0)
    );
    let whole = text(whole);
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let mut stream = client.chat().create_stream(asked(options)).await?;
    let (mut streamed, mut usage) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        let chunk: CreateChatCompletionStreamResponse = chunk?;
        usage = chunk.usage.or(usage);
        let deltas = chunk
            .choices
            .into_iter()
            .filter_map(|choice| choice.delta.content);
        streamed.extend(deltas);
    }
    assert!(!whole.is_empty() && usage.is_some());
    assert_eq!(streamed, whole);
    println!("ok: chats");

    let schema = json!({
        "type": "object",
        "properties": { "age": { "type": "integer" }, "city": { "enum": ["Paris", "Rome"] } },
        "required": ["age", "city"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema, "strict": true } });
    let more = json!({ "response_format": format, "max_completion_tokens": 200 });
    let person: Value = serde_json::from_str(&text(client.chat().create(asked(more)).await?))?;
    assert!(
        person["age"].is_i64()
            && ["Paris", "Rome"].contains(&person["city"].as_str().unwrap_or_default())
    );
    println!("ok: structured output");

    let function = json!({ "name": "weather", "description": "Weather", "parameters": schema });
    let more = json!({
        "tools": [{ "type": "function", "function": function }],
        "tool_choice": "required",
        "max_completion_tokens": 200,
    });
    let called = serde_json::to_value(client.chat().create(asked(more)).await?)?;
    let call = &called["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather", "{called}");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or_default())?;
    assert!(arguments["age"].is_i64());
    println!("ok: calls of tools");

    let wrong = client
        .chat()
        .create(asked(json!({ "model": "none" })))
        .await;
    let Err(OpenAIError::ApiError(error)) = wrong else {
        panic!("there is no such model: {wrong:?}");
    };
    assert!(error.to_string().contains("model_not_found"), "{error}");
    println!("ok: errors");
    Ok(())
}
