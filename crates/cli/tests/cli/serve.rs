//! `serve`: the program as a server.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::gpu_faults::{VENDORS, image, stub};
use crate::program::{command, repository, run};

/// A server in a process of its own.
pub struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    ready: Value,
}

impl Served {
    pub fn start(args: &[&str]) -> Served {
        Served::start_with(args, &[])
    }

    /// [`Served::start`] with environment variables.
    fn start_with(args: &[&str], env: &[(String, &OsStr)]) -> Served {
        let all = [&["serve", "--port", "0", "--json", "--ctx", "512"], args].concat();
        let mut command = command(&all);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(env.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| {
            let mut stderr = String::new();
            let pipe = child.stderr.as_mut().unwrap();
            let _ = pipe.read_to_string(&mut stderr);
            panic!("{error}: {line}{stderr}")
        });
        Served {
            child,
            stdout,
            ready,
        }
    }

    /// Sends a request and returns the status and the body of the answer.
    pub fn send(&self, head: &str, body: &str) -> (u16, String) {
        let address = self.ready["url"].as_str().unwrap();
        let address = address.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let n = body.len();
        write!(
            stream,
            "{head}host: localhost\r\ncontent-length: {n}\r\nconnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_string())
    }

    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.try_post(path, body);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn try_post(&self, path: &str, body: &Value) -> (u16, Value) {
        let head = format!("POST {path} HTTP/1.1\r\n");
        let (status, body) = self.send(&head, &body.to_string());
        (status, serde_json::from_str(&body).unwrap())
    }

    fn get(&self, path: &str) -> Value {
        let (_, body) = self.send(&format!("GET {path} HTTP/1.1\r\n"), "");
        serde_json::from_str(&body).unwrap()
    }

    /// Begins a stream and returns its lines after the head.
    fn stream(&self, path: &str, body: &Value) -> impl Iterator<Item = String> + use<> {
        let address = self.ready["url"].as_str().unwrap();
        let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
        let body = body.to_string();
        let n = body.len();
        // The body of HTTP/1.0 is not cut into chunks.
        let head =
            format!("POST {path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {n}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let status = lines.next().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        assert!(lines.any(|line| line.is_empty()));
        lines
    }

    /// Returns the status of a request with a key.
    fn status(&self, path: &str, key: &str) -> u16 {
        let head = format!("GET {path} HTTP/1.1\r\nx-api-key: {key}\r\n");
        self.send(&head, "").0
    }

    /// Sends a signal and waits for the end. Returns the exit code and the rest of stdout and stderr.
    pub fn end(mut self, signal: &str) -> (Option<i32>, String, String) {
        let kill = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        if !kill.is_ok_and(|status| status.success()) {
            println!("there is no kill command; the process is ended otherwise");
            self.child.kill().unwrap();
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).unwrap();
        let mut pipe = self.child.stderr.take().unwrap();
        pipe.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stdout, stderr)
    }
}

#[test]
fn serves_the_built_in_model_until_it_is_told_to_stop() {
    let served = Served::start(&[]);
    assert_eq!(served.ready["models"], json!(["forge-mini"]));
    let args = [
        "generate",
        "--ctx",
        "512",
        "--temp",
        "0",
        "-n",
        "12",
        "--json",
        "-p",
        "Once upon a time",
    ];
    let expected = run(&args).json();
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12});
    let answer = served.post("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["text"], expected["text"]);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 12});
    let args = [
        "generate", "--ctx", "512", "--chat", "--temp", "0", "-n", "12", "--json", "-p", "Hi",
    ];
    let expected = run(&args).json();
    let answer = served.post("/v1/chat/completions", &chat);
    assert_eq!(answer["choices"][0]["message"]["content"], expected["text"]);
    let (code, stdout, stderr) = served.end("-TERM");
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn several_models_have_the_names_of_their_files_or_those_given() {
    let path = repository("models/forge-mini-Q4_K_M.gguf");
    let path = path.to_str().unwrap();
    let served = Served::start(&["-m", path]);
    assert_eq!(served.ready["models"], json!(["forge-mini-Q4_K_M"]));
    assert_eq!(served.end("-INT").0, Some(0));

    let served = Served::start(&["-m", path, "-m", path, "--alias", "a", "--alias", "b"]);
    assert_eq!(served.ready["models"], json!(["a", "b"]));
    for name in ["a", "b"] {
        let body = json!({"model": name, "prompt": "Hi", "max_tokens": 1});
        assert_eq!(served.post("/v1/completions", &body)["model"], name);
    }
    served.end("-TERM");
}

/// A folder with forge-mini as `name.gguf` for each of `names`.
fn folder(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let to = dir.path().join(format!("{name}.gguf"));
        std::fs::copy(repository("models/forge-mini-Q4_K_M.gguf"), to).unwrap();
    }
    dir
}

