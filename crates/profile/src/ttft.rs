//! Splits the time to the first token (TTFT) into its components: loading, tokenization, embedding, prefill, copies.
//!
//! Components are timed by the CPU's clock (`start_*`, `stop_*`) or measured elsewhere, such as operations on a device,
//! and passed to [`TtftProfiler::add`]. What was not measured stays `None`.

use std::time::{Duration, Instant};

use crate::schema::Ttft;

/// Default target of [`Ttft::meets_target`].
pub const DEFAULT_TARGET_MS: f64 = 200.0;

/// A component of the time to the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    ModelLoading,
    Tokenization,
    Embedding,
    Prefill,
    FirstToken,
    /// Copies from host to device, and from device to host.
    H2d,
    D2h,
}

impl Component {
    pub const ALL: [Component; 7] = [
        Component::ModelLoading,
        Component::Tokenization,
        Component::Embedding,
        Component::Prefill,
        Component::FirstToken,
        Component::H2d,
        Component::D2h,
    ];

    /// Returns the name of the field in [`Ttft`].
    pub fn name(self) -> &'static str {
        match self {
            Component::ModelLoading => "model_load",
            Component::Tokenization => "tokenize",
            Component::Embedding => "embedding",
            Component::Prefill => "prefill",
            Component::FirstToken => "first_token",
            Component::H2d => "h2d",
            Component::D2h => "d2h",
        }
    }

    /// Returns what to do if this component takes longest.
    fn remedy(self) -> &'static str {
        match self {
            Component::ModelLoading => {
                "keep the process for several prompts, as chat does; a mapped file in the page cache loads fastest"
            }
            Component::Tokenization => "tokenize once and pass the ids (generate --ids)",
            Component::Embedding => {
                "the embedding lookup should be a copy; see its row in the table"
            }
            Component::Prefill => {
                "see the operations of prefill: those furthest from their bound gain most; a shorter prompt, or one \
                 with a cached prefix, needs less work"
            }
            Component::FirstToken => {
                "the output projection and the sampling of the token; see their rows in the table"
            }
            Component::H2d => "copy less, or use larger chunks of the prompt",
            Component::D2h => "let the device choose tokens, as default sampling does",
        }
    }
}

/// Measures the components.
#[derive(Debug, Default)]
pub struct TtftProfiler {
    started: Option<Instant>,
    open: [Option<Instant>; 7],
    times: [Option<Duration>; 7],
    target_ms: Option<f64>,
    notes: Vec<String>,
}

/// Defines `start_x` and `stop_x` for each component.
macro_rules! components {
    ($($start:ident, $stop:ident: $component:ident;)*) => {
        $(
            pub fn $start(&mut self) {
                self.start(Component::$component);
            }

            /// Adds the time since the start to this component. Does nothing without a start.
            pub fn $stop(&mut self) {
                self.stop(Component::$component);
            }
        )*
    };
}

impl TtftProfiler {
    pub fn new() -> TtftProfiler {
        TtftProfiler::default()
    }

    /// Uses another target than [`DEFAULT_TARGET_MS`].
    pub fn with_target(target_ms: f64) -> TtftProfiler {
        TtftProfiler {
            target_ms: Some(target_ms),
            ..TtftProfiler::default()
        }
    }

    /// Marks the arrival of the request, before tokenization.
    pub fn start_ttft(&mut self) {
        self.started = Some(Instant::now());
    }

    components! {
        start_model_loading, stop_model_loading: ModelLoading;
        start_tokenization, stop_tokenization: Tokenization;
        start_embedding, stop_embedding: Embedding;
        start_prefill, stop_prefill: Prefill;
        start_first_token, stop_first_token: FirstToken;
        start_h2d, stop_h2d: H2d;
        start_d2h, stop_d2h: D2h;
    }

    fn start(&mut self, component: Component) {
        self.open[component as usize] = Some(Instant::now());
    }

    fn stop(&mut self, component: Component) {
        if let Some(started) = self.open[component as usize].take() {
            self.add(component, started.elapsed());
        }
    }

    /// Adds a time that was measured elsewhere.
    pub fn add(&mut self, component: Component, time: Duration) {
        let sum = &mut self.times[component as usize];
        *sum = Some(sum.unwrap_or_default() + time);
    }

