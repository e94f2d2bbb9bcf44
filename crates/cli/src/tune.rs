//! `rocmforge tune`: autotunes a model's kernel launches on a GPU and saves the fastest.

use crate::resolve;
use rocmforge_engine::PrefixSharing;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_profile::stats::{Summary, median_interval};
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{TuningUse, WhenIdle};
use rocmforge_runtime::tuning::{Choice, Decided, TuneProgress};
use serde::Serialize;

use crate::args::TuneArgs;
use crate::exit::usage;
use crate::output::{Out, note, say};
use crate::session::{Session, Vocabulary};
use rocmforge_runtime::tuning::{Known, TuningFiles};

/// Time slice between two progress updates.
const SLICE: Duration = Duration::from_millis(100);
/// Sequences in the largest decode step that is tuned.
const MAX_SEQS: usize = 8;
/// Longest wait for another program's lock.
const PATIENCE: Duration = Duration::from_secs(20);

/// Times of one candidate, in milliseconds.
#[derive(Serialize)]
struct Times {
    choice: String,
    n: usize,
    median_us: f64,
    /// 95 % confidence interval of the median.
    median_interval_us: Option<[f64; 2]>,
}

/// A tuned launch.
#[derive(Serialize)]
struct Row {
    shape: String,
    usual: String,
    chosen: String,
    /// Time saved, as a fraction of the default's time.
    gain: f64,
    ways: Vec<Times>,
    /// Candidates with different results, which are never chosen.
    differing: Vec<String>,
}

#[derive(Serialize)]
struct NotTuned {
    shape: String,
    reason: String,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    device: &'a str,
    key: &'a str,
    /// `null` if nothing was saved.
    stored: Option<String>,
    n_shapes: usize,
    n_known: usize,
    n_left: usize,
    shapes: &'a [Row],
    untuned: Vec<NotTuned>,
}

pub fn run(args: &TuneArgs) -> Result<()> {
    let mut config = EngineConfig {
        max_seqs: MAX_SEQS,
        ..resolve::engine_config(&args.device, args.context.n_ctx())?
    };
    let Device::Gpu(gpu) = &mut config.device else {
        return Err(usage("only GPUs can be tuned; see rocmforge devices"));
    };
    if args.device.on.gpu.kernel_variant.is_some() {
        return Err(usage(
            "--kernel-variant forces kernels, which leaves nothing to tune; omit it",
        ));
    }
    let files = resolve::tuning_store(&args.device.on.gpu, gpu.id);
    let files = files.map(|files| files.with_patience(PATIENCE));
    if args.clear {
        let key = gpu::tuning_key(gpu)?;
        return clear(files.as_ref(), &key);
    }
    gpu.tuning = match args.again {
        true => TuningUse::default(),
        false => resolve::tuning(&args.device.on.gpu, gpu.id, WhenIdle::Wait),
    };
    let mut session = Session::start(
        &args.model,
        &args.device,
        Vocabulary::Optional,
        EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            ..config
        },
    )?;
    let store = files.as_ref().filter(|_| !args.dry_run);
    Tuned::new(args, store, &mut session)?.finish(&session)
}

fn clear(files: Option<&TuningFiles>, key: &str) -> Result<()> {
    if let Some(files) = files {
        files
            .clear(key)
            .context("cannot delete the tuning results")?;
    }
    note(&format!("deleted: tuning results for {key}"));
    Ok(())
}

/// The results.
struct Tuned<'a> {
    args: &'a TuneArgs,
    out: Out,
    last: TuneProgress,
    rows: Vec<Row>,
    untuned: Vec<NotTuned>,
    stored: Option<String>,
}

