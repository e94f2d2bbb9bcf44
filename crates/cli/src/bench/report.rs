//! The rows of `bench` in llama-bench's formats: its fields with their names and order, then ours. Fields without a
//! meaning here have llama-bench's defaults.

use anyhow::Result;
use rocmforge_bench::baseline::{Measurement, OTHER_LOAD};
use rocmforge_bench::load;
use rocmforge_gguf::Gguf;
use rocmforge_plan::{KvTypes, Roofline};
use rocmforge_profile::clock;
use rocmforge_profile::schema::{Utilization, is_above_peak};
use rocmforge_profile::stats::Summary;
use rocmforge_runtime::gpu::{Experts, GpuLayers};
use serde::Serialize;
use serde_json::Value as Json;

use super::measure::{Machine, Measured};
use super::{Subject, Test};
use crate::args::BenchOutput;
use crate::output::{self, Out};
use crate::{devices, inspect, version};

/// Relative deviation above which a test counts as noisy.
const NOISY: f64 = 0.05;

/// One row. The fields are in column order.
#[derive(Debug, Serialize)]
pub struct Record {
    build_commit: &'static str,
    build_number: u32,
    cpu_info: String,
    gpu_info: String,
    backends: &'static str,
    model_filename: String,
    model_type: String,
    model_size: u64,
    model_n_params: u64,
    /// Number of sequences (`-b`). In llama-bench, this is the most tokens per step, `n_ubatch` here.
    n_batch: usize,
    n_ubatch: usize,
    n_threads: usize,
    cpu_mask: &'static str,
    cpu_strict: bool,
    poll: u32,
    type_k: &'static str,
    type_v: &'static str,
    n_gpu_layers: i32,
    n_cpu_moe: u32,
    split_mode: &'static str,
    main_gpu: u32,
    no_kv_offload: bool,
    flash_attn: i32,
    devices: &'static str,
    tensor_split: &'static str,
    tensor_buft_overrides: &'static str,
    load_mode: &'static str,
    lazy_mode: &'static str,
    embeddings: bool,
    no_op_offload: u32,
    no_host: bool,
    repack: bool,
    fit_target: u32,
    fit_min_ctx: u32,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    test_time: String,
    avg_ns: u64,
    stddev_ns: u64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
    // Not in llama-bench.
    n_sequences: usize,
    /// Tokens drafted in all measured runs, and those of them that were right; 0 without `--speculate`.
    n_drafted: u64,
    n_accepted: u64,
    isa: &'static str,
    /// The value of `--kernel-variant`, or empty.
    kernel_variant: String,
    /// Number of autotuned launches, of all models; 0 without tuning.
    n_tuned: usize,
    /// Roofline time over the mean time; null if the peaks are not measured.
    roofline_share: Option<f64>,
    /// Share of the cores that other programs took meanwhile; null if the system does not report it.
    other_load: Option<f64>,
    /// Read bandwidth, f32 and int8 peaks of this many threads or of the GPU, measured in this run.
    read_gb_s: Option<f64>,
    peak_gflop_s: Option<f64>,
    peak_int8_gop_s: Option<f64>,
    /// Of a GPU that runs the test again; null where its sensors are not read.
    power_watts: Option<f64>,
    /// Degrees Celsius.
    temperature: Option<f64>,
    clock_mhz: Option<f64>,
    joules_per_token: Option<f64>,
    /// What held the clock down, such as `power` or `power,temperature`; empty if nothing did.
    throttled_by: String,
}

/// Fields that only JSON has, as in llama-bench.
const JSON_ONLY: [&str; 2] = ["samples_ns", "samples_ts"];

