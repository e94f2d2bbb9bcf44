//! Metrics for Prometheus. Their names are vLLM's where it has them, so that dashboards for it work unchanged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::{
    Counter, CounterVec, Encoder as _, GaugeVec, Histogram, HistogramOpts, HistogramVec,
    IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};
use rocmforge_engine::{BlockUsage, FinishReason, MaskWatcher, PrefixSharing};

use crate::observe::sensors::Sensors;
use crate::observe::steps::{Phase, Steps};
use crate::serving::model::Served;

/// Labels of every metric of a model. `engine` is vLLM's number of the engine.
const LABELS: [&str; 2] = ["model_name", "engine"];
const ENGINE: &str = "0";

/// Seconds to the first token.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
];
/// Seconds between tokens.
const ITL: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0,
];
/// Seconds of a whole request.
const E2E: &[f64] = &[
    0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0,
];
/// Seconds of a token mask.
const MASK: &[f64] = &[
    1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0,
];
/// Tokens of a request.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
];

/// Tokens of a step.
const ITERATION: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
/// Labels of the KV cache. vLLM has more of them; its schedulers read these.
const CACHE_LABELS: [&str; 6] = [
    "model_name",
    "engine",
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
];

/// All metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    counters: [IntCounterVec; 9],
    finished: IntCounterVec,
    aborts: IntCounterVec,
    gauges: [IntGaugeVec; 2],
    kv_usage: GaugeVec,
    state_slots: IntGaugeVec,
    histograms: [HistogramVec; 11],
    device_seconds: CounterVec,
    roofline_share: GaugeVec,
    slow_ops: IntGaugeVec,
    cache: IntGaugeVec,
    sensors: Option<SensorMetrics>,
    /// Held while the gauges are set.
    reading: Mutex<()>,
}

/// The metrics of the device, which all models share.
struct SensorMetrics {
    sensors: Arc<dyn Sensors>,
    power: GaugeVec,
    temperature: GaugeVec,
    clock: GaugeVec,
    clock_limited: IntGaugeVec,
    energy: CounterVec,
}

/// The metrics of one model.
pub(crate) struct ModelMetrics {
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    preemptions: IntCounter,
    drafted_tokens: IntCounter,
    accepted_tokens: IntCounter,
    failed_steps: IntCounter,
    restarts: IntCounter,
    ended: [IntCounter; 4],
    aborts: [IntCounter; 4],
    /// The counters of the engine when the model was loaded.
    before: [u64; 7],
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    decode: Histogram,
    queue: Histogram,
    prefill: Histogram,
    prompt_length: Histogram,
    answer_length: Histogram,
    iteration_tokens: Histogram,
    mask: Histogram,
    device_seconds: [Counter; 3],
}

/// Values of the label `finished_reason`, in the order of [`ModelMetrics::ended`].
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// Who cut an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cause {
    /// The client left.
    Client,
    Owner,
    /// The server ends.
    Shutdown,
    /// The client has read nothing for a while.
    SlowReader,
}

/// Values of the label `cause`, in the order of [`Cause`].
const CAUSES: [&str; 4] = ["client", "owner", "shutdown", "slow_reader"];

impl Cause {
    pub(crate) fn name(self) -> &'static str {
        CAUSES[self as usize]
    }
}

