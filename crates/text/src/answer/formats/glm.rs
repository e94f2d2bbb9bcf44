//! GLM 4.5 to 4.7 and 5: the name, then a tag for each key and value, after the templates of zai-org/GLM-4.6 and
//! zai-org/GLM-4.7-Flash.

use crate::answer::cursor::{Stop, add_member, end_object};

use super::{Call, Format, PLAIN, Syntax, THINK, WholeCall};

const CLOSE: &str = "</tool_call>";

pub(super) static FORMAT: Format = Format {
    name: "glm",
    is_of: |template| template.contains("<arg_key>"),
    thinking: Some(THINK),
    calls: &[Call {
        mark: "<tool_call>",
        syntax: Syntax::Whole(|text, tools| {
            let name = text.label(&["<"])?.to_owned();
            if !tools.has(&name) {
                return Err(Stop::NotACall);
            }
            let mut arguments = String::new();
            loop {
                text.space();
                if text.take(CLOSE)? {
                    break;
                }
                text.expect("<arg_key>")?;
                let key = text.label(&["</arg_key>"])?.to_owned();
                text.expect("</arg_key>")?;
                text.space();
                text.expect("<arg_value>")?;
                let value = text.until(&["</arg_value>"])?;
                text.expect("</arg_value>")?;
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
