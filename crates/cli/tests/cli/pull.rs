//! `rocmforge pull` from a mock hub: downloads, resuming, messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rocmforge_gguf::{GgmlType, Writer};

use crate::mock_hub::{Answer, Asked, MockHub, Repo, status};
use crate::program::{Run, command, finish, run};

/// A model of about 300 KB that differs by `fill`.
pub fn model(fill: u8) -> Vec<u8> {
    part(fill, None)
}

/// The same, or one of its two parts.
fn part(fill: u8, no: Option<u16>) -> Vec<u8> {
    let mut writer = Writer::new("llama");
    if let Some(no) = no {
        writer.set("split.no", no).set("split.count", 2u16);
    }
    let data: Vec<u8> = (0..300_000u32)
        .map(|i| ((i * 31) >> 3) as u8 ^ fill)
        .collect();
    let name = format!("t{}", no.unwrap_or(0));
    writer
        .add_tensor(&name, &[75_000], GgmlType::F32, data)
        .unwrap();
    writer.to_vec().unwrap()
}

/// A temporary models folder.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn command(&self, hub: &MockHub, reference: &str, more: &[&str]) -> std::process::Command {
        let dir = self.0.path().to_str().unwrap();
        let url = hub.url();
        let mut args = vec!["pull", reference, "--models-dir", dir, "--endpoint", &url];
        args.extend(more);
        let mut command = command(&args);
        command.env_remove("HF_TOKEN");
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(proxy).env_remove(proxy.to_lowercase());
        }
        command
    }

    pub fn pull(&self, hub: &MockHub, reference: &str, more: &[&str]) -> Run {
        finish(self.command(hub, reference, more))
    }

    /// Returns the files in the folder, except locks.
    pub fn files(&self) -> Vec<String> {
        fn walk(dir: &Path, prefix: &str, files: &mut Vec<String>) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                match entry.file_type().unwrap().is_dir() {
                    true => walk(&entry.path(), &format!("{name}/"), files),
                    false => files.push(name),
                }
            }
        }
        let mut files = Vec::new();
        walk(self.0.path(), "", &mut files);
        files.retain(|name| !name.ends_with(".pull.lock"));
        files.sort();
        files
    }
}

/// Starts a hub whose answer to the n-th request for a file, counted from 0, passes through `fault`.
pub fn faulty(
    repo: Repo,
    fault: impl Fn(usize, Answer) -> Answer + Send + Sync + 'static,
) -> MockHub {
    let n = AtomicUsize::new(0);
    MockHub::start(move |asked| {
        let answer = repo.answer(asked);
        match asked.is_file() {
            true => fault(n.fetch_add(1, Ordering::SeqCst), answer),
            false => answer,
        }
    })
}

pub fn hub(repo: Repo) -> MockHub {
    faulty(repo, |_, answer| answer)
}

