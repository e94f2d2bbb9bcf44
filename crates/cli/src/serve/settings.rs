//! The settings file of a server: TOML with the flags of `serve` as keys, and a table for each model.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, CommandFactory as _, Parser as _};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use crate::args::{Cli, Command, ServeArgs};
use crate::exit::usage;

/// Largest file.
const MAX_BYTES: u64 = 1 << 20;
/// Flags that make no sense in a file, or have another form there.
const NOT_HERE: &[&str] = &["help", "new-key", "config", "model", "alias"];
/// Flags of the whole server.
const OF_SERVER: &[&str] = &[
    "host",
    "port",
    "keys",
    "shared-prefix",
    "cors",
    "tls-cert",
    "tls-key",
    "all-models",
    "memory",
    "idle-unload",
    "models-dir",
    "queue-timeout",
    "answer-timeout",
    "resume-timeout",
    "read-timeout",
    "write-timeout",
    "max-body",
    "max-connections",
    "max-choices",
    "ttft-target",
    "step-timeout",
    "drain-timeout",
    "otlp",
    "access-log",
    "log-content",
    "no-sensors",
    "json",
    "device",
];

/// A settings file.
#[derive(Debug)]
pub struct Settings {
    path: PathBuf,
    flags: Table,
    pub models: Vec<ModelSettings>,
}

/// A table `[[models]]` of the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ModelSettings {
    /// Path or name of its file; without it, the built-in model.
    pub file: Option<PathBuf>,
    pub name: Option<String>,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Fields for requests that leave them out.
    #[serde(default)]
    pub defaults: Map<String, Json>,
    #[serde(default = "always")]
    pub at_start: bool,
    #[serde(flatten)]
    flags: Table,
}

fn always() -> bool {
    true
}

