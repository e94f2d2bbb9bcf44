//! `cargo xtask amd-estimate`: a model of llama.cpp's decode speed on AMD GPUs, for docs/AMD.md. It is fitted to half of the
//! published rows in `amd_estimate/rows.csv` and checked on the others.
//!
//! Time of a token = bytes read / (share of the chip × peak bandwidth of the card) + layers × cost of a layer. The cost
//! stands for the launches of a layer and is one for all chips.
//!
//! Bytes read = size of the file, less the token embedding table unless it is the output matrix as well, less the experts
//! that a token does not use.
//!
//! The split was fixed before the first fit: rows sorted by source, card, model and type; the first, third, and so on are
//! fitted. Chips with fewer than [`ENOUGH`] rows are left out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result, ensure};

const ROWS: &str = include_str!("amd_estimate/rows.csv");
const MODELS: &str = include_str!("amd_estimate/models.csv");

/// Name, chip and peak bandwidth in GB/s, as AMD specifies it: bus width × data rate of the memory.
#[rustfmt::skip]
static CARDS: [(&str, &str, f64); 12] = [
    ("RX 7900 XTX", "gfx1100", 960.0),
    ("RX 7900 XT", "gfx1100", 800.0),
    ("PRO W7900", "gfx1100", 864.0),
    ("PRO W7800 48GB", "gfx1100", 864.0),
    ("RX 7800 XT", "gfx1101", 624.0),
    ("RX 9070 XT", "gfx1201", 640.0),
    ("RX 9070", "gfx1201", 640.0),
    ("AI PRO R9700", "gfx1201", 640.0),
    ("a gfx1201", "gfx1201", 640.0),
    ("Strix Halo", "gfx1151", 256.0),
    ("MI300X", "gfx942", 5300.0),
    ("MI210", "gfx90a", 1638.0),
];

/// The cards and the file of docs/AMD.md.
const ESTIMATED: [&str; 4] = ["RX 7900 XT", "RX 7900 XTX", "RX 9070 XT", "Strix Halo"];
const ESTIMATED_FILE: (&str, &str) = ("Llama-3.1-8B", "Q4_K_M");

/// Rows that a chip needs to have a share of its own.
const ENOUGH: usize = 4;
const HALVES: u64 = 40;
/// Where the worst error on unseen rows is typically higher, the model is of no use for a chip.
const USEFUL: f64 = 0.3;

/// What a GGUF file asks of memory.
#[derive(Clone, Copy)]
struct Shape {
    bytes: f64,
    layers: f64,
}

/// A published speed.
#[derive(Clone)]
struct Row {
    source: String,
    card: String,
    model: String,
    ty: String,
    chip: &'static str,
    peak_gb_s: f64,
    shape: Shape,
    tokens_per_s: f64,
}

struct Fit {
    /// Of the peak bandwidth, by chip.
    shares: BTreeMap<&'static str, f64>,
    layer_us: f64,
}

/// How far a fit was from the rows of one chip that it had not seen.
#[derive(Default)]
struct Check {
    /// Worst error of each random half.
    worst: Vec<f64>,
    /// Measured / predicted, of all random halves.
    ratios: Vec<f64>,
}

