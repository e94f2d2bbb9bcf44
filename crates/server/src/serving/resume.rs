//! Streams that go on without their client, which may come back for the rest.
//!
//! A kept stream is a ring of the bytes that its response has had so far. A task fills it; clients read it from any offset
//! that it still has. Streams belong to a key and are bounded in number and bytes; one that nobody reads ends, and is
//! forgotten, after a time. What a reader has not had is never dropped: the task waits for readers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Readers of a stream at the same time.
pub(crate) const MAX_READERS: usize = 4;
/// Bytes that a reader gets at once, and that a stream which is not kept is ahead of its readers.
const MAX_READ_BYTES: usize = 64 << 10;

/// What is kept at most.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Streams of a key.
    n_of_key: usize,
    /// Bytes of a stream. Its first ones are forgotten.
    bytes_of_stream: usize,
    /// Bytes of all streams. Those that have ended and have no readers make room for others.
    bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            n_of_key: 64,
            bytes_of_stream: 4 << 20,
            bytes: 256 << 20,
        }
    }
}

/// The name of a key; `None` without keys.
type Owner = Option<Arc<str>>;

/// All kept streams.
#[derive(Default)]
pub(crate) struct Streams {
    /// Those of each key, the oldest first.
    all: Mutex<HashMap<Owner, VecDeque<Arc<Kept>>>>,
    /// Bytes of all streams.
    n_bytes: AtomicUsize,
    bounds: Bounds,
}

/// A stream that is kept, or may be.
#[derive(Debug)]
pub(crate) struct Kept {
    owner: Owner,
    id: String,
    /// The route of the request.
    route: String,
    began: Timestamp,
    state: Mutex<State>,
    /// Told when there are more bytes, or no more.
    more: Notify,
    /// Told when a reader leaves, or the stream is ended.
    less: Notify,
    /// Told when a reader has had bytes, or leaves.
    had: Notify,
}

#[derive(Debug)]
struct State {
    /// The head of the response; `None` until there is one.
    head: Option<HeaderMap>,
    bytes: VecDeque<u8>,
    /// Bytes before these that are forgotten.
    n_dropped: usize,
    /// When the last byte came.
    completed: Option<Timestamp>,
    /// Whether it is forgotten.
    is_gone: bool,
    /// Whether it goes on without a reader.
    goes_on: bool,
    /// The offset of each reader.
    readers: [Option<usize>; MAX_READERS],
    /// When the last reader left.
    left: Instant,
}

impl State {
    fn n_readers(&self) -> usize {
        self.readers.iter().flatten().count()
    }

    /// Returns the number of bytes that all readers have had.
    fn n_had(&self) -> usize {
        let slowest = self.readers.iter().flatten().min();
        slowest.map_or(self.bytes.len(), |at| at.saturating_sub(self.n_dropped))
    }
}

/// What a client may know of its stream.
pub(crate) struct Summary {
    pub(crate) id: String,
    pub(crate) total_bytes: usize,
    pub(crate) began: Timestamp,
    pub(crate) completed: Option<Timestamp>,
}