#[test]
fn pulls_the_default_quantization_and_finds_it_by_name() {
    let wanted = model(1);
    let hub = hub(Repo::new(&[
        ("README.md", b"# hi"),
        ("m-F16.gguf", &model(2)),
        ("m-Q4_K_M.gguf", &wanted),
        ("mmproj-m-Q4_K_M.gguf", &model(3)),
    ]));
    let folder = Folder::new();
    let pulled = folder.pull(&hub, "hf:o/r", &[]).ok();
    let path = folder.path("o/r/m-Q4_K_M.gguf");
    assert_eq!(pulled.text(), format!("{}\n", path.display()));
    assert_eq!(fs::read(&path).unwrap(), wanted);
    assert_eq!(folder.files(), ["o/r/m-Q4_K_M.gguf"]);

    // A complete file is not downloaded again; a damaged one is.
    let again = folder.pull(&hub, "hf:o/r:q4_k_m", &[]).ok();
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    assert_eq!(hub.asked_files().len(), 1);
    let mut damaged = wanted.clone();
    damaged[200_000] ^= 1;
    fs::write(&path, damaged).unwrap();
    folder.pull(&hub, "hf:o/r/m-Q4_K_M.gguf", &[]).ok();
    assert_eq!(fs::read(&path).unwrap(), wanted);

    let dir = folder.path("");
    let dir = dir.to_str().unwrap();
    for name in [
        "o/r",
        "o/r:Q4_K_M",
        "hf:o/r",
        "o/r/m-Q4_K_M.gguf",
        "m-Q4_K_M",
        "m-Q4_K_M.gguf",
    ] {
        let report = run(&["inspect", name, "--models-dir", dir, "--json"]).json();
        assert_eq!(report["file"], "m-Q4_K_M.gguf", "{name}");
    }
    // A reference is downloaded where it is used, once.
    let n_before = hub.asked_files().len();
    for _ in 0..2 {
        let mut inspect = command(&["inspect", "hf:o/r:F16", "--models-dir", dir, "--json"]);
        inspect
            .env("ROCMFORGE_HUB_ENDPOINT", hub.url())
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("HF_TOKEN");
        assert_eq!(finish(inspect).json()["file"], "m-F16.gguf");
    }
    assert_eq!(hub.asked_files().len(), n_before + 1);
    assert_eq!(fs::read(folder.path("o/r/m-F16.gguf")).unwrap(), model(2));
    run(&["inspect", "o/other", "--models-dir", dir]).fails(1, "rocmforge pull hf:o/other");
}

#[test]
fn resumes_after_lost_connections() {
    let wanted = model(1);
    let hub = faulty(Repo::new(&[("m.gguf", &wanted)]), |n, answer| match n {
        0 => answer.cut(100_000),
        1 => status(503),
        2 => answer.cut(70_000),
        _ => answer,
    });
    let folder = Folder::new();
    let first = folder.pull(&hub, "hf:o/r", &["--retries", "0"]);
    first.fails(1, "run the same pull again");
    let files = folder.files();
    assert!(files.len() == 1 && files[0].ends_with(".part"), "{files:?}");

    let second = folder.pull(&hub, "hf:o/r", &["--retries", "2"]).ok();
    assert!(
        second.stderr.contains("resuming after"),
        "{}",
        second.stderr
    );
    let ranges: Vec<_> = hub.asked_files().iter().map(Asked::range).collect();
    assert_eq!(ranges, [None, Some(100_000), Some(100_000), Some(170_000)]);
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), wanted);
    assert_eq!(folder.files(), ["o/r/m.gguf"]);
}

#[test]
fn starts_over_if_the_server_ignores_ranges() {
    let wanted = model(1);
    let whole = wanted.clone();
    let hub = faulty(
        Repo::new(&[("m.gguf", &wanted)]),
        move |n, answer| match n {
            0 => answer.cut(100_000),
            // The file from its beginning, as servers without ranges answer.
            1 => status(200).body(&whole[..]),
            _ => answer,
        },
    );
    let folder = Folder::new();
    folder.pull(&hub, "hf:o/r", &["--retries", "1"]).ok();
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), wanted);
}

#[test]
fn detects_damaged_downloads_and_parts() {
    let wanted = model(1);
    let mut damaged = wanted.clone();
    damaged[250_000] ^= 1;
    let hub = faulty(
        Repo::new(&[("m.gguf", &wanted)]),
        move |n, answer| match n {
            0 => status(200).body(&damaged[..]),
            1 => answer.cut(100_000),
            _ => answer,
        },
    );
    let folder = Folder::new();
    let retries = ["--retries", "0"];
    folder
        .pull(&hub, "hf:o/r", &retries)
        .fails(1, "arrived damaged");
    assert!(folder.files().is_empty(), "{:?}", folder.files());

    // A part that was damaged on disk is downloaded again within the same pull.
    folder.pull(&hub, "hf:o/r", &retries).fails(1, "to resume");
    let part = folder.path(&folder.files()[0]);
    let mut bytes = fs::read(&part).unwrap();
    bytes[5000] ^= 1;
    fs::write(&part, bytes).unwrap();
    let again = folder.pull(&hub, "hf:o/r", &retries).ok();
    assert!(again.stderr.contains("starting over"), "{}", again.stderr);
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), wanted);
}

