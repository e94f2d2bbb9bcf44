//! Reads a prompt from a flag, a file or a pipe.

use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;

use anyhow::{Context as _, Result, anyhow};

use crate::args::PromptArgs;
use crate::exit::usage;
use crate::input::{read_bounded, read_file};

/// The bytes of a prompt.
pub struct Text {
    pub bytes: Vec<u8>,
    pub source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Flag,
    File,
    Stdin,
}

impl Text {
    /// Reads the prompt. A pipe's last newline, which shells add, is removed; a file is read unchanged.
    pub fn read(args: &PromptArgs, also: &str) -> Result<Text> {
        if let Some(prompt) = &args.prompt {
            return Ok(Text {
                bytes: prompt.as_bytes().to_vec(),
                source: Source::Flag,
            });
        }
        let stdin = io::stdin();
        if let Some(path) = &args.file {
            if path.as_os_str() == "-" {
                return Ok(Text {
                    bytes: read_bounded(stdin).context("cannot read stdin")?,
                    source: Source::Stdin,
                });
            }
            return Ok(Text {
                bytes: read_file(path)?,
                source: Source::File,
            });
        }
        if stdin.is_terminal() {
            return Err(usage(format!(
                "no prompt; use -p TEXT, -f FILE{also} or a pipe"
            )));
        }
        let mut bytes = read_bounded(stdin).context("cannot read stdin")?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Ok(Text {
            bytes,
            source: Source::Stdin,
        })
    }

    /// Returns the text, which must be UTF-8.
    pub fn into_string(self) -> Result<String> {
        String::from_utf8(self.bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            anyhow!("the prompt is not valid UTF-8 (byte {at}); convert it, e.g. with iconv")
        })
    }
}
