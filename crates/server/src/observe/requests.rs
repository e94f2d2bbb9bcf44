//! The requests that are under way: who asks for what, and how far it is. Nothing in the table is text of a user.
//!
//! A request is in the table from its admission to its end, so there are at most as many as connections. What the engine
//! does with it is read from the engine when somebody looks; a token costs the table nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use rocmforge_engine::RequestState;
use rocmforge_engine::serve::Watch;
use serde::Serialize;

/// All requests that are under way, by id.
#[derive(Default)]
pub(crate) struct Requests(Mutex<HashMap<String, Arc<Entry>>>);

/// What a client asked for.
pub(crate) struct Asked {
    pub(crate) id: String,
    pub(crate) route: String,
    /// Name of the client's key.
    pub(crate) key: Option<String>,
}

/// A request in the table. Dropping it takes it out.
pub(crate) struct Listed {
    table: Arc<Requests>,
    entry: Arc<Entry>,
}

struct Entry {
    asked: Asked,
    began: Instant,
    is_ended: AtomicBool,
    /// The task that waits for the answer.
    reader: AtomicWaker,
    work: Mutex<Work>,
}

/// What the request asks of a model.
#[derive(Default)]
struct Work {
    model: Option<String>,
    is_stream: bool,
    prompt_tokens: usize,
    /// When it was submitted.
    since: Option<Instant>,
    /// Each answer.
    answers: Vec<Watch>,
    /// The answers whose prompts are counted.
    n_leaders: usize,
    /// Whether texts are embedded, which have no answers.
    embeds: bool,
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    id: String,
    model: Option<String>,
    route: String,
    /// Name of the client's key.
    key: Option<String>,
    state: &'static str,
    stream: bool,
    answers: usize,
    age_seconds: f64,
    queue_seconds: f64,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. `fresh_id` names it if a client gives two requests the same id.
    pub(crate) fn begin(
        self: &Arc<Requests>,
        asked: Asked,
        fresh_id: impl FnOnce() -> String,
    ) -> Listed {
        let mut table = self.lock();
        let id = match table.contains_key(&asked.id) {
            true => fresh_id(),
            false => asked.id.clone(),
        };
        let entry = Arc::new(Entry {
            asked: Asked {
                id: id.clone(),
                ..asked
            },
            began: Instant::now(),
            is_ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            work: Mutex::default(),
        });
        table.insert(id, Arc::clone(&entry));
        let table = Arc::clone(self);
        Listed { table, entry }
    }

    /// Returns the table, the oldest first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut entries: Vec<Arc<Entry>> = self.lock().values().cloned().collect();
        entries.sort_by(|a, b| (a.began, &a.asked.id).cmp(&(b.began, &b.asked.id)));
        entries.iter().map(|entry| entry.row()).collect()
    }

    /// Ends a request. Returns whether there is one of this id.
    pub(crate) fn end(&self, id: &str) -> bool {
        let found = self.lock().get(id).cloned();
        if let Some(entry) = &found {
            entry.end();
        }
        found.is_some()
    }
}

impl Entry {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        // The engine is told at once: the task may wait for a client that reads nothing.
        for answer in &self.work().answers {
            answer.abort();
        }
        self.reader.wake();
    }

    fn row(&self) -> Row {
        let work = self.work();
        let age = self.began.elapsed();
        let progress: Vec<_> = work.answers.iter().map(Watch::progress).collect();
        let leaders = &progress[..work.n_leaders];
        let waits = work.since.map_or(age, |since| since.elapsed());
        let queue_times = leaders.iter().map(|it| it.queue_time.unwrap_or(waits));
        let queue_time = match work.embeds {
            true => Duration::ZERO,
            false => queue_times.max().unwrap_or(waits),
        };
        let state = progress.iter().map(|progress| progress.state).max();
        let state = match state.unwrap_or_default() {
            _ if self.is_ended.load(Ordering::SeqCst) => "ended",
            RequestState::Queued if work.embeds => "prefill",
            RequestState::Queued => "queued",
            RequestState::Prefill => "prefill",
            RequestState::Decode => "decode",
        };
        Row {
            id: self.asked.id.clone(),
            model: work.model.clone(),
            route: self.asked.route.clone(),
            key: self.asked.key.clone(),
            state,
            stream: work.is_stream,
            answers: work.answers.len(),
            age_seconds: age.as_secs_f64(),
            queue_seconds: queue_time.as_secs_f64(),
            prompt_tokens: work.prompt_tokens,
            cached_tokens: leaders.iter().map(|it| it.cached_tokens).sum(),
            generated_tokens: progress.iter().map(|it| it.generated_tokens).sum(),
        }
    }
}

impl Listed {
    /// Notes what was submitted: the tokens of all prompts, the first answer to each of them, and the others.
    pub(crate) fn submitted(
        &self,
        model: &str,
        prompt_tokens: usize,
        [leaders, followers]: [Vec<Watch>; 2],
    ) {
        let mut work = self.entry.work();
        work.model = Some(model.to_string());
        work.prompt_tokens = prompt_tokens;
        work.since = Some(Instant::now());
        work.n_leaders = leaders.len();
        work.answers = leaders;
        work.answers.extend(followers);
    }

    /// Notes that texts are embedded.
    pub(crate) fn embeds(&self, model: &str, n_tokens: usize) {
        let mut work = self.entry.work();
        work.model = Some(model.to_string());
        work.prompt_tokens = n_tokens;
        work.embeds = true;
    }

    /// Notes that the answer is a stream.
    pub(crate) fn streams(&self) {
        self.entry.work().is_stream = true;
    }

    /// Returns whether the server's owner has ended the request.
    pub(crate) fn is_ended(&self) -> bool {
        self.entry.is_ended.load(Ordering::SeqCst)
    }

    /// Is ready once the server's owner has ended the request. Only the task that polled last is woken.
    pub(crate) fn poll_ended(&self, context: &mut Context<'_>) -> Poll<()> {
        self.entry.reader.register(context.waker());
        match self.is_ended() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.table.lock().remove(&self.entry.asked.id);
    }
}
