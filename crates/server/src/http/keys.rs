//! API keys: who may ask for what, and how much of it.
//!
//! A file has one key a line, `name:sha256-hex[:scope,scope][:limit=value,...]`. It holds hashes only, so who reads it has
//! no key.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::StatusCode;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::error::ApiError;

/// Longest key that a client may send.
const MAX_KEY_BYTES: usize = 256;

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Answers, embeddings, tokens, the list of models.
    Infer,
    /// `/metrics`.
    Metrics,
    /// `/admin`: what all clients do, and the server's life.
    Admin,
}

impl Scope {
    const ALL: [Scope; 3] = [Scope::Infer, Scope::Metrics, Scope::Admin];
    /// Those of a key that lists none.
    const USUAL: [Scope; 2] = [Scope::Infer, Scope::Metrics];

    fn name(self) -> &'static str {
        match self {
            Scope::Infer => "infer",
            Scope::Metrics => "metrics",
            Scope::Admin => "admin",
        }
    }
}

/// A damaged keys file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    #[error("cannot read the keys file {path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("line {line} of the keys file: {what}")]
    Line { line: usize, what: String },
    #[error("the keys file has no key, so nobody could use the server; add one")]
    Empty,
    #[error("'{0}' is no name for a key; use 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
    #[error("the system has no random numbers: {0}")]
    Random(String),
}

/// A key, and what its requests use now.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) name: Arc<str>,
    hash: [u8; 32],
    scopes: Vec<Scope>,
    /// Requests at the same time.
    max_requests: Option<usize>,
    tokens_per_minute: Option<u64>,
    pub(crate) max_priority: Option<i32>,
    /// It outlives a change of the file.
    usage: Arc<Usage>,
}

/// What the requests of a key use now.
#[derive(Debug)]
struct Usage {
    n_requests: AtomicUsize,
    bucket: Mutex<Bucket>,
}

impl Usage {
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tokens that a key may still use. It fills up with time; what a request used is taken when it ends, so that the
/// level may be below zero.
#[derive(Debug)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn full(per_minute: Option<u64>) -> Bucket {
        Bucket {
            level: per_minute.unwrap_or(0) as f64,
            at: Instant::now(),
        }
    }

    fn fill(&mut self, per_minute: f64) {
        let now = Instant::now();
        let seconds = now.duration_since(self.at).as_secs_f64();
        self.level = (self.level + seconds * per_minute / 60.0).min(per_minute);
        self.at = now;
    }
}

/// All keys.
#[derive(Debug, Clone, Default)]
pub struct Keys(Arc<[Arc<Key>]>);

/// A fresh key.
pub struct NewKey {
    /// What the client sends. It is kept nowhere.
    pub key: String,
    /// Its line in the keys file.
    pub line: String,
}

impl NewKey {
    /// Creates a key.
    ///
    /// # Errors
    /// The name is none, or the system has no random numbers.
    pub fn create(name: &str) -> Result<NewKey, KeysError> {
        check_name(name)?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| KeysError::Random(error.to_string()))?;
        let key = format!("rf-{}", hex(&bytes));
        let line = format!("{name}:{}", hex(&Sha256::digest(&key)));
        Ok(NewKey { key, line })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

fn check_name(name: &str) -> Result<(), KeysError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match (1..=64).contains(&name.len()) && name.chars().all(is_part) {
        true => Ok(()),
        false => Err(KeysError::Name(name.escape_debug().to_string())),
    }
}

impl Keys {
    /// Reads a keys file.
    ///
    /// # Errors
    /// It cannot be read, a line is damaged, or there is no key.
    pub fn read(path: &Path) -> Result<Keys, KeysError> {
        let text = std::fs::read_to_string(path).map_err(|error| KeysError::Read {
            path: path.display().to_string(),
            error,
        })?;
        Keys::parse(&text)
    }

