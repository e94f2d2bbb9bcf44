//! The automatic choice matches an exhaustive search, and its notice has the numbers behind it.

use std::path::Path;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_gpu::image_targets;

use super::*;
use crate::KvTokens;
use rocmforge_plan::{BatchShape, PlanCost, SeqShape};
use rocmforge_quantize::synthetic::{Shape, ShapeExperts, Synthetic};
use rocmforge_testkit::sweep::{every_nth, is_full_run};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn gpu() -> Option<Gpu> {
    let mut targets = image_targets().into_iter();
    let Some(persona) = targets.find_map(|target| target.strip_prefix("host-")) else {
        println!("skipped: built without the target host");
        return None;
    };
    Some(Gpu::host(persona).unwrap())
}

fn embedded() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    Model::load(Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())).unwrap()
}

/// Returns a model of small layers, with mixture-of-experts layers of width `experts`, if set.
fn small(name: &str, n_layers: usize, n_embd: usize, experts: Option<usize>) -> Model {
    let mut model: Synthetic = name.parse().unwrap();
    model.shape = Shape {
        n_layers,
        n_embd,
        n_ff: experts.unwrap_or(2 * n_embd),
        n_heads: (n_embd / 64).max(2),
        n_kv_heads: 1,
        head_dim: 64,
        n_vocab: 512,
        n_ctx: 2048,
        experts: experts.map(|n_ff| ShapeExperts {
            n_experts: 8,
            n_used: 2,
            n_ff,
            n_ff_shared: None,
        }),
        ..model.shape
    };
    let mut bytes = Vec::new();
    model.write(&mut bytes).unwrap();
    Model::load(Arc::new(Gguf::from_vec(bytes).unwrap())).unwrap()
}

fn planner<'a>(
    gpu: &'a Gpu,
    model: &'a Model,
    config: &'a EngineConfig,
    memory: Memory,
) -> Planner<'a> {
    Planner::new(gpu, model, config, memory)
}

fn config(n_ctx: Option<usize>) -> EngineConfig {
    EngineConfig {
        n_ctx,
        max_seqs: 1,
        max_batch_tokens: 32,
        ..EngineConfig::default()
    }
}

/// A step is as large as set where memory is plenty, and smaller where its buffers would take more than a sixteenth of it or
/// the room of the KV cache.
#[test]
fn steps_shrink_where_memory_is_scarce() {
    let Some(gpu) = gpu() else {
        return;
    };
    let model = embedded();
    let of = |max_batch_tokens, n_ctx| EngineConfig {
        max_batch_tokens,
        ..config(Some(n_ctx))
    };
    let memory = |free| Memory {
        gpu: free,
        machine: None,
        is_shared: false,
    };
    let tokens = |config: &EngineConfig, free| {
        with_step_for(&gpu, &model, config, memory(free)).max_batch_tokens
    };
    let budget = |config: &EngineConfig| {
        let budgets = planner(&gpu, &model, config, memory(GIB)).budgets(&Place::Gpu);
        budgets.unwrap().gpu.unwrap()
    };
    let usual = of(2048, 256);
    let sixteen = |n| 16 * budget(&of(n, 256)).step_bytes;
    for (free, expected) in [
        (64 * GIB, 2048),
        (sixteen(2048), 2048),
        (sixteen(2048) - 1, 1024),
        (sixteen(1024), 1024),
        (sixteen(1024) - 1, 512),
        (MIB, 512),
    ] {
        assert_eq!(tokens(&usual, free), expected, "{free} bytes");
    }
    // A long context comes first.
    let long = of(2048, 1 << 20);
    let needed = budget(&long).required_bytes(1 << 20, long.page);
    assert!(needed > sixteen(2048));
    assert_eq!(tokens(&long, needed), 2048);
    assert_eq!(tokens(&long, needed - 1), 1024);
    // What is set below the fewest stays.
    assert_eq!(tokens(&of(300, 256), MIB), 300);
}