impl Metrics {
    pub(crate) fn new(sensors: Option<Arc<dyn Sensors>>) -> Metrics {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounterVec::new(Opts::new(name, help), &LABELS);
            register(&registry, counter)
        };
        let gauge = |name: &str, help: &str| {
            register(&registry, IntGaugeVec::new(Opts::new(name, help), &LABELS))
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(&registry, HistogramVec::new(options, &LABELS))
        };
        let build = Opts::new("rocmforge_build_info", "Version of the server.");
        let build = register(&registry, IntGaugeVec::new(build, &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Metrics {
            reading: Mutex::default(),
            counters: [
                counter("vllm:prompt_tokens_total", "Tokens of prompts."),
                counter("vllm:generation_tokens_total", "Generated tokens."),
                counter(
                    "vllm:prefix_cache_queries_total",
                    "Prompt tokens looked for in the prefix cache.",
                ),
                counter(
                    "vllm:prefix_cache_hits_total",
                    "Prompt tokens found in the prefix cache.",
                ),
                counter(
                    "vllm:num_preemptions_total",
                    "Times that a request gave its KV cache to another one.",
                ),
                counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens."),
                counter(
                    "vllm:spec_decode_num_accepted_tokens_total",
                    "Drafted tokens that were right.",
                ),
                counter(
                    "rocmforge_failed_steps_total",
                    "Steps that the device did not compute.",
                ),
                counter(
                    "rocmforge_engine_restarts_total",
                    "Times that a lost device was replaced.",
                ),
            ],
            finished: register(
                &registry,
                IntCounterVec::new(
                    Opts::new("vllm:request_success_total", "Answers by how they ended."),
                    &["model_name", "engine", "finished_reason"],
                ),
            ),
            aborts: register(
                &registry,
                IntCounterVec::new(
                    Opts::new("rocmforge_aborts_total", "Answers ended early, by cause."),
                    &["model_name", "engine", "cause"],
                ),
            ),
            gauges: [
                gauge("vllm:num_requests_running", "Requests that are served."),
                gauge("vllm:num_requests_waiting", "Requests that wait."),
            ],
            kv_usage: register(
                &registry,
                GaugeVec::new(
                    Opts::new(
                        "vllm:kv_cache_usage_perc",
                        "Share of the KV cache that requests use; 1 is all of it.",
                    ),
                    &LABELS,
                ),
            ),
            state_slots: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "rocmforge_state_slots",
                        "Slots for states of recurrent layers, by what they hold: of requests, snapshots, nothing.",
                    ),
                    &["model_name", "engine", "of"],
                ),
            ),
            histograms: [
                histogram(
                    "vllm:time_to_first_token_seconds",
                    "Time from a request to its first token.",
                    TTFT,
                ),
                histogram(
                    "vllm:inter_token_latency_seconds",
                    "Time between two tokens of an answer.",
                    ITL,
                ),
                histogram(
                    "vllm:request_time_per_output_token_seconds",
                    "Mean time between the tokens of an answer.",
                    ITL,
                ),
                histogram(
                    "vllm:e2e_request_latency_seconds",
                    "Time from a request to its end.",
                    E2E,
                ),
                histogram(
                    "vllm:request_decode_time_seconds",
                    "Time from the end of the prompt to the last token.",
                    E2E,
                ),
                histogram(
                    "vllm:request_queue_time_seconds",
                    "Time that a request waited for its turn.",
                    E2E,
                ),
                histogram(
                    "vllm:request_prefill_time_seconds",
                    "Time from then to the end of the prompt.",
                    E2E,
                ),
                histogram(
                    "vllm:request_prompt_tokens",
                    "Tokens of a request's prompts.",
                    TOKENS,
                ),
                histogram(
                    "vllm:request_generation_tokens",
                    "Tokens of a request's answers.",
                    TOKENS,
                ),
                histogram(
                    "vllm:iteration_tokens_total",
                    "Tokens of a step.",
                    ITERATION,
                ),
                histogram(
                    "rocmforge_mask_seconds",
                    "Time to compute which tokens may come next in an answer of a given structure.",
                    MASK,
                ),
            ],
            device_seconds: register(
                &registry,
                CounterVec::new(
                    Opts::new(
                        "rocmforge_device_seconds_total",
                        "Time of the device, by what its steps computed.",
                    ),
                    &["model_name", "engine", "phase"],
                ),
            ),
            roofline_share: register(
                &registry,
                GaugeVec::new(
                    Opts::new(
                        "rocmforge_roofline_share",
                        "Least time of the last steps by the peaks of the device, as a share of their time.",
                    ),
                    &LABELS,
                ),
            ),
            slow_ops: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "rocmforge_slow_ops",
                        "Operations of a step without a fast kernel, by cause.",
                    ),
                    &["model_name", "engine", "cause"],
                ),
            ),
            cache: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new("vllm:cache_config_info", "The KV cache."),
                    &CACHE_LABELS,
                ),
            ),
            sensors: sensors.map(|sensors| SensorMetrics::new(sensors, &registry)),
            registry,
        }
    }

    /// Returns the metrics of a model.
    pub(crate) fn of_model(&self, name: &str) -> ModelMetrics {
        let labels = [name, ENGINE];
        let [
            prompt,
            generation,
            queries,
            hits,
            preemptions,
            drafted,
            accepted,
            failed,
            restarts,
        ] = self
            .counters
            .each_ref()
            .map(|c| c.with_label_values(&labels));
        let [
            first_token,
            inter_token,
            per_output_token,
            e2e,
            decode,
            queue,
            prefill,
            prompt_length,
            answer_length,
            iteration_tokens,
            mask,
        ] = self
            .histograms
            .each_ref()
            .map(|h| h.with_label_values(&labels));
        let ended = |reason| self.finished.with_label_values(&[name, ENGINE, reason]);
        let before = [
            &queries,
            &hits,
            &preemptions,
            &drafted,
            &accepted,
            &failed,
            &restarts,
        ]
        .map(IntCounter::get);
        ModelMetrics {
            prompt_tokens: prompt,
            generation_tokens: generation,
            prefix_queries: queries,
            prefix_hits: hits,
            preemptions,
            drafted_tokens: drafted,
            accepted_tokens: accepted,
            failed_steps: failed,
            restarts,
            ended: REASONS.map(ended),
            aborts: CAUSES.map(|cause| self.aborts.with_label_values(&[name, ENGINE, cause])),
            before,
            first_token,
            inter_token,
            per_output_token,
            e2e,
            decode,
            queue,
            prefill,
            prompt_length,
            answer_length,
            iteration_tokens,
            mask,
            device_seconds: Phase::ALL.map(|phase| {
                self.device_seconds
                    .with_label_values(&[name, ENGINE, phase.name()])
            }),
        }
    }

    /// Takes what a model's engine counts.
    fn read(&self, model: &Served) {
        let labels = [&*model.name, ENGINE];
        let stats = model.engine.stats();
        for (gauge, n) in self.gauges.iter().zip([stats.running, stats.waiting]) {
            gauge.with_label_values(&labels).set(n as i64);
        }
        let usage = stats.blocks.used as f64 / stats.blocks.total.max(1) as f64;
        self.kv_usage.with_label_values(&labels).set(usage);
        let BlockUsage {
            used,
            cached,
            total,
        } = stats.states;
        let slots = [used, cached, total - used - cached];
        for (of, n) in ["requests", "snapshots", "nothing"].into_iter().zip(slots) {
            let labels = [&*model.name, ENGINE, of];
            self.state_slots.with_label_values(&labels).set(n as i64);
        }
        if let Some(share) = model.steps.roofline_share(&model.costs) {
            self.roofline_share.with_label_values(&labels).set(share);
        }
        let shares_prefixes = match model.engine.prefix_sharing() {
            PrefixSharing::On => "True",
            PrefixSharing::Off => "False",
        };
        let cache = self.cache.with_label_values(&[
            &*model.name,
            ENGINE,
            &model.engine.block_tokens().to_string(),
            &stats.blocks.total.to_string(),
            &model.costs.kv_types().to_string(),
            shares_prefixes,
        ]);
        cache.set(1);
        for (cause, n) in &model.engine.backend_info().slow_ops {
            let labels = [&*model.name, ENGINE, cause];
            self.slow_ops.with_label_values(&labels).add(*n as i64);
        }
        let of_model = &model.metrics;
        let counters = [
            (&of_model.prefix_queries, stats.prefix.queries),
            (&of_model.prefix_hits, stats.prefix.hits),
            (&of_model.preemptions, stats.preemptions),
            (&of_model.drafted_tokens, stats.drafts.n_drafted),
            (&of_model.accepted_tokens, stats.drafts.n_accepted),
            (&of_model.failed_steps, stats.failed_steps),
            (&of_model.restarts, stats.restarts),
        ];
        for ((counter, since), before) in counters.into_iter().zip(of_model.before) {
            counter.inc_by((before + since).saturating_sub(counter.get()));
        }
    }

    /// Returns all metrics in Prometheus' text format, version 0.0.4.
    pub(crate) fn text(&self, models: &[Arc<Served>]) -> Vec<u8> {
        let _one_at_a_time = self.reading.lock();
        // Those of a model that has left the memory are gone.
        for gauge in &self.gauges {
            gauge.reset();
        }
        self.kv_usage.reset();
        self.state_slots.reset();
        self.roofline_share.reset();
        self.slow_ops.reset();
        self.cache.reset();
        for model in models {
            self.read(model);
        }
        if let Some(sensors) = &self.sensors {
            sensors.read();
        }
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        encoded.expect("writing to memory does not fail");
        text
    }
}