impl Settings {
    /// Reads a settings file.
    pub fn read(path: &Path) -> Result<Settings> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
        let mut text = String::new();
        let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
        read.with_context(|| format!("cannot read {shown}"))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(usage(format!("{shown} is larger than {MAX_BYTES} bytes")));
        }
        Settings::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Settings> {
        let wrong = |error: toml::de::Error| {
            let error = error.to_string();
            usage(format!("{}: {}", path.display(), error.trim_end()))
        };
        let mut flags: Table = text.parse().map_err(wrong)?;
        let models = flags.remove("models").unwrap_or(Value::Array(Vec::new()));
        Ok(Settings {
            path: path.to_owned(),
            flags,
            models: models.try_into().map_err(wrong)?,
        })
    }

    /// Returns the arguments of the server: those `given` on the command line or by environment variables, then those of
    /// the file.
    pub fn applied(&self, given: &[OsString]) -> Result<ServeArgs> {
        self.with(&self.flags, given)
    }

    /// As [`Settings::applied`], for one model: its own table comes before the rest of the file.
    pub fn applied_to(&self, model: &ModelSettings, given: &[OsString]) -> Result<ServeArgs> {
        let mut flags = self.flags.clone();
        for (key, value) in &model.flags {
            if OF_SERVER.contains(&key.as_str()) {
                let message = "is a setting of the whole server; write it above the models";
                return Err(self.wrong(&format!("{key} {message}")));
            }
            flags.insert(key.clone(), value.clone());
        }
        self.with(&flags, given)
    }

    /// Returns the path of a model's file: relative to this file if it is there, else as it is, as it may be the name of a
    /// downloaded model.
    pub fn model_path(&self, file: &Path) -> PathBuf {
        let beside = self.beside(file);
        match beside.exists() {
            true => beside,
            false => file.to_owned(),
        }
    }

    fn beside(&self, file: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }

    fn with(&self, flags: &Table, given: &[OsString]) -> Result<ServeArgs> {
        let wrong = |error: clap::Error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            self.wrong(line.trim_start_matches("error: "))
        };
        let command = Cli::command();
        let matches = command.clone().try_get_matches_from(given).map_err(wrong)?;
        let of_serve = matches.subcommand_matches("serve");
        let serve = command.find_subcommand("serve").into_iter();
        let known: Vec<&Arg> = serve.flat_map(clap::Command::get_arguments).collect();
        let mut all = given.to_vec();
        for (key, value) in flags {
            let mut known = known.iter();
            let arg = known.find(|arg| arg.get_long() == Some(key.as_str()));
            let arg = arg.filter(|_| !NOT_HERE.contains(&key.as_str()));
            let arg = arg.ok_or_else(|| {
                let hint = "a key is the name of a flag of `rocmforge serve` without its dashes; models stand in [[models]]";
                self.wrong(&format!("{key} is no setting; {hint}"))
            })?;
            let source = of_serve.and_then(|of_serve| of_serve.value_source(arg.get_id().as_str()));
            if source.is_none_or(|source| source == ValueSource::DefaultValue) {
                all.extend(self.words(key, arg, value)?);
            }
        }
        match Cli::try_parse_from(all).map_err(wrong)?.command {
            Command::Serve(args) => Ok(args),
            _ => Err(self.wrong("only `rocmforge serve` reads this file")),
        }
    }

    /// Returns the words of a command line that set a flag.
    fn words(&self, key: &str, arg: &Arg, value: &Value) -> Result<Vec<OsString>> {
        let takes_values = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let is_path = arg.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>();
        let text = match value {
            Value::Array(values) => {
                let words = values.iter().map(|value| self.words(key, arg, value));
                return Ok(words.collect::<Result<Vec<_>>>()?.concat());
            }
            Value::Boolean(false) if !takes_values => return Ok(Vec::new()),
            Value::Boolean(true) if !takes_values => return Ok(vec![format!("--{key}").into()]),
            _ if !takes_values => return Err(self.wrong(&format!("{key}: use true or false"))),
            Value::String(text) if is_path => self.beside(text.as_ref()).into_os_string(),
            Value::String(text) => text.into(),
            Value::Table(_) => {
                return Err(self.wrong(&format!("{key}: use a value, not a table")));
            }
            other => other.to_string().into(),
        };
        let mut word = OsString::from(format!("--{key}="));
        word.push(text);
        Ok(vec![word])
    }

    fn wrong(&self, message: &str) -> anyhow::Error {
        usage(format!("{}: {message}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        port = 9000
        keys = "clients"
        ctx = 4096
        access-log = true
        no-sensors = true
        cors = ["https://a.example", "https://b.example"]

        [[models]]
        name = "small"
        aliases = ["gpt-4o"]
        ctx = 1024
        defaults = { temperature = 0.6, max_tokens = 100 }

        [[models]]
        file = "big.gguf"
        at-start = false
        max-seqs = 4
    "#;

    fn settings(text: &str) -> Result<Settings> {
        Settings::parse(Path::new("/etc/rocmforge/serve.toml"), text)
    }

    fn given(flags: &[&str]) -> Vec<OsString> {
        let words = ["rocmforge", "serve"].iter().chain(flags);
        words.map(OsString::from).collect()
    }

    #[test]
    fn the_command_line_comes_before_the_file() {
        let settings = settings(FILE).unwrap();
        let args = settings.applied(&given(&[])).unwrap();
        assert_eq!((args.port, args.access_log), (9000, true));
        assert!(args.no_sensors);
        assert_eq!(args.context.context.ctx, Some(4096));
        assert_eq!(args.cors, ["https://a.example", "https://b.example"]);
        assert_eq!(args.keys.unwrap(), Path::new("/etc/rocmforge/clients"));
        let args = settings.applied(&given(&["--port", "1", "--cors", "https://c.example"]));
        let args = args.unwrap();
        assert_eq!((args.port, args.cors.len()), (1, 1));
    }

    #[test]
    fn a_model_has_settings_of_its_own() {
        let settings = settings(FILE).unwrap();
        let [small, big] = &settings.models[..] else {
            panic!("{settings:?}")
        };
        assert_eq!(
            (small.name.as_deref(), &*small.aliases),
            (Some("small"), &["gpt-4o".to_string()][..])
        );
        assert_eq!(small.defaults["temperature"], 0.6);
        assert!(small.at_start && !big.at_start);
        let args = settings.applied_to(small, &given(&[])).unwrap();
        assert_eq!((args.context.context.ctx, args.max_seqs), (Some(1024), 64));
        let args = settings
            .applied_to(big, &given(&["--max-seqs", "8"]))
            .unwrap();
        assert_eq!((args.context.context.ctx, args.max_seqs), (Some(4096), 8));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("port = ", "port ="),
            ("prot = 1", "prot is no setting"),
            ("model = 'x.gguf'", "[[models]]"),
            ("port = 'high'", "--port"),
            ("access-log = 3", "use true or false"),
            ("ctx = { a = 1 }", "not a table"),
            ("models = 3", "expected a sequence"),
            ("[[models]]\nport = 1", "the whole server"),
            ("[[models]]\nctxt = 1", "ctxt is no setting"),
            ("[[models]]\nat-start = 'x'", "at-start"),
        ] {
            let read = settings(text).and_then(|settings| {
                settings.applied(&given(&[]))?;
                for model in &settings.models {
                    settings.applied_to(model, &given(&[]))?;
                }
                Ok(())
            });
            let error = read.expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
