//! Completions and manual pages: they contain every command, and shells and groff accept them.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::program::run;

/// Returns the commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).ok();
    let listed = help.text().split("\nCommands:\n").nth(1).unwrap();
    let listed = listed.split("\n\n").next().unwrap();
    let names = listed.lines().filter_map(|line| {
        // Wrapped descriptions are indented further.
        let rest = line.strip_prefix("  ")?;
        (!rest.starts_with(' ')).then(|| rest.split(' ').next().unwrap().to_owned())
    });
    let names: Vec<String> = names.filter(|name| name != "help").collect();
    assert!(
        names.len() > 8 && names.contains(&"generate".to_owned()),
        "{names:?}"
    );
    names
}

/// Returns whether `program` accepts `text` on stdin; `None` if it is not installed.
fn accepts(program: &str, args: &[&str], text: &[u8]) -> Option<bool> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: no {program} here");
        return None;
    };
    child.stdin.take().unwrap().write_all(text).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(output.status.success() && output.stderr.is_empty())
}

#[test]
fn completions_contain_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = run(&["completions", shell]).ok();
        for name in commands() {
            assert!(script.text().contains(&name), "{shell}: {name}");
        }
        for flag in ["max-tokens", "models-dir", "kv-type"] {
            assert!(script.text().contains(flag), "{shell}: {flag}");
        }
        if matches!(shell, "bash" | "zsh" | "fish") {
            assert_ne!(
                accepts(shell, &["-n"], &script.stdout),
                Some(false),
                "{shell}"
            );
        }
    }
    run(&["completions", "tcsh"]).fails(2, "tcsh");
}

#[test]
fn bash_completes() {
    let mut script = run(&["completions", "bash"]).ok().stdout;
    script
        .extend(b"\nCOMP_WORDS=(rocmforge gen) COMP_CWORD=1\n_rocmforge rocmforge gen rocmforge\n");
    script.extend(b"[ \"${COMPREPLY[*]}\" = generate ]\n");
    assert_ne!(accepts("bash", &["-s"], &script), Some(false));
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    run(&["man", "--dir", pages.to_str().unwrap()]).ok();
    let names = commands();
    for name in &names {
        let page = fs::read_to_string(pages.join(format!("rocmforge-{name}.1"))).unwrap();
        for section in [".TH rocmforge-", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS"] {
            assert!(page.contains(section), "{name}: {section}");
        }
        let printed = run(&["man", name]).ok();
        assert_eq!(printed.text(), page);
    }
    let top = fs::read_to_string(pages.join("rocmforge.1")).unwrap();
    for name in &names {
        assert!(
            top.contains(&format!("rocmforge\\-{}(1)", name.replace('-', "\\-"))),
            "{name} in {top}"
        );
    }
    assert!(pages.join("rocmforge-models-rm.1").exists());
    assert!(!pages.join("rocmforge-render-template.1").exists());
    assert_ne!(
        accepts("groff", &["-man", "-Tutf8", "-ww"], top.as_bytes()),
        Some(false)
    );
    run(&["man", "frobnicate"]).fails(2, "generate");
    run(&["man", "--dir", "/dev/null/x"]).fails(1, "/dev/null/x");
}
