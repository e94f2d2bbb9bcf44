//! `rocmforge embed`: computes embeddings of texts.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use rocmforge::parts::{embed_each, text_tokens};
use rocmforge_engine::EngineConfig;
use rocmforge_engine::serve::Server;
use rocmforge_model::{Embedding, Pooling, Purpose};
use serde::Serialize;

use crate::args::{BatchArgs, ContextArgs, DeviceArgs, EmbedArgs, ModelArgs};
use crate::output::Out;
use crate::prompt::Text;
use crate::resolve;
use crate::session::{Session, Vocabulary};

/// Texts that are under way at a time.
const MAX_SEQS: usize = 64;

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    embedding: &'a [f32],
    n_tokens: usize,
    pooling: &'static str,
}

pub fn run(args: &EmbedArgs) -> Result<()> {
    let text = Text::read(&args.prompt, "")?;
    let texts = if args.lines {
        lines(&text.bytes)
    } else {
        vec![text.bytes.as_slice()]
    };
    let pooling = args.pooling.map(Pooling::from);
    let (session, embedding) = start(
        &args.model,
        (&args.device, &args.context, &args.batch),
        pooling,
    )?;
    let tokenizer = session.need_tokenizer()?;
    let (mut out, mut printed) = (Out::new(), Ok(()));
    let n_tokens = |text: &[u8]| text_tokens(tokenizer, text);
    let mut ids = Vec::with_capacity(texts.len());
    ids.extend(texts.into_iter().map(n_tokens));
    let mut lengths = ids.iter().map(Vec::len).collect::<Vec<_>>().into_iter();
    embed_each(
        &session.engine,
        &Arc::default(),
        &embedding,
        ids,
        |values| {
            let n_tokens = lengths.next().expect("a result for each text");
            let report = Report {
                embedding: &values,
                n_tokens,
                pooling: embedding.pooling.name(),
            };
            printed = print(&mut out, args, &report);
            match printed {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        },
    )?;
    printed?;
    out.finish()
}

fn print(out: &mut Out, args: &EmbedArgs, report: &Report<'_>) -> Result<()> {
    if args.json && args.lines {
        out.line(&serde_json::to_string(report)?)
    } else if args.json {
        out.json(report)
    } else {
        let values: Vec<String> = report.embedding.iter().map(f32::to_string).collect();
        out.line(&values.join(" "))
    }
}

/// Returns the lines of a text. A newline at its end begins no line.
pub fn lines(text: &[u8]) -> Vec<&[u8]> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let lines = text.split(|&byte| byte == b'\n');
    lines
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .collect()
}

/// Starts a model for embeddings.
pub fn start(
    model: &ModelArgs,
    (device, context, batch): (&DeviceArgs, &ContextArgs, &BatchArgs),
    pooling: Option<Pooling>,
) -> Result<(Session<Server>, Embedding)> {
    let mut config = resolve::engine_config(device, context.n_ctx())?;
    config.max_seqs = MAX_SEQS;
    let batch_tokens = batch.batch_tokens.map(|n| n as usize);
    let session = Session::start_for(
        Purpose::Embeddings(pooling),
        model,
        device,
        Vocabulary::Needed,
        |model| match batch_tokens {
            Some(max_batch_tokens) => EngineConfig {
                max_batch_tokens,
                ..config
            },
            None => config.with_whole_texts(model),
        },
    )?;
    let embedding = session.model.config.embedding.clone();
    let embedding = embedding.expect("it was loaded for embeddings");
    Ok((session.serve()?, embedding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lines() {
        let all = |text: &str| -> Vec<String> {
            let lines = lines(text.as_bytes());
            let text = |line: &[u8]| String::from_utf8(line.to_vec()).unwrap();
            lines.into_iter().map(text).collect()
        };
        assert_eq!(all("a\r\n\nb\n"), ["a", "", "b"]);
        assert_eq!(all("a"), ["a"]);
    }
}