    /// Adds a note for the reader.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Marks the first token and returns the result.
    pub fn finish_ttft(self) -> Ttft {
        let total = self.started.map_or(Duration::ZERO, |at| at.elapsed());
        self.finish_with(total)
    }

    /// Like [`TtftProfiler::finish_ttft`], with a total that was measured elsewhere.
    pub fn finish_with(self, total: Duration) -> Ttft {
        let total = ms(total);
        let target = self.target_ms.unwrap_or(DEFAULT_TARGET_MS);
        let time = |component: Component| self.times[component as usize].map(ms);
        let mut ttft = Ttft {
            model_load: time(Component::ModelLoading),
            tokenize: time(Component::Tokenization),
            embedding: time(Component::Embedding),
            prefill: time(Component::Prefill),
            first_token: time(Component::FirstToken),
            h2d: time(Component::H2d),
            d2h: time(Component::D2h),
            total,
            target,
            meets_target: total <= target,
            dominant: String::new(),
            notes: self.notes,
        };
        ttft.dominant = ttft
            .dominant_component()
            .map_or_else(String::new, |component| component.name().to_string());
        ttft
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Ttft {
    /// Returns the time of a component in milliseconds, if it was measured.
    pub fn time(&self, component: Component) -> Option<f64> {
        match component {
            Component::ModelLoading => self.model_load,
            Component::Tokenization => self.tokenize,
            Component::Embedding => self.embedding,
            Component::Prefill => self.prefill,
            Component::FirstToken => self.first_token,
            Component::H2d => self.h2d,
            Component::D2h => self.d2h,
        }
    }

    /// Returns the longest component of the time to the first token, which begins after loading; `None` if none was
    /// measured.
    pub fn dominant_component(&self) -> Option<Component> {
        let measured = Component::ALL
            .into_iter()
            .filter(|component| *component != Component::ModelLoading)
            .filter_map(|component| Some((self.time(component)?, component)));
        measured
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, component)| component)
    }

    /// Whether the total, which excludes loading, is within the target.
    pub fn meets_target(&self) -> bool {
        self.total <= self.target
    }

    /// Formats a table with one line per component and its share of the total. Loading comes before the request and has
    /// no share.
    pub fn format_table(&self) -> String {
        let mut table = format!("{:<14} {:>12} {:>8}\n", "part", "ms", "share");
        let mut line = |name: &str, time: Option<f64>| {
            let text = match time {
                Some(ms) => format!("{name:<14} {ms:>12.3} {:>6.1} %\n", 100.0 * ms / self.total),
                None => format!("{name:<14} {:>12} {:>8}\n", "n/a", ""),
            };
            table.push_str(&text);
        };
        for component in Component::ALL {
            if component != Component::ModelLoading {
                line(component.name(), self.time(component));
            }
        }
        line("total", Some(self.total));
        let verdict = match self.meets_target() {
            true => "met",
            false => "missed",
        };
        table.push_str(&format!(
            "target         {:>12.3}          {verdict}\n",
            self.target
        ));
        if let Some(ms) = self.model_load {
            let name = Component::ModelLoading.name();
            table.push_str(&format!(
                "{name:<14} {ms:>12.3}          before the request, not in the total\n"
            ));
        }
        table
    }