    /// Parses the text of a keys file. Empty lines and those that begin with `#` are comments.
    ///
    /// # Errors
    /// A line is damaged, or there is no key.
    pub fn parse(text: &str) -> Result<Keys, KeysError> {
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line_text = line.trim();
            if line_text.is_empty() || line_text.starts_with('#') {
                continue;
            }
            let damaged = |what: String| KeysError::Line { line: at + 1, what };
            let key = Key::parse(line_text).map_err(damaged)?;
            if keys.iter().any(|other| other.name == key.name) {
                return Err(damaged(format!("there are two keys named {}", key.name)));
            }
            keys.push(Arc::new(key));
        }
        match keys.is_empty() {
            true => Err(KeysError::Empty),
            false => Ok(Keys(keys.into())),
        }
    }

    /// Returns these keys with what those of the same names use now: their requests, and the tokens that are left.
    pub(crate) fn going_on_from(&self, before: &Keys) -> Keys {
        let going_on = |key: &Arc<Key>| {
            let mut same = before.0.iter().filter(|other| other.name == key.name);
            let Some(other) = same.next() else {
                return Arc::clone(key);
            };
            let usage = Arc::clone(&other.usage);
            if other.tokens_per_minute.is_none() {
                *usage.bucket() = Bucket::full(key.tokens_per_minute);
            }
            Arc::new(Key {
                usage,
                ..Key::clone(key)
            })
        };
        Keys(self.0.iter().map(going_on).collect())
    }

    /// Whether everyone may ask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the key that a client sent. The time it takes does not depend on the key.
    pub(crate) fn find(&self, sent: &[u8]) -> Option<Arc<Key>> {
        if sent.len() > MAX_KEY_BYTES {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(sent).into();
        let mut found = None;
        for key in self.0.iter() {
            if bool::from(key.hash.ct_eq(&hash)) {
                found = Some(key);
            }
        }
        found.cloned()
    }
}

impl Key {
    fn parse(line: &str) -> Result<Key, String> {
        let mut parts = line.split(':');
        let name = parts.next().unwrap_or_default();
        check_name(name).map_err(|error| error.to_string())?;
        let hash = parts.next().unwrap_or_default();
        let hash = from_hex(hash)
            .ok_or("after the name, the SHA-256 of the key in 64 hexadecimal digits is missing")?;
        let mut key = Key {
            name: name.into(),
            hash,
            scopes: Scope::USUAL.to_vec(),
            max_requests: None,
            tokens_per_minute: None,
            max_priority: None,
            usage: Arc::new(Usage {
                n_requests: AtomicUsize::new(0),
                bucket: Mutex::new(Bucket::full(None)),
            }),
        };
        for part in parts.filter(|part| !part.is_empty()) {
            match part.contains('=') {
                true => key.read_limits(part)?,
                false => key.scopes = scopes(part)?,
            }
        }
        *key.usage.bucket() = Bucket::full(key.tokens_per_minute);
        Ok(key)
    }

