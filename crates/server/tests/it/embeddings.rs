//! Embeddings and ranks: the same numbers as the library computes, in every form.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread::Scope;

use rocmforge::{Device, ModelOptions, Pooling};
use rocmforge_engine::serve::{Handle, ServeOptions};
use rocmforge_gguf::GgmlType;
use rocmforge_model::Purpose;
use rocmforge_server::Offer;
use rocmforge_testkit::models::embeddings;
use serde_json::{Value, json};

use crate::client::{
    FORGE_MINI, TestServer, forge_mini, loaded, local, model, offer, small, start,
};

const EMBEDDINGS: &str = "/v1/embeddings";

/// A model for embeddings.
pub(crate) fn embedder(name: &str, path: &Path, pooling: Pooling) -> Offer {
    let purpose = Purpose::Embeddings(Some(pooling));
    model(name, path, purpose, small(), ServeOptions::default())
}

/// A model with random weights that scores documents.
pub(crate) fn reranker(name: &str) -> Offer {
    let file = embeddings::model("bert_scores", GgmlType::F16);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.gguf");
    fs::write(&path, file.unwrap().unwrap().to_vec().unwrap()).unwrap();
    embedder(name, &path, Pooling::Rank)
}

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

    let served = embedder("embedder", FORGE_MINI.as_ref(), Pooling::Mean);
    let server = TestServer::start(local(), vec![served]);
    let reply = server.post(EMBEDDINGS, &json!({ "input": texts })).ok();
    assert_eq!(vectors(&reply), expected);
    assert_eq!(reply["model"], "embedder");
    let one = server.post(EMBEDDINGS, &json!({ "input": texts[1] })).ok();
    assert_eq!(vectors(&one), expected[1..]);
    assert!(one["usage"]["prompt_tokens"].as_u64().unwrap() > 4);
    assert_eq!(one["timings"]["prompt_n"], one["usage"]["prompt_tokens"]);
    assert!(one["timings"]["tokenize_ms"].as_f64().unwrap() > 0.0);
    // Ollama's older route.
    let old = server.post("/api/embeddings", &json!({ "prompt": texts[1] }));
    let old: Vec<f32> = serde_json::from_value(old.ok()["embedding"].clone()).unwrap();
    assert_eq!(old, expected[1]);
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

    // llama-server's form.
    for (path, body, expected) in [
        ("/embedding", json!({"content": texts}), &expected[..]),
        ("/embedding", json!({"content": texts[0]}), &expected[..1]),
        (
            "/embeddings",
            json!({"input": texts, "embd_normalize": 2}),
            &expected[..],
        ),
    ] {
        let reply = server.post(path, &body).ok();
        let all = reply.as_array().unwrap();
        assert_eq!(all.len(), expected.len());
        for (index, (item, vector)) in all.iter().zip(expected).enumerate() {
            assert_eq!(item["index"], index);
            let [found]: [Vec<f32>; 1] = serde_json::from_value(item["embedding"].clone()).unwrap();
            assert_eq!(&found, vector, "{path}");
        }
    }
    for body in [
        json!({}),
        json!({"content": "a", "embd_normalize": -1}),
        json!({"input": "a", "encoding_format": "base64"}),
    ] {
        server.post("/embedding", &body).error(400);
    }

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
fn ranks_have_the_form_that_the_request_asks_for() {
    let server = TestServer::start(local(), vec![reranker("ranks")]);
    let documents = ["one", "two three", "four five six"];
    let body = json!({"query": "which?", "documents": documents, "return_documents": true});
    let jina = server.post("/v1/rerank", &body).ok()["results"].clone();
    let jina = jina.as_array().unwrap();
    assert_eq!(jina.len(), 3);
    let scores: Vec<f64> = jina
        .iter()
        .map(|rank| rank["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let as_tei = |rank: &Value| {
        let index = rank["index"].as_u64().unwrap() as usize;
        assert_eq!(rank["document"]["text"], documents[index]);
        json!({"index": index, "score": rank["relevance_score"], "text": documents[index]})
    };
    let expected: Vec<Value> = jina.iter().map(as_tei).collect();
    for path in ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"] {
        let body = json!({"query": "which?", "texts": documents, "return_text": true});
        let reply = server.post(path, &body);
        assert_eq!(reply.header("x-ignored-fields"), None);
        assert_eq!(reply.ok(), json!(expected), "{path}");
    }
    let body = json!({"query": "which?", "texts": documents, "top_n": 1});
    let best = json!([{"index": expected[0]["index"], "score": expected[0]["score"]}]);
    assert_eq!(server.post("/rerank", &body).ok(), best);
    for body in [json!({"query": "a"}), json!({"query": "a", "texts": "b"})] {
        server.post("/rerank", &body).error(400);
    }
}