#[test]
fn starts_over_if_the_file_changed_on_the_hub() {
    let (old, new) = (
        Repo::new(&[("m.gguf", &model(1))]),
        Repo::new(&[("m.gguf", &model(2))]),
    );
    let changed = Mutex::new(false);
    let hub = MockHub::start(move |asked| {
        let mut changed = changed.lock().unwrap();
        match (*changed, asked.is_file()) {
            (false, true) => {
                *changed = true;
                old.answer(asked).cut(100_000)
            }
            (false, false) => old.answer(asked),
            (true, _) => new.answer(asked),
        }
    });
    let folder = Folder::new();
    folder
        .pull(&hub, "hf:o/r", &["--retries", "0"])
        .fails(1, "to resume");
    folder.pull(&hub, "hf:o/r", &[]).ok();
    assert_eq!(hub.asked_files()[1].range(), None);
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), model(2));
    assert_eq!(folder.files(), ["o/r/m.gguf"]);
}

#[test]
fn explains_refusals() {
    for (answer, part) in [
        (
            status(401).header("X-Error-Code", "GatedRepo"),
            "/o/r, and set a token",
        ),
        (
            status(403).header("X-Error-Code", "GatedRepo"),
            "accept its terms",
        ),
        (
            status(401).header("X-Error-Code", "RepoNotFound"),
            "HF_TOKEN",
        ),
        (status(403), "(403)"),
        (status(404), "check the name"),
        (
            status(404).header("X-Error-Code", "RevisionNotFound"),
            "no such revision",
        ),
        (status(418), "418"),
        (status(302), "invalid address"),
        (status(200).body("<html>"), "cannot read the hub's answer"),
        (status(200).body("{\"siblings\": []}"), "no GGUF files"),
    ] {
        let hub = MockHub::start(move |_| answer.clone());
        let folder = Folder::new();
        folder.pull(&hub, "hf:o/r", &[]).fails(1, part);
        assert_eq!(hub.asked().len(), 1, "{part}");
        assert!(!folder.path("o").exists(), "{part}");
    }
    let hub = MockHub::start(|_| status(500));
    Folder::new()
        .pull(&hub, "hf:o/r", &["--retries", "1"])
        .fails(1, "after 2 tries");
    assert_eq!(hub.asked().len(), 2);
}

#[test]
fn retries_when_rate_limited() {
    let repo = Repo::new(&[("m.gguf", &model(1))]);
    let n = AtomicUsize::new(0);
    let hub = MockHub::start(move |asked| match n.fetch_add(1, Ordering::SeqCst) {
        0 | 2 => status(429).header("Retry-After", "0"),
        _ => repo.answer(asked),
    });
    let folder = Folder::new();
    let pulled = folder.pull(&hub, "hf:o/r", &[]).ok();
    assert_eq!(pulled.stderr.matches("429").count(), 2, "{}", pulled.stderr);
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), model(1));
}

