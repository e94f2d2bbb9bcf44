//! The `rocmforge` command: parses the command line, runs the command and reports errors.
#![forbid(unsafe_code)]
#![allow(
    unreachable_pub,
    reason = "a program has no public API; pub means visible to its other files"
)]

mod answer;
mod args;
mod baseline;
mod bench;
mod chat;
mod check;
mod compare;
mod completions;
mod conversation;
mod devices;
mod doctor;
mod embed;
mod embedded;
mod exit;
mod external;
mod flags;
mod found_drafter;
mod generate;
mod help;
mod imatrix;
mod input;
mod inspect;
mod interrupt;
mod lines;
mod man;
mod messages;
mod model_file;
mod models;
mod output;
mod peaks;
mod perplexity;
mod profile;
mod program;
mod prompt;
#[cfg(feature = "pull")]
mod pull;
mod quantize;
mod reasoning;
#[cfg(feature = "pull")]
mod recommend;
mod rerank;
mod resolve;
mod sensors;
mod serve;
mod session;
mod speculation;
mod structure;
mod supported;
mod tokenize;
mod tune;
mod version;
mod wrap;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use rocmforge_text::chat_template::sandbox;

use args::{Cli, Command};

/// Stack of the program's own thread. What the shell allows (`ulimit -s`) may be too little for the parsers.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let thread = std::thread::Builder::new()
        .name("main".into())
        .stack_size(STACK_BYTES);
    match thread.spawn(start).map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic's message is on stderr; 101 is the code of a panic on the main thread.
        Ok(Err(_)) => ExitCode::from(101),
        Err(error) => report(&anyhow::anyhow!(
            "cannot start a thread: {error}; raise the limits on memory and threads (ulimit -v, ulimit -u)"
        )),
    }
}

fn start() -> ExitCode {
    let args = args::with_long_names(std::env::args_os());
    let command = help::with_screens(Cli::command(), &args);
    let matches = command.try_get_matches_from(&args);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return show(&error, &args),
    };
    if cli.quiet {
        output::be_quiet();
    }
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Rerank(args) => rerank::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Quantize(args) => quantize::run(args),
        Command::Imatrix(args) => imatrix::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Baseline(args) => baseline::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Profile(args) => profile::run(args),
        Command::ProfileWith(args) => external::run(args),
        Command::Check(args) => check::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Models(args) => models::run(args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => pull::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        Command::DoctorPart(args) => doctor::run_part(args),
        Command::RenderTemplate => Ok(sandbox::serve()?),
    }
}

/// Prints clap's message: help and version on stdout, wrong usage on stderr.
fn show(message: &clap::Error, args: &[OsString]) -> ExitCode {
    match message.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            match output::checked(message.print()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => report(&error),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed stderr leaves nothing to report on.
            let _ = message.print();
            ExitCode::from(2)
        }
        _ => {
            output::say(&help::wrong_usage(message, &Cli::command(), args));
            ExitCode::from(2)
        }
    }
}

/// Prints the error's message on stderr and returns its exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    let (code, message) = exit::code_and_message(error);
    if let Some(message) = message {
        output::say(&format!("error: {message}"));
    }
    ExitCode::from(code)
}
