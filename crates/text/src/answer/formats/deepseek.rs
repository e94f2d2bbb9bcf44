//! DeepSeek V3 and R1 (`function`, name, and JSON in a code block) and V3.1 (name and JSON), after the templates of
//! deepseek-ai/DeepSeek-R1-Distill-Qwen-32B and deepseek-ai/DeepSeek-V3.1.

use super::{Call, Format, Head, PLAIN, Syntax, THINK};

const SEPARATOR: &str = "<｜tool▁sep｜>";

pub(super) static FORMAT: Format = Format {
    name: "deepseek",
    is_of: |template| template.contains("<｜tool▁calls▁begin｜>"),
    thinking: Some(THINK),
    hidden: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    calls: &[Call {
        mark: "<｜tool▁call▁begin｜>",
        syntax: Syntax::Headed {
            head: |text| {
                let first = text.label(&[SEPARATOR])?;
                text.expect(SEPARATOR)?;
                let mut head = Head {
                    name: first.to_owned(),
                    id: None,
                };
                text.space();
                if text.peek()? != '{' {
                    head.name = text.label(&["\n"])?.to_owned();
                    text.space();
                    if text.peek()? == '`' {
                        text.expect("```json")?;
                    }
                }
                Ok(head)
            },
            close: &["```", "<｜tool▁call▁end｜>"],
        },
    }],
    ..PLAIN
};
