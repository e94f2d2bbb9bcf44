//! `rocmforge man`: manual pages, generated from the same definitions as `--help`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use rocmforge_gguf::{Existing, NewFile, escape_control};

use crate::args::{Cli, ManArgs};
use crate::exit::usage;
use crate::output::{self, Out};

pub fn run(args: &ManArgs) -> Result<()> {
    let mut top = Cli::command().disable_help_subcommand(true);
    top.build();
    if let Some(dir) = &args.dir {
        return write_all(&top, dir);
    }
    let mut command = &top;
    for name in &args.command {
        command = shown(command)
            .find(|sub| sub.get_name() == name)
            .ok_or_else(|| {
                let names: Vec<&str> = shown(command).map(Command::get_name).collect();
                usage(format!(
                    "'{}' is not a command; use one of: {}",
                    escape_control(name),
                    names.join(", ")
                ))
            })?;
    }
    let mut out = Out::new();
    out.bytes(&page(command)?.1)?;
    out.finish()
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// Returns a page's file name and roff text.
fn page(command: &Command) -> Result<(String, Vec<u8>)> {
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render(&mut text).context("cannot render the page")?;
    Ok((man.get_filename(), text))
}

/// Writes one page per command.
fn write_all(top: &Command, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", name(dir)))?;
    let mut left = vec![top];
    let mut n = 0;
    while let Some(command) = left.pop() {
        left.extend(shown(command));
        let (file, text) = page(command)?;
        write(&dir.join(&file), &text)
            .with_context(|| format!("cannot write {file} in {}", name(dir)))?;
        n += 1;
    }
    output::note(&format!("{n} pages in {}", name(dir)));
    Ok(())
}

/// Writes a file atomically.
fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut file = NewFile::create(path, Existing::Replace)?;
    file.write_all(text)?;
    file.commit()
}

fn name(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}