impl SensorMetrics {
    fn new(sensors: Arc<dyn Sensors>, registry: &Registry) -> SensorMetrics {
        let gauge = |name: &str, help: &str| {
            register(registry, GaugeVec::new(Opts::new(name, help), &["device"]))
        };
        SensorMetrics {
            sensors,
            power: gauge("rocmforge_device_power_watts", "Power of the device."),
            temperature: gauge(
                "rocmforge_device_temperature_celsius",
                "Temperature of the device.",
            ),
            clock: gauge(
                "rocmforge_device_clock_hertz",
                "Clock of the device's compute units.",
            ),
            clock_limited: register(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "rocmforge_device_clock_limited",
                        "Whether the device's clock is held down, by cause.",
                    ),
                    &["device", "cause"],
                ),
            ),
            energy: register(
                registry,
                CounterVec::new(
                    Opts::new(
                        "rocmforge_device_energy_joules_total",
                        "Energy of the device by its power, also while it is idle.",
                    ),
                    &["device"],
                ),
            ),
        }
    }

    /// Takes what the sensors say. What they do not say has no value.
    fn read(&self) {
        let device = self.sensors.device();
        let now = self.sensors.newest();
        let gauges = [
            (&self.power, now.power_watts),
            (&self.temperature, now.temperature),
            (&self.clock, now.clock_mhz.map(|mhz| mhz * 1e6)),
        ];
        for (gauge, value) in gauges {
            gauge.reset();
            if let Some(value) = value {
                gauge.with_label_values(&[device]).set(value);
            }
        }
        self.clock_limited.reset();
        for (cause, is_set) in now.clock_limits {
            let labels = [device, cause];
            let gauge = self.clock_limited.with_label_values(&labels);
            gauge.set(i64::from(is_set));
        }
        if let Some(joules) = now.joules {
            let energy = self.energy.with_label_values(&[device]);
            energy.inc_by((joules - energy.get()).max(0.0));
        }
    }
}

