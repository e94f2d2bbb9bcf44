//! MiniMax M2: tags `invoke` and `parameter` with names, after the template of MiniMaxAI/MiniMax-M2 and its
//! docs/tool_calling_guide.md.

use crate::answer::cursor::{Stop, add_member, end_object};

use super::{Call, Format, PLAIN, Syntax, THINK, WholeCall};

pub(super) static FORMAT: Format = Format {
    name: "minimax-m2",
    is_of: |template| template.contains("<minimax:tool_call>"),
    thinking: Some(THINK),
    hidden: &["<minimax:tool_call>", "</minimax:tool_call>"],
    calls: &[Call {
        mark: "<invoke name=\"",
        syntax: Syntax::Whole(|text, tools| {
            let name = text.label(&["\">"])?.to_owned();
            if !tools.has(&name) {
                return Err(Stop::NotACall);
            }
            text.skip(2);
            let mut arguments = String::new();
            loop {
                text.space();
                if text.take("</invoke>")? {
                    break;
                }
                text.expect("<parameter name=\"")?;
                let key = text.label(&["\">"])?.to_owned();
                text.skip(2);
                let value = text.until(&["</parameter>"])?;
                text.expect("</parameter>")?;
                add_member(&mut arguments, &key, &tools.json(&name, &key, value));
            }
            Ok(vec![WholeCall {
                name,
                arguments: end_object(arguments),
            }])
        }),
    }],
    ..PLAIN
};
