//! `rocmforge chat`: an interactive chat.
//!
//! Every turn renders the whole conversation with the chat template; the engine reuses the part that is in its KV cache
//! and computes only the rest.

use crate::resolve;
use rocmforge::parts::Conversation;
use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use rocmforge_engine::serve::Server;
use rocmforge_engine::{ContextPolicy, EngineError, FinishReason, RequestError};
use rocmforge_gguf::{Existing, NewFile, TokenId};
use rocmforge_plan::SamplingParams;
use rocmforge_runtime::gpu::WhenIdle;
use rocmforge_text::tokenizer::LeadingSpace;

use crate::answer::{self, Answer};
use crate::args::{AnswerArgs, ChatArgs};
use crate::conversation;
use crate::exit::{Early, usage};
use crate::generate::{context_full, shifted, speed};
use crate::interrupt::Interrupt;
use crate::lines::{Input, Lines, Remember};
use crate::messages::Messages;
use crate::output::{self, Out, note, say};
use crate::session::{Session, Vocabulary};
use crate::speculation;
use crate::wrap::{self, Wrap};
use rocmforge::Message;

const COMMANDS: &str = "\
/help          show this list
/clear         clear the conversation
/system TEXT   set the system prompt; /system none removes it
/save FILE     save the conversation as JSON; asks before it replaces a file
/load FILE     replace the conversation by a saved one
/set NAME X    change an option of sampling or the answer, as in /set temp 0.5
/undo          remove the last message and its answer
/regen         answer the last message again
/stats         show tokens and speed of the last answer
/quit          end the chat (also Ctrl-D)
Ctrl-C stops an answer. A backslash at the end of a line continues it on the next; \"\"\" starts and ends a
message of several lines. To send a line that starts with a slash, put a space before it.";

pub fn run(args: &ChatArgs) -> Result<()> {
    let sampling = resolve::sampling(&args.sampling)?;
    let interrupt = Interrupt::install()?;
    let session = Session::start_drafting(
        &args.model,
        &args.device,
        Vocabulary::Needed,
        resolve::answer_config(&args.device, &args.context, WhenIdle::Tune)?,
        &args.speculation.speculate,
    )?
    .serve()?;
    let conversation = conversation::begin(&session, &args.template)?;
    conversation.check()?;
    let context_policy = conversation::context_policy(&conversation, &session, &args.context)?;
    let mut lines = Lines::open(if args.no_history {
        Remember::No
    } else {
        Remember::Yes
    })?;
    if lines.is_interactive() {
        let (label, device) = (&session.file.label, &session.engine.backend_info().device);
        note(&format!(
            "{label} on {device}, context {} tokens. /help lists the commands.",
            session.engine.n_ctx()
        ));
    }
    let mut chat = Chat {
        args,
        settings: Vec::new(),
        answer: args.answer.clone(),
        sampling,
        interactive: lines.is_interactive(),
        interrupt,
        session,
        conversation,
        context_policy,
        last: None,
        out: Out::new(),
    };
    loop {
        let message = match lines.next()? {
            Input::Message(message) => message,
            Input::GivenUp => {
                note("(Ctrl-D or /quit ends the chat)");
                continue;
            }
            Input::End => break,
        };
        if message.trim().is_empty() {
            continue;
        }
        if let Some(command) = message.strip_prefix('/') {
            match chat.command(command, &mut lines) {
                Ok(Next::Go) => {}
                Ok(Next::Quit) => break,
                Err(error) if lines.is_interactive() => say(&format!("error: {error:#}")),
                Err(error) => return Err(error),
            }
            continue;
        }
        match chat.turn(message.trim()) {
            Ok(()) => {}
            // A user can shorten the message or clear the conversation; a script ends.
            Err(error) if lines.is_interactive() && !error.is::<Early>() => {
                say(&format!("error: {error:#}"))
            }
            Err(error) => return Err(error),
        }
    }
    chat.out.finish()
}

/// Replaces a leading `~/` by the home folder, as a shell does.
fn below_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) if !home.is_empty() => Path::new(&home).join(rest),
        _ => path.into(),
    }
}

/// What `/save` did.
enum Saved {
    Yes,
    /// The user keeps the file that exists.
    Declined,
}

/// What follows a command.
enum Next {
    Go,
    Quit,
}

