//! Target `answer`: reads an answer in every format, whole and in pieces, which must say the same.
//!
//! Input: a byte that chooses the format, one that gives the length of pieces, then the answer.

use rocmforge_text::answer::{AnswerParser, Delta, Format};
use serde_json::{Value, json};

pub(crate) fn run(data: &[u8]) {
    let Some((&[format, len], text)) = data.split_first_chunk() else {
        return;
    };
    let n_formats = Format::names().count();
    let name = Format::names().nth(usize::from(format) % n_formats);
    let format = name.and_then(Format::by_name).expect("it has a name");
    let text = String::from_utf8_lossy(text);
    let parameters = json!({"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}});
    let tools = [json!({"function": {"name": "f", "parameters": parameters}})];
    for tools in [&tools[..], &[]] {
        let whole = read(format, tools, [&*text]);
        let mut rest = &*text;
        let pieces = std::iter::from_fn(|| {
            let (piece, after) = rest.split_at(rest.ceil_char_boundary(1 + usize::from(len)));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        assert_eq!(read(format, tools, pieces), whole);
    }
}

/// Returns reasoning, content, what is unfinished, and each call's id, name, arguments and whether it is complete.
fn read<'t>(
    format: Format,
    tools: &[Value],
    pieces: impl IntoIterator<Item = &'t str>,
) -> Vec<String> {
    let mut parser = AnswerParser::new(format, "", tools);
    let mut said = vec![String::new(); 3];
    let mut add = |deltas: Vec<Delta>| {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => said[0] += &text,
                Delta::Content(text) => said[1] += &text,
                Delta::Unfinished(text) => said[2] += &text,
                Delta::Call(part) => {
                    let at = 3 + 4 * part.index;
                    said.resize(said.len().max(at + 4), String::new());
                    said[at] += part.id.as_deref().unwrap_or_default();
                    said[at + 1] += part.name.as_deref().unwrap_or_default();
                    said[at + 2] += &part.arguments;
                }
                Delta::CallEnd { index, complete } => {
                    let end = &mut said[3 + 4 * index + 3];
                    assert!(end.is_empty());
                    *end = complete.to_string();
                }
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish());
    said
}
