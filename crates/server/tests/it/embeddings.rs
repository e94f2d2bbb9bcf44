//! `/v1/embeddings`: the same numbers as the library computes.

use rocmforge::{Device, ModelOptions, Pooling};
use rocmforge_engine::serve::ServeOptions;
use rocmforge_model::Purpose;
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, local, model, small, start};

const EMBEDDINGS: &str = "/v1/embeddings";

fn vectors(reply: &Value) -> Vec<Vec<f32>> {
    let data = reply["data"].as_array().unwrap().iter();
    data.map(|item| serde_json::from_value(item["embedding"].clone()).unwrap())
        .collect()
}

#[test]
fn embeddings_are_those_of_the_library() {
    let pooling = Some(Pooling::Mean);
    let options = ModelOptions::default().for_embeddings(pooling);
    let session = options.open(FORGE_MINI).unwrap().device(Device::Cpu);
    let session = session.threads(1).start().unwrap();
    let texts = ["Hello", "A cat sat on a mat."];
    let expected = session.embed(texts).unwrap();

    let purpose = Purpose::Embeddings(pooling);
    let served = model(
        "embedder",
        FORGE_MINI.as_ref(),
        purpose,
        small(),
        ServeOptions::default(),
    );
    let server = TestServer::start(local(), vec![served]);
    let reply = server.post(EMBEDDINGS, &json!({ "input": texts })).ok();
    assert_eq!(vectors(&reply), expected);
    assert_eq!(reply["model"], "embedder");
    let one = server.post(EMBEDDINGS, &json!({ "input": texts[1] })).ok();
    assert_eq!(vectors(&one), expected[1..]);
    assert!(one["usage"]["prompt_tokens"].as_u64().unwrap() > 4);
    let ids = server
        .post(
            "/tokenize",
            &json!({"content": texts[1], "add_special": true}),
        )
        .ok();
    let by_ids = server
        .post(EMBEDDINGS, &json!({ "input": ids["tokens"] }))
        .ok();
    assert_eq!(vectors(&by_ids), expected[1..]);
    // The first number, as the client packages read it.
    let packed = json!({"input": texts[0], "encoding_format": "base64"});
    let packed = server.post(EMBEDDINGS, &packed).ok();
    let text = packed["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (expected[0].len() * 4).div_ceil(3) * 4);

    server.post(EMBEDDINGS, &json!({"input": []})).error(400);
    server.post(EMBEDDINGS, &json!({"input": 1})).error(400);
    server
        .post(EMBEDDINGS, &json!({"input": "a", "encoding_format": "x"}))
        .error(400);
    // It has no classifier and generates nothing.
    let rerank = json!({"query": "a", "documents": ["b"]});
    server.post("/v1/rerank", &rerank).error(501);
    server
        .post("/v1/completions", &json!({"prompt": "a"}))
        .error(501);
}

#[test]
fn a_model_for_text_has_no_embeddings() {
    let server = start();
    let error = server.post(EMBEDDINGS, &json!({"input": "a"})).error(501);
    assert_eq!(error["code"], "wrong_model");
}