#[test]
fn sends_the_token_only_to_the_hub() {
    let repo = Repo::new(&[("m.gguf", &model(1))]);
    let body = model(1);
    let storage = MockHub::start(move |_| status(200).body(&body[..]));
    let other = MockHub::start({
        let storage = storage.port;
        move |_| {
            status(302).header(
                "Location",
                &format!("http://127.0.0.1:{storage}/blob?signed"),
            )
        }
    });
    // Same machine, but another host name, then another port.
    let target = format!("http://localhost:{}/blob", other.port);
    let hub = faulty(repo, move |_, _| status(302).header("Location", &target));
    for (flag, variable) in [
        (Some("secret-flag"), None),
        (None, Some(("ROCMFORGE_HUB_TOKEN", "secret-ours"))),
        (None, Some(("HF_TOKEN", "secret-theirs"))),
    ] {
        let folder = Folder::new();
        let more: Vec<&str> = flag.iter().flat_map(|token| ["--token", *token]).collect();
        let mut command = folder.command(&hub, "hf:o/r", &more);
        command.envs(variable);
        let pulled = finish(command).ok();
        let token = flag.or(variable.map(|(_, token)| token)).unwrap();
        assert!(!pulled.stderr.contains("secret") && !pulled.text().contains("secret"));
        let asked = hub.asked();
        for asked in &asked[asked.len() - 2..] {
            assert_eq!(asked.headers["authorization"], format!("Bearer {token}"));
        }
        assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), model(1));
    }
    let elsewhere = [other.asked(), storage.asked()].concat();
    assert_eq!(elsewhere.len(), 6);
    for asked in elsewhere {
        assert!(!asked.headers.contains_key("authorization"), "{asked:?}");
        assert!(!format!("{asked:?}").contains("secret"));
    }
    Folder::new()
        .pull(&hub, "hf:o/r", &["--token", "se cret"])
        .fails(2, "token");
}

#[test]
fn pulls_all_parts_of_a_split_model() {
    let parts = [part(1, Some(0)), part(2, Some(1))];
    let names = [
        "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf",
    ];
    let repo = Repo::new(&[(names[0], &parts[0]), (names[1], &parts[1])]);
    let folder = Folder::new();
    folder.pull(&hub(repo.clone()), "hf:o/r:Q8_0", &[]).ok();
    assert_eq!(folder.files(), names.map(|name| format!("o/r/{name}")));
    let dir = folder.path("");
    let report = run(&[
        "inspect",
        "o/r",
        "--models-dir",
        dir.to_str().unwrap(),
        "--json",
    ])
    .json();
    assert_eq!(report["tensors"].as_array().unwrap().len(), 2);
    let models = run(&["models", "--models-dir", dir.to_str().unwrap(), "--json"]).json();
    assert_eq!(models["models"][0]["files"], 2);
    assert_eq!(models["models"][0]["name"], "o/r:Q8_0");

    let half = Repo {
        files: repo.files[..1].to_vec(),
    };
    Folder::new()
        .pull(&hub(half), "hf:o/r", &[])
        .fails(1, "only 1 of the 2 parts");
}

/// Without a quantization, the best that fits in the memory is downloaded, and a line says why.
#[test]
fn recommends_the_quantization_that_fits() {
    // Sizes that only the listing has.
    let small = model(1);
    let sized = |asked: &Asked, repo: &Repo| {
        let answer = repo.answer(asked);
        if asked.is_file() {
            return answer;
        }
        let mut info = repo.info();
        for file in info["siblings"].as_array_mut().unwrap() {
            let gib = match file["rfilename"].as_str().unwrap() {
                "m-Q2_K.gguf" => continue,
                "m-Q4_K_M.gguf" => 5u64,
                "m-Q6_K.gguf" => 7,
                _ => 16,
            };
            file["size"] = (gib << 30).into();
            file["lfs"]["size"] = (gib << 30).into();
        }
        status(200).body(info.to_string())
    };
    let repo = Repo::new(&[
        ("m-F16.gguf", &small),
        ("m-Q2_K.gguf", &small),
        ("m-Q4_K_M.gguf", &small),
        ("m-Q6_K.gguf", &small),
    ]);
    let hub = MockHub::start(move |asked| sized(asked, &repo));
    let folder = Folder::new();
    let memory = |mib| folder.pull(&hub, "hf:o/r", &["--memory", mib, "--retries", "0"]);
    // The choice is shown before anything else goes wrong: the hub has fewer bytes than it says.
    for (mib, name) in [("20000", "Q6_K"), ("8000", "Q4_K_M")] {
        let run = memory(mib);
        let line = format!("choosing {name}: the best of 4 that fits in");
        assert!(run.stderr.contains(&line), "{}", run.stderr);
        assert!(run.stderr.contains("given with --memory"), "{}", run.stderr);
        for file in ["  16.0 GiB  m-F16.gguf", "GiB  m-Q6_K.gguf"] {
            assert!(run.stderr.contains(file), "{}", run.stderr);
        }
    }
    let run = memory("2000").ok();
    assert!(run.stderr.contains("choosing Q2_K"), "{}", run.stderr);
    assert_eq!(fs::read(folder.path("o/r/m-Q2_K.gguf")).unwrap(), small);
    // Nothing that does not fit is downloaded unless it is named.
    let n_before = hub.asked_files().len();
    memory("500").fails(1, "even the smallest, Q2_K, exceeds the 500.0 MiB");
    assert_eq!(hub.asked_files().len(), n_before);
    folder.pull(&hub, "hf:o/r:Q2_K", &["--memory", "500"]).ok();
}

