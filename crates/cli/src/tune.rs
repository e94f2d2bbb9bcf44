//! `rocmforge tune`: measures the ways to make a model's launches on a GPU, and remembers the fastest.

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
use crate::output::{Out, note};
use crate::session::{self, Session, Vocabulary};
use crate::tuning_cache::{self, Known, TuningFiles};

/// How long the device measures between two looks at what came of it.
const SLICE: Duration = Duration::from_millis(100);
/// Sequences of the largest step of generation that is tuned.
const MAX_SEQS: usize = 8;
/// How long another program may write: `tune` has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Milliseconds of the launches of one way, measured so often.
#[derive(Serialize)]
struct Times {
    choice: String,
    n: usize,
    median_us: f64,
    /// Between these the median lies in 95 of 100 cases.
    median_interval_us: Option<[f64; 2]>,
}

/// A launch that was tuned.
#[derive(Serialize)]
struct Row {
    shape: String,
    usual: String,
    chosen: String,
    /// How much faster the chosen way is, as a part of the usual one's time.
    gain: f64,
    ways: Vec<Times>,
    /// Ways that gave other results, which are never taken.
    differing: Vec<String>,
}

#[derive(Serialize)]
struct NotTuned {
    shape: String,
    reason: String,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    device: &'a str,
    key: &'a str,
    /// `null`, if nothing was to be stored.
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
        ..session::engine_config(&args.device, args.context.n_ctx())?
    };
    let Device::Gpu(gpu) = &mut config.device else {
        return Err(usage(
            "tuning is for GPUs: the CPU's kernels have nothing to choose; see rocmforge devices",
        ));
    };
    if args.device.on.gpu.kernel_variant.is_some() {
        return Err(usage(
            "--kernel-variant says which kernels are taken, so that there is nothing to choose; leave it out",
        ));
    }
    let files = tuning_cache::files(&args.device.on.gpu, gpu.id);
    let files = files.map(|files| files.with_patience(PATIENCE));
    if args.clear {
        let key = gpu::tuning_key(gpu)?;
        return clear(files.as_ref(), &key);
    }
    gpu.tuning = match args.again {
        true => TuningUse::default(),
        false => tuning_cache::tuning(&args.device.on.gpu, gpu.id, WhenIdle::Wait),
    };
    let mut session =
        Session::start_measured(&args.model, &args.device, Vocabulary::Optional, config)?;
    let store = files.as_ref().filter(|_| !args.dry_run);
    Tuned::new(args, store, &mut session)?.finish(&session)
}

fn clear(files: Option<&TuningFiles>, key: &str) -> Result<()> {
    if let Some(files) = files {
        files.clear(key).context("cannot forget the tuning")?;
    }
    note(&format!("forgotten: what was tuned for {key}"));
    Ok(())
}

/// What came of it.
struct Tuned<'a> {
    args: &'a TuneArgs,
    out: Out,
    last: TuneProgress,
    rows: Vec<Row>,
    untuned: Vec<NotTuned>,
    stored: Option<String>,
}

impl<'a> Tuned<'a> {
    /// Tunes until all is done or the time is over, and stores each result as soon as it is known.
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
                bail!("the model runs on the CPU, whose kernels have nothing to choose");
            };
            tuned.add(progress, store)?;
            // A launch is measured to its end, however short the time is.
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
                note(&format!(
                    "error: {} with {choice} gives other results than with {}; it is not taken, please report it",
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
                "{n_left} are left: the time was over; run it again, or with a longer --budget"
            ))?;
        }
        match &self.stored {
            Some(path) => self
                .out
                .line(&format!("stored in {path}, for the next start"))?,
            None if !self.rows.is_empty() && self.args.dry_run => {
                self.out.line("nothing was stored (--dry-run)")?
            }
            None if !self.rows.is_empty() => self
                .out
                .line("nothing was stored: name a folder with --cache-dir")?,
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