    fn read_limits(&mut self, part: &str) -> Result<(), String> {
        for limit in part.split(',') {
            let (name, value) = limit.split_once('=').unwrap_or((limit, ""));
            let wrong = || format!("'{value}' is no value for {name}; use a whole number");
            match name {
                "requests" => self.max_requests = Some(value.parse().map_err(|_| wrong())?),
                "tokens_per_minute" => {
                    self.tokens_per_minute = Some(value.parse().map_err(|_| wrong())?);
                }
                "priority" => self.max_priority = Some(value.parse().map_err(|_| wrong())?),
                _ => {
                    return Err(format!(
                        "there is no limit '{name}'; the limits are requests, tokens_per_minute and priority"
                    ));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Takes a place among the requests of this key.
    ///
    /// # Errors
    /// The key has as many requests as it may have, or has used its tokens.
    pub(crate) fn admit(self: &Arc<Key>) -> Result<Place, ApiError> {
        let over = |message: String| {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("rate_limit_exceeded")
        };
        if let Some(per_minute) = self.tokens_per_minute {
            let per_minute = per_minute as f64;
            let mut bucket = self.usage.bucket();
            bucket.fill(per_minute);
            if bucket.level <= 0.0 {
                let seconds = (1.0 - bucket.level) * 60.0 / per_minute.max(1.0);
                return Err(
                    over(format!("this key may use {per_minute} tokens a minute"))
                        .retry_after(seconds.ceil() as u64),
                );
            }
        }
        let max = self.max_requests.unwrap_or(usize::MAX);
        let more = |n: usize| (n < max).then(|| n + 1);
        self.usage
            .n_requests
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .map_err(|_| {
                over(format!("this key may have {max} requests at the same time")).retry_after(1)
            })?;
        Ok(Place(Arc::clone(self)))
    }
}

fn scopes(text: &str) -> Result<Vec<Scope>, String> {
    let scope = |name: &str| {
        let found = Scope::ALL.into_iter().find(|scope| scope.name() == name);
        found.ok_or_else(|| {
            format!("there is no scope '{name}'; the scopes are infer, metrics and admin")
        })
    };
    text.split(',').map(scope).collect()
}

/// A request of a key. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place(Arc<Key>);

impl Place {
    /// Returns the name of the key.
    pub(crate) fn owner(&self) -> &Arc<str> {
        &self.0.name
    }

    /// Takes tokens from what the key may use.
    pub(crate) fn charge(&self, n_tokens: usize) {
        let key = &self.0;
        if key.tokens_per_minute.is_some() {
            key.usage.bucket().level -= n_tokens as f64;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.usage.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc", from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn finds_keys_by_hash() {
        let text = format!("# team\n\nalice:{ABC}:infer:requests=2,tokens_per_minute=60\n");
        let keys = Keys::parse(&text).unwrap();
        let key = keys.find(b"abc").unwrap();
        assert_eq!(&*key.name, "alice");
        assert!(key.may(Scope::Infer) && !key.may(Scope::Metrics));
        assert!(keys.find(b"abd").is_none());
        assert!(keys.find(&[b'a'; 10_000]).is_none());
    }

    #[test]
    fn a_new_key_opens_its_own_line() {
        let new = NewKey::create("bob").unwrap();
        let keys = Keys::parse(&new.line).unwrap();
        assert_eq!(&*keys.find(new.key.as_bytes()).unwrap().name, "bob");
        assert!(!new.line.contains(&new.key));
        assert_ne!(NewKey::create("bob").unwrap().key, new.key);
    }

    #[test]
    fn refuses_damaged_lines_by_number() {
        for (text, part) in [
            ("alice", "line 1"),
            ("\nalice:12", "line 2"),
            (&format!("alice:{ABC}:root"), "no scope 'root'"),
            (&format!("alice:{ABC}::cpus=1"), "no limit 'cpus'"),
            (&format!("alice:{ABC}::requests=x"), "'x'"),
            (&format!("alice:{ABC}\nalice:{ABC}"), "two keys"),
            (&format!("a b:{ABC}"), "no name"),
            ("# nobody", "no key"),
        ] {
            let error = Keys::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn limits_outlive_a_change_of_the_file() {
        let line = |limits: &str| Keys::parse(&format!("alice:{ABC}::{limits}")).unwrap();
        let key = |keys: &Keys| keys.find(b"abc").unwrap();
        let first = line("requests=1,tokens_per_minute=60");
        let place = key(&first).admit().unwrap();
        let second = line("requests=2,tokens_per_minute=600").going_on_from(&first);
        let other_place = key(&second).admit().unwrap();
        let error = key(&second).admit().unwrap_err();
        assert!(error.message.contains("2 requests"), "{}", error.message);
        place.charge(120);
        drop((place, other_place));
        let error = key(&second).admit().unwrap_err();
        assert!(error.message.contains("600 tokens"), "{}", error.message);
        // A limit that is new begins with all of its tokens.
        let third = line("requests=3").going_on_from(&second);
        drop(key(&third).admit().unwrap());
        let fourth = line("tokens_per_minute=60").going_on_from(&third);
        drop(key(&fourth).admit().unwrap());
    }

    #[test]
    fn limits_requests_and_tokens() {
        let text = format!("alice:{ABC}::requests=1,tokens_per_minute=60");
        let key = Keys::parse(&text).unwrap().find(b"abc").unwrap();
        let place = key.admit().unwrap();
        let error = key.admit().unwrap_err();
        assert_eq!(error.status, StatusCode::TOO_MANY_REQUESTS);
        place.charge(120);
        drop(place);
        // 60 tokens too many at one a second.
        let seconds = key.admit().unwrap_err().retry_after.unwrap();
        assert!((59..=62).contains(&seconds), "{seconds}");
    }
}