#[test]
fn lists_the_models_when_the_choice_is_ambiguous() {
    let bytes = model(1);
    let repo = Repo::new(&[
        ("a-Q8_0.gguf", &bytes),
        ("b-Q8_0.gguf", &bytes),
        ("a-F16.gguf", &bytes),
    ]);
    let hub = hub(repo);
    let folder = Folder::new();
    for (reference, part) in [
        ("hf:o/r", "choose with"),
        ("hf:o/r:Q8_0", "more than one"),
        ("hf:o/r:Q2_K", "has no Q2_K"),
        ("hf:o/r/c.gguf", "has no file c.gguf"),
    ] {
        let pulled = folder.pull(&hub, reference, &[]);
        pulled.fails(1, part);
        assert!(pulled.stderr.contains("a-F16.gguf"), "{}", pulled.stderr);
    }
    folder.pull(&hub, "hf:o/r/b-Q8_0.gguf", &[]).ok();
    assert_eq!(folder.files(), ["o/r/b-Q8_0.gguf"]);
}

#[test]
fn locks_the_repository_folder() {
    let (release, released) = mpsc::channel::<()>();
    let (arrive, arrived) = mpsc::channel::<()>();
    let (released, arrive) = (Mutex::new(released), Mutex::new(arrive));
    let hub = faulty(Repo::new(&[("m.gguf", &model(1))]), move |_, answer| {
        arrive.lock().unwrap().send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        answer
    });
    let folder = Folder::new();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| folder.pull(&hub, "hf:o/r", &[]));
        // When the first pull requests the file, it holds the lock.
        arrived.recv().unwrap();
        folder
            .pull(&hub, "hf:o/r", &[])
            .fails(1, "another rocmforge pull");
        release.send(()).unwrap();
        first.join().unwrap().ok();
    });
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), model(1));
}

#[test]
fn resumes_after_ctrl_c() {
    let hub = faulty(Repo::new(&[("m.gguf", &model(1))]), |n, mut answer| {
        if n == 0 {
            answer.drip = Some(2_000);
        }
        answer
    });
    let folder = Folder::new();
    let mut pull = folder.command(&hub, "hf:o/r", &[]);
    let child = pull
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while !folder
        .files()
        .iter()
        .any(|name| fs::metadata(folder.path(name)).is_ok_and(|facts| facts.len() > 5_000))
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(
        stderr.contains("resume with: rocmforge pull hf:o/r"),
        "{stderr}"
    );
    folder.pull(&hub, "hf:o/r", &[]).ok();
    assert!(
        hub.asked_files()[1]
            .range()
            .is_some_and(|from| from > 5_000)
    );
    assert_eq!(fs::read(folder.path("o/r/m.gguf")).unwrap(), model(1));
}
