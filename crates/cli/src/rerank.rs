//! `rocmforge rerank`: sorts documents by how well they answer a query.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use anyhow::Result;
use rocmforge::parts::{embed_each, pair_tokens};
use rocmforge_model::Pooling;
use serde::Serialize;

use crate::args::{PromptArgs, RerankArgs};
use crate::embed::{lines, start};
use crate::exit::usage;
use crate::output::{self, Out};
use crate::prompt::Text;

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    query: &'a str,
    results: Vec<Ranked<'a>>,
}

#[derive(Serialize)]
struct Ranked<'a> {
    /// Of the document, as given.
    index: usize,
    score: f32,
    n_tokens: usize,
    text: &'a str,
}

pub fn run(args: &RerankArgs) -> Result<()> {
    if args.quiet {
        output::be_quiet();
    }
    let documents = documents(args)?;
    let (session, embedding) = start(
        &args.model,
        (&args.device, &args.context, &args.batch),
        Some(Pooling::Rank),
    )?;
    let tokenizer = session.need_tokenizer()?;
    let gguf = &session.file.gguf;
    let tokens = |document: &String| pair_tokens(gguf, tokenizer, &args.query, document);
    let pairs: Vec<Vec<u32>> = documents.iter().map(tokens).collect();
    let lengths: Vec<usize> = pairs.iter().map(Vec::len).collect();
    let mut scores = Vec::with_capacity(pairs.len());
    embed_each(
        &session.engine,
        &Arc::default(),
        &embedding,
        pairs,
        |values| {
            scores.push(values[0]);
            ControlFlow::Continue(())
        },
    )?;
    let ranked = scores.into_iter().enumerate();
    let mut results: Vec<Ranked<'_>> = ranked
        .map(|(index, score)| Ranked {
            index,
            score,
            n_tokens: lengths[index],
            text: &documents[index],
        })
        .collect();
    results.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut out = Out::new();
    if args.json {
        out.json(&Report {
            model: &session.file.label,
            query: &args.query,
            results,
        })?;
    } else {
        for Ranked {
            index, score, text, ..
        } in results
        {
            let text = rocmforge_gguf::escape_control(text);
            out.line(&format!("{score:>9.4}  {index:>4}  {text}"))?;
        }
    }
    out.finish()
}

fn documents(args: &RerankArgs) -> Result<Vec<String>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !args.document.is_empty() {
        if args.lines {
            return Err(usage("--lines is for the documents of --file; omit it"));
        }
        let documents = args.document.iter();
        return Ok(documents
            .map(|document| text(document.as_bytes()))
            .collect());
    }
    let file = PromptArgs {
        prompt: None,
        file: args.file.clone(),
    };
    let read = Text::read(&file, "")?;
    Ok(match args.lines {
        true => lines(&read.bytes).into_iter().map(text).collect(),
        false => vec![text(&read.bytes)],
    })
}