#[test]
fn the_models_of_a_folder_share_the_memory() {
    let dir = folder(&["one", "two"]);
    std::fs::write(dir.path().join("damaged.gguf"), "GGUF").unwrap();
    let models_dir = dir.path().to_str().unwrap();
    // One of them takes 20 to 32 MiB.
    let flags = ["--all-models", "--models-dir", models_dir, "--memory", "40"];
    let served = Served::start(&[&flags[..], &["--device", "cpu"]].concat());
    let names = json!(["damaged.gguf", "one.gguf", "two.gguf"]);
    assert_eq!(served.ready["models"], names);
    let status = |served: &Served| {
        let models = served.get("/v1/models");
        let models = models["data"].as_array().unwrap().clone();
        let words = models.iter().map(|model| model["status"]["value"].clone());
        words.collect::<Vec<Value>>()
    };
    assert_eq!(status(&served), ["unloaded", "unloaded", "unloaded"]);
    let ask =
        |name: &str| json!({"model": name, "prompt": "Hi", "temperature": 0, "max_tokens": 4});
    let one = served.post("/v1/completions", &ask("one.gguf"));
    assert_eq!(status(&served), ["unloaded", "loaded", "unloaded"]);
    let two = served.post("/v1/completions", &ask("two.gguf"));
    assert_eq!(status(&served), ["unloaded", "unloaded", "loaded"]);
    assert_eq!(one["choices"], two["choices"]);
    let (_, error) = served.try_post("/v1/completions", &ask("damaged.gguf"));
    assert_eq!(error["error"]["code"], "model_load_failed");
    assert!(!error.to_string().contains(models_dir), "{error}");
    let again = served.post("/v1/completions", &ask("two.gguf"));
    assert_eq!(again["choices"], two["choices"]);
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!(code, Some(0));
    assert!(
        stderr.contains("notice: one.gguf leaves the memory"),
        "{stderr}"
    );
    let reason = format!("error: damaged.gguf is not loaded: {models_dir}");
    assert!(stderr.contains(&reason), "{stderr}");

    let empty = tempfile::tempdir().unwrap();
    let models_dir = empty.path().to_str().unwrap();
    run(&["serve", "--all-models", "--models-dir", models_dir]).fails(2, "rocmforge pull");
}

#[test]
fn a_file_has_the_settings() {
    let dir = folder(&["second"]);
    let path = dir.path().join("serve.toml");
    let text = r#"
        port = 1
        access-log = true
        idle-unload = 1
        max-seqs = 2

        [[models]]
        name = "mini"
        aliases = ["gpt-4o"]
        defaults = { max_tokens = 2 }

        [[models]]
        file = "second.gguf"
        at-start = false
        kv-tokens = 1024
    "#;
    std::fs::write(&path, text).unwrap();
    let served = Served::start(&["--config", path.to_str().unwrap()]);
    assert_eq!(served.ready["models"], json!(["mini", "second"]));
    for (asked, name, n) in [("gpt-4o", "mini", 2), ("second", "second", 6)] {
        let body = json!({"model": asked, "prompt": "Hi", "ignore_eos": true});
        let body = match name {
            "second" => {
                json!({"model": asked, "prompt": "Hi", "ignore_eos": true, "max_tokens": 6})
            }
            _ => body,
        };
        let answer = served.post("/v1/completions", &body);
        assert_eq!(answer["model"], name);
        assert_eq!(answer["usage"]["completion_tokens"], n);
    }
    // Both leave the memory, and come back.
    let are_away = || {
        std::thread::sleep(Duration::from_millis(50));
        let models = served.get("/v1/models");
        let mut models = models["data"].as_array().unwrap().iter();
        models.all(|model| model["status"]["value"] == "unloaded")
    };
    assert!((0..600).any(|_| are_away()));
    for name in ["mini", "second"] {
        let body = json!({"model": name, "prompt": "Hi", "max_tokens": 1});
        served.post("/v1/completions", &body);
    }
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!(code, Some(0));
    assert!(stderr.contains("/v1/completions"), "{stderr}");

    std::fs::write(&path, "prot = 1").unwrap();
    run(&["serve", "--config", path.to_str().unwrap()]).fails(2, "prot is no setting");
    run(&["serve", "--config", "/nowhere.toml"]).fails(1, "cannot open /nowhere.toml");
}

