//! The program in a terminal, made by script(1): line breaks, questions, progress.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::program::{command, run_with_stdin};

/// Runs a program in a terminal, with an input line for each of its prompts. Returns what it wrote there, without escape
/// sequences; `None`, with a notice, on systems without script(1).
fn in_terminal(program: &Command, columns: u32, input: &[&str]) -> Option<String> {
    let quoted = |word: &std::ffi::OsStr| {
        let word = word.to_str().unwrap();
        format!("'{}'", word.replace('\'', "'\\''"))
    };
    let words = std::iter::once(program.get_program()).chain(program.get_args());
    let words: Vec<String> = words.map(quoted).collect();
    let line = format!("stty cols {columns} rows 40; exec {}", words.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.env("TERM", "xterm").env_remove("COLUMNS");
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        println!("skipped: script(1) is missing");
        return None;
    };
    // Both stay open until the program ends, or script would send it the end of the input.
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut asked_at) = (Vec::new(), 0);
    let mut input = input.iter();
    loop {
        let mut bytes = [0; 4096];
        let n = stdout.read(&mut bytes).unwrap();
        if n == 0 {
            break;
        }
        shown.extend(&bytes[..n]);
        // The line editor drops what is typed before its prompt.
        let new = without_escapes(&String::from_utf8_lossy(&shown[asked_at..]));
        if (new.trim_end().ends_with('>') || new.trim_end().ends_with("[y/N]"))
            && let Some(line) = input.next()
        {
            asked_at = shown.len();
            stdin.write_all(format!("{line}\r").as_bytes()).unwrap();
        }
    }
    assert!(child.wait().unwrap().success());
    Some(without_escapes(&String::from_utf8_lossy(&shown)))
}

/// Removes `ESC [ ... letter` and similar sequences.
fn without_escapes(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                if chars.next() == Some('[') {
                    chars.by_ref().find(|c| c.is_ascii_alphabetic());
                }
            }
            c => out.push(c),
        }
    }
    out
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn chat_breaks_lines_at_words() {
    let args = ["chat", "--temp", "0", "-n", "60", "--no-history"];
    let asked = "Tell me a story about a dog.";
    let piped = run_with_stdin(&args, format!("{asked}\n").as_bytes()).ok();
    let longest = piped.text().lines().map(str::len).max().unwrap();
    assert!(longest > 60, "a pipe gets long lines: {}", piped.text());
    for columns in [30, 50] {
        let Some(shown) = in_terminal(&command(&args), columns, &[asked, "/quit"]) else {
            return;
        };
        assert!(
            words(&shown).contains(&words(piped.text())),
            "{shown:?} has other words than {}",
            piped.text()
        );
        let too_long = |line: &&str| line.trim_end().chars().count() > columns as usize;
        assert_eq!(shown.split(['\r', '\n']).find(too_long), None);
    }
}

#[test]
fn saving_over_a_file_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chat.json");
    let save = format!("/save {}", path.display());
    let args = ["chat", "--no-history"];
    for (answer, expected) in [("n", "old"), ("", "old"), ("y", "[]\n")] {
        fs::write(&path, "old").unwrap();
        let Some(shown) = in_terminal(&command(&args), 80, &[&save, answer, "/quit"]) else {
            return;
        };
        assert!(shown.contains("Replace it?"), "{shown}");
        assert_eq!(fs::read_to_string(&path).unwrap(), expected, "{answer}");
    }
    // A script cannot be asked.
    run_with_stdin(&args, format!("{save}\n").as_bytes()).fails(2, "it exists");
    assert_eq!(fs::read_to_string(&path).unwrap(), "[]\n");
}

#[test]
fn a_quiet_chat_answers_commands() {
    let args = ["chat", "--no-history", "-q"];
    let Some(shown) = in_terminal(&command(&args), 80, &["/stats", "/clear", "/quit"]) else {
        return;
    };
    assert!(shown.contains("(no answer yet)"), "{shown}");
    assert!(!shown.contains("/help lists"), "{shown}");
    assert!(!shown.contains("(conversation cleared)"), "{shown}");
}

#[test]
#[cfg(feature = "pull")]
fn the_bar_of_a_pull_leaves_room_in_its_line() {
    use crate::mock_hub::{MockHub, Repo};
    use crate::pull::{Folder, model};
    let model = model(1);
    let repo = Repo::new(&[("m-Q4_K_M.gguf", &model)]);
    let hub = MockHub::start(move |asked| repo.answer(asked));
    for (columns, widest) in [(200, 64), (40, 39), (20, 19)] {
        let folder = Folder::new();
        let pull = folder.command(&hub, "hf:o/r", &[]);
        let Some(shown) = in_terminal(&pull, columns, &[]) else {
            return;
        };
        let drawn = shown.split(['\r', '\n']).map(str::trim_end);
        let drawn: Vec<&str> = drawn
            .filter(|line| !line.starts_with('/'))
            .filter(|line| line.contains("B/") || line.ends_with(" %"))
            .collect();
        assert!(!drawn.is_empty(), "{shown:?}");
        let too_wide = drawn.iter().find(|line| line.chars().count() > widest);
        assert_eq!(too_wide, None, "{columns} columns");
    }
}