impl Record {
    pub fn new(subject: &Subject, test: &Test, machine: &Machine, measured: &Measured) -> Record {
        let samples = &measured.samples;
        let seconds: Vec<f64> = samples.iter().map(|time| time.as_secs_f64()).collect();
        let ns: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e9).collect();
        let n_tokens = test.n_tokens() as f64;
        let samples_ts: Vec<f64> = seconds.iter().map(|seconds| n_tokens / seconds).collect();
        let peak = |of: fn(&Roofline) -> f64| {
            let peak = machine.roofline.as_ref().map(|r| of(r) / 1e9);
            peak.filter(|peak| peak.is_finite())
        };
        let condition = measured.condition.as_ref();
        let sensor = |of: fn(&Utilization) -> Option<Summary>| Some(of(condition?)?.mean);
        let least = measured.at_roofline(&subject.model, machine);
        Record {
            build_commit: version::COMMIT,
            build_number: 0,
            cpu_info: devices::cpu_name().unwrap_or_default(),
            gpu_info: machine.gpu.clone().unwrap_or_default(),
            backends: match machine.gpu {
                None => "CPU",
                Some(_) if machine.is_shared => "GPU,CPU",
                Some(_) => "GPU",
            },
            model_filename: subject.name.clone(),
            model_type: model_type(&subject.file.gguf, &subject.model.config.arch_name),
            model_size: inspect::weight_bytes(&subject.file.gguf),
            model_n_params: inspect::n_parameters(&subject.file.gguf),
            n_batch: test.n_seqs,
            n_ubatch: measured.max_step_tokens,
            n_threads: test.n_threads,
            cpu_mask: "0x0",
            cpu_strict: false,
            poll: 50,
            type_k: test.kv_types.keys.name(),
            type_v: test.kv_types.values.name(),
            n_gpu_layers: n_gpu_layers(subject, test, machine),
            n_cpu_moe: match machine.offload.experts {
                Experts::OnCpu => subject.model.config.n_layers() as u32,
                Experts::WithTheirLayer => 0,
            },
            split_mode: "layer",
            main_gpu: 0,
            no_kv_offload: false,
            flash_attn: -1,
            devices: "auto",
            tensor_split: "0.00",
            tensor_buft_overrides: "none",
            load_mode: "auto",
            lazy_mode: "auto",
            embeddings: false,
            no_op_offload: 0,
            no_host: false,
            repack: true,
            fit_target: 0,
            fit_min_ctx: 0,
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            n_depth: test.n_depth,
            test_time: clock::rfc_3339(clock::unix_now()),
            avg_ns: mean(&ns).round() as u64,
            stddev_ns: deviation(&ns).round() as u64,
            avg_ts: mean(&samples_ts),
            stddev_ts: deviation(&samples_ts),
            samples_ns: samples
                .iter()
                .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
                .collect(),
            samples_ts,
            n_sequences: test.n_seqs,
            n_drafted: measured.drafts.n_drafted,
            n_accepted: measured.drafts.n_accepted,
            isa: machine.isa.name(),
            kernel_variant: machine.kernel_variant.clone(),
            n_tuned: machine.n_tuned,
            roofline_share: least.map(|least| least / mean(&seconds)),
            other_load: measured.other_load,
            read_gb_s: peak(|roofline| roofline.read_bytes_per_s),
            peak_gflop_s: peak(|roofline| roofline.f32_ops_per_s),
            peak_int8_gop_s: peak(|roofline| roofline.i8_ops_per_s),
            power_watts: sensor(|found| found.power_watts),
            temperature: sensor(|found| found.temperature),
            clock_mhz: sensor(|found| found.clock_mhz),
            joules_per_token: condition.and_then(|found| found.joules_per_token),
            throttled_by: condition.map_or_else(String::new, |found| found.throttled_by.join(",")),
        }
    }

    /// Returns the samples' deviation relative to their mean.
    pub fn noise(&self) -> f64 {
        self.stddev_ts / self.avg_ts
    }

    /// Returns what a reader should know about the row.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.noise() > NOISY {
            warnings.push(format!(
                "is noisy: the samples deviate by {:.0} % of their mean",
                100.0 * self.noise()
            ));
        }
        if let Some(share) = self.other_load.filter(|share| *share >= load::BUSY) {
            warnings.push(format!(
                "was measured on a busy machine: other programs took {:.0} % of its cores",
                100.0 * share
            ));
        }
        if !self.throttled_by.is_empty() {
            let clock = self.clock_mhz.map(|mhz| format!(" to {mhz:.0} MHz"));
            warnings.push(format!(
                "was throttled{}: the GPU's clock is held down by {}",
                clock.unwrap_or_default(),
                self.throttled_by.replace(',', " and ")
            ));
        }
        if self.roofline_share.is_some_and(is_above_peak) {
            warnings.push(
                "is faster than the roofline: the weights stay in a cache, or memory was slower when its peak was measured"
                    .to_string(),
            );
        }
        warnings
    }

    /// Converts the row to a baseline's benchmark with this name.
    pub fn measurement(&self, name: String, subject: &Subject, test: &Test) -> Option<Measurement> {
        let ms: Vec<f64> = self.samples_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
        let mut measured = Measurement::of_times(name, &ms)?;
        let p50_s = measured.metrics["p50_ms"] / 1e3;
        let rate = (test.n_tokens() as f64 / p50_s, "tokens_s");
        let share = self.roofline_share.map(|share| (share, "roofline_share"));
        let load = self.other_load.map(|load| (load, OTHER_LOAD));
        let sensors = [
            (self.power_watts, "power_watts"),
            (self.temperature, "temperature"),
            (self.clock_mhz, "clock_mhz"),
            (self.joules_per_token, "joules_per_token"),
        ];
        let sensors = sensors
            .into_iter()
            .filter_map(|(value, metric)| Some((value?, metric)));
        let known = [Some(rate), share, load].into_iter().flatten();
        for (value, metric) in known.chain(sensors) {
            measured.metrics.insert(metric.to_string(), value);
        }
        for (fact, text) in [
            ("backend", self.backends.to_lowercase()),
            ("format", self.model_type.clone()),
            ("model", subject.file.label.clone()),
            ("isa", self.isa.to_string()),
            ("n_ubatch", self.n_ubatch.to_string()),
        ] {
            measured.metadata.insert(fact.to_string(), text);
        }
        if self.n_tuned > 0 {
            let n_tuned = self.n_tuned.to_string();
            measured.metadata.insert("n_tuned".to_string(), n_tuned);
        }
        Some(measured)
    }

    /// Returns names and values in order.
    fn fields(&self) -> Result<serde_json::Map<String, Json>> {
        match serde_json::to_value(self)? {
            Json::Object(fields) => Ok(fields),
            other => unreachable!("a record is an object, not {other}"),
        }
    }
}

