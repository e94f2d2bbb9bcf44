//! Templates that llama.cpp ships, compared with Jinja2 set up as in transformers (`cargo xtask template-golden`).
//!
//! The fixture has a hash of each template and rendering. The templates are read from the folder in
//! `ROCMFORGE_TEMPLATES`, such as models/templates of llama.cpp's source distribution, or from the conformance data,
//! which has some of them.

use std::path::PathBuf;

use rocmforge_testkit::data::conformance;
use rocmforge_text::chat_template::{
    ChatTemplate, Clock, Conversation, RenderError, TemplateError,
};
use serde_json::Value;

use crate::chat_template::list;

/// Templates whose text differs on purpose, with the reason.
const DIFFERENT: [(&str, &str); 1] = [(
    "meetkai-functionary-medium-v3.1",
    "`\"...\" | safe + x` escapes x as HTML in Jinja2, which turns the quotes of tools into `&#34;`",
)];

fn fnv(text: &str) -> String {
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, b| {
        (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01B3)
    });
    format!("{hash:016x}")
}

#[test]
fn renders_shipped_templates_as_jinja2_does() {
    let set = std::env::var_os("ROCMFORGE_TEMPLATES").map(PathBuf::from);
    let Some(folder) = set.or_else(|| conformance("data/templates")) else {
        return;
    };
    let golden: Value = serde_json::from_str(include_str!("../fixtures/released.json")).unwrap();
    let templates = golden["templates"].as_object().unwrap();
    assert!(templates.len() >= 70, "{}", templates.len());
    let (mut n_found, mut n_cases, mut n_lenient, mut wrong) = (0, 0, 0, Vec::new());
    for (name, row) in templates {
        let Ok(source) = std::fs::read_to_string(folder.join(format!("{name}.jinja"))) else {
            continue;
        };
        if fnv(&source) != row["source"] {
            println!("{name} is another version");
            continue;
        }
        n_found += 1;
        let template = ChatTemplate::from_source(&source)
            .unwrap()
            .with_tokens("<s>", "</s>")
            .with_clock(Clock::At {
                unix_seconds: 1_721_966_706,
            });
        for (case, expected) in row["cases"].as_object().unwrap() {
            let input = &golden["conversations"][case];
            let rendered = template.render(&Conversation {
                messages: list(&input["messages"]),
                tools: list(&input["tools"]),
                add_generation_prompt: input["add_generation_prompt"].as_bool().unwrap_or(true),
                variables: input["variables"].as_object(),
            });
            let is_right = match (expected[0].as_str().unwrap(), &rendered) {
                ("text", Ok(text)) if expected[1] == fnv(text) => true,
                ("refused", Err(TemplateError::Render(RenderError::Refused { message }))) => {
                    fnv(message) == expected[1]
                }
                ("error", Err(_)) => true,
                // Such as a loop over none, or adding text and a mapping.
                ("error", Ok(_)) if expected[1] == "TypeError" => {
                    n_lenient += 1;
                    true
                }
                ("text", Ok(_)) => DIFFERENT.iter().any(|(other, _)| other == name),
                _ => false,
            };
            n_cases += 1;
            if !is_right {
                wrong.push(format!("{name}, {case}: {expected}\n  {rendered:?}"));
            }
        }
    }
    println!(
        "{n_found} of {} templates, {n_cases} renderings; {n_lenient} where Jinja2 fails with a TypeError",
        templates.len()
    );
    assert!(n_found >= 10, "{n_found}");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