/// Fits, checks and prints the model.
pub(crate) fn run() -> Result<()> {
    match std::io::stdout().write_all(report()?.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns what the command prints.
fn report() -> Result<String> {
    let mut out = String::new();
    let models = models(MODELS)?;
    let (used, left_out) = enough(rows(ROWS, &models)?);
    writeln!(out, "{} rows: {}", used.len(), names(&used))?;
    writeln!(
        out,
        "{} rows, too few for a chip: {}",
        left_out.len(),
        names(&left_out)
    )?;

    let (fitted, unseen) = halves(&used);
    let fit = Fit::of(&fitted);
    writeln!(out, "\nfitted to {} rows: {fit}", fitted.len())?;
    writeln!(out, "the {} others:", unseen.len())?;
    for row in &unseen {
        let predicted = fit.tokens_per_s(row);
        writeln!(
            out,
            "  {:<14} {:<19} {:<10} {:6.1} tokens/s, model {predicted:6.1}, {:+3.0} %",
            row.card,
            row.model,
            row.ty,
            row.tokens_per_s,
            100.0 * (predicted / row.tokens_per_s - 1.0)
        )?;
    }
    writeln!(
        out,
        "error on them: {}",
        summary(&mut errors(&fit, &unseen))
    )?;
    for (chip, rows) in by_chip(&unseen) {
        writeln!(out, "  {chip}: {}", summary(&mut errors(&fit, &rows)))?;
    }

    let mut medians = Vec::new();
    let mut worst = Vec::new();
    let mut checks: BTreeMap<&str, Check> = BTreeMap::new();
    for seed in 0..HALVES {
        let (fitted, unseen) = random_halves(&used, seed);
        let fit = Fit::of(&fitted);
        let mut of_half = errors(&fit, &unseen);
        medians.push(quantile(&mut of_half, 0.5));
        worst.push(quantile(&mut of_half, 1.0));
        for (chip, rows) in by_chip(&unseen) {
            let check = checks.entry(chip).or_default();
            check.worst.push(quantile(&mut errors(&fit, &rows), 1.0));
            let ratios = rows
                .iter()
                .map(|row| row.tokens_per_s / fit.tokens_per_s(row));
            check.ratios.extend(ratios);
        }
    }
    writeln!(out, "\n{HALVES} random halves:")?;
    writeln!(out, "  median error: {}", summary(&mut medians))?;
    writeln!(out, "  worst error: {}", summary(&mut worst))?;
    for (chip, check) in &mut checks {
        writeln!(
            out,
            "  worst error of {chip}: {}",
            summary(&mut check.worst)
        )?;
    }

    let fit = Fit::of(&used);
    let (model, ty) = ESTIMATED_FILE;
    let shape = models[&(model.to_string(), ty.to_string())];
    writeln!(out, "\nfitted to all {} rows: {fit}", used.len())?;
    writeln!(
        out,
        "{model} {ty}, {:.2} GB a token, one sequence; the range had nine of ten unseen rows of the chip:",
        shape.bytes / 1e9
    )?;
    for name in ESTIMATED {
        let (chip, peak_gb_s) = card(name)?;
        let check = checks.get_mut(chip).context("a chip without rows")?;
        let estimate = fit.speed(chip, peak_gb_s, shape);
        let [low, high] = [0.05, 0.95].map(|share| estimate * quantile(&mut check.ratios, share));
        match quantile(&mut check.worst, 0.5) <= USEFUL {
            true => writeln!(out, "  {name:<12} {low:.0} to {high:.0} tokens/s")?,
            false => writeln!(
                out,
                "  {name:<12} no estimate: the worst error is typically above 30 %"
            )?,
        }
        let of_file = |row: &&Row| row.card == name && row.model == model && row.ty == ty;
        if let Some(row) = used.iter().find(of_file) {
            writeln!(out, "  {:<12} published: {} tokens/s", "", row.tokens_per_s)?;
        }
    }
    Ok(out)
}

/// The rows of chips with enough of them, and the others.
fn enough(rows: Vec<Row>) -> (Vec<Row>, Vec<Row>) {
    let of_chip = |chip| rows.iter().filter(|row| row.chip == chip).count();
    rows.iter()
        .cloned()
        .partition(|row| of_chip(row.chip) >= ENOUGH)
}

fn by_chip(rows: &[Row]) -> BTreeMap<&'static str, Vec<Row>> {
    let mut chips: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in rows {
        chips.entry(row.chip).or_default().push(row.clone());
    }
    chips
}

/// The cards of `rows`.
fn names(rows: &[Row]) -> String {
    let cards: BTreeSet<_> = rows.iter().map(|row| row.card.as_str()).collect();
    Vec::from_iter(cards).join(", ")
}

impl Fit {
    /// The fit with the least sum of squared logarithms of predicted / measured.
    fn of(rows: &[Row]) -> Self {
        let chips = by_chip(rows);
        let loss = |rows: &[Row], share: f64, layer_us: f64| -> f64 {
            let log = |row: &Row| {
                (seconds(share, row.peak_gb_s, layer_us, row.shape) * row.tokens_per_s).ln()
            };
            rows.iter().map(|row| log(row).powi(2)).sum()
        };
        let best_share = |rows: &[Row], layer_us| minimum(0.1, 1.0, |s| loss(rows, s, layer_us));
        let layer_us = minimum(0.0, 300.0, |layer_us| {
            let of_chip = |rows: &Vec<Row>| loss(rows, best_share(rows, layer_us), layer_us);
            chips.values().map(of_chip).sum()
        });
        let shares = chips
            .iter()
            .map(|(&chip, rows)| (chip, best_share(rows, layer_us)))
            .collect();
        Self { shares, layer_us }
    }

    fn tokens_per_s(&self, row: &Row) -> f64 {
        self.speed(row.chip, row.peak_gb_s, row.shape)
    }

    fn speed(&self, chip: &str, peak_gb_s: f64, shape: Shape) -> f64 {
        1.0 / seconds(self.shares[chip], peak_gb_s, self.layer_us, shape)
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (chip, share) in &self.shares {
            write!(f, "{chip} {share:.2}, ")?;
        }
        write!(f, "{:.0} us for a layer", self.layer_us)
    }
}

/// Time of a token.
fn seconds(share: f64, peak_gb_s: f64, layer_us: f64, shape: Shape) -> f64 {
    shape.bytes / (share * peak_gb_s * 1e9) + shape.layers * layer_us * 1e-6
}

/// Where `f` is least, by grids that zoom in.
fn minimum(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    const STEPS: usize = 24;
    loop {
        let step = (high - low) / STEPS as f64;
        let best = (0..=STEPS)
            .map(|i| low + step * i as f64)
            .min_by(|a, b| f(*a).total_cmp(&f(*b)))
            .expect("a grid has points");
        if step < 1e-4 * best.abs() + 1e-6 {
            return best;
        }
        (low, high) = ((best - step).max(low), (best + step).min(high));
    }
}

/// |predicted / measured - 1| of each row.
fn errors(fit: &Fit, rows: &[Row]) -> Vec<f64> {
    let error = |row: &Row| (fit.tokens_per_s(row) / row.tokens_per_s - 1.0).abs();
    rows.iter().map(error).collect()
}

fn summary(errors: &mut [f64]) -> String {
    let [median, worst] = [0.5, 1.0].map(|share| 100.0 * quantile(errors, share));
    format!("{median:.1} % in the median, {worst:.1} % at worst")
}

/// The nearest value at `share` of the sorted values.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(share * (values.len() - 1) as f64).round() as usize]
}

