//! A front end over the engine's handle: serves two clients at once, each on its own thread, and aborts the answer to
//! one of them after a few tokens.
//!
//! `cargo run --release -p rocmforge --example two_streams -- model.gguf [DEVICE]`
use std::error::Error;
use std::thread;

use rocmforge::{ContextPolicy, Device, FinishReason, Model};
use rocmforge_engine::serve::{Handle, StreamEvent};
use rocmforge_engine::{BlockUsage, Request};

/// Tokens after which the second client has seen enough.
pub(crate) const ENOUGH: usize = 5;

/// What a client got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) prompt: &'static str,
    pub(crate) text: String,
    pub(crate) n_tokens: usize,
    pub(crate) reason: FinishReason,
}

#[cfg_attr(test, expect(dead_code, reason = "tests call `serve_two`"))]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: two_streams MODEL [DEVICE]")?;
    let device = args.next().map_or(Ok(Device::Auto), |name| name.parse())?;
    let (answers, blocks) = serve_two(&path, device)?;
    for answer in answers {
        let Answer {
            prompt,
            text,
            n_tokens,
            reason,
        } = answer;
        println!("{prompt:?}: {n_tokens} tokens, {reason:?}: {text:?}");
    }
    println!("{} of {} KV-cache blocks in use", blocks.used, blocks.total);
    Ok(())
}

/// Returns both answers, and the KV cache after them.
pub(crate) fn serve_two(
    path: &str,
    device: Device,
) -> Result<([Answer; 2], BlockUsage), Box<dyn Error>> {
    let session = Model::open(path)?.device(device).context(256).start()?;
    let mut clients = Vec::new();
    let requests = [
        ("Once upon a time", 60, usize::MAX),
        // Without an end of its own.
        ("The fox", usize::MAX, ENOUGH),
    ];
    for (prompt, max_tokens, enough) in requests {
        let request = Request {
            ignore_eos: true,
            context_policy: Some(ContextPolicy::Shift { n_sinks: 4 }),
            ..Request::greedy(session.encode(prompt)?, max_tokens)
        };
        let handle = session.handle().clone();
        clients.push(thread::spawn(move || {
            client(&handle, prompt, request, enough)
        }));
    }
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.join().map_err(|_| "a client panicked")??);
    }
    let blocks = session.handle().stats().blocks;
    let answers = answers.try_into().map_err(|_| "two clients")?;
    Ok((answers, blocks))
}

/// Reads the answer to one request; asks for its end when there are `enough` tokens.
fn client(
    handle: &Handle,
    prompt: &'static str,
    request: Request,
    enough: usize,
) -> Result<Answer, String> {
    let mut stream = handle.submit(request).map_err(|error| error.to_string())?;
    let (mut answer, mut n_tokens) = (String::new(), 0);
    while let Some(event) = stream.next() {
        match event {
            StreamEvent::Tokens { tokens, text, .. } => {
                answer += &text;
                n_tokens += tokens.len();
                if n_tokens >= enough {
                    stream.abort();
                }
            }
            StreamEvent::Finished { reason, text } => {
                return Ok(Answer {
                    prompt,
                    text: answer + &text,
                    n_tokens,
                    reason,
                });
            }
            StreamEvent::Failed(failure) => return Err(failure.to_string()),
            StreamEvent::PromptScores(_)
            | StreamEvent::Embedding(_)
            | StreamEvent::PromptDone { .. } => {}
        }
    }
    Err("the stream has no end".to_string())
}