    /// Names the longest component and what to do about it.
    pub fn optimization_summary(&self) -> String {
        let Some(component) = self.dominant_component() else {
            return "no component was measured".to_string();
        };
        let time = self.time(component).unwrap_or(0.0);
        format!(
            "{} takes longest, {time:.1} of {:.1} ms: {}",
            component.name(),
            self.total,
            component.remedy()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A result with these component times in milliseconds, in the order of `Component::ALL`, and a total.
    fn ttft(parts: [Option<u32>; 7], total: u32, target_ms: f64) -> Ttft {
        let mut profiler = TtftProfiler::with_target(target_ms);
        for (component, part) in Component::ALL.into_iter().zip(parts) {
            if let Some(ms) = part {
                profiler.add(component, ms * MS);
            }
        }
        profiler.finish_with(total * MS)
    }

    #[test]
    fn finds_the_dominant_component() {
        for (parts, dominant) in [
            (
                // Loading is not part of the time to the first token.
                [Some(9), Some(1), Some(1), Some(8), Some(2), None, None],
                "prefill",
            ),
            (
                [Some(1), Some(9), None, Some(8), Some(2), None, None],
                "tokenize",
            ),
            (
                [None, None, Some(5), Some(4), None, None, None],
                "embedding",
            ),
            (
                [
                    Some(1),
                    Some(1),
                    Some(1),
                    Some(8),
                    Some(2),
                    Some(1),
                    Some(1),
                ],
                "prefill",
            ),
            (
                [
                    Some(1),
                    Some(1),
                    Some(1),
                    Some(8),
                    Some(9),
                    Some(1),
                    Some(1),
                ],
                "first_token",
            ),
            ([None, None, None, None, None, Some(3), Some(2)], "h2d"),
            ([None, None, None, None, None, Some(3), Some(4)], "d2h"),
        ] {
            let ttft = ttft(parts, 20, 200.0);
            assert_eq!(ttft.dominant, dominant);
            let summary = ttft.optimization_summary();
            assert!(summary.starts_with(dominant), "{summary}");
        }
        let nothing = ttft([Some(9), None, None, None, None, None, None], 20, 200.0);
        assert_eq!(
            (nothing.dominant.as_str(), nothing.dominant_component()),
            ("", None)
        );
    }

    #[test]
    fn target_excludes_loading() {
        let parts = [Some(900), Some(1), Some(2), Some(100), Some(7), None, None];
        let default = {
            let mut profiler = TtftProfiler::new();
            profiler.add(Component::ModelLoading, 900 * MS);
            profiler.finish_with(110 * MS)
        };
        assert_eq!(default.target, DEFAULT_TARGET_MS);
        assert!(default.meets_target && default.meets_target());
        for (target, met) in [(110.0, true), (109.9, false)] {
            let ttft = ttft(parts, 110, target);
            assert_eq!(
                (ttft.meets_target, ttft.meets_target()),
                (met, met),
                "{target}"
            );
        }
    }

    #[test]
    fn table_has_every_component() {
        let parts = [Some(90), Some(1), Some(2), Some(100), Some(7), None, None];
        let table = ttft(parts, 110, 100.0).format_table();
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        let expected = [
            "part ms share",
            "tokenize 1.000 0.9 %",
            "embedding 2.000 1.8 %",
            "prefill 100.000 90.9 %",
            "first_token 7.000 6.4 %",
            "h2d n/a",
            "d2h n/a",
            "total 110.000 100.0 %",
            "target 100.000 missed",
            "model_load 90.000 before the request, not in the total",
        ];
        let lines: Vec<String> = lines.iter().map(|words| words.join(" ")).collect();
        assert_eq!(lines, expected);
    }

    /// Each component is timed from its start to its stop; repetitions add up.
    #[test]
    fn times_components_by_wall_clock() {
        let mut profiler = TtftProfiler::new();
        let outer = Instant::now();
        profiler.start_ttft();
        // A stop without a start has no effect.
        profiler.stop_h2d();
        type Method = fn(&mut TtftProfiler);
        let methods: [(Method, Method); 6] = [
            (
                TtftProfiler::start_model_loading,
                TtftProfiler::stop_model_loading,
            ),
            (
                TtftProfiler::start_tokenization,
                TtftProfiler::stop_tokenization,
            ),
            (TtftProfiler::start_embedding, TtftProfiler::stop_embedding),
            (TtftProfiler::start_prefill, TtftProfiler::stop_prefill),
            (
                TtftProfiler::start_first_token,
                TtftProfiler::stop_first_token,
            ),
            (TtftProfiler::start_d2h, TtftProfiler::stop_d2h),
        ];
        let mut least = [0.0; 6];
        for _ in 0..2 {
            for ((start, stop), least) in methods.iter().zip(&mut least) {
                start(&mut profiler);
                let inner = Instant::now();
                while inner.elapsed() < Duration::from_micros(20) {}
                *least += ms(inner.elapsed());
                stop(&mut profiler);
            }
        }
        let ttft = profiler.finish_ttft();
        let most = ms(outer.elapsed());
        assert_eq!(ttft.h2d, None);
        let measured = Component::ALL.into_iter().filter_map(|c| ttft.time(c));
        let measured: Vec<f64> = measured.collect();
        assert_eq!(measured.len(), 6);
        for (ms, least) in measured.iter().zip(least) {
            assert!(*ms >= least, "{ms} < {least}");
        }
        assert!(measured.iter().sum::<f64>() <= ttft.total && ttft.total <= most);
    }
}
