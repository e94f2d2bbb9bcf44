//! `rocmforge generate`: completes a text or answers a message.

use crate::resolve;
use rocmforge::parts::{Bos, encode_prompt};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rocmforge_cpu::memory::available_bytes;
use rocmforge_engine::kv_cache::ContextShifts;
use rocmforge_engine::serve::Server;
use rocmforge_engine::{ContextPolicy, FinishReason, PromptOutput, Request};
use rocmforge_gguf::TokenId;
use rocmforge_plan::TokenLogprob;
use rocmforge_runtime::gpu::WhenIdle;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};
use serde::Serialize;

use crate::answer::{self, Answer};
use crate::args::GenerateArgs;
use crate::conversation;
use crate::exit::{Early, usage};
use crate::interrupt::Interrupt;
use crate::messages::Messages;
use crate::output::{self, Out};
use crate::prompt::{Source, Text};
use crate::reasoning::{Reasoning, Show};
use crate::session::{Session, Vocabulary};
use crate::speculation;
use crate::structure;
use rocmforge::Message;

pub fn run(args: &GenerateArgs) -> Result<()> {
    if !args.chat && (args.template.system.is_some() || args.template.think.is_some()) {
        return Err(usage("--system and --think require --chat"));
    }
    let sampling = resolve::sampling(&args.sampling)?;
    let interrupt = Interrupt::install()?;
    // Before the model is loaded, to report a wrong path early.
    let messages = args.messages.as_deref().map(Messages::read).transpose()?;
    let structure = structure::read(&args.structure)?;
    let text = match (&args.ids, &messages) {
        (None, None) => Some(Text::read(&args.prompt, ", --ids 1,2,3")?),
        _ => None,
    };
    let vocabulary = if args.ids.is_none() || structure.is_some() {
        Vocabulary::Needed
    } else {
        Vocabulary::Optional
    };
    let session = Session::start_drafting(
        &args.model,
        &args.device,
        vocabulary,
        resolve::answer_config(&args.device, &args.context, WhenIdle::Wait)?,
        &args.speculation.speculate,
    )?
    .serve()?;

    let started = Instant::now();
    let mut out = Out::new();
    let Prepared {
        prompt,
        context_policy,
        reasoning,
    } = match (text, messages) {
        (Some(text), _) if args.chat => {
            let turns = vec![Message::new("user", text.into_string()?)];
            let system = None;
            converse(args, &session, Messages { system, turns })?
        }
        (None, Some(messages)) => converse(args, &session, messages)?,
        (Some(text), _) => Prepared::of(encode(args, &session, text, &out)?),
        (None, None) => Prepared::of(args.ids.as_ref().map_or_else(Vec::new, |ids| ids.0.clone())),
    };
    let tokenize = started.elapsed();

    let leading_space = if args.chat {
        LeadingSpace::Strip
    } else {
        LeadingSpace::Keep
    };
    let mut request = args
        .answer
        .request(prompt.clone(), &sampling, leading_space);
    request.context_policy = context_policy;
    request.logprobs = args.logprobs;
    if let Some(top) = args.prompt_logprobs {
        request.prompt_output = PromptOutput::Scores { from: 1, top };
    }
    // Without a structure, reasoning is part of the text.
    let mut reasoning = reasoning.filter(|_| structure.is_some());
    if let Some(source) = &structure {
        let tokenizer = session.need_tokenizer()?;
        let constraint = structure::constraint(source, tokenizer)?;
        request.constraint = Some(match &reasoning {
            None => constraint,
            Some(reasoning) => reasoning.before(tokenizer, constraint),
        });
        if reasoning.is_some() {
            // Its end may be a control token.
            request.special_text = SpecialText::Show;
        }
    }
    check_report(&request, &session)?;
    let mut answered = String::new();
    let mut show = |text: &str| {
        answered.push_str(text);
        if args.json { Ok(()) } else { out.stream(text) }
    };
    let mut answer = answer::run(&session, request, &interrupt, |text| match &mut reasoning {
        None => show(text),
        Some(reasoning) => show(&reasoning.push(text)),
    })?;
    let reasoning = reasoning.map(Reasoning::finish);
    let reasoning = reasoning.map(|(rest, reasoning)| show(&rest).map(|()| reasoning));
    let reasoning = reasoning.transpose()?.filter(|text| !text.is_empty());
    answer.text = answered;
    let times = Times::of(&answer, session.load_time, tokenize);
    let drafts = speculation::Report::of(&session.engine, answer.progress)?;
    if args.json {
        out.json(&Report::new(
            args,
            &session,
            &prompt,
            &answer,
            reasoning.as_deref(),
            (&times, drafts.as_ref()),
            sampling.seed,
        ))?;
    } else if out.is_terminal() && !answer.text.ends_with('\n') {
        out.line("")?;
    }
    let mid_line = !args.json && !out.is_terminal() && !answer.text.ends_with('\n');
    out.finish()?;
    // A pipe such as `| tee` may also end on the terminal.
    if mid_line && (io::stderr().is_terminal() || output::are_one()) {
        output::note("");
    }
    output::note(&times.line(&answer, &session, sampling.seed));
    if let Some(drafts) = &drafts {
        output::note(&format!("({})", drafts.line()));
    }
    if let Some(line) = shifted(&session.engine.stats().context_shifts) {
        output::note(&format!("({line})"));
    }
    match answer.finish {
        None => Err(Early::Interrupted.into()),
        Some(FinishReason::Context) => {
            output::note(&context_full(&session));
            Ok(())
        }
        Some(
            FinishReason::Stop(_)
            | FinishReason::Length
            | FinishReason::Aborted
            | FinishReason::Deadline,
        ) => Ok(()),
    }
}

