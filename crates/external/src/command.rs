//! A command as data, which can be printed, compared and run.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::process::Command;

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    pub program: OsString,
    pub args: Vec<OsString>,
}

impl CommandLine {
    pub fn new(program: impl Into<OsString>) -> CommandLine {
        CommandLine {
            program: program.into(),
            args: Vec::new(),
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> CommandLine {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> CommandLine {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Appends the command to profile.
    pub(super) fn application(self, app: &OsStr, args: &[OsString]) -> CommandLine {
        self.arg(app).args(args.iter().cloned())
    }

    pub fn to_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command
    }

    /// Returns the program's file name.
    pub fn name(&self) -> String {
        let path = std::path::Path::new(&self.program);
        let name = path.file_name().unwrap_or(&self.program);
        name.to_string_lossy().into_owned()
    }
}

/// Quotes a word for a POSIX shell.
impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&self.program))?;
        for arg in &self.args {
            write!(f, " {}", quoted(arg))?;
        }
        Ok(())
    }
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_commands_survive_a_shell() {
        let words = [
            "plain",
            "",
            "two words",
            "it's",
            "$HOME `x` \"q\" \\n *",
            "a=b,c:d",
        ];
        let printed = CommandLine::new("printf")
            .arg("%s\\n")
            .args(words)
            .to_string();
        let output = Command::new("sh").args(["-c", &printed]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().collect::<Vec<_>>(), words, "{printed}");
    }
}
