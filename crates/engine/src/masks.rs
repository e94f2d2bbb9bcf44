//! Computes the masks of constrained sequences on threads of their own, while the device runs the steps that need them.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress, TokenMask};

/// At most this many threads compute masks.
const MAX_THREADS: usize = 8;
/// How long the masks of a draft may take. A sequence that needs more does not draft again.
const DRAFT_TIME: Duration = Duration::from_millis(20);
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
    /// Whether the masks of a draft took too long.
    is_slow: Arc<AtomicBool>,
}

/// What may come after a drafted token.
#[derive(Debug)]
pub(crate) struct AfterDraft {
    token: TokenId,
    pub(crate) mask: Arc<TokenMask>,
    /// As [`Constraint::forced`], when the mask is known.
    forced: OnceLock<Vec<TokenId>>,
}

impl AfterDraft {
    /// Returns tokens that come after `chosen` whatever is chosen next.
    pub(crate) fn forced_after(&self, chosen: TokenId) -> &[TokenId] {
        match self.forced.get().map(Vec::as_slice) {
            Some([first, rest @ ..]) if *first == chosen => rest,
            _ => &[],
        }
    }
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
            is_slow: Arc::default(),
        }
    }

    /// Whether the masks of drafts are worth their time.
    pub(crate) fn may_draft(&self) -> bool {
        !self.is_slow.load(Relaxed)
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

/// Masks to compute. If it is dropped before, their readers get an error.
struct Job {
    state: Arc<Mutex<Box<dyn Constraint>>>,
    masks: Wanted,
    n_words: usize,
    watcher: Option<MaskWatcher>,
}

/// The masks of a job.
enum Wanted {
    /// That of the next token.
    Next(Arc<TokenMask>),
    /// Those after each of some tokens that may come next.
    After {
        steps: Vec<Arc<AfterDraft>>,
        /// Set if they take too long.
        is_slow: Arc<AtomicBool>,
    },
}

impl Job {
    fn run(self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.masks {
            Wanted::Next(mask) => {
                let computed = self.compute(&mut **state);
                drop(state);
                mask.set(computed);
            }
            Wanted::After { steps, is_slow } => {
                let mut copy = state.clone();
                drop(state);
                let began = Instant::now();
                for step in steps {
                    // Nothing is chosen after a token that ends the text or may not come.
                    let Ok(Progress::Open) = copy.accept(step.token) else {
                        return;
                    };
                    let computed = self.compute(&mut *copy);
                    let _ = step.forced.set(copy.forced());
                    step.mask.set(computed);
                    // The constraint's own limits do not see the time of a copy.
                    if began.elapsed() > DRAFT_TIME {
                        is_slow.store(true, Relaxed);
                        return;
                    }
                }
            }
        }
    }

    fn compute(&self, state: &mut dyn Constraint) -> Result<Vec<u32>, ConstraintError> {
        let mut words = vec![0; self.n_words];
        let began = Instant::now();
        let computed = state.mask(&mut words);
        if let Some(watcher) = &self.watcher {
            watcher(began.elapsed());
        }
        computed.map(|()| words)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let unset = |mask: &TokenMask| mask.set(Err(not_computed()));
        match &self.masks {
            Wanted::Next(mask) => unset(mask),
            Wanted::After { steps, .. } => steps.iter().for_each(|step| unset(&step.mask)),
        }
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
        self.send(constrained, Wanted::Next(constrained.mask()));
    }

    /// Begins to compute the masks after each token of a draft. They are errors after a token that may not come next, or with
    /// which the text ends, and where they would take too long.
    pub(crate) fn begin_draft(
        &mut self,
        constrained: &Constrained,
        draft: &[TokenId],
    ) -> Vec<Arc<AfterDraft>> {
        let after = |&token: &TokenId| {
            Arc::new(AfterDraft {
                token,
                mask: Arc::default(),
                forced: OnceLock::new(),
            })
        };
        let steps: Vec<Arc<AfterDraft>> = draft.iter().map(after).collect();
        let wanted = Wanted::After {
            steps: steps.clone(),
            is_slow: Arc::clone(&constrained.is_slow),
        };
        self.send(constrained, wanted);
        steps
    }

    fn send(&mut self, constrained: &Constrained, masks: Wanted) {
        let job = Job {
            state: Arc::clone(&constrained.state),
            masks,
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