/// Returns the bytes that the CPU reads for its operations, and the cost of crossings.
fn cpu_bytes(planner: &Planner<'_>, candidate: Candidate, n_ctx: usize) -> u64 {
    let cost = PlanCost {
        plan: &planner.plan,
        weights: &planner.model.weights,
        kv_types: planner.config.kv_types,
    };
    let seq = SeqShape {
        first_pos: n_ctx / 2,
        n_rows: 1,
    };
    let shape = BatchShape {
        seqs: vec![seq],
        n_logits: 1,
    };
    let sides = match planner.place(candidate) {
        Place::Gpu => return 0,
        Place::Cpu => vec![Side::Cpu; planner.plan.ops.len()],
        Place::Both(placement) => placement.sides().to_vec(),
    };
    let ops = planner.plan.ops.iter().zip(&sides);
    let on_cpu = ops.filter(|(_, side)| **side == Side::Cpu).map(|(op, _)| {
        let cost = cost.op(op, &shape);
        cost.weight_bytes + cost.kv_bytes
    });
    let placement = Placement::new(&planner.plan, sides.clone());
    let crossings = placement.segments().iter().map(|s| s.imports.len() as u64);
    on_cpu.sum::<u64>() + crossings.sum::<u64>() * (512 << 10)
}

/// Returns the first of all places that fits, in order of the bytes the CPU reads.
fn by_search(planner: &Planner<'_>, experts: Experts, n_ctx: usize) -> Option<Candidate> {
    let mut candidates = planner.candidates(experts, n_ctx);
    let known: Vec<u64> = candidates
        .iter()
        .map(|candidate| cpu_bytes(planner, *candidate, n_ctx))
        .collect();
    assert!(known.is_sorted(), "{candidates:?}: {known:?}");
    let wanted = EngineConfig {
        n_ctx: Some(n_ctx),
        ..planner.config.clone()
    };
    let fits = |candidate: &Candidate| planner.resolve(&planner.place(*candidate), &wanted).is_ok();
    candidates.retain(fits);
    candidates.first().copied()
}

#[test]
fn automatic_choice_matches_exhaustive_search() {
    let Some(gpu) = gpu() else { return };
    let models = [
        (embedded(), 8 * MIB),
        (small("llama-3.1-8b:Q4_0", 5, 256, None), 4 * MIB),
        // Experts that are worth their crossings, and experts that are not.
        (small("mixtral-8x7b:Q8_0", 4, 256, Some(1024)), 16 * MIB),
        (small("mixtral-8x7b:Q8_0", 4, 1024, Some(256)), 40 * MIB),
        (small("mixtral-8x7b:Q4_0", 6, 64, Some(64)), 2 * MIB),
    ];
    let n_ctx = 64;
    let config = config(Some(n_ctx));
    let mut chosen = Vec::new();
    for &(ref model, whole) in &models {
        for experts in [Experts::WithTheirLayer, Experts::OnCpu] {
            for is_shared in [false, true] {
                // GPU memory from none to more than the whole model needs.
                for part in 0..24 {
                    let machines = [None, Some(whole / 8), Some(whole), Some(2 * whole)];
                    for machine in every_nth(2, part as usize, machines) {
                        let memory = Memory {
                            gpu: whole * part / 16,
                            machine,
                            is_shared,
                        };
                        let planner = planner(&gpu, model, &config, memory);
                        let candidates = planner.candidates(experts, n_ctx);
                        let fastest = planner.fastest(&candidates, n_ctx).unwrap();
                        let got = fastest.map(|fastest| fastest.candidate);
                        let expected = by_search(&planner, experts, n_ctx);
                        assert_eq!(got, expected, "{memory:?}");
                        chosen.extend(got.filter(|got| !chosen.contains(got)));
                    }
                }
            }
        }
    }
    // All kinds of places were chosen.
    let is_of = |side| move |candidate: &&Candidate| matches!(candidate, Candidate::Split(split) if split.experts == side);
    assert!(chosen.contains(&Candidate::Whole) && chosen.contains(&Candidate::Cpu));
    assert!(chosen.iter().filter(is_of(Side::Gpu)).count() > 5);
    assert!(chosen.iter().filter(is_of(Side::Cpu)).count() > 3);
}

