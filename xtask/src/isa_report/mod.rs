//! `cargo xtask isa-report`: reports on the machine code of the GPU kernels for AMD, without such a GPU. It prints each
//! kernel's resources, loads, the instructions of its hottest loop and the memory bandwidth that loop could use, and
//! fails on what makes a kernel slow or wrong: spills, scratch memory, collective instructions while lanes are off,
//! missing waits and hazards.
//!
//! `images` → `tools` (LLVM's listing and notes) → `code`, `metadata` → `blocks`, `registers` → `exec`, `hot_loop`,
//! `waits` and `hazards` (by `dataflow`, with the rules of the target's `family`) → `faults`. `prove` tests `waits` and
//! `hazards` on wrong code. `machine` has reference cards; targets without one have faults, but no estimates.

mod blocks;
mod code;
mod dataflow;
mod exec;
mod family;
mod faults;
mod hazards;
mod hot_loop;
mod images;
mod machine;
mod metadata;
mod paths;
mod prove;
mod registers;
mod scalar;
#[cfg(test)]
mod tests;
mod tools;
mod trips;
mod waits;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail};

use faults::Fault;
use hot_loop::Counts;
use images::Image;
pub(crate) use images::{expand, is_amd};
use machine::Machine;
use metadata::Metadata;
use prove::Proof;
use registers::Kernel;
use tools::Tools;

/// The kernels to report on.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Targets such as gfx1100,gfx942, or all [default: those with a reference card, which estimates need]
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "LIST"
    )]
    targets: String,
    /// Only modules or kernels whose name contains this, such as gemv.Q4_K
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    kernel: String,
    /// Only look for faults
    #[arg(long)]
    faults_only: bool,
    /// Instead, take each wait out of the code in turn, and count how many are missed
    #[arg(long)]
    prove_waits: bool,
}

/// The findings for a kernel.
struct Report {
    target: String,
    module: String,
    name: String,
    metadata: Metadata,
    /// Number of loads by width in bytes.
    loads: BTreeMap<u64, usize>,
    /// The reference card, and the hot loop on it.
    hot: Option<(&'static Machine, Counts)>,
    faults: Vec<(Fault, String)>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let targets = if options.targets.is_empty() {
        machine::targets().map(String::from).collect()
    } else {
        images::expand(&options.targets)?
    };
    let targets: Vec<String> = targets
        .into_iter()
        .filter(|target| images::is_amd(target))
        .collect();
    if targets.is_empty() {
        bail!("{} has no AMD target", options.targets);
    }
    // A name such as `gemv_1_1` is a kernel's, known only once the code is read.
    let all = || targets.iter().flat_map(|target| images::all(target, ""));
    let images: Vec<Image> = all()
        .filter(|i| i.module.contains(&options.kernel))
        .collect();
    let by_module = !images.is_empty();
    let images = if by_module { images } else { all().collect() };
    if options.prove_waits {
        let proofs = for_each(&images, prove_kernels)?;
        let wanted = |name: &String| by_module || name.contains(&options.kernel);
        for target in &targets {
            let of_target = proofs
                .iter()
                .filter(|p| p.target == *target && wanted(&p.name));
            let mut sum = Proof::default();
            of_target.for_each(|kernel| sum += kernel.proof);
            println!("{target}: {sum}");
        }
        return Ok(());
    }
    let mut reports = for_each(&images, examine)?;
    reports.retain(|r| by_module || r.name.contains(&options.kernel));
    if reports.is_empty() {
        bail!("no kernel is called {:?}", options.kernel);
    }
    if options.faults_only {
        for target in &targets {
            let n = reports.iter().filter(|r| r.target == *target).count();
            println!("{target}: examined {n} kernels");
        }
    } else {
        print(&reports, &targets);
    }
    let faults = faults_of(&reports);
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    Ok(())
}

/// Returns an error if the programs that reports need are missing.
pub(crate) fn find_tools() -> Result<()> {
    Tools::find().map(drop)
}

/// Returns the faults without an exception, a line each.
fn faults_of(reports: &[Report]) -> Vec<String> {
    let lines = reports.iter().flat_map(|report| {
        let Report {
            module,
            name,
            target,
            ..
        } = report;
        let faults = report.faults.iter();
        faults
            .filter(|(fault, _)| !faults::is_excepted(module, name, target, *fault))
            .map(move |(_, what)| format!("{module} {name} for {target}: {what}"))
    });
    lines.collect()
}

/// Images to disassemble at once. They must be for one target, since the disassembler takes that of the first for all.
const AT_ONCE: usize = 16;

/// What `for_each` knows of an image.
struct Parts<'a> {
    module: &'a str,
    target: &'a str,
    listing: &'a str,
    notes: &'a str,
}