#[test]
fn a_device_that_hangs_is_told_after_the_time_of_the_flag() {
    let Some(image) = image() else { return };
    let dir = tempfile::tempdir().unwrap();
    let hangs = dir.path().join("hangs");
    let hang_file = format!("-DHANG_FILE=\"{}\"", hangs.display());
    let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30", &hang_file];
    let vendor = &VENDORS[0];
    let Some(library) = stub(vendor, "cli-hangs", &faults) else {
        return;
    };
    let on = ["--device", vendor.device, "--gpu-image", &image];
    let flags = ["--gpu-check", "never", "--no-graphs", "--step-timeout", "1"];
    let library = (vendor.library(), library.as_os_str());
    let served = Served::start_with(&[&on[..], &flags].concat(), &[library]);
    let live = || served.send("GET /health/live HTTP/1.1\r\n", "").0;
    assert_eq!(live(), 200);
    std::fs::write(&hangs, "").unwrap();
    let body = json!({"prompt": "Hi", "max_tokens": 2});
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| served.post("/v1/completions", &body));
        let is_told = || {
            std::thread::sleep(Duration::from_millis(25));
            live() == 503
        };
        let is_told = (0..1200).any(|_| is_told());
        std::fs::remove_file(&hangs).unwrap();
        assert!(is_told);
        answer.join().unwrap();
    });
    assert_eq!(live(), 200);
    assert_eq!(served.end("-TERM").0, Some(0));
}