/// Returns the number of layers on the GPU, or llama-bench's -1 for `all`.
fn n_gpu_layers(subject: &Subject, test: &Test, machine: &Machine) -> i32 {
    let n = match (test.offload.layers, machine.offload.layers) {
        (GpuLayers::All, _) => return -1,
        (_, GpuLayers::Count(n)) => n,
        (_, GpuLayers::All | GpuLayers::Auto) => subject.model.config.n_layers(),
    };
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sample standard deviation; 0 for one value.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Returns architecture, size and file type: `llama 1B Q4_K - Medium`.
pub fn model_type(gguf: &Gguf, arch: &str) -> String {
    let meta = gguf.metadata();
    let size = match meta.opt_str("general.size_label") {
        Ok(Some(label)) => output::for_terminal(label),
        _ => inspect::count(inspect::n_parameters(gguf)),
    };
    let mix = file_type(gguf).unwrap_or("unknown");
    format!("{arch} {} {mix}", size.replace(' ', ""))
}

/// Returns llama.cpp's name of the file type.
pub fn file_type(gguf: &Gguf) -> Option<&'static str> {
    let id = gguf
        .metadata()
        .opt_u32("general.file_type")
        .ok()
        .flatten()?;
    let known = FILE_TYPES.iter().find(|(known, _)| *known == id);
    known.map(|(_, name)| *name)
}