/// Takes images apart in parallel and returns what `examine` says of each.
fn for_each<T: Send>(
    images: &[Image],
    examine: impl Fn(&Parts) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let tools = Tools::find()?;
    let of_targets = images.chunk_by(|one, other| one.target == other.target);
    let some: Vec<&[Image]> = of_targets.flat_map(|all| all.chunks(AT_ONCE)).collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Vec<T>>)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(images) = some.get(at) else { break };
                    let results = for_some(&tools, images, &examine);
                    done.lock()
                        .expect("nothing panics in it")
                        .push((at, results));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nothing panics in it");
    done.sort_by_key(|(at, _)| *at);
    let mut all = Vec::new();
    for (_, results) in done {
        all.extend(results?);
    }
    Ok(all)
}

fn for_some<T>(
    tools: &Tools,
    images: &[Image],
    examine: impl Fn(&Parts) -> Result<Vec<T>>,
) -> Result<Vec<T>> {
    let what = |image: &Image| format!("{} for {}", image.module, image.target);
    let mut objects = Vec::new();
    for image in images {
        let object = image.object().with_context(|| what(image))?;
        objects.push((format!("{}.{}", image.module, image.target), object));
    }
    let mut all = Vec::new();
    for (image, (listing, notes)) in images.iter().zip(tools.take_apart(&objects)?) {
        let results = examine(&Parts {
            module: &image.module,
            target: &image.target,
            listing: &listing,
            notes: &notes,
        });
        all.extend(results.with_context(|| what(image))?);
    }
    Ok(all)
}

/// The waits of a kernel that were taken out.
struct Proven {
    target: String,
    name: String,
    proof: Proof,
}

/// Takes the waits out of all kernels of an object file.
fn prove_kernels(image: &Parts) -> Result<Vec<Proven>> {
    let mut all = Vec::new();
    for code in code::parse(image.listing) {
        let blocks = blocks::blocks(&code.instructions).map_err(anyhow::Error::msg)?;
        let kernel = Kernel::new(image.target, &code.instructions).map_err(anyhow::Error::msg)?;
        all.push(Proven {
            target: image.target.into(),
            proof: prove::prove(&kernel, &blocks),
            name: code.name,
        });
    }
    Ok(all)
}

/// Reports on all kernels of an object file, from its disassembly and notes.
fn examine(image: &Parts) -> Result<Vec<Report>> {
    let mut kernels = metadata::parse(image.notes);
    let mut reports = Vec::new();
    for code in code::parse(image.listing) {
        let metadata = kernels
            .remove(&code.name)
            .with_context(|| format!("{} is a function that was not inlined", code.name))?;
        let blocks = blocks::blocks(&code.instructions).map_err(anyhow::Error::msg)?;
        let whole = exec::whole(&code.instructions, &blocks, metadata.wave_size);
        let kernel = Kernel::new(image.target, &code.instructions).map_err(anyhow::Error::msg)?;
        let hot = machine::of(image.target).map(|machine| {
            let loops = blocks::loops(&blocks);
            let counts = hot_loop::find(&code.instructions, &blocks, &loops, machine);
            (machine, counts)
        });
        reports.push(Report {
            target: image.target.into(),
            module: image.module.into(),
            loads: hot_loop::load_widths(&code.instructions, &blocks),
            hot,
            faults: faults::of(&code.name, &kernel, &blocks, &whole, &metadata),
            name: code.name,
            metadata,
        });
    }
    if let Some(name) = kernels.keys().next() {
        bail!("{name} has no code");
    }
    Ok(reports)
}

