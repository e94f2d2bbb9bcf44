//! `rocmforge pull` against a hostile, broken or silent hub.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::mock_hub::{Answer, MockHub, Repo, sha256, status};
use crate::program::{finish, run};
use crate::pull::{Folder, faulty, hub, model};

#[test]
fn rejects_unsafe_file_names() {
    for name in [
        "../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "a\\..\\evil.gguf",
        "nul.gguf",
        "a\0.gguf",
        ".x.gguf",
        "C:evil.gguf",
    ] {
        let hub = hub(Repo::new(&[(name, &model(1))]));
        let folder = Folder::new();
        folder.pull(&hub, "hf:o/r", &[]).fails(1, "unsafe");
        assert!(hub.asked_files().is_empty(), "{name:?}");
        assert!(folder.files().is_empty(), "{name:?}");
    }
    for reference in ["o", "hf:../r", "hf:o/r/../x.gguf", "hf:o/r:"] {
        let hub = hub(Repo::new(&[]));
        Folder::new().pull(&hub, reference, &[]).fails(2, "error");
        assert!(hub.asked().is_empty(), "{reference}");
    }
}

#[test]
fn rejects_hostile_listings() {
    let info = |change: fn(&mut serde_json::Value)| {
        let mut info = Repo::new(&[("m.gguf", &model(1))]).info();
        change(&mut info);
        status(200).body(info.to_string())
    };
    for (answer, part) in [
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(1u64 << 62)),
            "not enough disk space",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(u64::MAX)),
            "not enough disk space",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(-1)),
            "cannot read the hub's answer",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(0)),
            "empty",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["sha256"] = json!("zz")),
            "SHA-256",
        ),
        (
            info(|i| i["siblings"] = json!("x")),
            "cannot read the hub's answer",
        ),
        (
            status(200).body("[".repeat(100_000)),
            "cannot read the hub's answer",
        ),
        (
            status(200).body(vec![b' '; 33 << 20]),
            "longer than 32.0 MiB",
        ),
        (
            status(302).header("Location", "/again"),
            "redirects more than",
        ),
        (
            status(302).header("Location", "file:///etc/passwd"),
            "redirects to an",
        ),
        (status(302).header("Location", "http://"), "invalid address"),
    ] {
        let hub = MockHub::start(move |_| answer.clone());
        let folder = Folder::new();
        folder
            .pull(&hub, "hf:o/r", &["--retries", "0"])
            .fails(1, part);
        assert!(folder.files().is_empty(), "{part}");
    }
}

#[test]
fn does_not_keep_hostile_files() {
    let page = b"<html>this is no model</html>".repeat(20);
    let long = model(1).repeat(2);
    let cases: [(Vec<u8>, Answer, &str); 3] = [
        (page.clone(), status(200).body(page), "not a GGUF file"),
        (model(1), status(200).body(long), "sends a different"),
        (model(1), status(200).body("short"), "sends a different"),
    ];
    for (bytes, answer, part) in cases {
        let hub = faulty(Repo::new(&[("m.gguf", &bytes)]), move |_, _| answer.clone());
        let folder = Folder::new();
        folder
            .pull(&hub, "hf:o/r", &["--retries", "0"])
            .fails(1, part);
        assert!(!folder.path("o/r/m.gguf").exists(), "{part}");
    }
}

#[test]
fn gives_up_on_silent_and_slow_servers() {
    let repo = || Repo::new(&[("m.gguf", &model(1))]);
    let silent = faulty(repo(), |_, answer| {
        std::thread::sleep(Duration::from_secs(20));
        answer
    });
    let slow = faulty(repo(), |_, mut answer| {
        answer.drip = Some(20);
        answer
    });
    let listing = MockHub::start(|_| {
        let mut answer = status(200).body(vec![b' '; 100_000]);
        answer.drip = Some(10);
        answer
    });
    // At the same time: each waits for its timeout of a second.
    std::thread::scope(|scope| {
        for (hub, part) in [
            (&silent, "to resume"),
            (&slow, "to resume"),
            (&listing, "broke off"),
        ] {
            scope.spawn(move || {
                let flags = ["--timeout", "1", "--retries", "0"];
                Folder::new().pull(hub, "hf:o/r", &flags).fails(1, part);
            });
        }
    });
    // A closed port.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    run(&["pull", "hf:o/r", "--endpoint", &endpoint, "--retries", "0"]).fails(1, "127.0.0.1");
}

