//! The part `archs`: every architecture in every type against the CPU backend, several comparisons at once. `--shapes
//! families` are those without a shape of their own, in few layers of the widths of released models.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use rocmforge_gguf::GgmlType;
use rocmforge_quantize::synthetic::Shape;
use rocmforge_testkit::models::families::widths;

use super::models::types;
use super::proof::{Proof, Words as _, log, run as run_command};

/// One of each architecture and each kind of MoE model, the slowest first so that none is left to run alone.
const SHAPES: [&str; 16] = [
    "mixtral-8x7b",
    "qwen3.5-35b-a3b",
    "qwen3.5-27b",
    "qwen3-30b-a3b",
    "qwen1.5-moe-a2.7b",
    "olmo2-7b",
    "gemma-3-4b",
    "gemma-2-2b",
    "phi-3-mini",
    "smollm3-3b",
    "llama-3.2-1b",
    "starcoder2-3b",
    "qwen2.5-1.5b",
    "granite-3.1-2b",
    "qwen3-0.6b",
    "gpt2",
];

/// The types of files that together have every quantized or half format with kernels.
pub(super) fn all_types() -> Vec<String> {
    let formats = GgmlType::COMPUTED.iter().filter(|&&ty| ty != GgmlType::F32);
    let name = |ty: &GgmlType| match ty {
        // Mixes of several formats, the most of this one.
        GgmlType::Q3_K | GgmlType::Q4_K | GgmlType::Q5_K => format!("{}_M", ty.name()),
        // The file type IQ2_S has it nowhere.
        GgmlType::IQ2_S => "IQ2_M".to_owned(),
        _ => ty.name().to_owned(),
    };
    formats.map(name).collect()
}

/// The name for all models of [`widths`], and the types in which they are compared.
const FAMILIES: &str = "families";
const FAMILY_TYPES: [&str; 2] = ["Q8_0", "Q4_K"];

/// Tokens of each prompt.
const N_TOKENS: usize = 17;
const BATCHES: [usize; 2] = [1, 4];
/// The longest windows for which there is a prompt that is longer.
const MAX_WINDOW: usize = 512;

/// Returns the lengths of a model's prompts.
fn lengths(shape: &str) -> Vec<usize> {
    let window = widths::window(shape).filter(|&window| window <= MAX_WINDOW);
    let longer = window.map(|window| window + N_TOKENS);
    [N_TOKENS].into_iter().chain(longer).collect()
}

fn join(numbers: &[usize]) -> String {
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    words.join(",")
}

/// Returns the models to compare, `SHAPE:TYPE`.
fn models(proof: &Proof) -> Vec<String> {
    let mut shapes: Vec<&str> = Vec::new();
    for shape in &proof.args.shapes {
        match shape.as_str() {
            FAMILIES => shapes.extend(largest_first()),
            shape => shapes.push(shape),
        }
    }
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    let (of_families, of_shapes) = (types(proof, &FAMILY_TYPES), types(proof, &all_types()));
    let mut models = Vec::new();
    for shape in shapes {
        let types = match widths::names().any(|name| name == shape) {
            true => &of_families,
            false => &of_shapes,
        };
        models.extend(types.iter().map(|ty| format!("{shape}:{ty}")));
    }
    models
}

/// Returns the models of [`widths`], so that no large one is left to run alone.
fn largest_first() -> Vec<&'static str> {
    let n_weights = |name: &&str| {
        let tensors = widths::outline(name).map_or(Vec::new(), |outline| outline.tensors);
        let n: u64 = tensors.iter().map(|t| t.dims.iter().product::<u64>()).sum();
        Reverse(n)
    };
    let mut names: Vec<&str> = widths::names().collect();
    names.sort_by_cached_key(n_weights);
    names
}