#[test]
fn places_a_model_of_many_layers() {
    let Some(gpu) = gpu() else { return };
    let n = if is_full_run() { 1000 } else { 300 };
    let model = small("llama-3.1-8b:Q8_0", n, 32, None);
    let config = config(Some(64));
    let all = planner(
        &gpu,
        &model,
        &config,
        Memory {
            gpu: GIB,
            machine: None,
            is_shared: false,
        },
    );
    let budgets = all.budgets(&Place::Gpu).unwrap();
    let needed = budgets.gpu.unwrap().required_bytes(64, 32);
    let half = Planner {
        memory: Memory {
            gpu: needed / 2,
            ..all.memory
        },
        ..all
    };
    let placed = half.automatic(Experts::WithTheirLayer).unwrap();
    let Place::Both(placement) = &placed.place else {
        panic!("{:?}", placed.notice);
    };
    let n_layers = placement.n_layers(&half.plan, Side::Gpu);
    assert!((n / 2 - 50..n / 2 + 50).contains(&n_layers), "{n_layers}");
}

/// Parses the numbers of a notice: MiB used, MiB free, the context, and MiB that the faster place needs.
fn numbers(notice: &str) -> Vec<u64> {
    let of = |part: &str| part.split(' ').find_map(|word| word.parse().ok());
    let (taken, rest) = notice.split_once('(').unwrap();
    assert!(taken.starts_with("--gpu-layers auto: "), "{notice}");
    let free = rest.split_once(" of ").unwrap().1;
    let n_ctx = rest.split_once("context of ").unwrap().1.replace(')', " ");
    let n_ctx = n_ctx.replace(';', " ");
    let needed = rest.split_once("would need ").map(|(_, needed)| needed);
    let parts = [Some(rest), Some(free), Some(&n_ctx), needed];
    parts.into_iter().flatten().filter_map(of).collect()
}

#[test]
fn notice_numbers_decide_the_choice() {
    let Some(gpu) = gpu() else { return };
    let (model, config) = (embedded(), config(None));
    let placed = |gpu_bytes, machine| {
        let memory = Memory {
            gpu: gpu_bytes,
            machine,
            is_shared: false,
        };
        let planner = planner(&gpu, &model, &config, memory);
        planner.automatic(Experts::WithTheirLayer).unwrap()
    };
    // With the memory that the notice asks for, the faster place is chosen; with a MiB less it is not.
    let mut free = 4 * MIB;
    for _ in 0..6 {
        let notice = placed(free, None).notice.unwrap();
        let [taken, said, n_ctx, needed] = numbers(&notice)[..] else {
            panic!("{notice}");
        };
        assert_eq!((said, n_ctx), (free / MIB, 2048), "{notice}");
        assert!(taken <= said && needed > said, "{notice}");
        let better = placed(needed * MIB, None).notice.unwrap();
        let faster = notice.rsplit_once("; ").unwrap().1;
        let faster = faster.split_once(" would need").unwrap().0;
        assert!(better.contains(&format!("auto: {faster} (")), "{better}");
        let less = placed((needed - 1) * MIB, None).notice.unwrap();
        assert!(!less.contains(&format!("auto: {faster} (")), "{less}");
        free = needed * MIB;
    }
}

#[test]
fn shrinks_a_context_that_fits_nowhere_and_says_so() {
    let Some(gpu) = gpu() else { return };
    let (model, open) = (embedded(), config(None));
    let memory = |gpu, machine| Memory {
        gpu: gpu * MIB,
        machine: Some(machine * MIB),
        is_shared: false,
    };
    let place = |config, memory| {
        let planner = planner(&gpu, &model, config, memory);
        planner.automatic(Experts::WithTheirLayer)
    };
    // 2048 tokens are 10 MiB.
    let placed = place(&open, memory(12, 8)).unwrap();
    let notice = placed.notice.unwrap();
    assert!(matches!(placed.place, Place::Both(_)), "{notice}");
    let n_ctx = placed.resolved.limits.n_ctx;
    assert!((1024..2048).contains(&n_ctx), "{notice}");
    assert!(
        notice.contains(&format!("a context of {n_ctx})"))
            && notice.ends_with("; a context of 2048 does not fit anywhere"),
        "{notice}"
    );
    // With almost no GPU memory, a smaller context runs on the CPU.
    let placed = place(&open, memory(1, 8)).unwrap();
    let notice = placed.notice.unwrap();
    assert_eq!(placed.place, Place::Cpu, "{notice}");
    assert!(placed.resolved.limits.n_ctx < 2048, "{notice}");
    assert!(notice.contains("2048"), "{notice}");
    // A context set by the user is not reduced.
    let error = place(&config(Some(2048)), memory(12, 8)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("use a context of"), "{message}");
}