/// forge-mini for embeddings, and its engine.
fn embedder_and_engine() -> (Offer, Handle) {
    let purpose = Purpose::Embeddings(Some(Pooling::Mean));
    let options = ServeOptions::default();
    let model = loaded(FORGE_MINI.as_ref(), purpose, small(), options);
    let engine = Handle::clone(&model.engine);
    (offer("embedder", model), engine)
}

/// Keeps an engine from its next step until `wait` ends.
fn hold<'s>(scope: &'s Scope<'s, '_>, engine: Handle, wait: Receiver<()>) {
    let (to, is_held) = mpsc::channel();
    let held = move || {
        to.send(()).unwrap();
        wait.recv().is_err()
    };
    scope.spawn(move || engine.with_engine(move |_| held()).unwrap());
    is_held.recv().unwrap();
}

/// More requests for embeddings than the server has threads for templates, on a device that is busy.
#[test]
fn embeddings_leave_the_templates_of_chats_alone() {
    let (embedder, engine) = embedder_and_engine();
    let server = &TestServer::start(local(), vec![embedder, forge_mini(small())]);
    let (release, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        hold(scope, engine, wait);
        let ask = || {
            let body = json!({"model": "embedder", "input": ["a", "b"]});
            server.post(EMBEDDINGS, &body).ok()
        };
        let all: Vec<_> = (0..33).map(|_| scope.spawn(ask)).collect();
        loop {
            let rows = server.get("/admin/requests").ok();
            let rows = rows["requests"].as_array().unwrap().iter();
            // Their tokens are known.
            if rows.filter(|row| row["prompt_tokens"] != 0).count() == 33 {
                break;
            }
            std::thread::yield_now();
        }
        let chat = json!({"model": "forge-mini", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        server.post("/v1/chat/completions", &chat).ok();
        drop(release);
        for reply in all {
            assert_eq!(reply.join().unwrap()["data"].as_array().unwrap().len(), 2);
        }
    });
    let metrics = server.get("/metrics").text;
    // The self-test, and these.
    for line in [
        r#"vllm:request_success_total{engine="0",finished_reason="stop",model_name="embedder"} 67"#,
        r#"vllm:e2e_request_latency_seconds_count{engine="0",model_name="embedder"} 34"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[test]
fn texts_of_a_client_that_leaves_are_not_computed() {
    let (embedder, engine) = embedder_and_engine();
    let server = &TestServer::start(local(), vec![embedder]);
    let body = json!({ "input": vec!["a"; 2048] }).to_string();
    let (release, wait) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        hold(scope, engine, wait);
        let address = server.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        let n = body.len();
        write!(
            stream,
            "POST {EMBEDDINGS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {n}\r\n\r\n{body}"
        )
        .unwrap();
        while !server.get("/admin/requests").text.contains("2048") {
            std::thread::yield_now();
        }
        drop(stream);
        server.wait_for("rocmforge_aborts_total", 2048.0);
        drop(release);
    });
    // The self-test's only.
    let metrics = server.get("/metrics").text;
    let line =
        r#"vllm:request_success_total{engine="0",finished_reason="stop",model_name="embedder"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn a_model_for_text_has_no_embeddings() {
    let server = start();
    let error = server.post(EMBEDDINGS, &json!({"input": "a"})).error(501);
    assert_eq!(error["code"], "wrong_model");
    server
        .post("/embedding", &json!({"content": "a"}))
        .error(501);
}