pub(super) fn run(proof: &mut Proof) -> Result<()> {
    let logs = proof.results.join("archs");
    fs::create_dir_all(&logs)?;
    let models = models(proof);
    let jobs = proof.args.jobs.unwrap_or_else(jobs_for_this_machine).max(1);
    println!(
        "{jobs} at once; errors are the worst of batches of 1 and 4 prompts of {N_TOKENS} tokens (and of some that are longer\n\
         than a short window), and of 16 tokens decoded after each; rerouted counts the tokens that are left out, since a\n\
         router nearly tied and took another expert\n{:<26} {:<7} {:>10} {:>10} {:>7} {:>9} {:>9}",
        "shape", "type", "prompt", "decode", "bound", "same ids", "rerouted"
    );
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs.min(models.len()) {
            scope.spawn(|| {
                while let Some(model) = models.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let log = logs.join(model.replace(':', "-"));
                    let status = compare(proof, model, &log);
                    let text = fs::read_to_string(&log).unwrap_or_default();
                    let summary = Summary::new(model, &text);
                    let mut failed = failed.lock().expect("nothing panics with the lock");
                    if status.is_ok() && summary.is_complete(&lengths(shape_of(model))) {
                        println!("{}", summary.row(model, "ok"));
                    } else {
                        println!("{}", summary.row(model, "FAILED"));
                        let ends = |line: &&str| line.starts_with("Stack backtrace");
                        let lines: Vec<&str> = text.lines().take_while(|l| !ends(l)).collect();
                        for line in &lines[lines.len().saturating_sub(20)..] {
                            println!("    {line}");
                        }
                        if let Err(error) = status {
                            println!("    {error:#}");
                        }
                        println!("    the log: {}", log.display());
                        failed.push(model.as_str());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nothing panics with the lock");
    println!("{} comparisons", models.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Compares a model made in memory, `SHAPE:TYPE`, with one CPU thread. Ends a comparison that hangs.
fn compare(proof: &Proof, model: &str, path: &Path) -> Result<()> {
    let compare = proof.compare();
    let mut command = proof.with_image(Command::new("timeout"));
    command.words("-k 5").arg(proof.args.limit.to_string());
    command.arg(compare.get_program()).args(compare.get_args());
    let shape = shape_of(model);
    command.words(&format!("--synthetic {model} --threads 1"));
    if let Some(shape) = Shape::find(shape) {
        // As many that one of each kind is among them.
        let interval = shape.linear.map_or(1, |linear| linear.interval);
        let layers = proof.args.layers.max(interval);
        command.words(&format!("--layers {layers}"));
    }
    command.args(["--tokens", &join(&lengths(shape))]);
    command.args(["--batch", &join(&BATCHES)]);
    run_command(log(&mut command, path)?)
}

fn shape_of(model: &str) -> &str {
    model.split(':').next().unwrap_or(model)
}

/// What the output of `compare-devices` says of a model.
#[derive(Debug, Default)]
struct Summary {
    /// Tokens and prompts of each.
    batches: Vec<[usize; 2]>,
    /// The worst of all batches; `None` without any.
    prompt: Option<f64>,
    decode: Option<f64>,
    bound: String,
    n_same: usize,
    n_decoded: usize,
    n_rerouted: usize,
    /// Matrices of another type than the model's name has.
    notes: Vec<String>,
}

impl Summary {
    fn new(model: &str, log: &str) -> Summary {
        let mut summary = Summary::default();
        for line in log.lines() {
            if let Some(note) = line.strip_prefix("note: ") {
                let note = note.split(", since").next().unwrap_or(note);
                let (prefix, name) = note.split_at(note.find("blk.").map_or(0, |at| at + 4));
                let name = name.trim_start_matches(|c: char| {
                    !prefix.is_empty() && (c.is_ascii_digit() || c == '.')
                });
                if !summary.notes.iter().any(|known| known == name) {
                    summary.notes.push(name.into());
                }
            } else {
                let fields: Vec<&str> = line.split_whitespace().collect();
                if fields.first() == Some(&model) {
                    // A line cut short has no complete row.
                    let _ = summary.add(&fields[1..]);
                }
            }
        }
        summary
    }

    /// Adds a row: tokens, batch, errors of prompt and decode, bound, same ids of all, rerouted of all.
    fn add(&mut self, fields: &[&str]) -> Option<()> {
        let [tokens, batch, prompt, decode, bound, same, rerouted, ..] = fields else {
            return None;
        };
        let batch = [tokens.parse().ok()?, batch.parse().ok()?];
        let (n_same, n_decoded) = same.split_once('/')?;
        self.n_same += n_same.parse::<usize>().ok()?;
        self.n_decoded += n_decoded.parse::<usize>().ok()?;
        self.n_rerouted += rerouted.split('/').next()?.parse::<usize>().ok()?;
        self.prompt = Some(worse(self.prompt, prompt.parse().ok()?));
        self.decode = Some(worse(self.decode, decode.parse().ok()?));
        self.bound = bound.to_string();
        self.batches.push(batch);
        Some(())
    }

    /// Whether there is a row for each batch of prompts of these lengths.
    fn is_complete(&self, lengths: &[usize]) -> bool {
        let of_length = |&n: &usize| BATCHES.map(|n_prompts| [n, n_prompts]);
        self.batches
            .iter()
            .copied()
            .eq(lengths.iter().flat_map(of_length))
    }

    fn row(&self, model: &str, verdict: &str) -> String {
        let (shape, ty) = model.split_once(':').unwrap_or((model, ""));
        let error = |error: Option<f64>| error.map_or("-".into(), |error| format!("{error:.2e}"));
        let same = format!("{}/{}", self.n_same, self.n_decoded);
        let notes: String = self.notes.iter().map(|note| format!("; {note}")).collect();
        format!(
            "{shape:<26} {ty:<7} {:>10} {:>10} {:>7} {same:>9} {:>9}  {verdict}{notes}",
            error(self.prompt),
            error(self.decode),
            self.bound,
            self.n_rerouted
        )
    }
}

/// The larger error; NaN is worse than any number.
fn worse(known: Option<f64>, error: f64) -> f64 {
    match known {
        Some(known) if known.is_nan() || known > error => known,
        _ => error,
    }
}

fn jobs_for_this_machine() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    jobs(
        cores,
        &read("/proc/meminfo"),
        &read("/sys/fs/cgroup/memory.max"),
    )
}

/// One for each core, with 4 GiB for each beside 8 in all: mixtral-8x7b takes 7 in F16 and BF16, nearly all others less
/// than 3.
fn jobs(cores: usize, meminfo: &str, cgroup_limit: &str) -> usize {
    let available = meminfo.lines().find_map(|line| {
        let kib = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    let available = available.unwrap_or(0) >> 20;
    // `max` where there is none.
    let limit = cgroup_limit
        .trim()
        .parse::<u64>()
        .map_or(u64::MAX, |bytes| bytes >> 30);
    let by_memory = available.min(limit).saturating_sub(8) / 4;
    usize::try_from(by_memory)
        .unwrap_or(usize::MAX)
        .clamp(1, cores.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "model tokens batch error decode bound same ids rerouted\n\
        note: blk.0.attn_k.weight is Q8_0 instead of Q6_K, since its rows of 64 are not whole blocks\n\
        note: blk.1.attn_k.weight is Q8_0 instead of Q6_K, since its rows of 64 are not whole blocks\n";

    #[test]
    fn sums_up_all_batches() {
        let log = format!(
            "{HEAD}gpt2:Q6_K  17  1  1.00e-6  2.00e-5  5e-3  15/16  0/33  (CPU 1.0s, all 2.0s)\n\
             gpt2:Q6_K  17  4  3.00e-6  1.00e-5  5e-3  63/64  2/132  (CPU 1.0s, all 2.0s)\n"
        );
        let summary = Summary::new("gpt2:Q6_K", &log);
        assert!(summary.is_complete(&[17]) && !summary.is_complete(&[17, 40]));
        assert_eq!((summary.prompt, summary.decode), (Some(3e-6), Some(2e-5)));
        assert_eq!(
            (summary.n_same, summary.n_decoded, summary.n_rerouted),
            (78, 80, 2)
        );
        assert_eq!(summary.notes, ["attn_k.weight is Q8_0 instead of Q6_K"]);
        let row = summary.row("gpt2:Q6_K", "ok");
        assert!(
            row.starts_with("gpt2                       Q6_K       3.00e-6    2.00e-5"),
            "{row}"
        );
    }

    #[test]
    fn notices_missing_and_cut_rows_and_nan() {
        let summary = Summary::new(
            "gpt2:F16",
            "gpt2:F16 17 1 NaN 1.00e-6 1e-5 1/1 0/1\ngpt2:F16 17 4 1.0",
        );
        assert!(!summary.is_complete(&[17]));
        assert!(summary.prompt.unwrap().is_nan());
        assert!(worse(Some(f64::NAN), 1.0).is_nan() && worse(Some(1.0), f64::NAN).is_nan());
        let row = Summary::new("gpt2:F16", "").row("gpt2:F16", "FAILED");
        assert!(row.contains(" - "), "{row}");
    }

    #[test]
    fn jobs_fit_cores_and_memory() {
        let meminfo = |gib: u64| format!("MemTotal: 1 kB\nMemAvailable:   {} kB\n", gib << 20);
        for (cores, gib, limit, expected) in [
            (16, 128, "max\n", 16),
            (16, 40, "max", 8),
            (16, 128, "25769803776\n", 4),
            (16, 4, "", 1),
        ] {
            assert_eq!(jobs(cores, &meminfo(gib), limit), expected, "{gib} {limit}");
        }
        assert_eq!(jobs(4, "", ""), 1);
    }
}