/// Memory per log-probability in the report: the pair and its JSON text.
const REPORT_BYTES: usize = 80;

/// Rejects log-probabilities that would not fit in memory.
fn check_report(request: &Request, session: &Session<Server>) -> Result<()> {
    let n_vocab = session
        .tokenizer
        .as_ref()
        .map_or(usize::MAX, |t| t.n_vocab());
    let n_prompt = request.prompt.len();
    let n_answer = match session.config.context_policy {
        ContextPolicy::Stop => request.max_tokens.min(session.engine.n_ctx()),
        ContextPolicy::Shift { .. } => request.max_tokens,
    };
    let of_prompt = match request.prompt_output {
        PromptOutput::Scores { top, .. } => n_prompt.saturating_mul(top.min(n_vocab)),
        PromptOutput::Logits { .. } | PromptOutput::Embedding(_) | PromptOutput::Nothing => 0,
    };
    let of_answer = n_answer.saturating_mul(request.logprobs.unwrap_or(0).min(n_vocab));
    let needed = of_prompt
        .saturating_add(of_answer)
        .saturating_mul(REPORT_BYTES) as u64;
    let free = available_bytes().unwrap_or(u64::MAX) / 2;
    if needed > free {
        bail!(
            "the log-probabilities may need {} MiB, {} MiB are available; reduce --prompt-logprobs or --logprobs",
            needed >> 20,
            free >> 20
        );
    }
    Ok(())
}

/// Returns the notice for an answer that filled the context.
pub fn context_full(session: &Session<Server>) -> String {
    format!(
        "notice: the context of {} tokens is full; increase --ctx or use --context-policy shift",
        session.engine.n_ctx()
    )
}

/// Describes the context shifts, if there were any.
pub fn shifted(shifts: &ContextShifts) -> Option<String> {
    let plural = if shifts.n_shifts == 1 { "" } else { "s" };
    (shifts.n_shifts > 0).then(|| {
        format!(
            "context shifted {} time{plural}, {} tokens dropped | empty slots {:.0} % before compaction, {:.0} % after",
            shifts.n_shifts,
            shifts.n_tokens,
            shifts.compaction.before.fragmentation() * 100.0,
            shifts.compaction.after.fragmentation() * 100.0,
        )
    })
}

/// A prompt, and what its answer begins with.
struct Prepared {
    prompt: Vec<TokenId>,
    /// The context policy, if it differs from the session's.
    context_policy: Option<ContextPolicy>,
    /// The reasoning before the answer.
    reasoning: Option<Reasoning>,
}

impl Prepared {
    fn of(prompt: Vec<TokenId>) -> Prepared {
        Prepared {
            prompt,
            context_policy: None,
            reasoning: None,
        }
    }
}

/// Returns the prompt of a conversation.
fn converse(
    args: &GenerateArgs,
    session: &Session<Server>,
    messages: Messages,
) -> Result<Prepared> {
    let mut conversation = conversation::begin(session, &args.template)?;
    messages.put_into(&mut conversation);
    let context_policy = conversation::context_policy(&conversation, session, &args.context)?;
    let prompt = conversation.prompt(session.need_tokenizer()?, conversation::fit(session))?;
    let show = match args.json {
        true => Show::Nowhere,
        false => Show::Stderr,
    };
    Ok(Prepared {
        reasoning: Reasoning::before_answer(&prompt.text, conversation.format(), show),
        prompt: prompt.ids,
        context_policy,
    })
}

fn encode(
    args: &GenerateArgs,
    session: &Session<Server>,
    text: Text,
    out: &Out,
) -> Result<Vec<TokenId>> {
    let tokenizer = session.need_tokenizer()?;
    let source = text.source;
    let text = text.into_string()?;
    // On a terminal, the answer continues the prompt's line.
    if source == Source::Flag && !args.json && out.is_terminal() && io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "{}", output::for_terminal(&text));
    }
    Ok(encode_prompt(
        tokenizer,
        text.as_bytes(),
        Bos::AsFileSays,
        args.parse_special,
    ))
}