#[test]
fn sends_no_token_of_a_local_hub_to_a_proxy() {
    let hub = hub(Repo::new(&[("m.gguf", &model(1))]));
    let proxy = MockHub::start(|_| status(502));
    let folder = Folder::new();
    let mut command = folder.command(&hub, "hf:o/r", &["--token", "hf_secret"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, proxy.url());
    }
    command.env_remove("no_proxy").env_remove("NO_PROXY");
    finish(command).ok();
    assert!(proxy.asked().is_empty(), "{:?}", proxy.asked());
    let tokens = hub.asked();
    let mut tokens = tokens.iter().map(|asked| &asked.headers["authorization"]);
    assert!(tokens.all(|token| token == "Bearer hf_secret"));
}

/// The name of the part that [`model`]`(1)` is downloaded to.
fn part_name(bytes: &[u8]) -> String {
    let sha = sha256(bytes);
    format!("o/r/m.gguf.{}.part", &sha[..12])
}

#[test]
fn writes_through_no_planted_link_or_pipe() {
    let bytes = model(1);
    let victim = b"not a part".to_vec();
    let plant: [fn(&Path, &Path); 3] = [
        |at, victim| symlink(victim, at).unwrap(),
        |at, victim| std::fs::hard_link(victim, at).unwrap(),
        |at, _| fifo(at),
    ];
    for plant in plant {
        let hub = hub(Repo::new(&[("m.gguf", &bytes)]));
        let folder = Folder::new();
        std::fs::create_dir_all(folder.path("o/r")).unwrap();
        std::fs::write(folder.path("victim"), &victim).unwrap();
        plant(&folder.path(&part_name(&bytes)), &folder.path("victim"));
        folder.pull(&hub, "hf:o/r", &[]).ok();
        assert_eq!(std::fs::read(folder.path("victim")).unwrap(), victim);
        assert_eq!(std::fs::read(folder.path("o/r/m.gguf")).unwrap(), bytes);
        assert_eq!(folder.files(), ["o/r/m.gguf", "victim"]);
    }
}

#[test]
fn refuses_a_planted_lock() {
    let plant: [fn(&Path, &Path); 2] =
        [|at, victim| symlink(victim, at).unwrap(), |at, _| fifo(at)];
    for plant in plant {
        let hub = hub(Repo::new(&[("m.gguf", &model(1))]));
        let folder = Folder::new();
        std::fs::create_dir_all(folder.path("o/r")).unwrap();
        plant(&folder.path("o/r/.pull.lock"), &folder.path("victim"));
        folder.pull(&hub, "hf:o/r", &[]).fails(1, "cannot lock");
        assert!(!folder.path("victim").exists());
    }
}

#[test]
fn removes_parts_of_other_versions_of_all_files() {
    let hub = hub(Repo::new(&[("m.gguf", &model(1))]));
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path("o/r")).unwrap();
    let other = "o/r/x.gguf.0123456789ab.part";
    for part in [
        other,
        "o/r/m.gguf.0123456789ab.part",
        "o/r/m.gguf.unchecked.part",
    ] {
        std::fs::write(folder.path(part), "x").unwrap();
    }
    folder.pull(&hub, "hf:o/r", &[]).ok();
    assert_eq!(folder.files(), ["o/r/m.gguf", other]);
    // Also once the file is complete.
    std::fs::write(folder.path(&part_name(&model(1))), "x").unwrap();
    folder.pull(&hub, "hf:o/r", &[]).ok();
    assert_eq!(folder.files(), ["o/r/m.gguf", other]);
}

fn fifo(at: &Path) {
    let status = std::process::Command::new("mkfifo").arg(at).status();
    assert!(status.unwrap().success());
}

#[test]
fn cuts_long_names_and_lists_of_a_hub() {
    let names: Vec<String> = (0..3)
        .map(|i| format!("{i}{}.gguf", "x".repeat(2 << 20)))
        .collect();
    let bytes = model(1);
    let files: Vec<(&str, &[u8])> = names
        .iter()
        .map(|name| (name.as_str(), &bytes[..]))
        .collect();
    let hub = hub(Repo::new(&files));
    for reference in ["hf:o/r", "hf:o/r:Q8_0"] {
        let run = Folder::new().pull(&hub, reference, &[]);
        assert_eq!(run.code, Some(1), "{:.500}", run.stderr);
        assert!(run.stderr.len() < 2000, "{} bytes", run.stderr.len());
    }
    let alone = MockHub::start({
        let info = Repo::new(&files[..1]).info();
        move |_| status(200).body(info.to_string())
    });
    let run = Folder::new().pull(&alone, "hf:o/r", &[]);
    run.fails(1, "is too long");
    assert!(run.stderr.len() < 2000, "{} bytes", run.stderr.len());
}