/// The rows to fit and those to check, by the rule above.
fn halves(rows: &[Row]) -> (Vec<Row>, Vec<Row>) {
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| key(a).cmp(&key(b)));
    alternate(rows)
}

/// The same after a shuffle. A half without a row of some chip is drawn again.
fn random_halves(rows: &[Row], seed: u64) -> (Vec<Row>, Vec<Row>) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut below = |n: usize| {
        // Xorshift64 of Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    loop {
        let mut rows = rows.to_vec();
        for i in (1..rows.len()).rev() {
            rows.swap(i, below(i + 1));
        }
        let (fitted, unseen) = alternate(rows);
        let has = |chip| fitted.iter().any(|row| row.chip == chip);
        if unseen.iter().all(|row| has(row.chip)) {
            return (fitted, unseen);
        }
    }
}

fn alternate(rows: Vec<Row>) -> (Vec<Row>, Vec<Row>) {
    let numbered = rows.into_iter().enumerate();
    let (even, odd): (Vec<_>, Vec<_>) = numbered.partition(|(i, _)| i % 2 == 0);
    let rows = |half: Vec<(usize, Row)>| half.into_iter().map(|(_, row)| row).collect();
    (rows(even), rows(odd))
}

fn key(row: &Row) -> [&str; 4] {
    [&row.source, &row.card, &row.model, &row.ty]
}

/// Chip and peak bandwidth of a card.
fn card(name: &str) -> Result<(&'static str, f64)> {
    let found = CARDS.iter().find(|(card, ..)| *card == name);
    found
        .map(|&(_, chip, peak_gb_s)| (chip, peak_gb_s))
        .with_context(|| format!("no card is called {name}"))
}

fn rows(csv: &str, models: &HashMap<(String, String), Shape>) -> Result<Vec<Row>> {
    let parse = |line: [&str; 9]| {
        let [
            name,
            model,
            ty,
            _test,
            _flags,
            tokens_per_s,
            _build,
            _date,
            source,
        ] = line;
        let (chip, peak_gb_s) = card(name)?;
        let file = (model.to_string(), ty.to_string());
        let shape = *models
            .get(&file)
            .with_context(|| format!("models.csv has no {model} {ty}"))?;
        Ok(Row {
            source: source.to_string(),
            card: name.to_string(),
            model: model.to_string(),
            ty: ty.to_string(),
            chip,
            peak_gb_s,
            shape,
            tokens_per_s: tokens_per_s.parse()?,
        })
    };
    lines(csv).map(|line| parse(line?)).collect()
}

