//! `rocmforge tokenize`: prints the tokens of a text.

use crate::model_file;
use anyhow::Result;
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::escape_control;
use rocmforge_text::tokenizer::{TokenKind, Tokenizer};
use serde::Serialize;

use crate::args::TokenizeArgs;
use crate::output::{self, Out};
use crate::prompt::Text;

pub fn run(args: &TokenizeArgs) -> Result<()> {
    let text = Text::read(&args.prompt, "")?;
    let file = model_file::open(args.model.model.as_ref(), &args.model.load)?;
    let tokenizer = model_file::need_tokenizer(&file, args.model.pre.as_deref())?;
    let bos = if args.no_bos {
        Bos::Never
    } else {
        Bos::AsFileSays
    };
    let ids = encode_prompt(&tokenizer, &text.bytes, bos, args.parse_special);
    let mut out = Out::new();
    if args.json {
        out.json(&Report {
            model: &file.label,
            tokenizer: tokenizer.kind_name(),
            pre: tokenizer.pre_name(),
            n_vocab: tokenizer.n_vocab(),
            n_bytes: text.bytes.len(),
            tokens: ids.iter().map(|&id| Token::of(&tokenizer, id)).collect(),
        })?;
    } else if args.ids {
        out.line(&serde_json::to_string(&ids)?)?;
    } else {
        for &id in &ids {
            out.line(&row(&tokenizer, id))?;
        }
    }
    out.finish()?;
    if !args.ids && !args.json {
        let (kind, pre) = (tokenizer.kind_name(), tokenizer.pre_name());
        output::note(&format!(
            "[{} tokens for {} bytes | {kind}, {pre} | vocabulary of {}]",
            ids.len(),
            text.bytes.len(),
            tokenizer.n_vocab()
        ));
    }
    Ok(())
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    tokenizer: &'a str,
    pre: &'a str,
    n_vocab: usize,
    /// Of the text.
    n_bytes: usize,
    tokens: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    id: TokenId,
    /// `None` for a part of a UTF-8 character.
    text: Option<&'a str>,
    bytes: &'a [u8],
    kind: &'static str,
}

impl Token<'_> {
    fn of(tokenizer: &Tokenizer, id: TokenId) -> Token<'_> {
        let bytes = tokenizer.token_bytes(id);
        Token {
            id,
            text: std::str::from_utf8(bytes).ok(),
            bytes,
            kind: kind(tokenizer, id),
        }
    }
}

fn kind(tokenizer: &Tokenizer, id: TokenId) -> &'static str {
    match tokenizer.token_kind(id) {
        Some(TokenKind::Normal) | None => "normal",
        Some(TokenKind::Byte) => "byte",
        Some(TokenKind::Control) => "control",
        Some(TokenKind::Unknown) => "unknown",
        Some(TokenKind::UserDefined) => "user-defined",
        Some(TokenKind::Unused | TokenKind::Undefined) => "unused",
    }
}

/// Formats `  4021  "Once"`, with the kind if it is not normal text.
fn row(tokenizer: &Tokenizer, id: TokenId) -> String {
    let bytes = tokenizer.token_bytes(id);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => format!("\"{}\"", escape_control(text)),
        // A part of a UTF-8 character.
        Err(_) => bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
    };
    let kind = match kind(tokenizer, id) {
        "normal" => String::new(),
        kind => format!("  {kind}"),
    };
    format!("{id:>7}  {text}{kind}")
}
