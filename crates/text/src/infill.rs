//! Prompts for text in a gap: what stands before and after it, marked by tokens that the model was trained with.

use rocmforge_gguf::TokenId;

use crate::tokenizer::{EncodeOptions, GapMarks, Tokenizer};

/// A gap in a text, and what else may help to fill it.
#[derive(Debug, Clone, Default)]
pub struct Gap {
    pub before: String,
    pub after: String,
    /// What the text in the gap begins with.
    pub begun: String,
    /// Other files.
    pub files: Vec<File>,
}

/// A file beside the one with the gap.
#[derive(Debug, Clone, Default)]
pub struct File {
    pub name: String,
    pub text: String,
}

/// What stands between other texts if the vocabulary has no mark for files. It is llama-server's.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// Returns the prompt for a gap, of up to `n_max` tokens; `None` if the vocabulary has no marks for gaps.
///
/// The order is that of Qwen 2.5 Coder's report (arXiv 2409.12186, section 3.3), as in llama-server: other files, then
/// prefix, suffix and the mark after which the model writes. What does not fit is left out: first other files from their
/// beginning, then the ends far from the gap, where the text after it keeps a quarter.
pub fn gap_prompt(tokenizer: &Tokenizer, gap: &Gap, n_max: usize) -> Option<Vec<TokenId>> {
    let marks = tokenizer.gap_marks()?;
    let encode = |text: &str| {
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        tokenizer.encode(text, options)
    };
    let (mut before, mut after) = (encode(&gap.before), encode(&gap.after));
    let begun = encode(&gap.begun);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let n_marks = 3 + usize::from(bos.is_some());
    let room = n_max.saturating_sub(n_marks + begun.len());
    let n_after = after
        .len()
        .min((room / 4).max(room.saturating_sub(before.len())));
    let n_before = before.len().min(room - n_after);
    after.truncate(n_after);
    before.drain(..before.len() - n_before);
    let others = others(marks, &gap.files, encode);
    let n_others = others.len().min(room - n_after - n_before);
    let mut ids = others[others.len() - n_others..].to_vec();
    ids.extend(bos);
    ids.push(marks.prefix);
    ids.extend(before);
    ids.extend(begun);
    ids.push(marks.suffix);
    ids.extend(after);
    ids.push(marks.middle);
    Some(ids)
}

/// Returns the tokens of other files, and those that say that the file with the gap follows.
fn others(marks: &GapMarks, files: &[File], encode: impl Fn(&str) -> Vec<TokenId>) -> Vec<TokenId> {
    let mut ids = Vec::new();
    if files.is_empty() {
        return ids;
    }
    if let Some(repository) = marks.repository {
        ids.push(repository);
        ids.extend(encode("project\n"));
    }
    for file in files {
        match marks.file {
            Some(mark) => {
                ids.push(mark);
                ids.extend(encode(&format!("{}\n", file.name)));
            }
            None => ids.extend(encode(SNIPPET)),
        }
        ids.extend(encode(&file.text));
    }
    if let Some(mark) = marks.file {
        ids.push(mark);
        ids.extend(encode("file\n"));
    }
    ids
}
