//! `rocmforge completions`: what a shell needs to complete our command line.

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

/// The command line without the commands that only the program itself calls.
fn shown(all: &Command) -> Command {
    let commands = all.get_subcommands().filter(|sub| !sub.is_hide_set());
    Command::new(NAME)
        .args(all.get_arguments())
        .subcommands(commands)
}
