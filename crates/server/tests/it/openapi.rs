//! `/openapi.json` says what the server does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rocmforge_model::Pooling;
use rocmforge_server::Offer;
use serde_json::{Map, Value, json};

use crate::client::{FORGE_MINI, TestServer, local, small, start};
use crate::embeddings::{embedder, reranker};
use crate::llama::with_marks;

fn document(server: &TestServer) -> Value {
    server.get("/openapi.json").ok()
}

/// The routes in the sources of the server.
fn routes(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            routes(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let text = fs::read_to_string(path).unwrap();
            for call in text.split(".route(").skip(1) {
                let route = call.trim_start().strip_prefix('"').expect("a literal");
                let (route, _) = route.split_once('"').unwrap();
                assert!(found.insert(route.to_string()), "{route}");
            }
        }
    }
}

#[test]
fn every_route_and_method_is_described() {
    let server = start();
    let document = document(&server);
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = document["paths"].as_object().unwrap();
    let mut of_router = BTreeSet::new();
    routes(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")),
        &mut of_router,
    );
    let described: BTreeSet<String> = paths.keys().cloned().collect();
    assert_eq!(described, of_router);
    for (path, item) in paths {
        let reply = server.ask("OPTIONS", &path.replace("{id}", "x"), &[]);
        assert_eq!(reply.status, 405, "{path}");
        let methods = item.as_object().unwrap().keys();
        let methods: BTreeSet<String> = methods.map(|method| method.to_uppercase()).collect();
        let allowed = reply.header("allow").unwrap().split(',');
        // A route for GET answers HEAD.
        let allowed = allowed.filter(|&method| method != "HEAD").map(String::from);
        assert_eq!(methods, allowed.collect(), "{path}");
    }
}

#[test]
fn references_lead_somewhere_and_errors_are_described() {
    fn references(value: &Value, found: &mut Vec<String>) {
        if let Some(Value::String(to)) = value.get("$ref") {
            found.push(to.clone());
        }
        let inner: Vec<&Value> = match value {
            Value::Object(map) => map.values().collect(),
            Value::Array(list) => list.iter().collect(),
            _ => Vec::new(),
        };
        inner.iter().for_each(|value| references(value, found));
    }
    let document = document(&start());
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for to in found {
        assert!(document.pointer(&to[1..]).is_some(), "{to}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let answers = operation["responses"].as_object().unwrap();
            let has = |status: &str| answers.keys().any(|key| key.starts_with(status));
            assert!(has("20") && has("4"), "{path}");
        }
    }
}

#[test]
fn it_needs_no_key() {
    let keys = rocmforge_server::NewKey::create("alice").unwrap();
    let config = rocmforge_server::Config {
        keys: rocmforge_server::Keys::parse(&keys.line).unwrap(),
        ..local()
    };
    let server = TestServer::start(config, vec![crate::client::forge_mini(small())]);
    document(&server);
    server.get("/v1/models").error(401);
}

/// A model of each kind: for gaps, for embeddings, for ranks.
fn models() -> Vec<Offer> {
    vec![
        with_marks(),
        embedder("vectors", FORGE_MINI.as_ref(), Pooling::Mean),
        reranker("ranks"),
    ]
}

/// Returns the fields of a schema, with those of the schemas that it is made of.
fn fields(document: &Value, schema: &Value) -> (Map<String, Value>, Vec<String>) {
    let schema = match schema["$ref"].as_str() {
        Some(to) => document.pointer(&to[1..]).unwrap(),
        None => schema,
    };
    let (mut all, mut required) = (Map::new(), Vec::new());
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (fields, names) = fields(document, part);
        all.extend(fields);
        required.extend(names);
    }
    all.extend(schema["properties"].as_object().unwrap().clone());
    let names = schema["required"].as_array().into_iter().flatten();
    required.extend(names.map(|name| name.as_str().unwrap().to_string()));
    (all, required)
}

#[test]
fn the_server_knows_every_described_field() {
    let server = TestServer::start(local(), models());
    let document = document(&server);
    let mut n_fields = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let body = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
        // The models of this test cannot be loaded again.
        if body.is_null() || path == "/models/unload" {
            continue;
        }
        let (fields, required) = fields(&document, body);
        let example = |name: &str| {
            let examples = fields[name]["examples"].as_array();
            examples.unwrap_or_else(|| panic!("{path}: {name} has no example"))[0].clone()
        };
        let mut least = json!({});
        for name in &required {
            least[name] = example(name);
        }
        for name in ["max_tokens", "max_output_tokens"] {
            if fields.contains_key(name) {
                least[name] = 1.into();
            }
        }
        for name in ["options", "prompt", "input", "documents"] {
            if fields.contains_key(name) {
                least[name] = example(name);
            }
        }
        if fields.contains_key("model") {
            least["model"] = match path.split('/').next_back().unwrap() {
                "embeddings" | "embedding" | "embed" => "vectors".into(),
                "rerank" | "reranking" => "ranks".into(),
                _ => "code".into(),
            };
        }
        let mut wrong = least.clone();
        wrong["no-such-field"] = true.into();
        let reply = server.post(path, &wrong);
        assert_eq!(
            reply.header("x-ignored-fields"),
            Some("no-such-field"),
            "{path}"
        );
        for name in fields.keys().filter(|&name| name != "model") {
            let mut body = least.clone();
            body[name] = example(name);
            if name == "name" {
                body[name] = body.as_object_mut().unwrap().remove("model").unwrap();
            }
            if name == "top_logprobs" {
                body["logprobs"] = true.into();
            }
            let reply = server.post(path, &body);
            assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text);
            assert_eq!(reply.header("x-ignored-fields"), None, "{path} {body}");
            n_fields += 1;
        }
    }
    assert!(n_fields > 300, "{n_fields}");
}