impl<'a> Tuned<'a> {
    /// Tunes until everything is done or the time is up; saves each result at once.
    fn new(
        args: &'a TuneArgs,
        store: Option<&TuningFiles>,
        session: &mut Session,
    ) -> Result<Tuned<'a>> {
        let (begun, budget) = (Instant::now(), Duration::from_secs(args.budget));
        let mut tuned = Tuned {
            args,
            out: Out::new(),
            last: TuneProgress::default(),
            rows: Vec::new(),
            untuned: Vec::new(),
            stored: None,
        };
        loop {
            let left = budget.saturating_sub(begun.elapsed());
            let Some(progress) = session.engine.tune(SLICE.min(left))? else {
                bail!("the model runs on the CPU; only GPUs can be tuned");
            };
            tuned.add(progress, store)?;
            // A launch that was started is measured to its end.
            let is_over = begun.elapsed() >= budget && !tuned.rows.is_empty();
            if tuned.last.n_left == 0 || is_over {
                return Ok(tuned);
            }
        }
    }

    fn add(&mut self, progress: TuneProgress, store: Option<&TuningFiles>) -> Result<()> {
        let is_first = self.last.key.is_empty();
        if let Some(files) = store
            && is_first
            && let Known::Unusable(why) = files.known(&progress.key)
        {
            let path = files.path(&progress.key);
            note(&format!("notice: {} is not used: {why}", path.display()));
        }
        if let Some(files) = store
            && !progress.decided.is_empty()
        {
            let path = files.path(&progress.key);
            let stored = files.add(&progress.key, &progress.found());
            stored.with_context(|| format!("cannot write {}", path.display()))?;
            self.stored = Some(path.display().to_string());
        }
        if is_first && !self.args.json {
            self.line(["shape", "usual", "chosen", "us", "us", "gain"])?;
        }
        for decided in &progress.decided {
            let row = Row::new(decided);
            for choice in &row.differing {
                say(&format!(
                    "error: {} with {choice} gives different results than with {}; not used, please report it",
                    row.shape, row.usual
                ));
            }
            if !self.args.json {
                self.row(decided, &row)?;
            }
            self.rows.push(row);
        }
        self.untuned
            .extend(progress.untuned.iter().map(|untuned| NotTuned {
                shape: untuned.shape.to_string(),
                reason: untuned.reason.clone(),
            }));
        self.last = progress;
        Ok(())
    }

    fn line(&mut self, [shape, usual, chosen, before, after, gain]: [&str; 6]) -> Result<()> {
        self.out.line(&format!(
            "{shape:<48}  {usual:<15}  {chosen:<15}  {before:>16}  {after:>16}  {gain:>6}"
        ))
    }

    fn row(&mut self, decided: &Decided, row: &Row) -> Result<()> {
        let [before, after] = [0, decided.chosen].map(|at| row.ways[at].text());
        let (chosen, after, gain) = match decided.chosen {
            0 => ("the same".to_string(), String::new(), String::new()),
            _ => (
                row.chosen.clone(),
                after,
                format!("{:.1} %", 100.0 * row.gain),
            ),
        };
        self.line([&row.shape, &row.usual, &chosen, &before, &after, &gain])?;
        self.out.flush()
    }

    fn finish(mut self, session: &Session) -> Result<()> {
        let (model, device) = (&session.file.label, &session.engine.backend_info().device);
        let TuneProgress {
            key,
            n_shapes,
            n_known,
            n_left,
            ..
        } = &self.last;
        if self.args.json {
            self.out.json(&Output {
                model,
                device,
                key,
                stored: self.stored,
                n_shapes: *n_shapes,
                n_known: *n_known,
                n_left: *n_left,
                shapes: &self.rows,
                untuned: self.untuned,
            })?;
            return self.out.finish();
        }
        let n = self.rows.first().map_or(0, |row| row.ways[0].n);
        let n_gained = self.rows.iter().filter(|row| row.gain > 0.0).count();
        self.out.line(&format!(
            "\n{} of {n_shapes} launches measured, {n} times each, the spread is that of the median; {n_gained} have a \
             faster way than the usual one; {n_known} were known; {device}",
            self.rows.len(),
        ))?;
        for untuned in &self.untuned {
            let line = format!("{} was not measured: {}", untuned.shape, untuned.reason);
            self.out.line(&line)?;
        }
        if *n_left > 0 {
            self.out.line(&format!(
                "{n_left} left when time was up; run again, or with a longer --budget"
            ))?;
        }
        match &self.stored {
            Some(path) => self
                .out
                .line(&format!("saved to {path}; used from the next start on"))?,
            None if !self.rows.is_empty() && self.args.dry_run => {
                self.out.line("nothing saved (--dry-run)")?
            }
            None if !self.rows.is_empty() => self
                .out
                .line("nothing saved: no cache folder; set --cache-dir")?,
            None => {}
        }
        self.out.finish()
    }
}

impl Row {
    fn new(decided: &Decided) -> Row {
        let ways: Vec<Times> = decided
            .ways
            .iter()
            .map(|(choice, ms)| Times::new(*choice, ms))
            .collect();
        let [usual, chosen] = [0, decided.chosen].map(|at| &ways[at]);
        Row {
            shape: decided.shape.to_string(),
            usual: usual.choice.clone(),
            chosen: chosen.choice.clone(),
            gain: match usual.median_us > 0.0 {
                true => 1.0 - chosen.median_us / usual.median_us,
                false => 0.0,
            },
            differing: decided.differing.iter().map(Choice::to_string).collect(),
            ways,
        }
    }
}

impl Times {
    fn new(choice: Choice, ms: &[f32]) -> Times {
        let us: Vec<f64> = ms.iter().map(|&ms| f64::from(ms) * 1e3).collect();
        Times {
            choice: choice.to_string(),
            n: us.len(),
            median_us: Summary::of(&us).map_or(0.0, |summary| summary.p50),
            median_interval_us: median_interval(&us),
        }
    }

    /// `12.34 ± 1.0 %`.
    fn text(&self) -> String {
        let spread = self.median_interval_us.map(|[low, high]| {
            let half = (high - self.median_us).max(self.median_us - low);
            format!(
                " ± {:.1} %",
                100.0 * half / self.median_us.max(f64::MIN_POSITIVE)
            )
        });
        format!("{:.2}{}", self.median_us, spread.unwrap_or_default())
    }
}