struct Chat<'a> {
    args: &'a ChatArgs,
    /// The options that `/set` changed.
    settings: Vec<String>,
    answer: AnswerArgs,
    sampling: Arc<SamplingParams>,
    interactive: bool,
    interrupt: Interrupt,
    session: Session<Server>,
    conversation: Conversation,
    /// Policy of the answers, where it differs from the session's; it depends on the system prompt.
    context_policy: Option<ContextPolicy>,
    last: Option<Answer>,
    out: Out,
}

impl Chat<'_> {
    /// Answers one message. An error leaves the conversation unchanged.
    fn turn(&mut self, message: &str) -> Result<()> {
        self.conversation.push(Message::new("user", message));
        let answer = match self.answer() {
            Ok(answer) => answer,
            Err(error) => {
                self.conversation.pop();
                return Err(match error.downcast_ref::<EngineError>() {
                    Some(EngineError::Request(RequestError::PromptTooLong { n_tokens, n_ctx })) => {
                        anyhow!(
                            "the conversation has {n_tokens} tokens and exceeds the context of {n_ctx}; \
                         use /clear to start over, or a larger --ctx"
                        )
                    }
                    _ => error,
                });
            }
        };
        // Ends the answer with a newline and, on a terminal, an empty line.
        let missing = usize::from(!answer.text.ends_with('\n'))
            + usize::from(self.out.is_terminal() && !answer.text.ends_with("\n\n"));
        self.out.stream(&"\n".repeat(missing))?;
        match answer.finish {
            None if !self.interactive => return Err(Early::Interrupted.into()),
            None => say("(stopped)"),
            Some(FinishReason::Context) => note(&context_full(&self.session)),
            Some(FinishReason::Length) => note("(stopped at --max-tokens)"),
            Some(FinishReason::Stop(_) | FinishReason::Aborted | FinishReason::Deadline) => {}
        }
        self.conversation
            .push(Message::new("assistant", answer.text.clone()));
        self.last = Some(answer);
        Ok(())
    }

    fn answer(&mut self) -> Result<Answer> {
        let prompt = self.prompt()?;
        let mut request = self
            .answer
            .request(prompt, &self.sampling, LeadingSpace::Strip);
        request.context_policy = self.context_policy;
        let out = &mut self.out;
        if !out.is_terminal() {
            return answer::run(&self.session, request, &self.interrupt, |text| {
                out.stream(text)
            });
        }
        let mut wrap = Wrap::default();
        let answer = answer::run(&self.session, request, &self.interrupt, |text| {
            let width = wrap::terminal_width(&io::stdout());
            out.stream(&wrap.push(&output::for_terminal(text), width))
        });
        out.stream(&wrap.end(wrap::terminal_width(&io::stdout())))?;
        answer
    }

    /// Returns the conversation as tokens; says so if its first messages no longer fit.
    fn prompt(&mut self) -> Result<Vec<TokenId>> {
        let fit = conversation::fit(&self.session);
        let tokenizer = self.session.need_tokenizer()?;
        let prompt = self.conversation.prompt(tokenizer, fit)?;
        if let Some(n) = prompt.newly_left_out {
            note(&format!(
                "(the first {n} messages no longer fit in the context and were dropped)"
            ));
        }
        Ok(prompt.ids)
    }

    fn command(&mut self, command: &str, lines: &mut Lines) -> Result<Next> {
        let (name, argument) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let before = self.conversation.clone();
        match (name, argument.trim()) {
            ("help" | "?", _) => say(COMMANDS),
            ("quit" | "exit" | "q", _) => return Ok(Next::Quit),
            ("clear", _) => {
                self.conversation.clear();
                note("(conversation cleared)");
            }
            ("system", "") => match self.conversation.system() {
                Some(text) => say(&format!("(system: {})", output::for_terminal(text))),
                None => say("(no system prompt; set one with /system TEXT)"),
            },
            ("system", "none") => {
                self.set_system(None)?;
                note("(system prompt removed)");
            }
            ("system", text) => {
                self.set_system(Some(text.to_string()))?;
                note("(system prompt set, from the next message on)");
            }
            ("save", "") => return Err(usage("/save needs a file name")),
            ("save", path) => {
                let saved = self
                    .save(&below_home(path), lines)
                    .with_context(|| format!("cannot write '{path}'"))?;
                match saved {
                    Saved::Yes => note(&format!(
                        "(saved {} messages to {path})",
                        self.conversation.messages().len()
                    )),
                    Saved::Declined => note("(not saved)"),
                }
            }
            ("load", "") => return Err(usage("/load needs a file name")),
            ("load", path) => {
                Messages::read(&below_home(path))?.put_into(&mut self.conversation);
                self.keep_system_prompt()?;
                note(&format!(
                    "(loaded {} messages)",
                    self.conversation.messages().len()
                ));
            }
            ("set", "") => return Err(usage("/set needs an option, as in /set temp 0.5")),
            ("set", option) => {
                self.set(option)?;
                note("(set, from the next answer on)");
            }
            ("undo", _) => match self.conversation.undo() {
                Some(_) => note("(the last message and its answer are removed)"),
                None => return Err(usage("/undo: there is no message yet")),
            },
            ("regen", _) => match self.conversation.undo() {
                Some(message) => {
                    if let Err(error) = self.turn(&message) {
                        self.conversation = before;
                        return Err(error);
                    }
                }
                None => return Err(usage("/regen: there is no message yet")),
            },
            ("stats", _) => say(&self.stats()),
            _ => {
                return Err(usage(format!(
                    "unknown command /{}; see /help, or start the line with a space to send it",
                    output::for_terminal(name)
                )));
            }
        }
        Ok(Next::Go)
    }

    fn set_system(&mut self, system: Option<String>) -> Result<()> {
        self.conversation.set_system(system);
        self.keep_system_prompt()
    }

    /// Adapts the context policy to the system prompt.
    fn keep_system_prompt(&mut self) -> Result<()> {
        self.context_policy =
            conversation::context_policy(&self.conversation, &self.session, &self.args.context)?;
        Ok(())
    }

    /// Changes an option of the sampling or the answer: `NAME VALUE`.
    fn set(&mut self, option: &str) -> Result<()> {
        let mut settings = self.settings.clone();
        settings.push(option.to_string());
        let args = ChatArgs::with_settings(&settings).map_err(usage)?;
        self.sampling = resolve::sampling(&args.sampling)?;
        self.answer = args.answer;
        self.settings = settings;
        Ok(())
    }

    /// Writes the conversation. A conversation saved earlier is not lost to a slip.
    fn save(&self, path: &Path, lines: &mut Lines) -> Result<Saved> {
        let mut json =
            serde_json::to_string_pretty(&self.conversation.messages()).map_err(io::Error::from)?;
        json.push('\n');
        match File::create_new(path) {
            Ok(mut file) => file.write_all(json.as_bytes())?,
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            Err(_) if !lines.is_interactive() || !path.is_file() => {
                return Err(usage("it exists; choose another name, or remove it first"));
            }
            Err(_) if !lines.confirm("It exists. Replace it? [y/N] ")? => {
                return Ok(Saved::Declined);
            }
            Err(_) => {
                let mut file = NewFile::create(path, Existing::Replace)?;
                file.write_all(json.as_bytes())?;
                file.commit()?;
            }
        }
        Ok(Saved::Yes)
    }

    fn stats(&self) -> String {
        let Some(answer) = &self.last else {
            return "(no answer yet)".to_string();
        };
        let used = (answer.n_prompt + answer.ids.len()).min(self.session.engine.n_ctx());
        let shifts = self.session.engine.stats().context_shifts;
        let shifts = shifted(&shifts).map_or(String::new(), |line| format!(" | {line}"));
        // The line goes without it if the engine has ended; the next answer says why.
        let drafts = speculation::Report::of(&self.session.engine, answer.progress);
        let drafts = drafts.ok().flatten();
        let drafts = drafts.map_or(String::new(), |drafts| format!(" | {}", drafts.line()));
        format!(
            "(prompt {}, {} from the cache | answer {}{drafts} | first token {:.0} ms | context {used} of {}{shifts} | seed {})",
            speed(answer.n_prompt, answer.prompt_per_second()),
            answer.n_cached,
            speed(answer.ids.len(), answer.predicted_per_second()),
            answer.prefill.as_secs_f64() * 1e3,
            self.session.engine.n_ctx(),
            self.sampling.seed,
        )
    }
}
