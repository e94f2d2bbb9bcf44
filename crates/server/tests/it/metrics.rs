//! The metrics that dashboards read.

use serde_json::{Value, json};

use crate::client::start;

/// The names of metrics in a query.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = query.split(move |c| !is_part(c));
    words.filter(|word| word.starts_with("vllm:") || word.starts_with("rocmforge_"))
}

#[test]
fn the_board_reads_metrics_that_exist() {
    let board = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(board).unwrap()).unwrap();
    let server = start();
    let body = json!({"prompt": "Once", "max_tokens": 3});
    server.post("/v1/completions", &body).ok();
    let text = server.get("/metrics").text;
    let panels = board["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut n_names = 0;
    for target in targets {
        for name in names(target["expr"].as_str().unwrap()) {
            n_names += 1;
            let has_values = text.lines().any(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with('{') && rest.contains("forge-mini"))
            });
            assert!(has_values, "{name} is not in:\n{text}");
        }
    }
    assert!(n_names > 20, "{n_names}");
}
