//! `rocmforge completions`: prints shell completion scripts.

use anyhow::Result;
use clap::{Command, CommandFactory as _};

use crate::args::{Cli, CompletionsArgs};
use crate::output::Out;

const NAME: &str = "rocmforge";

pub fn run(args: &CompletionsArgs) -> Result<()> {
    let mut command = shown(&Cli::command());
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.finish()
}

/// Returns the command definition without hidden commands.
fn shown(all: &Command) -> Command {
    let commands = all.get_subcommands().filter(|sub| !sub.is_hide_set());
    Command::new(NAME)
        .args(all.get_arguments())
        .subcommands(commands)
}
