//! Computes the masks of constrained sequences on threads of their own, while the device runs the steps that need them.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress, TokenMask};

/// At most this many threads compute masks.
const MAX_THREADS: usize = 8;
/// Stack of a thread. Parsers recurse.
const STACK_BYTES: usize = 8 << 20;

/// Takes the time that a mask took, on the thread that computed it.
pub type MaskWatcher = Arc<dyn Fn(Duration) + Send + Sync>;

/// The constraint of a sequence.
#[derive(Debug)]
pub(crate) struct Constrained {
    state: Arc<Mutex<Box<dyn Constraint>>>,
    /// What may come next. It depends only on the tokens so far, so it outlives lost steps and preemption.
    mask: Arc<TokenMask>,
    /// What may come after a token that a step in flight chooses.
    promised: Option<Promise>,
}

/// A mask whose computation has not begun. If it is dropped before, its readers get an error.
#[derive(Debug)]
struct Promise(Option<Arc<TokenMask>>);

impl Promise {
    fn new() -> Promise {
        Promise(Some(Arc::default()))
    }

    fn mask(&self) -> Arc<TokenMask> {
        let mask = self.0.as_ref();
        Arc::clone(mask.expect("it is taken by value"))
    }

    /// Returns the mask to whoever computes it.
    fn begin(mut self) -> Arc<TokenMask> {
        self.0.take().expect("it is taken by value")
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(mask) = self.0.take() {
            mask.set(Err(not_computed()));
        }
    }
}

fn not_computed() -> ConstraintError {
    ConstraintError("its mask was not computed".into())
}

impl Constrained {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Constrained {
        Constrained {
            state: Arc::new(Mutex::new(constraint)),
            mask: Arc::default(),
            promised: None,
        }
    }

    /// Returns the mask of the next token.
    pub(crate) fn mask(&self) -> Arc<TokenMask> {
        Arc::clone(&self.mask)
    }

    /// Returns the mask of the token after one that a step in flight chooses. Its computation begins when that token is
    /// known.
    pub(crate) fn mask_after_pending(&mut self) -> Arc<TokenMask> {
        self.promised.get_or_insert_with(Promise::new).mask()
    }

    /// Lets steps end that wait for a mask: the token that it depends on will not come.
    pub(crate) fn break_promise(&mut self) {
        self.promised = None;
    }

    /// Returns tokens that come next whatever is chosen.
    pub(crate) fn forced(&mut self) -> Vec<TokenId> {
        let state = self.state.lock();
        state.unwrap_or_else(PoisonError::into_inner).forced()
    }

    /// Takes the next token. Its mask was used, so no thread holds the state for long.
    pub(crate) fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        let state = self.state.lock();
        state.unwrap_or_else(PoisonError::into_inner).accept(token)
    }
}

/// A mask to compute. If it is dropped before, its readers get an error.
struct Job {
    state: Arc<Mutex<Box<dyn Constraint>>>,
    mask: Arc<TokenMask>,
    n_words: usize,
    watcher: Option<MaskWatcher>,
}

impl Job {
    fn run(self) {
        let mut words = vec![0; self.n_words];
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let computed = state.mask(&mut words);
        drop(state);
        if let Some(watcher) = &self.watcher {
            watcher(began.elapsed());
        }
        self.mask.set(computed.map(|()| words));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.mask.set(Err(not_computed()));
    }
}

/// The threads that compute masks. They start with the first mask.
pub(crate) struct Masks {
    jobs: Option<mpsc::Sender<Job>>,
    n_words: usize,
    watcher: Option<MaskWatcher>,
}

impl Masks {
    pub(crate) fn new(n_vocab: usize) -> Masks {
        Masks {
            jobs: None,
            n_words: n_vocab.div_ceil(32),
            watcher: None,
        }
    }

    /// Sets what takes the times of the following masks.
    pub(crate) fn watch(&mut self, watcher: Option<MaskWatcher>) {
        self.watcher = watcher;
    }

    /// Begins to compute the mask of the sequence's next token.
    pub(crate) fn begin(&mut self, constrained: &mut Constrained) {
        let promised = constrained.promised.take();
        constrained.mask = promised.map_or_else(Arc::default, Promise::begin);
        let job = Job {
            state: Arc::clone(&constrained.state),
            mask: constrained.mask(),
            n_words: self.n_words,
            watcher: self.watcher.clone(),
        };
        let jobs = self.jobs.get_or_insert_with(start);
        // Without a thread, the job comes back and is dropped.
        drop(jobs.send(job));
    }
}

/// Starts the threads. They end when the sender is dropped.
fn start() -> mpsc::Sender<Job> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let inbox = Arc::new(Mutex::new(inbox));
    let n_threads = thread::available_parallelism().map_or(1, NonZero::get);
    for _ in 0..n_threads.min(MAX_THREADS) {
        let inbox = Arc::clone(&inbox);
        let next = move || {
            let inbox = inbox.lock();
            inbox.unwrap_or_else(PoisonError::into_inner).recv()
        };
        let thread = thread::Builder::new()
            .name("rocmforge-mask".into())
            .stack_size(STACK_BYTES);
        // Fewer threads than asked for are enough.
        drop(thread.spawn(move || {
            while let Ok(job) = next() {
                // A panic ends the request of the job alone.
                drop(catch_unwind(AssertUnwindSafe(|| job.run())));
            }
        }));
    }
    jobs
}
