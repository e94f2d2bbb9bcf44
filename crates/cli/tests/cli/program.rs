//! Runs the built program and returns its output.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rocmforge_gguf::{Gguf, LoadMode, Writer};
use serde_json::Value;

/// The output and exit code of a run.
pub struct Run {
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// `None` if a signal ended the program.
    pub code: Option<i32>,
}

impl Run {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// Parses the JSON value on stdout.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn ok(self) -> Run {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Checks the exit code and that the error contains `part`. There is one error line, the last on stderr unless clap
    /// prints the usage after it.
    pub fn fails(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let errors: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        if code == 2 {
            assert!(
                self.stderr.contains(part),
                "{part:?} is not in {}",
                self.stderr
            );
        } else {
            assert!(
                errors[0].contains(part),
                "{part:?} is not in {:?}",
                errors[0]
            );
            assert!(
                self.stderr.trim_end().ends_with(errors[0]),
                "{}",
                self.stderr
            );
        }
    }
}

/// The program on the CPU, without the caller's ROCMFORGE_* variables.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rocmforge"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROCMFORGE_")) {
        command.env_remove(name);
    }
    command.env("ROCMFORGE_DEVICE", "cpu");
    command.args(args).stdin(Stdio::null());
    command
}

pub fn run(args: &[&str]) -> Run {
    finish(command(args))
}

pub fn finish(mut command: Command) -> Run {
    let output = command.output().unwrap();
    Run {
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

pub fn run_with_stdin(args: &[&str], stdin: &[u8]) -> Run {
    let mut command = command(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    let writer = std::thread::spawn(move || {
        // A program may close its stdin early.
        let _ = pipe.write_all(&stdin);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Run {
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

/// Returns the path of a repository file.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Writes the built-in model with changed metadata to a file in `dir`; `None` removes a key.
pub fn changed_model(dir: &Path, changes: &[(&str, Option<&str>)]) -> PathBuf {
    let gguf = Gguf::open(&repository("models/forge-mini-Q4_K_M.gguf"), LoadMode::Mmap).unwrap();
    let mut writer = Writer::new("llama");
    for (key, value) in gguf.metadata().iter() {
        match changes.iter().find(|(changed, _)| *changed == key) {
            None => writer.set(key, value),
            Some((_, Some(text))) => writer.set(key, *text),
            Some((_, None)) => &mut writer,
        };
    }
    for info in gguf.tensors() {
        writer
            .add_tensor(&info.name, &info.dims, info.ty, gguf.tensor_data(info))
            .unwrap();
    }
    let path = dir.join("changed.gguf");
    std::fs::write(&path, writer.to_vec().unwrap()).unwrap();
    path
}

/// Returns llama.cpp's results for the built-in model.
pub fn golden(prompt: &str) -> Value {
    let text = std::fs::read_to_string(repository("models/golden.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let golden = all["variants"]["Q4_K_M"]["prompts"][prompt].clone();
    assert!(golden.is_object(), "golden.json has no prompt {prompt:?}");
    golden
}

/// Returns llama.cpp's greedy ids up to the first close decision: where the two top logits differ by less than 0.3,
/// another engine may choose differently.
pub fn decided_ids(golden: &Value) -> Vec<u64> {
    let margins = golden["margins"].as_array().unwrap().iter();
    let n = margins
        .take_while(|margin| margin.as_f64().unwrap() >= 0.3)
        .count();
    ids(&golden["greedy_ids"])[..n].to_vec()
}

pub fn ids(json: &Value) -> Vec<u64> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}