/// By model and type.
fn models(csv: &str) -> Result<HashMap<(String, String), Shape>> {
    let parse = |line: [&str; 12]| {
        let [model, ty, numbers @ ..] = line;
        let [
            params_m,
            file_gib,
            _,
            layers,
            table_m,
            table_bits,
            experts_m,
            experts_bits,
            used,
            all,
        ] = numbers;
        let number = |text: &str, empty: f64| match text {
            "" => Ok(empty),
            text => text.parse::<f64>(),
        };
        let file_bytes = number(file_gib, 0.0)? * f64::from(1 << 30);
        let mean_bits = file_bytes * 8.0 / (number(params_m, 0.0)? * 1e6);
        let bytes = |params_m: f64, bits: f64| params_m * 1e6 * bits / 8.0;
        let table = bytes(number(table_m, 0.0)?, number(table_bits, 0.0)?);
        let experts = bytes(number(experts_m, 0.0)?, number(experts_bits, mean_bits)?);
        let unused = 1.0 - number(used, 1.0)? / number(all, 1.0)?;
        let shape = Shape {
            bytes: file_bytes - table - experts * unused,
            layers: number(layers, 0.0)?,
        };
        ensure!(shape.bytes > 0.0, "{model} {ty} reads nothing");
        Ok(((model.to_string(), ty.to_string()), shape))
    };
    lines(csv).map(|line| parse(line?)).collect()
}

/// The lines below the head, in `N` fields. Lines that begin with # are comments.
fn lines<const N: usize>(csv: &str) -> impl Iterator<Item = Result<[&str; N]>> {
    let lines = csv.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| {
        let fields: Vec<_> = line.split(',').collect();
        let fields = <[&str; N]>::try_from(fields).ok();
        fields.with_context(|| format!("not {N} fields: {line}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> Vec<Row> {
        rows(ROWS, &models(MODELS).unwrap()).unwrap()
    }

    #[test]
    fn rows_and_files_parse_and_have_sources() {
        for row in published() {
            assert!(row.source.starts_with("https://"), "{}", row.source);
            // A share above 1 of the peak bandwidth would be a wrong row or a wrong file.
            let share = row.shape.bytes * row.tokens_per_s / (row.peak_gb_s * 1e9);
            assert!(
                (0.05..1.0).contains(&share),
                "{} {} {share}",
                row.card,
                row.model
            );
        }
    }

    #[test]
    fn no_row_and_no_file_is_there_twice() {
        let mut keys: Vec<_> = published()
            .iter()
            .map(|row| format!("{} {} {}", row.card, row.model, row.ty))
            .collect();
        keys.sort();
        for pair in keys.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
        assert_eq!(lines::<12>(MODELS).count(), models(MODELS).unwrap().len());
    }

    /// The bytes of a dense file with and without a table of its own, and of a mixture, computed by hand.
    #[test]
    fn bytes_leave_out_the_table_and_unused_experts() {
        let csv = "head\n\
                   dense,Q8_0,1000,1,row,10,100,8,,,,\n\
                   tied,Q8_0,1000,1,row,10,0,,,,,\n\
                   mixture,Q4,1000,1,row,10,100,8,800,4,2,16\n";
        let models = models(csv).unwrap();
        let bytes = |model: &str, ty: &str| models[&(model.to_string(), ty.to_string())].bytes;
        let gib = 1073741824.0;
        assert_eq!(bytes("dense", "Q8_0"), gib - 100e6);
        assert_eq!(bytes("tied", "Q8_0"), gib);
        assert_eq!(bytes("mixture", "Q4"), gib - 100e6 - 350e6);
    }

    #[test]
    fn a_fit_recovers_the_parameters_that_made_its_rows() {
        let truth = Fit {
            shares: [("gfx1100", 0.61), ("gfx1151", 0.83), ("gfx1201", 0.72)].into(),
            layer_us: 37.0,
        };
        let mut rows = published();
        rows.retain(|row| truth.shares.contains_key(row.chip));
        for row in &mut rows {
            row.tokens_per_s = truth.tokens_per_s(row);
        }
        for rows in [rows.clone(), halves(&rows).0, random_halves(&rows, 5).1] {
            let fit = Fit::of(&rows);
            assert!((fit.layer_us - 37.0).abs() < 0.1, "{fit}");
            for (chip, share) in &truth.shares {
                assert!((fit.shares[chip] - share).abs() < 0.001, "{fit}");
            }
        }
    }

    #[test]
    fn halves_are_disjoint_and_whole() {
        let rows = published();
        let keys = |rows: &[Row]| {
            let mut keys: Vec<_> = rows.iter().map(|row| format!("{:?}", key(row))).collect();
            keys.sort();
            keys
        };
        let (fitted, unseen) = halves(&rows);
        assert_eq!(fitted.len(), rows.len().div_ceil(2));
        assert_eq!(keys(&[fitted, unseen].concat()), keys(&rows));
    }
}
