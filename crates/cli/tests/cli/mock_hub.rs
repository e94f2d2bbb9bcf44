//! A local hub that answers like the real one, or misbehaves. One thread per connection; a closure of the test chooses
//! the answers.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The commit of every revision.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Path with query.
    pub path: String,
    /// Names are in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    pub fn is_file(&self) -> bool {
        self.path.contains("/resolve/")
    }

    pub fn range(&self) -> Option<usize> {
        let range = self.headers.get("range")?;
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

/// A response.
#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Sends the body in pieces of this many bytes, ten per second.
    pub drip: Option<usize>,
}

pub fn status(status: u16) -> Answer {
    Answer {
        status,
        headers: Vec::new(),
        body: Vec::new(),
        cut: None,
        drip: None,
    }
}

impl Answer {
    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Answer {
        self.body = body.into();
        self
    }

    pub fn cut(mut self, bytes: usize) -> Answer {
        self.cut = Some(bytes);
        self
    }
}

/// A running hub; ends with the test process.
pub struct MockHub {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl MockHub {
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> MockHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // Clients may disconnect at any time.
                    let _ = serve(stream, &log, &*answer);
                });
            }
        });
        MockHub { port, asked }
    }

    /// Returns the hub's address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns all requests.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Returns the requests for files.
    pub fn asked_files(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::is_file).collect()
    }
}

fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Answer + Send + Sync),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let asked = Asked { path, headers };
    log.lock().unwrap().push(asked.clone());
    send(stream, answer(&asked))
}

fn send(mut stream: TcpStream, answer: Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", answer.body.len()));
    stream.write_all(head.as_bytes())?;
    let body = &answer.body[..answer.cut.unwrap_or(answer.body.len())];
    let Some(piece) = answer.drip else {
        return stream.write_all(body);
    };
    for piece in body.chunks(piece) {
        stream.write_all(piece)?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The files of the repository `o/r`.
#[derive(Clone)]
pub struct Repo {
    pub files: Vec<(String, Vec<u8>)>,
}

impl Repo {
    pub fn new(files: &[(&str, &[u8])]) -> Repo {
        let files = files
            .iter()
            .map(|(name, bytes)| (name.to_string(), bytes.to_vec()));
        Repo {
            files: files.collect(),
        }
    }

    /// Returns the hub's listing.
    pub fn info(&self) -> Value {
        let siblings: Vec<Value> = self
            .files
            .iter()
            .map(|(name, bytes)| {
                let lfs = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134});
                json!({"rfilename": name, "size": bytes.len(), "lfs": lfs})
            })
            .collect();
        json!({"id": "o/r", "sha": COMMIT, "siblings": siblings})
    }

    /// Answers like a hub with only this repository.
    pub fn answer(&self, asked: &Asked) -> Answer {
        if asked.path == "/api/models/o/r/revision/main?blobs=true" {
            return status(200).body(self.info().to_string());
        }
        let prefix = format!("/o/r/resolve/{COMMIT}/");
        let name = asked.path.strip_prefix(&prefix);
        let file = name.and_then(|name| self.files.iter().find(|(of, _)| of == name));
        match (file, asked.range()) {
            (None, _) => status(404).header("X-Error-Code", "RepoNotFound"),
            (Some((_, bytes)), None) => status(200).body(&bytes[..]),
            (Some((_, bytes)), Some(from)) if from >= bytes.len() => status(416),
            (Some((_, bytes)), Some(from)) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                status(206)
                    .header("Content-Range", &range)
                    .body(&bytes[from..])
            }
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
