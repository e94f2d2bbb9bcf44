//! The host's own work per token: scheduling, KV-cache accounting, text and events. The device is a backend that
//! computes nothing and answers at once.
//!
//! `cargo bench -p rocmforge-engine --bench host_work`. The time is that of the engine's thread on a processor core, so
//! waiting for the device's thread and other programs do not count. Every sequence decodes in every step; time is per
//! token.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use rocmforge_engine::{Engine, Request};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_plan::{Batch, RowOutput, Sampled, StepOutput};
use rocmforge_runtime::gpu::{Graphs, Offload};
use rocmforge_runtime::{
    Backend, BackendInfo, ContextPolicy, Executor, Limits, OpObserver, Output, PrefixSharing,
    Reply, Resolved, Started, StepObserver,
};
use rocmforge_text::tokenizer::Tokenizer;
use rustix::time::{ClockId, clock_gettime};

/// Sequences at once.
const N_SEQS: [usize; 4] = [1, 10, 100, 1000];
const N_PROMPT: usize = 64;
const N_CTX: usize = 4096;
const PAGE: usize = 32;

/// Samples the same few tokens over and over.
struct Nothing {
    n_vocab: u64,
}

impl Backend for Nothing {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        let sampled = |row: usize| RowOutput::Sampled {
            sampled: Sampled {
                id: ((batch.step * 31 + row as u64 * 7) % self.n_vocab) as u32,
                mu: None,
            },
            logprob: None,
            top: Vec::new(),
        };
        reply(Ok(StepOutput {
            step: batch.step,
            rows: (0..batch.logits.len()).map(sampled).collect(),
            exports: Vec::new(),
        }));
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        BackendInfo {
            device: "nothing".into(),
            slow_ops: Vec::new(),
            kv_bytes: 0,
            state_bytes: 0,
            device_memory: None,
            graphs: Graphs::Off,
            batch_invariant: true,
            n_tuned: 0,
            notices: Vec::new(),
            offload: Offload::NOTHING,
            parts: Vec::new(),
        }
    }
}

fn engine(n_seqs: usize, tokenizer: &Arc<Tokenizer>) -> Engine {
    let n_vocab = tokenizer.n_vocab();
    let backend = Nothing {
        n_vocab: n_vocab as u64,
    };
    let limits = Limits {
        max_answer_rows: None,
        n_ctx: N_CTX,
        max_seqs: n_seqs,
        max_tokens: n_seqs.max(N_PROMPT),
        max_logits: n_seqs,
        step_target: None,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        fixed_by: None,
        output: Output::Logits,
        whole_sequences: false,
    };
    let started = Started {
        executor: Executor::start(2, move || Ok((backend, ()))).unwrap().0,
        resolved: Resolved {
            limits,
            n_blocks: n_seqs * (N_CTX / PAGE),
            n_slots: 0,
        },
        steps_in_flight: 2,
    };
    Engine::over(started, PAGE, n_vocab, Some(Arc::clone(tokenizer)))
}

/// An engine with `n_seqs` sequences that decode. It is replaced before their contexts are full.
struct Decoding {
    engine: Engine,
    n_seqs: usize,
    n_steps_left: usize,
}

impl Decoding {
    fn new(n_seqs: usize, tokenizer: &Arc<Tokenizer>) -> Decoding {
        let mut engine = engine(n_seqs, tokenizer);
        for i in 0..n_seqs {
            let prompt = (0..N_PROMPT).map(|at| ((i * 13 + at * 7) % 256) as u32);
            let request = Request {
                ignore_eos: true,
                stop: vec!["\n\nUser:".into()],
                ..Request::greedy(prompt.collect(), usize::MAX)
            };
            engine.submit(request).unwrap();
        }
        // The prompts.
        let mut n_tokens = 0;
        let mut n_warm_up = 0;
        while n_warm_up < 16 {
            let n = engine.step().unwrap().len();
            n_tokens += n;
            n_warm_up += usize::from(n_tokens > n_seqs && n == n_seqs);
        }
        Decoding {
            engine,
            n_seqs,
            n_steps_left: N_CTX / 2,
        }
    }

    /// Returns the thread's time for steps of `n_tokens` tokens in all, at least one step; and the tokens.
    fn run(&mut self, n_tokens: u64) -> (Duration, u64) {
        let n_steps = n_tokens.div_ceil(self.n_seqs as u64).min(256);
        let begin = thread_time();
        let mut n_done = 0;
        for _ in 0..n_steps {
            n_done += self.engine.step().unwrap().len() as u64;
        }
        let time = thread_time() - begin;
        assert_eq!(n_done, n_steps * self.n_seqs as u64, "every step decodes");
        self.n_steps_left = self.n_steps_left.saturating_sub(n_steps as usize);
        (time, n_done)
    }
}

/// The time that this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    let gguf = Gguf::open(&path, LoadMode::Mmap).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap());
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("host work per token");
    group.throughput(Throughput::Elements(1)).sample_size(50);
    for n_seqs in N_SEQS {
        let mut decoding = Decoding::new(n_seqs, &tokenizer);
        group.bench_function(BenchmarkId::from_parameter(n_seqs), |b| {
            b.iter_custom(|n_iters| {
                let (mut time, mut n_done) = (Duration::ZERO, 0);
                while n_done < n_iters {
                    if decoding.n_steps_left == 0 {
                        decoding = Decoding::new(n_seqs, &tokenizer);
                    }
                    let (more, n) = decoding.run(n_iters - n_done);
                    time += more;
                    n_done += n;
                }
                // Steps are whole, so more tokens than asked for may have run.
                time.mul_f64(n_iters as f64 / n_done as f64)
            });
        });
    }
    group.finish();
    criterion.final_summary();
}
