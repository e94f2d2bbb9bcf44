//! Small templates compared with Jinja2, set up as in transformers (`cargo xtask template-golden`).

use rocmforge_text::chat_template::{ChatTemplate, Conversation};
use serde_json::Value;

use crate::chat_template::list;

/// Where Jinja2 refuses and we render: none has no items.
const LENIENT: &[&str] = &["{% for c in messages[0].content %}{{ c }}{% endfor %}|"];

#[test]
fn renders_what_jinja2_renders_and_refuses_what_it_refuses() {
    let rows: Value = serde_json::from_str(include_str!("../fixtures/snippets.json")).unwrap();
    assert!(list(&rows).len() > 90);
    let mut wrong = Vec::new();
    for row in list(&rows) {
        let source = row["source"].as_str().unwrap();
        let variables = row.get("documents").map(|documents| {
            [("documents".to_owned(), documents.clone())]
                .into_iter()
                .collect()
        });
        let rendered = ChatTemplate::from_source(source)
            .unwrap()
            .render(&Conversation {
                messages: list(&row["messages"]),
                tools: list(&row["tools"]),
                add_generation_prompt: true,
                variables: variables.as_ref(),
            });
        let is_right = match (row["output"].as_str(), &rendered) {
            (Some(expected), Ok(text)) => text == expected,
            (None, Ok(_)) => LENIENT.contains(&source),
            (expected, Err(_)) => expected.is_none(),
        };
        if !is_right {
            wrong.push(format!("{row}\n  rendered {rendered:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