/// Graphs that stop working while the server runs cost no answer, and the log says so once.
#[test]
fn the_log_says_that_graphs_stopped() {
    let Some(image) = image() else { return };
    let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30", "-DGRAPH_CODE=801"];
    let vendor = &VENDORS[0];
    let Some(library) = stub(vendor, "cli-graphs-stop", &faults) else {
        return;
    };
    let flags = ["--device", vendor.device, "--gpu-image", &image];
    let flags = [&flags[..], &["--gpu-check", "never"]].concat();
    let library = (vendor.library(), library.as_os_str());
    let served = Served::start_with(&flags, &[library]);
    let body = json!({"prompt": "Hi", "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let answers = [0; 2].map(|_| served.post("/v1/completions", &body));
    assert_eq!(answers[0]["usage"]["completion_tokens"], 6);
    assert_eq!(answers[0]["choices"], answers[1]["choices"]);
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!(code, Some(0));
    let told = stderr.matches("notice: the graph of a step cannot be launched (");
    assert_eq!(told.count(), 1, "{stderr}");
}

#[test]
fn a_load_is_measured() {
    let served = Served::start(&[]);
    let url = served.ready["url"].as_str().unwrap();
    let args = [
        "bench",
        "serve",
        "--url",
        url,
        "-n",
        "12",
        "--prompt-tokens",
        "20",
        "--max-tokens",
        "8",
        "-o",
        "json",
    ];
    for more in [&["--concurrency", "4"], &["--rate", "200"]] {
        let slo = ["--slo", "ttft_ms=600000,itl_ms=600000"];
        let report = run(&[&args, &more[..], &slo].concat()).json();
        assert_eq!(
            (&report["n_ok"], &report["n_failed"]),
            (&json!(12), &json!(0))
        );
        let number = |path: &str| report.pointer(path).unwrap().as_f64().unwrap();
        // 12 answers of 8 tokens.
        let tokens = number("/output_tokens_s") * number("/duration_s");
        assert!((tokens - 96.0).abs() < 1e-6, "{report}");
        assert!((number("/goodput") - number("/requests_s")).abs() < 1e-9);
        for name in ["ttft_ms", "itl_ms", "e2e_ms"] {
            let [p50, p95, p99] = ["p50", "p95", "p99"].map(|p| number(&format!("/{name}/{p}")));
            assert!(0.0 < p50 && p50 <= p95 && p95 <= p99, "{report}");
        }
    }
    let fails = |args: &[&str], code: i32, part: &str| {
        run(&[&["bench", "serve"], args].concat()).fails(code, part)
    };
    fails(&["--url", url], 2, "--rate");
    fails(&["--url", "ftp://x", "--rate", "1"], 1, "no address");
    fails(&["--url", url, "--rate", "0"], 2, "above 0");
    fails(
        &["--url", url, "--concurrency", "1", "--model", "none"],
        1,
        "no such model",
    );
    fails(
        &["--url", url, "--concurrency", "1", "--slo", "x=1"],
        2,
        "ttft_ms=MS",
    );
    served.end("-TERM");
}

#[test]
fn conversations_are_measured() {
    let served = Served::start(&["--kv-tokens", "4096"]);
    let url = served.ready["url"].as_str().unwrap();
    let args = [
        "bench",
        "serve",
        "--url",
        url,
        "--concurrency",
        "2",
        "-n",
        "3",
        "--turns",
        "4",
    ];
    let sizes = [
        "--prompt-tokens",
        "40",
        "--turn-tokens",
        "20",
        "--max-tokens",
        "48",
        "-o",
        "json",
    ];
    for tools in ["0", "1"] {
        let more = [&["--tools", tools][..], &sizes].concat();
        let report = run(&[&args[..], &more].concat()).json();
        assert_eq!(
            (&report["n_ok"], &report["n_failed"]),
            (&json!(12), &json!(0))
        );
        let turns = &report["turns"];
        assert_eq!(turns["n_turns"], 4);
        assert_eq!(turns["ttft_ms"].as_array().unwrap().len(), 4);
        let number = |name: &str| turns[name].as_f64().unwrap();
        assert!(number("cached_tokens") < number("prompt_tokens"));
        assert_eq!(
            number("cached_share"),
            number("cached_tokens") / number("prompt_tokens")
        );
        // Whole pages of 32 tokens are found, and the last answer may be written otherwise than it was generated.
        assert!(number("earlier_cached_share") > 0.5, "{turns}");
        // Each of 4 turns adds at least a message or a call and its result.
        assert!(number("max_prompt_tokens") > 40.0 + 4.0 * 20.0, "{turns}");
    }
    let table = run(&[&args[..], &["--max-tokens", "2"]].concat()).ok();
    assert!(table.text().contains("of what the turn before had"));
    let alone = [
        "bench", "serve", "--url", url, "--rate", "1", "--tools", "1",
    ];
    run(&alone).fails(2, "--turns");
    served.end("-TERM");
}

#[test]
fn requests_are_logged_and_keys_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    let new_key = |name: &str| {
        let text = run(&["serve", "--new-key", name]).ok();
        let mut lines = text.text().lines().map(String::from);
        (lines.next().unwrap(), lines.next().unwrap())
    };
    let ((alice, of_alice), (bob, of_bob)) = (new_key("alice"), new_key("bob"));
    std::fs::write(&keys, of_alice).unwrap();
    let served = Served::start(&["--access-log", "--keys", keys.to_str().unwrap()]);
    let models = |key: &str| served.status("/v1/models", key);
    assert_eq!((models(&alice), models(&bob)), (200, 401));
    std::fs::write(&keys, of_bob).unwrap();
    let kill = Command::new("kill")
        .args(["-HUP", &served.child.id().to_string()])
        .status();
    if !kill.is_ok_and(|status| status.success()) {
        println!("skipped: there is no kill command");
        return;
    }
    let is_read = || {
        std::thread::sleep(Duration::from_millis(20));
        models(&alice) == 401
    };
    assert!((0..500).any(|_| is_read()));
    assert_eq!(models(&bob), 200);
    assert_eq!(served.status("/secret-path", &bob), 404);
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!(code, Some(0), "{stderr}");
    let lines: Vec<Value> = stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let first = &lines[0];
    assert_eq!(
        (&first["route"], &first["status"]),
        (&json!("/v1/models"), &json!(200))
    );
    assert_eq!(
        (&first["key"], &first["complete"]),
        (&json!("alice"), &json!(true))
    );
    assert!(
        lines
            .iter()
            .any(|line| line["key"] == "bob" && line["status"] == 200)
    );
    assert!(
        !stderr.contains("secret-path") && !stderr.contains(&bob),
        "{stderr}"
    );
}

/// What users write is in the log only if the owner wants it there.
#[test]
fn contents_are_logged_on_request() {
    let body = json!({"prompt": "My password is", "max_tokens": 3, "temperature": 0});
    for flag in ["--access-log", "--log-content"] {
        let served = Served::start(&[flag]);
        let answer = served.post("/v1/completions", &body);
        let (_, _, stderr) = served.end("-TERM");
        let is_of_it = |line: &Value| line["route"] == "/v1/completions";
        let mut lines = stderr
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let line: Value = lines.find(is_of_it).expect(&stderr);
        match flag {
            "--access-log" => assert!(!stderr.contains("password"), "{stderr}"),
            _ => {
                let logged = |name: &str| -> Value {
                    serde_json::from_str(line[name].as_str().unwrap()).unwrap()
                };
                assert_eq!(logged("request"), body);
                assert_eq!(logged("answer"), answer);
            }
        }
    }
}

/// A log that nobody reads: more lines than its pipe holds stop no client.
#[test]
fn a_full_log_stops_no_client() {
    let served = Served::start(&["--log-content"]);
    let body = json!({"prompt": "x", "max_tokens": 1, "unknown": "y".repeat(100_000)});
    for _ in 0..12 {
        served.post("/v1/completions", &body);
    }
    // Nor does it keep the program from its end.
    let (code, ..) = served.end("-TERM");
    assert_eq!(code, Some(0));
}

/// SIGTERM while more requests wait than run: each of them gets its whole answer.
#[test]
fn a_stop_under_load_loses_no_request() {
    let served = Served::start(&["--max-seqs", "4", "--drain-timeout", "300"]);
    let body = |i: usize, stream: bool| {
        let prompt = format!("Story number {i}:");
        json!({"prompt": prompt, "temperature": 0, "max_tokens": 60, "ignore_eos": true, "stream": stream})
    };
    let alone: Vec<Value> = (0..24)
        .map(|i| served.post("/v1/completions", &body(i, false))["choices"][0]["text"].take())
        .collect();
    let streams: Vec<_> = (0..24)
        .map(|i| served.stream("/v1/completions", &body(i, true)))
        .collect();
    let readers: Vec<_> = streams
        .into_iter()
        .map(|lines| std::thread::spawn(move || lines.collect::<Vec<String>>()))
        .collect();
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    for (reader, alone) in readers.into_iter().zip(alone) {
        let lines = reader.join().unwrap();
        let mut events: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{lines:?}");
        let text = |event: &&str| {
            let event: Value = serde_json::from_str(event).unwrap();
            event["choices"][0]["text"].as_str().map(String::from)
        };
        let text: String = events.iter().filter_map(text).collect();
        assert_eq!(text, alone);
    }
}

#[test]
fn a_new_key_is_shown_with_the_hash_of_it() {
    let text = run(&["serve", "--new-key", "alice"]).ok();
    let lines: Vec<&str> = text.text().lines().collect();
    let [key, line] = lines[..] else {
        panic!("{lines:?}");
    };
    let hash: String = Sha256::digest(key)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(line, format!("alice:{hash}"));
    run(&["serve", "--new-key", "a b"]).fails(1, "no name for a key");
}

#[test]
fn refusals_say_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    run(&["serve", "--port", &port]).fails(1, "choose another port");
    run(&["serve", "--port", "0", "--host", "0.0.0.0"]).fails(1, "keys file");
    run(&["serve", "--keys", "/nowhere/keys"]).fails(1, "/nowhere/keys");
    run(&["serve", "--alias", "a", "--alias", "b"]).fails(2, "--alias");
    let tight = |mib, ctx| {
        let flags = [
            "--memory", mib, "--ctx", ctx, "--device", "cpu", "--port", "0",
        ];
        run(&[&["serve"], &flags[..]].concat())
    };
    tight("1", "512").fails(1, "--memory 1 leaves 0 MiB for forge-mini");
    tight("40", "16384").fails(1, "for a context of 16384 tokens; use a larger --memory");
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "alice:123\n").unwrap();
    run(&["serve", "--keys", keys.to_str().unwrap()]).fails(1, "line 1 of the keys file");
}