/// Why a stream cannot be read from an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The answer has not begun.
    NotYet,
    /// The bytes are forgotten, or there were never as many.
    Offset,
    /// It has as many readers as it may have.
    Readers,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(Bytes),
    /// The stream was ended or forgotten before all of it was read.
    Lost,
    End,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, VecDeque<Arc<Kept>>>> {
        // No code panics while it holds the lock.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares a stream, which is not kept yet, and its first reader.
    pub(crate) fn open(owner: &Owner, id: &str, route: &str) -> (Arc<Kept>, Reader) {
        let mut readers = [None; MAX_READERS];
        readers[0] = Some(0);
        let kept = Arc::new(Kept {
            owner: owner.clone(),
            id: id.to_string(),
            route: route.to_string(),
            began: Timestamp::now(),
            state: Mutex::new(State {
                head: None,
                bytes: VecDeque::new(),
                n_dropped: 0,
                completed: None,
                is_gone: false,
                goes_on: false,
                readers,
                left: Instant::now(),
            }),
            more: Notify::new(),
            less: Notify::new(),
            had: Notify::new(),
        });
        let reader = Reader {
            kept: Arc::clone(&kept),
            place: 0,
        };
        (kept, reader)
    }

    /// Keeps a stream whose request has begun, in place of the one with the same id, which ends; unless its key has too many
    /// that cannot be forgotten. One that is not kept ends when its client leaves.
    pub(crate) fn keep(&self, kept: &Arc<Kept>) {
        let mut all = self.lock();
        let of_key = all.entry(kept.owner.clone()).or_default();
        if of_key.iter().any(|other| Arc::ptr_eq(other, kept)) {
            return;
        }
        let same = of_key.iter().position(|other| other.id == kept.id);
        let leaves = match of_key.len() >= self.bounds.n_of_key {
            true => same.or_else(|| of_key.iter().position(|kept| kept.is_idle())),
            false => same,
        };
        if let Some(left) = leaves.and_then(|at| of_key.remove(at)) {
            self.forget(&left);
        }
        if of_key.len() < self.bounds.n_of_key {
            of_key.push_back(Arc::clone(kept));
            kept.state().goes_on = true;
        }
    }

    /// Keeps a stream whose request may still be refused, if no other one has to leave for it.
    pub(crate) fn keep_early(&self, kept: &Arc<Kept>) {
        let mut all = self.lock();
        let of_key = all.entry(kept.owner.clone()).or_default();
        let is_free = of_key.iter().all(|other| other.id != kept.id);
        if is_free && of_key.len() < self.bounds.n_of_key {
            of_key.push_back(Arc::clone(kept));
            kept.state().goes_on = true;
        }
    }

    /// Finds a stream of this owner.
    pub(crate) fn find(&self, owner: &Owner, id: &str) -> Option<Arc<Kept>> {
        let all = self.lock();
        all.get(owner)?.iter().find(|kept| kept.id == id).cloned()
    }

    /// Returns those of an owner whose id is `id`, or begins with it and `::`.
    pub(crate) fn lookup(&self, owner: &Owner, id: &str) -> Vec<Summary> {
        let is_it = |kept: &&Arc<Kept>| {
            let rest = kept.id.strip_prefix(id);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let all = self.lock();
        let of_key = all.get(owner).into_iter().flatten();
        of_key.filter(is_it).map(|kept| kept.summary()).collect()
    }

    /// Ends a stream and forgets it. Its answer ends before the next step.
    pub(crate) fn end(&self, owner: &Owner, id: &str) {
        if let Some(kept) = self.find(owner, id) {
            self.remove(&kept);
        }
    }

    /// Forgets a stream, if it is still kept.
    pub(crate) fn remove(&self, kept: &Arc<Kept>) {
        self.take_out(kept);
        self.forget(kept);
    }

    fn take_out(&self, kept: &Arc<Kept>) {
        let mut all = self.lock();
        if let Some(of_key) = all.get_mut(&kept.owner) {
            of_key.retain(|other| !Arc::ptr_eq(other, kept));
            if of_key.is_empty() {
                all.remove(&kept.owner);
            }
        }
    }

    fn forget(&self, kept: &Kept) {
        let mut state = kept.state();
        state.is_gone = true;
        let freed = std::mem::take(&mut state.bytes).len();
        state.n_dropped += freed;
        self.n_bytes.fetch_sub(freed, Ordering::Relaxed);
        drop(state);
        kept.more.notify_waiters();
        kept.less.notify_one();
        kept.had.notify_waiters();
    }

    /// Adds bytes to a stream. If all streams have too many then, one that has ended is forgotten; if none can be, this one
    /// is not kept any more.
    pub(crate) fn append(&self, kept: &Arc<Kept>, bytes: &[u8]) {
        {
            let mut state = kept.state();
            if state.is_gone {
                return;
            }
            state.bytes.extend(bytes);
            self.n_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        self.trim(kept);
        while self.n_bytes.load(Ordering::Relaxed) > self.bounds.bytes {
            if !self.forget_one() {
                self.take_out(kept);
                kept.state().goes_on = false;
                self.trim(kept);
                break;
            }
        }
        kept.more.notify_waiters();
        // One that is not kept any more may have no reader.
        kept.less.notify_one();
    }

    /// Waits until there is room for more: readers have had enough.
    pub(crate) async fn room(&self, kept: &Kept) {
        loop {
            let had = kept.had.notified();
            tokio::pin!(had);
            had.as_mut().enable();
            if self.trim(kept) {
                return;
            }
            had.await;
        }
    }

    /// Drops what all readers have had and need not be kept. Returns whether there is room for more.
    fn trim(&self, kept: &Kept) -> bool {
        let mut state = kept.state();
        let of_stream = self.bounds.bytes_of_stream;
        let (n_kept, n_ahead) = match state.goes_on {
            true => (of_stream, of_stream),
            false => (0, of_stream.min(MAX_READ_BYTES)),
        };
        let n = state.bytes.len().saturating_sub(n_kept).min(state.n_had());
        state.bytes.drain(..n);
        state.n_dropped += n;
        self.n_bytes.fetch_sub(n, Ordering::Relaxed);
        state.bytes.len() <= n_ahead
    }

    /// Forgets the oldest stream that has ended and has no reader, of the key that keeps most. Returns whether there was one.
    fn forget_one(&self) -> bool {
        let mut all = self.lock();
        let most = all
            .values_mut()
            .filter_map(|of_key| Some((of_key.iter().position(|kept| kept.is_idle())?, of_key)))
            .max_by_key(|(_, of_key)| {
                of_key
                    .iter()
                    .map(|kept| kept.state().bytes.len())
                    .sum::<usize>()
            });
        let forgotten = most.and_then(|(at, of_key)| of_key.remove(at));
        let found = forgotten.is_some();
        if let Some(kept) = forgotten {
            self.forget(&kept);
        }
        found
    }
}

impl Kept {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended, and nobody reads it.
    fn is_idle(&self) -> bool {
        let state = self.state();
        state.completed.is_some() && state.n_readers() == 0
    }

    /// Whether it goes on without a reader.
    pub(crate) fn goes_on(&self) -> bool {
        self.state().goes_on
    }

    /// Returns the route of its request.
    pub(crate) fn path(&self) -> &str {
        &self.route
    }

    fn summary(&self) -> Summary {
        let state = self.state();
        Summary {
            id: self.id.clone(),
            total_bytes: state.n_dropped + state.bytes.len(),
            began: self.began,
            completed: state.completed,
        }
    }

    /// Notes the head of the response.
    pub(crate) fn set_head(&self, head: HeaderMap) {
        self.state().head = Some(head);
    }

    /// Notes that no more bytes come.
    pub(crate) fn complete(&self) {
        self.state().completed = Some(Timestamp::now());
        self.more.notify_waiters();
    }

    /// Waits until the stream is forgotten, or nobody has read it for `time`, or nobody reads it while `is_to_end`.
    pub(crate) async fn abandoned(&self, time: Duration, is_to_end: bool) {
        loop {
            let less = self.less.notified();
            let until = {
                let state = self.state();
                match (state.is_gone, state.n_readers()) {
                    (true, _) => return,
                    (false, 0) if is_to_end || !state.goes_on => return,
                    (false, 0) => Some(state.left + time),
                    (false, _) => None,
                }
            };
            match until {
                Some(until) if until <= Instant::now() => return,
                Some(until) => {
                    // A reader that comes meanwhile is seen when the time is over.
                    let _ = tokio::time::timeout_at(until, less).await;
                }
                None => less.await,
            }
        }
    }

    /// Reads from an offset on. Returns the head of the response, too.
    ///
    /// # Errors
    /// There is no head yet, not this offset, or there are too many readers.
    pub(crate) fn read_from(
        self: &Arc<Kept>,
        offset: usize,
    ) -> Result<(HeaderMap, Reader), Unreadable> {
        let mut state = self.state();
        let head = state.head.clone().ok_or(Unreadable::NotYet)?;
        let has = state.n_dropped..=state.n_dropped + state.bytes.len();
        if !has.contains(&offset) {
            return Err(Unreadable::Offset);
        }
        let place = state.readers.iter().position(Option::is_none);
        let place = place.ok_or(Unreadable::Readers)?;
        state.readers[place] = Some(offset);
        let kept = Arc::clone(self);
        Ok((head, Reader { kept, place }))
    }
}

/// A client that reads a stream.
pub(crate) struct Reader {
    kept: Arc<Kept>,
    /// Which of the stream's readers it is.
    place: usize,
}

impl Reader {
    /// Waits for more.
    pub(crate) async fn next(&mut self) -> Read {
        let kept = Arc::clone(&self.kept);
        loop {
            let more = kept.more.notified();
            tokio::pin!(more);
            // It is told of what comes from here on.
            more.as_mut().enable();
            if let Some(read) = self.take() {
                return read;
            }
            more.await;
        }
    }

    /// Returns the kept stream.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    fn take(&mut self) -> Option<Read> {
        let mut state = self.kept.state();
        let offset = state.readers[self.place].expect("a reader has its place");
        let Some(at) = offset.checked_sub(state.n_dropped) else {
            return Some(Read::Lost);
        };
        let n = (state.bytes.len() - at).min(MAX_READ_BYTES);
        if n > 0 {
            let bytes: Bytes = state.bytes.range(at..at + n).copied().collect();
            state.readers[self.place] = Some(offset + n);
            drop(state);
            self.kept.had.notify_waiters();
            return Some(Read::Bytes(bytes));
        }
        match state.completed {
            Some(_) => Some(Read::End),
            None => state.is_gone.then_some(Read::Lost),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.kept.state();
        state.readers[self.place] = None;
        state.left = Instant::now();
        drop(state);
        self.kept.less.notify_one();
        self.kept.had.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn small() -> Streams {
        Streams {
            bounds: Bounds {
                n_of_key: 2,
                bytes_of_stream: 10,
                bytes: 25,
            },
            ..Streams::default()
        }
    }

    fn owner(name: &str) -> Owner {
        Some(name.into())
    }

    fn begin(streams: &Streams, name: &str, id: &str, text: &str) -> Arc<Kept> {
        let (kept, _) = Streams::open(&owner(name), id, "");
        streams.keep(&kept);
        kept.set_head(HeaderMap::new());
        streams.append(&kept, text.as_bytes());
        kept
    }

    fn text(kept: &Arc<Kept>, offset: usize) -> Result<String, Unreadable> {
        let mut reader = kept.read_from(offset)?.1;
        match reader.take() {
            Some(Read::Bytes(bytes)) => Ok(String::from_utf8(bytes.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stream_keeps_its_last_bytes() {
        let streams = small();
        let kept = begin(&streams, "alice", "a", "012345");
        streams.append(&kept, b"6789abc");
        assert_eq!(text(&kept, 2), Err(Unreadable::Offset));
        assert_eq!(text(&kept, 3).unwrap(), "3456789abc");
        assert_eq!(text(&kept, 12).unwrap(), "c");
        assert_eq!(text(&kept, 14), Err(Unreadable::Offset));
        assert_eq!(streams.lookup(&owner("alice"), "a")[0].total_bytes, 13);
        let mut at_end = kept.read_from(13).unwrap().1;
        assert_eq!(at_end.take(), None);
        kept.complete();
        assert_eq!(at_end.take(), Some(Read::End));
        // A reader that had not everything is told.
        let mut early = kept.read_from(3).unwrap().1;
        streams.end(&owner("alice"), "a");
        assert_eq!(early.take(), Some(Read::Lost));
        assert_eq!(at_end.take(), Some(Read::End));
        let kept = begin(&streams, "alice", "a", "0");
        let mut at_end = kept.read_from(1).unwrap().1;
        streams.end(&owner("alice"), "a");
        assert_eq!(at_end.take(), Some(Read::Lost));
    }

    #[test]
    fn a_stream_waits_for_its_readers() {
        let streams = small();
        let kept = begin(&streams, "alice", "a", "012345");
        let mut slow = kept.read_from(0).unwrap().1;
        streams.append(&kept, b"6789abc");
        let mut room = Box::pin(streams.room(&kept));
        assert!(room.as_mut().now_or_never().is_none());
        let all = Bytes::from_static(b"0123456789abc");
        assert_eq!(slow.take(), Some(Read::Bytes(all)));
        assert!(room.now_or_never().is_some());
        assert_eq!(streams.n_bytes.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn readers_are_few_and_read_a_little_at_once() {
        let streams = Streams::default();
        let kept = begin(&streams, "alice", "a", &"x".repeat(100_000));
        let mut readers: Vec<Reader> = (0..MAX_READERS)
            .map(|_| kept.read_from(0).unwrap().1)
            .collect();
        assert_eq!(kept.read_from(0).err(), Some(Unreadable::Readers));
        for n in [MAX_READ_BYTES, 100_000 - MAX_READ_BYTES] {
            assert!(matches!(readers[1].take(), Some(Read::Bytes(bytes)) if bytes.len() == n));
        }
        drop(readers);
        assert!(kept.read_from(0).is_ok());
    }

    #[test]
    fn a_request_that_may_be_refused_ends_no_stream() {
        let streams = small();
        let old = begin(&streams, "alice", "1", "x");
        let (new, _) = Streams::open(&owner("alice"), "1", "");
        streams.keep_early(&new);
        assert!(!new.goes_on() && !old.state().is_gone);
        begin(&streams, "alice", "2", "x").complete();
        let (third, _) = Streams::open(&owner("alice"), "3", "");
        streams.keep_early(&third);
        assert!(!third.goes_on());
        streams.keep(&new);
        assert!(new.goes_on() && old.state().is_gone);
        streams.keep(&new);
        assert_eq!(streams.lock()[&owner("alice")].len(), 2);
    }

    #[test]
    fn streams_belong_to_their_owner() {
        let streams = small();
        begin(&streams, "alice", "a::model", "x");
        assert_eq!(streams.lookup(&owner("alice"), "a").len(), 1);
        assert_eq!(streams.lookup(&owner("alice"), "a:").len(), 0);
        for other in [owner("bob"), None] {
            assert!(streams.find(&other, "a::model").is_none());
            assert!(streams.lookup(&other, "a").is_empty());
            streams.end(&other, "a::model");
        }
        assert!(streams.find(&owner("alice"), "a::model").is_some());
        streams.end(&owner("alice"), "a::model");
        assert!(streams.lock().is_empty());
        assert_eq!(streams.n_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_key_keeps_a_few_and_forgets_those_that_have_ended() {
        let streams = small();
        let first = begin(&streams, "alice", "1", "x");
        begin(&streams, "alice", "2", "x");
        begin(&streams, "alice", "3", "x");
        assert!(streams.find(&owner("alice"), "3").is_none());
        begin(&streams, "bob", "3", "x");
        first.complete();
        begin(&streams, "alice", "3", "x");
        assert!(streams.find(&owner("alice"), "1").is_none());
        // Another stream with the same id takes the place of the first.
        begin(&streams, "alice", "3", "y");
        assert_eq!(streams.lock()[&owner("alice")].len(), 2);
    }

    #[test]
    fn memory_is_bounded_for_all_keys() {
        let streams = small();
        let ended = begin(&streams, "alice", "1", "0123456789");
        ended.complete();
        let others = ["bob", "carol"].map(|name| begin(&streams, name, "1", "0123456789"));
        assert!(streams.find(&owner("alice"), "1").is_none());
        assert_eq!(streams.n_bytes.load(Ordering::Relaxed), 20);
        // Where none has ended, the new one is not kept any more, but its reader gets all of it.
        let (last, mut reader) = Streams::open(&owner("dora"), "1", "");
        streams.keep(&last);
        streams.append(&last, b"0123456789");
        assert!(!last.goes_on() && streams.find(&owner("dora"), "1").is_none());
        streams.append(&last, b"abc");
        assert!(streams.room(&last).now_or_never().is_none());
        let all = Bytes::from_static(b"0123456789abc");
        assert_eq!(reader.take(), Some(Read::Bytes(all)));
        assert!(streams.room(&last).now_or_never().is_some());
        assert_eq!(streams.n_bytes.load(Ordering::Relaxed), 20);
        drop(reader);
        assert!(
            last.abandoned(Duration::MAX, false)
                .now_or_never()
                .is_some()
        );
        // Nor is one forgotten that has a reader.
        let reader = others[0].read_from(0).unwrap().1;
        others[0].complete();
        begin(&streams, "dora", "2", "0123456789");
        assert_eq!(text(&others[0], 0).unwrap(), "0123456789");
        drop(reader);
        let last = begin(&streams, "dora", "3", "0123456789");
        assert!(last.goes_on() && others[0].state().is_gone);
        assert_eq!(text(&others[1], 0).unwrap(), "0123456789");
    }

    #[tokio::test]
    async fn a_stream_that_nobody_reads_is_abandoned() {
        let streams = small();
        let kept = begin(&streams, "alice", "a", "x");
        let [long, none] = [Duration::from_secs(600), Duration::ZERO];
        let is_abandoned =
            |time, is_to_end| kept.abandoned(time, is_to_end).now_or_never().is_some();
        assert!(!is_abandoned(long, false));
        assert!(is_abandoned(none, false) && is_abandoned(long, true));
        let reader = kept.read_from(0).unwrap().1;
        assert!(!is_abandoned(none, true));
        // One that waits is told.
        let mut waits = Box::pin(kept.abandoned(none, false));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(reader);
        waits.await;
        let _reader = kept.read_from(0).unwrap();
        streams.end(&owner("alice"), "a");
        assert!(is_abandoned(long, false));
    }
}