/// Values of `general.file_type` with llama.cpp's names.
const FILE_TYPES: [(u32, &str); 36] = [
    (0, "all F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K - Medium"),
    (11, "Q3_K - Small"),
    (12, "Q3_K - Medium"),
    (13, "Q3_K - Large"),
    (14, "Q4_K - Small"),
    (15, "Q4_K - Medium"),
    (16, "Q5_K - Small"),
    (17, "Q5_K - Medium"),
    (18, "Q6_K"),
    (19, "IQ2_XXS - 2.0625 bpw"),
    (20, "IQ2_XS - 2.3125 bpw"),
    (21, "Q2_K - Small"),
    (22, "IQ3_XS - 3.3 bpw"),
    (23, "IQ3_XXS - 3.0625 bpw"),
    (24, "IQ1_S - 1.5625 bpw"),
    (25, "IQ4_NL - 4.5 bpw"),
    (26, "IQ3_S - 3.4375 bpw"),
    (27, "IQ3_S mix - 3.66 bpw"),
    (28, "IQ2_S - 2.5 bpw"),
    (29, "IQ2_M - 2.7 bpw"),
    (30, "IQ4_XS - 4.25 bpw"),
    (31, "IQ1_M - 1.75 bpw"),
    (32, "BF16"),
    (36, "TQ1_0 - 1.69 bpw ternary"),
    (37, "TQ2_0 - 2.06 bpw ternary"),
    (38, "MXFP4 MoE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Prints rows as they are measured.
pub struct Printer {
    form: BenchOutput,
    out: Out,
    n_rows: usize,
    /// The table's columns for the types of the KV cache: one if keys and values have the same in each test.
    kv_types: &'static [&'static str],
}

impl Printer {
    pub fn new(form: BenchOutput, out: Out) -> Printer {
        Printer {
            form,
            out,
            n_rows: 0,
            kv_types: &[],
        }
    }

    pub fn header(&mut self, tests: &[Test]) -> Result<()> {
        let types = || tests.iter().map(|test| test.kv_types);
        self.kv_types = if types().any(|types| types.same().is_none()) {
            &["type_k", "type_v"]
        } else if types().any(|types| types != KvTypes::default()) {
            &["type_k"]
        } else {
            &[]
        };
        match self.form {
            BenchOutput::Json => self.out.line("["),
            BenchOutput::Table => {
                let columns = self.columns();
                let names: Vec<String> = columns.iter().map(|(n, w)| pad(n, *w)).collect();
                self.out.line(names.join("  ").trim_end())
            }
            BenchOutput::Md => {
                let columns = self.columns();
                let names: Vec<String> = columns.iter().map(|(n, w)| pad(n, *w)).collect();
                let rules = columns.iter().map(|(_, width)| {
                    let dashes = "-".repeat(width.unsigned_abs() - 1);
                    format!("{dashes}{}", if *width > 0 { ":" } else { "-" })
                });
                let rules: Vec<String> = rules.collect();
                self.out.line(&format!("| {} |", names.join(" | ")))?;
                self.out.line(&format!("| {} |", rules.join(" | ")))
            }
            // The header is printed with the first row.
            BenchOutput::Csv | BenchOutput::Jsonl => Ok(()),
        }
    }

    /// Prints a row; `name` is the test's name in the table.
    pub fn row(&mut self, record: &Record, name: &str) -> Result<()> {
        match self.form {
            BenchOutput::Table | BenchOutput::Md => self.table_row(record, name)?,
            BenchOutput::Csv => self.csv_row(record)?,
            BenchOutput::Json => {
                let text = serde_json::to_string_pretty(record)?.replace('\n', "\n  ");
                let before = if self.n_rows > 0 { "," } else { "" };
                self.out
                    .line(&format!("{before}  {}", output::escape_json(&text)))?;
            }
            BenchOutput::Jsonl => {
                let text = serde_json::to_string(record)?;
                self.out.line(&output::escape_json(&text))?;
            }
        }
        self.n_rows += 1;
        self.out.flush()
    }

    pub fn footer(&mut self) -> Result<()> {
        match self.form {
            BenchOutput::Json => self.out.line("]")?,
            BenchOutput::Table | BenchOutput::Md => {
                self.out
                    .line(&format!("\nbuild: {} (0)", version::COMMIT))?;
            }
            BenchOutput::Csv | BenchOutput::Jsonl => {}
        }
        self.out.flush()
    }

    /// Names and widths of the table's columns; a negative width aligns left.
    fn columns(&self) -> Vec<(&'static str, isize)> {
        let mut columns = vec![
            ("model", -30),
            ("size", 10),
            ("params", 10),
            ("backend", -10),
            ("threads", 7),
        ];
        columns.extend(self.kv_types.iter().map(|&name| (name, 6)));
        columns.extend([("test", 15), ("t/s", 20), ("roofline", 8)]);
        columns
    }

    /// Prints a comparison with a baseline: after a table on stdout, otherwise on stderr.
    pub fn report(&mut self, text: &str) -> Result<()> {
        if !self.form.is_for_people() {
            output::say(text.trim_end());
            return Ok(());
        }
        self.out.line("")?;
        self.out.bytes(text.as_bytes())?;
        self.out.flush()
    }

    fn table_row(&mut self, record: &Record, name: &str) -> Result<()> {
        let columns = self.columns();
        let cells: Vec<String> = columns
            .iter()
            .map(|(column, width)| {
                let value = match *column {
                    "model" => record.model_type.clone(),
                    "size" => size(record.model_size),
                    "params" => params(record.model_n_params),
                    "backend" => record.backends.to_string(),
                    "threads" => record.n_threads.to_string(),
                    "type_k" => record.type_k.to_string(),
                    "type_v" => record.type_v.to_string(),
                    "test" => name.to_string(),
                    "t/s" => format!("{:.2} ± {:.2}", record.avg_ts, record.stddev_ts),
                    _ => match record.roofline_share {
                        Some(share) => format!("{:.1} %", 100.0 * share),
                        None => "n/a".to_string(),
                    },
                };
                pad(&value, *width)
            })
            .collect();
        match self.form {
            BenchOutput::Md => self.out.line(&format!("| {} |", cells.join(" | "))),
            _ => self.out.line(cells.join("  ").trim_end()),
        }
    }

    fn csv_row(&mut self, record: &Record) -> Result<()> {
        let mut fields = record.fields()?;
        fields.retain(|name, _| !JSON_ONLY.contains(&name.as_str()));
        if self.n_rows == 0 {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            self.out.line(&names.join(","))?;
        }
        let values: Vec<String> = fields.values().map(csv_value).collect();
        self.out.line(&values.join(","))
    }
}

/// Quotes the value; true is 1.
fn csv_value(value: &Json) -> String {
    let text = match value {
        Json::String(text) => text.replace('"', "\"\""),
        Json::Bool(yes) => u8::from(*yes).to_string(),
        other => other.to_string(),
    };
    format!("\"{text}\"")
}

fn pad(text: &str, width: isize) -> String {
    let columns = width.unsigned_abs();
    match width < 0 {
        true => format!("{text:columns$}"),
        false => format!("{text:>columns$}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 1024.0 => format!("{mib:.2} MiB"),
        mib => format!("{:.2} GiB", mib / 1024.0),
    }
}

fn params(n: u64) -> String {
    match n as f64 / 1e6 {
        millions if millions < 1000.0 => format!("{millions:.2} M"),
        millions => format!("{:.2} B", millions / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rocmforge::ModelFile;
    use rocmforge_cpu::Isa;
    use rocmforge_engine::DraftCounts;
    use rocmforge_model::Model;
    use rocmforge_runtime::gpu::Offload;

    use super::*;
    use crate::embedded;

    #[test]
    fn computes_the_sample_deviation() {
        assert_eq!(deviation(&[3.0]), 0.0);
        assert_eq!(deviation(&[1.0, 2.0, 3.0]), 1.0);
        assert_eq!(
            deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]),
            (32.0f64 / 7.0).sqrt()
        );
    }

    /// Sensors of a run at 250 W and 2100 MHz whose clock two limits held down.
    fn throttled() -> Utilization {
        let steady = |value| Summary::of(&[value, value]);
        Utilization {
            source: "sysfs (card0, 0000:03:00.0)".to_string(),
            busy_percent: steady(99.0).unwrap(),
            memory_used_bytes: None,
            meets_target: true,
            power_watts: steady(250.0),
            temperature: steady(81.0),
            clock_mhz: steady(2100.0),
            throttled_by: vec!["power".to_string(), "temperature".to_string()],
            joules_per_token: None,
        }
        // 500 J.
        .per_token(1000, Duration::from_secs(2))
    }

    #[test]
    fn rows_have_power_energy_and_what_throttled() {
        let gguf = Arc::new(embedded::open().unwrap());
        let subject = Subject {
            name: "a".to_string(),
            model: Model::load(Arc::clone(&gguf)).unwrap(),
            file: ModelFile {
                gguf,
                label: "a".to_string(),
                folder: None,
            },
            drafter: None,
            kept_name: "a".to_string(),
        };
        let test = Test {
            n_prompt: 0,
            n_gen: 100,
            n_depth: 0,
            n_seqs: 1,
            n_threads: 1,
            kv_types: KvTypes::default(),
            offload: Offload::default(),
        };
        let machine = Machine {
            isa: Isa::Scalar,
            kv_types: KvTypes::default(),
            gpu: Some("Radeon RX 7900 XT (hip:0)".to_string()),
            is_shared: false,
            offload: Offload::default(),
            kernel_variant: String::new(),
            n_tuned: 0,
            roofline: None,
        };
        let row = |condition| {
            let measured = Measured {
                samples: vec![Duration::from_secs(1); 2],
                other_load: None,
                steps: Vec::new(),
                max_step_tokens: 1,
                drafts: DraftCounts::default(),
                condition,
            };
            Record::new(&subject, &test, &machine, &measured)
        };
        let of = |row: &Record| {
            let fields = row.fields().unwrap();
            [
                "power_watts",
                "temperature",
                "clock_mhz",
                "joules_per_token",
                "throttled_by",
            ]
            .map(|field| fields[field].clone())
        };
        let with = row(Some(throttled()));
        assert_eq!(
            of(&with),
            [
                Json::from(250.0),
                Json::from(81.0),
                Json::from(2100.0),
                Json::from(0.5),
                Json::from("power,temperature"),
            ]
        );
        assert_eq!(
            with.warnings(),
            ["was throttled to 2100 MHz: the GPU's clock is held down by power and temperature"]
        );
        let kept = with.measurement("t".to_string(), &subject, &test).unwrap();
        for (metric, value) in [
            ("power_watts", 250.0),
            ("temperature", 81.0),
            ("clock_mhz", 2100.0),
            ("joules_per_token", 0.5),
        ] {
            assert_eq!(kept.metrics[metric], value, "{metric}");
        }
        let cool = Utilization {
            throttled_by: Vec::new(),
            clock_mhz: None,
            ..throttled()
        };
        assert_eq!(row(Some(cool)).warnings(), [""; 0]);
        let unclocked = Utilization {
            clock_mhz: None,
            ..throttled()
        };
        assert!(row(Some(unclocked)).warnings()[0].starts_with("was throttled: the GPU's clock"));
        let without = row(None);
        assert_eq!(
            of(&without),
            [
                Json::Null,
                Json::Null,
                Json::Null,
                Json::Null,
                Json::from("")
            ]
        );
        assert_eq!(without.warnings(), [""; 0]);
    }

    #[test]
    fn cells_match_llama_bench() {
        assert_eq!(size(13_224_960), "12.61 MiB");
        assert_eq!(size(5 << 30), "5.00 GiB");
        assert_eq!(params(19_532_032), "19.53 M");
        assert_eq!(params(1_235_814_432), "1.24 B");
        assert_eq!(csv_value(&Json::from("a\"b")), "\"a\"\"b\"");
        assert_eq!(csv_value(&Json::from(true)), "\"1\"");
        assert_eq!(csv_value(&Json::from(2.5)), "\"2.5\"");
    }
}