/// The times of one answer; null if not measured.
#[derive(Debug, Serialize)]
pub struct Times {
    load_ms: f64,
    tokenize_ms: f64,
    prefill_ms: f64,
    /// Time to first token, including tokenization.
    ttft_ms: Option<f64>,
    decode_ms: f64,
    prompt_per_second: Option<f64>,
    predicted_per_second: Option<f64>,
}

impl Times {
    pub fn of(answer: &Answer, load: Duration, tokenize: Duration) -> Times {
        Times {
            load_ms: ms(load),
            tokenize_ms: ms(tokenize),
            prefill_ms: ms(answer.prefill),
            ttft_ms: (!answer.ids.is_empty()).then(|| ms(tokenize + answer.prefill)),
            decode_ms: ms(answer.decode),
            prompt_per_second: answer.prompt_per_second().map(rounded),
            predicted_per_second: answer.predicted_per_second().map(rounded),
        }
    }

    fn line(&self, answer: &Answer, session: &Session<Server>, seed: u64) -> String {
        let first = self
            .ttft_ms
            .map_or("n/a".to_string(), |ms| format!("{ms:.0} ms"));
        format!(
            "[{} | load {:.0} ms | prompt {} | answer {} | first token {first} | seed {seed} | {}]",
            session.file.label,
            self.load_ms,
            speed(answer.n_prompt, self.prompt_per_second),
            speed(answer.ids.len(), self.predicted_per_second),
            session.engine.backend_info().device,
        )
    }
}

/// `12 tokens, 345.6 tok/s`.
pub fn speed(n_tokens: usize, per_second: Option<f64>) -> String {
    let plural = if n_tokens == 1 { "" } else { "s" };
    match per_second {
        Some(per_second) => format!("{n_tokens} token{plural}, {per_second:.1} tok/s"),
        None => format!("{n_tokens} token{plural}"),
    }
}

fn ms(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3)
}

/// Rounds to three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    seed: u64,
    prompt_ids: &'a [TokenId],
    ids: &'a [TokenId],
    text: &'a str,
    /// What came before a text of a given structure.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [Vec<TokenLogprob>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<&'a [TokenLogprob]>>>,
    /// Log-probabilities of the prompt's own tokens; null for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_logprobs: Option<Vec<Option<f32>>>,
    timings: &'a Times,
    /// Only with `--speculate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<&'a speculation::Report>,
    /// Only with `--context-policy shift`.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_shifts: Option<ShiftReport>,
    /// GEMMs per step without a fast kernel, by weight format.
    slow_ops: serde_json::Map<String, serde_json::Value>,
}

impl<'a> Report<'a> {
    fn new(
        args: &GenerateArgs,
        session: &'a Session<Server>,
        prompt: &'a [TokenId],
        answer: &'a Answer,
        reasoning: Option<&'a str>,
        (times, drafts): (&'a Times, Option<&'a speculation::Report>),
        seed: u64,
    ) -> Report<'a> {
        let info = session.engine.backend_info();
        let scores = args.prompt_logprobs.map(|_| &answer.prompt_scores);
        Report {
            model: &session.file.label,
            device: &info.device,
            seed,
            prompt_ids: prompt,
            ids: &answer.ids,
            text: &answer.text,
            reasoning,
            finish_reason: match answer.finish {
                Some(FinishReason::Stop(_)) => "stop",
                Some(FinishReason::Length) => "length",
                Some(FinishReason::Context) => "context",
                Some(FinishReason::Deadline) => "deadline",
                Some(FinishReason::Aborted) | None => "interrupted",
            },
            logprobs: args.logprobs.map(|_| answer.top.as_slice()),
            prompt_logprobs: scores
                .map(|scores| first_null(scores.iter().map(|(_, top)| top.as_slice()))),
            prompt_token_logprobs: scores
                .map(|scores| first_null(scores.iter().map(|(logprob, _)| *logprob))),
            timings: times,
            speculation: drafts,
            context_shifts: (session.config.context_policy != ContextPolicy::Stop)
                .then(|| ShiftReport::from(session.engine.stats().context_shifts)),
            slow_ops: info
                .slow_ops
                .iter()
                .map(|(name, n)| (name.clone(), (*n).into()))
                .collect(),
        }
    }
}

/// Number of shifts, dropped tokens, and share of empty slots at the last shift.
#[derive(Debug, Serialize)]
struct ShiftReport {
    n_shifts: usize,
    n_forgotten: usize,
    fragmentation_before: f64,
    fragmentation_after: f64,
}

impl From<ContextShifts> for ShiftReport {
    fn from(shifts: ContextShifts) -> ShiftReport {
        ShiftReport {
            n_shifts: shifts.n_shifts,
            n_forgotten: shifts.n_tokens,
            fragmentation_before: shifts.compaction.before.fragmentation(),
            fragmentation_after: shifts.compaction.after.fragmentation(),
        }
    }
}

/// The first token of a prompt has no score.
fn first_null<T>(rest: impl Iterator<Item = T>) -> Vec<Option<T>> {
    [None].into_iter().chain(rest.map(Some)).collect()
}