fn print(reports: &[Report], targets: &[String]) {
    println!(
        "waves: occupancy of a SIMD, limited by registers and static shared memory. loads: instructions by bytes\n\
         per lane. hot loop, both sides of each branch: bytes loaded per lane, bytes of weights, vector\n\
         instructions, dot products, matrix instructions (~: a loop in it, of unknown turns, is counted once).\n\
         dot/B: dot and matrix instructions per byte of weights, or per byte if no loads are marked as streamed.\n\
         issue: estimated GB/s of these bytes if the hot loop were limited by instruction issue only; bytes\n\
         shared by lanes count for each lane. memory: GB/s of the card. matrix: share of the cycles of vector\n\
         instructions that matrix instructions have, with both sides of each branch and on the path with the\n\
         least else: the most of the matrix units' peak that the hot loop can reach, unless CDNA runs both kinds,\n\
         of different waves, at once.\n"
    );
    for target in targets {
        if let Some(machine) = machine::of(target) {
            println!("{target}: {}, {} GB/s", machine.card, machine.bandwidth);
        }
    }
    println!(
        "\n{:<10} {:<24} {:<24} {:>4} {:>4} {:>6} {:>5} {:>7} {:>5}  {:<22} {:<26} {:>6} {:>7} {:>6} {:>6}",
        "target",
        "module",
        "kernel",
        "VGPR",
        "SGPR",
        "LDS",
        "spill",
        "scratch",
        "waves",
        "loads 1-2/4/8/12/16",
        "hot loop B/w/valu/dot/mat",
        "dot/B",
        "issue",
        "memory",
        "matrix"
    );
    for report in reports {
        println!("{}", row(report));
    }
}

fn row(report: &Report) -> String {
    let Report { metadata, hot, .. } = report;
    let loads = |bytes: u64| report.loads.get(&bytes).copied().unwrap_or(0);
    let widths = format!(
        "{}/{}/{}/{}/{}",
        loads(1) + loads(2),
        loads(4),
        loads(8),
        loads(12),
        loads(16)
    );
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "n/a".into());
    let hot = hot.as_ref();
    let occupancy = hot.map(|(machine, _)| machine.occupancy(metadata).to_string());
    let work = hot.map(|(_, hot)| {
        let inner = if hot.has_inner { "~" } else { "" };
        let (bytes, vector, dots, matrix) = (hot.loaded_bytes, hot.vector, hot.dots, hot.matrix);
        format!(
            "{inner}{bytes}/{}/{vector}/{dots}/{matrix}",
            hot.streamed_bytes
        )
    });
    let dots_per_byte = hot.and_then(|(_, hot)| Some(format!("{:.2}", hot.dots_per_byte()?)));
    let issue = hot.and_then(|(machine, hot)| {
        let bandwidth = hot.issue_bandwidth(machine, metadata.wave_size)?;
        Some(format!("{bandwidth:.0}"))
    });
    let bandwidth = hot.map(|(machine, _)| machine.bandwidth.to_string());
    let matrix_shares = hot.and_then(|(_, hot)| {
        let [all, leanest] = hot
            .matrix_shares()?
            .map(|share| format!("{:.0}", 100.0 * share));
        Some(if all == leanest {
            format!("{all} %")
        } else {
            format!("{all}-{leanest} %")
        })
    });
    format!(
        "{:<10} {:<24} {:<24} {:>4} {:>4} {:>6} {:>5} {:>7} {:>5}  {widths:<22} {:<26} {:>6} {:>7} {:>6} {:>7}",
        report.target,
        report.module,
        report.name,
        metadata.vgprs,
        metadata.sgprs,
        metadata.lds_bytes,
        metadata.vector_spills + metadata.scalar_spills,
        metadata.scratch_bytes,
        or_none(occupancy),
        or_none(work),
        or_none(dots_per_byte),
        or_none(issue),
        or_none(bandwidth),
        or_none(matrix_shares),
    )
}