/// Registers a metric; all names are different and valid.
fn register<M: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: prometheus::Result<M>,
) -> M {
    let metric = metric.expect("the metric's name is valid");
    let registered = registry.register(Box::new(metric.clone()));
    registered.expect("the metric's name is used once");
    metric
}

impl ModelMetrics {
    /// Returns what counts the steps of the model's engine.
    pub(crate) fn steps(&self) -> Steps {
        Steps::new(self.device_seconds.clone(), self.iteration_tokens.clone())
    }

    /// Returns what takes the times of the engine's masks.
    pub(crate) fn masks(&self) -> MaskWatcher {
        let mask = self.mask.clone();
        Arc::new(move |time| mask.observe(time.as_secs_f64()))
    }

    /// Takes the times of a prompt: how long it waited, and when it was computed.
    pub(crate) fn prompt_done(&self, queue_time: Duration, after: Duration) {
        self.queue.observe(queue_time.as_secs_f64());
        let prefill = after.saturating_sub(queue_time);
        self.prefill.observe(prefill.as_secs_f64());
    }

    pub(crate) fn first_tokens(&self, after: Duration, n: usize) {
        self.first_token.observe(after.as_secs_f64());
        self.generation_tokens.inc_by(n as u64);
    }

    pub(crate) fn more_tokens(&self, after: Duration, n: usize) {
        let each = after.as_secs_f64() / n.max(1) as f64;
        for _ in 0..n {
            self.inter_token.observe(each);
        }
        self.generation_tokens.inc_by(n as u64);
    }

    pub(crate) fn finished(&self, reason: FinishReason) {
        let at = match reason {
            FinishReason::Stop(_) => 0,
            FinishReason::Length | FinishReason::Context | FinishReason::Deadline => 1,
            FinishReason::Aborted => 2,
        };
        self.ended[at].inc();
    }

    /// Counts an answer that is complete: one whose last tokens are not needed, or that has none.
    pub(crate) fn completed(&self) {
        self.ended[0].inc();
    }

    pub(crate) fn failed(&self) {
        self.ended[3].inc();
    }

    /// Counts answers that were cut.
    pub(crate) fn aborted(&self, cause: Cause, n: usize) {
        self.ended[2].inc_by(n as u64);
        self.aborts[cause as usize].inc_by(n as u64);
    }

    /// Takes the sums of a request that has ended.
    pub(crate) fn request_ended(
        &self,
        whole: Duration,
        decode: Duration,
        n_prompt: usize,
        n_answer: usize,
    ) {
        self.prompt_tokens.inc_by(n_prompt as u64);
        self.prompt_length.observe(n_prompt as f64);
        self.answer_length.observe(n_answer as f64);
        self.e2e.observe(whole.as_secs_f64());
        self.decode.observe(decode.as_secs_f64());
        if n_answer > 1 {
            let each = decode.as_secs_f64() / (n_answer - 1) as f64;
            self.per_output_token.observe(each);
        }
    }
}