#[test]
fn shared_memory_is_counted_once() {
    let part = |weight_bytes, bytes_per_token| MemoryBudget {
        weight_bytes,
        step_bytes: GIB / 4,
        state_bytes: 0,
        bytes_per_token,
        free_bytes: Some(12 * GIB),
    };
    let (gpu, cpu) = (part(6 * GIB, MIB / 2), part(0, MIB / 2));
    let fits = |is_shared, n_tokens| {
        let memory = Memory {
            gpu: 12 * GIB,
            machine: Some(12 * GIB),
            is_shared,
        };
        let budgets = Budgets::for_split(gpu, cpu, memory).all();
        budgets.iter().all(|budget| budget.fits(n_tokens, 32))
    };
    // 12 GiB less 0.5 GiB reserve, 6 GiB weights and 0.5 GiB for the steps of both: 5 GiB for tokens.
    assert!(fits(true, 5 << 10));
    assert!(!fits(true, (5 << 10) + 32));
    assert!(fits(false, (5 << 10) + 32));
    // Separate memories hold more.
    assert!(fits(false, 10 << 10));
    assert!(!fits(false, 11 << 10));
}

/// The outcome follows the free memory, and the bytes that are asked for are enough.
#[test]
fn a_fit_says_how_much_of_a_model_fits() {
    let model = embedded();
    let settings = config(Some(2048));
    let on_cpu = |config: &EngineConfig, free| fit::on_cpu(&model, config, free);
    let whole = on_cpu(&settings, None).unwrap();
    assert_eq!((whole.n_ctx, whole.fits), (2048, Fits::Whole));
    assert_eq!(whole.wanted_bytes, whole.needed_bytes);
    let three = EngineConfig {
        kv_tokens: KvTokens::AtMost(3 * 2048),
        ..settings.clone()
    };
    let three = on_cpu(&three, None).unwrap();
    assert_eq!(three.needed_bytes, whole.needed_bytes);
    let context = model.plan.kv_bytes_per_token(settings.kv_types) * 2048;
    let more = three.wanted_bytes - three.needed_bytes;
    assert!((2 * context..4 * context).contains(&more), "{more}");
    // The file has 7 MiB of weights, and the cache takes 10 MiB.
    assert!((17 * MIB..40 * MIB).contains(&whole.needed_bytes));
    for (free, fits) in [
        (whole.needed_bytes, Fits::Whole),
        (whole.needed_bytes - 1, Fits::WithoutWeights),
    ] {
        let fit = on_cpu(&settings, Some(free)).unwrap();
        assert_eq!((fit.fits, fit.free_bytes), (fits, Some(free)));
        assert_eq!(fit.needed_bytes, whole.needed_bytes);
    }
    let error = on_cpu(&settings, Some(8 * MIB)).unwrap_err().to_string();
    assert!(error.contains("use a context of"), "{error}");
    // A context that nobody asked for shrinks.
    let shrunk = fit::on_cpu(&model, &config(None), Some(12 * MIB)).unwrap();
    assert!(shrunk.n_ctx < 2048, "{shrunk:?}");

    let Some(gpu) = gpu() else { return };
    let on_gpu = |gpu_bytes, machine| {
        let memory = Memory {
            gpu: gpu_bytes,
            machine: Some(machine),
            is_shared: false,
        };
        fit::on_gpu(&model, &settings, &gpu, memory)
    };
    let whole = on_gpu(GIB, GIB).unwrap();
    assert_eq!(whole.fits, Fits::Whole);
    let enough = on_gpu(whole.needed_bytes, GIB).unwrap();
    assert_eq!(enough.fits, Fits::Whole);
    let less = on_gpu(whole.needed_bytes - MIB, GIB).unwrap();
    let of = model.plan.layers.len();
    assert!(
        matches!(less.fits, Fits::Layers { n, of: all } if (1..=of).contains(&n) && all == of),
        "{less:?}"
    );
    assert_eq!(less.needed_bytes, whole.needed_bytes);
    assert!(on_gpu(MIB, GIB).is_err());
}
