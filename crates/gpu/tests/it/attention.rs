//! Attention against its definition in f64. Cache entries that were never written are NaN.

use std::cell::{Cell, OnceCell, RefCell};

use crate::common;
use crate::common::kv::{self, Stored};
use crate::common::values::Random;
use crate::gated::bits_of;
use half::{bf16, f16};
use rocmforge_gpu::ops::{self, AttentionScratch, Queries, Scores};
use rocmforge_gpu::{
    ActsBuffer, Choice, Event, Gpu, GpuError, KvLayer, KvShape, KvType, KvTypes, SeqRows, Shape,
    Step, Trace, Tuning,
};
use rocmforge_plan::{ActFormat, Alibi, Growth, Mask, Values};

/// A step: sequences as (first position, rows), followed by padding rows.
#[derive(Clone)]
struct Case {
    types: KvTypes,
    n_heads: usize,
    n_kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    values: Values,
    page: usize,
    n_ctx: usize,
    scores: Scores,
    /// One for each head.
    sinks: Option<Vec<f32>>,
    seqs: Vec<(usize, usize)>,
    n_padding: usize,
    /// Queries are scaled by this; keys are between -1 and 1.
    magnitude: f32,
    /// Scales the values of a position.
    growth: fn(usize) -> f32,
    /// The largest error allowed, relative to the largest magnitude in a head's output.
    tolerance: f64,
}

impl Case {
    fn new(n_heads: usize, n_kv_heads: usize, dim: usize, seqs: &[(usize, usize)]) -> Case {
        Case {
            types: KvType::F16.into(),
            n_heads,
            n_kv_heads,
            k_dim: dim,
            v_dim: dim,
            values: Values::Apart,
            page: 16,
            n_ctx: 512,
            scores: Scores {
                scale: 1.0 / (dim as f32).sqrt(),
                soft_cap: None,
                growth: None,
                alibi: None,
                mask: Mask::All,
            },
            sinks: None,
            seqs: seqs.to_vec(),
            n_padding: 1,
            magnitude: 2.0,
            growth: |_| 1.0,
            tolerance: 5e-6,
        }
    }

    fn of(mut self, types: impl Into<KvTypes>) -> Case {
        self.types = types.into();
        // Rotating a head back adds up what its values have of an error.
        if matches!(self.types.values(), KvType::Q5_1 | KvType::Q4_0) {
            self.tolerance *= 2.0;
        }
        self
    }

    /// The second factor on the scores of a row.
    fn growth_at(&self, pos: usize) -> f64 {
        self.scores.growth.map_or(1.0, |growth| {
            let steps = (pos + growth.offset as usize) / growth.step as usize;
            1.0 + f64::from(growth.slope) * (1.0 + steps as f64).ln()
        })
    }

    fn shape(&self) -> KvShape {
        KvShape {
            types: self.types,
            n_blocks: (self.seqs.len() + 1) * self.n_ctx.div_ceil(self.page),
            n_kv_heads: self.n_kv_heads,
            page: self.page,
            k_dim: self.k_dim,
            v_dim: self.v_dim,
            values: self.values,
        }
    }
}

/// The largest error of weights that are f16 numbers, after queries that are.
const IN_HALVES: f64 = 1e-3;

/// Cache types of which one is quantized, or both.
fn coded() -> impl Iterator<Item = KvTypes> {
    let all = KvTypes::ALL.iter().copied();
    all.filter(|&types| types != KvType::F16.into())
}

/// How kernels read keys and values.
#[derive(Clone, Copy, PartialEq)]
enum Cache {
    /// As they are stored.
    Exact,
    /// As they are stored, rounded to f16.
    Rounded,
    /// From a copy in f16, of heads that are rotated back.
    Copied,
}

/// The buffers of a case.
struct Data {
    q: Vec<f32>,
    k: Stored,
    v: Stored,
    positions: Vec<u32>,
    seq_of_row: Vec<u32>,
    seqs: Vec<SeqRows>,
    block_tables: Vec<u32>,
    max_pages: usize,
    /// Runs so far: of every two, one knows the longest sequence.
    n_runs: Cell<usize>,
}

impl Data {
    fn new(case: &Case) -> Data {
        let mut random = Random(7);
        let max_pages = case.n_ctx.div_ceil(case.page);
        let n_seqs = case.seqs.len() + 1;
        let n_blocks = n_seqs * max_pages;
        let mut blocks: Vec<u32> = (0..n_blocks as u32).collect();
        for i in (1..n_blocks).rev() {
            blocks.swap(i, random.below(i + 1));
        }
        let n_rows = n_blocks * case.n_kv_heads * case.page;
        // Kernels must not use entries past a sequence's end or the entry of a missing sequence.
        let mut data = Data {
            q: Vec::new(),
            k: Stored::new(case.types.keys(), n_rows, case.k_dim),
            v: Stored::new(case.types.values(), n_rows, case.v_dim),
            positions: Vec::new(),
            seq_of_row: Vec::new(),
            seqs: vec![SeqRows::default(); n_seqs],
            block_tables: vec![u32::MAX; n_blocks],
            max_pages,
            n_runs: Cell::new(0),
        };
        for (s, &(first_pos, n_rows)) in case.seqs.iter().enumerate() {
            data.seqs[s] = SeqRows {
                first_row: data.positions.len() as u32,
                n_rows: n_rows as u32,
                first_pos: first_pos as u32,
                pad: 0,
            };
            let n_positions = first_pos + n_rows;
            for page in 0..n_positions.div_ceil(case.page) {
                data.block_tables[s * max_pages + page] = blocks[s * max_pages + page];
            }
            for pos in 0..n_positions {
                for head in 0..case.n_kv_heads {
                    let slot = data.slot(case, s, pos, head);
                    // Every row has another scale.
                    let factor = |ty| match ty {
                        KvType::F16 => 1.0,
                        _ => [1.0, 0.03, 0.4, 2.5][pos % 4],
                    };
                    let [keys, values] = [case.types.keys(), case.types.values()];
                    let of_values = factor(values) * (case.growth)(pos);
                    let planes = [
                        (&mut data.k, keys, case.k_dim, factor(keys)),
                        (&mut data.v, values, case.v_dim, of_values),
                    ];
                    for (x, ty, dim, factor) in planes {
                        let row = (0..dim).map(|_| (random.unit() * 2.0 - 1.0) as f32 * factor);
                        let row: Vec<f32> = row.collect();
                        let [codes, scales] = &kv::encode(ty, &row);
                        x.set(slot, [codes, scales]);
                    }
                }
            }
            for row in 0..n_rows {
                data.positions.push((first_pos + row) as u32);
                data.seq_of_row.push(s as u32);
            }
        }
        let n_values = data.positions.len() * case.n_heads * case.k_dim;
        data.q = (0..n_values)
            .map(|_| (random.unit() * 2.0 - 1.0) as f32 * case.magnitude)
            .collect();
        for _ in 0..case.n_padding {
            data.positions.push(0);
            data.seq_of_row.push(u32::MAX);
            data.q.extend(vec![f32::NAN; case.n_heads * case.k_dim]);
        }
        data
    }

    /// The cache row of a position's keys or values.
    fn slot(&self, case: &Case, seq: usize, pos: usize, kv_head: usize) -> usize {
        let block = self.block_tables[seq * self.max_pages + pos / case.page] as usize;
        (block * case.n_kv_heads + kv_head) * case.page + pos % case.page
    }

    fn exact_queries(&self) -> Vec<f64> {
        self.q.iter().copied().map(f64::from).collect()
    }

    /// The queries, rounded to f16 with the factor that makes scores exponents.
    fn queries_in_halves(&self, case: &Case) -> Vec<f64> {
        let of_scores = match case.scores.soft_cap {
            Some(_) => f64::from(case.scores.scale),
            None => f64::from(case.scores.scale) * std::f64::consts::LOG2_E,
        };
        let rows = self.q.chunks(case.n_heads * case.k_dim);
        let rows = rows.zip(&self.positions).flat_map(|(row, &pos)| {
            let factor = of_scores * case.growth_at(pos as usize);
            row.iter()
                .map(move |&q| f16::from_f64(f64::from(q) * factor).to_f64() / factor)
        });
        rows.collect()
    }

    /// The definition: `[n_rows, n_heads * v_dim]` without padding rows.
    fn expected(&self, case: &Case, queries: &[f64], cache: Cache) -> Vec<f64> {
        let stored = case.shape().hadamard_lens();
        let values = |x: &Stored, dim: usize, hadamard: usize| -> Vec<f64> {
            let mut values = x.values();
            if cache == Cache::Copied {
                let heads = values.chunks_mut(dim);
                heads.for_each(|head| kv::hadamard(head, hadamard));
            }
            if cache != Cache::Exact {
                let all = values.iter_mut();
                all.for_each(|x| *x = f16::from_f64(*x).to_f64());
            }
            values
        };
        let all_k = values(&self.k, case.k_dim, stored[0]);
        // The values, and the distance of those of neighbouring rows.
        let (all_v, v_row) = match case.values {
            Values::Apart => (values(&self.v, case.v_dim, stored[1]), case.v_dim),
            Values::InKeys => (all_k.clone(), case.k_dim),
        };
        let group = case.n_heads / case.n_kv_heads;
        let [k_hadamard, v_hadamard] = match cache {
            Cache::Copied => [1, 1],
            Cache::Exact | Cache::Rounded => stored,
        };
        let mut all = Vec::new();
        for (row, &seq) in self.seq_of_row.iter().enumerate() {
            if seq == u32::MAX {
                break;
            }
            let last = self.positions[row] as usize;
            let first = match case.scores.mask {
                Mask::All => 0,
                Mask::Window(n) => (last + 1).saturating_sub(n as usize),
                Mask::Chunk(n) => last / n as usize * n as usize,
                Mask::Both => 0,
                Mask::Near(n) => last.saturating_sub(n as usize),
            };
            let (own, end) = (
                last,
                case.seqs[seq as usize].0 + case.seqs[seq as usize].1 - 1,
            );
            let last = match case.scores.mask {
                Mask::All | Mask::Window(_) | Mask::Chunk(_) => own,
                Mask::Both => end,
                Mask::Near(n) => (own + n as usize).min(end),
            };
            let growth = case.growth_at(own);
            for head in 0..case.n_heads {
                let slot = |pos| self.slot(case, seq as usize, pos, head / group);
                // Keys and values are as they are stored.
                let mut q =
                    queries[(row * case.n_heads + head) * case.k_dim..][..case.k_dim].to_vec();
                kv::hadamard(&mut q, k_hadamard);
                let mut weights: Vec<f64> = (first..=last)
                    .map(|pos| {
                        let k = slot(pos) * case.k_dim;
                        let dot: f64 = (0..case.k_dim).map(|d| q[d] * all_k[k + d]).sum();
                        let x = dot * f64::from(case.scores.scale) * growth;
                        let x = case
                            .scores
                            .soft_cap
                            .map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
                        let slope = case
                            .scores
                            .alibi
                            .map_or(0.0, |alibi| f64::from(alibi.slope(head, case.n_heads)));
                        x - slope * pos.abs_diff(own) as f64
                    })
                    .collect();
                let max = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                weights.iter_mut().for_each(|w| *w = (*w - max).exp());
                let sink = case.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let sink = sink.map_or(0.0, |sink| (sink - max).exp());
                let sum = weights.iter().sum::<f64>() + sink;
                let mut out = vec![0.0; case.v_dim];
                for (pos, weight) in (first..=last).zip(&weights) {
                    let v = slot(pos) * v_row;
                    for (d, x) in out.iter_mut().enumerate() {
                        *x += weight / sum * all_v[v + d];
                    }
                }
                kv::hadamard(&mut out, v_hadamard);
                all.extend(out);
            }
        }
        all
    }

    fn run(&self, gpu: &Gpu, case: &Case) -> Vec<f32> {
        self.run_and_tell(gpu, case).0
    }

    /// Returns the outputs, and whether queries and weights are rounded to f16.
    fn run_and_tell(&self, gpu: &Gpu, case: &Case) -> (Vec<f32>, bool) {
        self.with_call(gpu, case, |queries, kv, step, scratch| {
            ops::attention(gpu, queries, kv, step, scratch).unwrap();
            let in_halves = ops::attends_in_halves(gpu, queries, kv, step, scratch);
            (gpu.read(queries.out).unwrap(), in_halves)
        })
    }

    /// Calls `f` with the arguments of `ops::attention`.
    fn with_call<T>(
        &self,
        gpu: &Gpu,
        case: &Case,
        f: impl FnOnce(&Queries<'_>, &KvLayer<'_>, &Step<'_>, &AttentionScratch) -> T,
    ) -> T {
        let q = gpu.upload(&self.q).unwrap();
        let v = match case.values {
            Values::Apart => self.v.bytes(),
            Values::InKeys => Vec::new(),
        };
        let cache = [self.k.bytes(), v].map(|x| gpu.upload(&x).unwrap());
        let positions = gpu.upload(&self.positions).unwrap();
        let seq_of_row = gpu.upload(&self.seq_of_row).unwrap();
        let seqs = gpu.upload(&self.seqs).unwrap();
        let block_tables = gpu.upload(&self.block_tables).unwrap();
        let n_rows = self.positions.len();
        let out = gpu
            .alloc::<f32>(n_rows * case.n_heads * case.v_dim)
            .unwrap();
        let scratch = AttentionScratch::new(
            gpu,
            case.types,
            case.seqs.len(),
            case.n_heads,
            case.v_dim,
            case.n_ctx,
        )
        .unwrap();
        let scratch = scratch.with_halves(gpu, &[case.shape()]).unwrap();
        let kv = KvLayer::new(case.shape(), &cache);
        let n_runs = self.n_runs.replace(self.n_runs.get() + 1);
        let ends = case
            .seqs
            .iter()
            .map(|&(first_pos, n_rows)| first_pos + n_rows);
        let longest = match n_runs.is_multiple_of(2) {
            true => ends.max().unwrap_or(0),
            false => usize::MAX,
        };
        let step = Step {
            positions: positions.as_slice(),
            // Unused: attention reads the cache through the block tables.
            slots: positions.as_slice(),
            seq_of_row: seq_of_row.as_slice(),
            seqs: seqs.as_slice(),
            block_tables: block_tables.as_slice(),
            max_pages: self.max_pages,
            max_rows_of_seq: case.seqs.iter().map(|&(_, n)| n).max().unwrap_or(0),
            longest,
        };
        // All ones marks memory that must not be written.
        gpu.write(
            out.as_slice::<u32>(),
            &vec![u32::MAX; n_rows * case.n_heads * case.v_dim],
        )
        .unwrap();
        let sinks = case.sinks.as_ref().map(|sinks| gpu.upload(sinks).unwrap());
        let queries = Queries {
            q: q.as_slice(),
            n_heads: case.n_heads,
            scores: case.scores,
            sinks: sinks.as_ref().map(|sinks| sinks.as_slice()),
            out: out.as_slice(),
        };
        f(&queries, &kv, &step, &scratch)
    }
}

impl Case {
    /// Returns the variants whose kernels are the usual ones for these rows, with the same bits: some rows have one kernel,
    /// of latent layers those of prompts are usual, and of the others a few rows are for decoding.
    fn usual_variants(&self) -> &'static [&'static str] {
        let has_one_kind = self.scores.mask.looks_ahead() || self.scores.alibi.is_some();
        let is_short = self.seqs.iter().all(|&(_, n_rows)| n_rows <= 4);
        match (has_one_kind, self.values) {
            (true, _) => &["attention=decode", "attention=prefill"],
            (false, Values::Apart) if is_short => &["attention=decode"],
            (false, _) => &["attention=prefill"],
        }
    }
}

/// The usual kernels run in several orders. Each of these variants that has others runs once, on one GPU, which differs
/// from case to case, or on all if repeats are asked for.
const VARIANTS: [&str; 5] = [
    "attention=decode",
    "attention=exact",
    "attention=prefill",
    "attention=generic",
    "attention=decode,splits=off",
];

/// CI builds attention in some cache types for some devices only.
#[test]
fn a_device_has_each_cache_type() {
    let gpus = common::all_gpus();
    for &types in KvTypes::ALL {
        let mut all = gpus.iter();
        assert!(
            gpus.is_empty() || all.any(|gpu| common::has_attention(gpu, types)),
            "{types:?}"
        );
    }
}

fn check(name: &str, case: &Case) {
    check_on(name, case, |_| true);
}

/// Checks the case on those of the GPUs, with and without variants, that are `chosen`.
fn check_on(name: &str, case: &Case, chosen: fn(&Gpu) -> bool) {
    let data = Data::new(case);
    let queries = data.exact_queries();
    let exact = data.expected(case, &queries, Cache::Exact);
    // The prefill kernels round values of quantized types to f16.
    let rounded =
        (case.types != KvType::F16.into()).then(|| data.expected(case, &queries, Cache::Rounded));
    let halves = OnceCell::new();
    let usual = case.usual_variants();
    let others: Vec<&str> = VARIANTS
        .into_iter()
        .filter(|variant| !usual.contains(variant))
        .collect();
    let case_name = format!("{name} {}", case.types.name());
    let gpus = common::gpus_from(case_name.bytes().map(usize::from).sum());
    let gpus = gpus.filter(|gpu| common::has_attention(gpu, case.types));
    let with_others = gpus.enumerate().flat_map(|(i, gpu)| {
        let has_all = i == 0 || common::repeats().is_some();
        common::with_variants(&gpu, if has_all { &others } else { &[] })
    });
    for gpu in with_others.filter(chosen) {
        let in_halves = Cell::new(false);
        let run = |gpu: &Gpu| {
            let (out, are_rounded) = data.run_and_tell(gpu, case);
            in_halves.set(are_rounded);
            out
        };
        let out = match gpu.variants().is_empty() {
            true => {
                let same = RefCell::new(common::with_variants(&gpu, usual).into_iter().cycle());
                let next = || {
                    same.borrow_mut()
                        .next()
                        .expect("the usual kernels are there")
                };
                common::any_order(|| run(&next()))
            }
            false => run(&gpu),
        };
        let target = format!("{} {}", case.types.name(), common::name(&gpu));
        let (rows, padding) = out.split_at(exact.len());
        let is_decode = ["decode", "generic"]
            .iter()
            .any(|name| target.contains(name));
        let distance = |to: &[f64]| {
            let pairs = rows.iter().zip(to);
            pairs.fold(0f64, |worst, (a, b)| worst.max((f64::from(*a) - b).abs()))
        };
        let (expected, tolerance) = match &rounded {
            _ if in_halves.get() => {
                let queries = || data.queries_in_halves(case);
                let copied = || data.expected(case, &queries(), Cache::Copied);
                let halves = halves.get_or_init(copied);
                (halves, IN_HALVES)
            }
            Some(rounded) if !is_decode && distance(rounded) < distance(&exact) => {
                (rounded, case.tolerance)
            }
            _ => (&exact, case.tolerance),
        };
        let mut worst: f64 = 0.0;
        for (at, (got, want)) in rows
            .chunks(case.v_dim)
            .zip(expected.chunks(case.v_dim))
            .enumerate()
        {
            let greatest = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            for (got, want) in got.iter().zip(want) {
                let error = (f64::from(*got) - want).abs() / greatest;
                assert!(
                    error <= tolerance,
                    "{name} on {target}: row {} head {}: {got} for {want}, error {error:e}",
                    at / case.n_heads,
                    at % case.n_heads
                );
                worst = worst.max(error);
            }
        }
        println!("{name} on {target}: {worst:.1e}");
        assert!(
            padding.iter().all(|x| x.to_bits() == u32::MAX),
            "{name} on {target}: rows without a sequence were written"
        );
    }
}

#[test]
fn grouped_heads() {
    for (n_heads, n_kv_heads) in [(2, 2), (4, 2), (4, 1), (7, 1), (8, 1), (11, 1)] {
        let case = Case::new(n_heads, n_kv_heads, 64, &[(20, 1), (0, 1), (70, 1)]);
        check(&format!("{n_heads} heads on {n_kv_heads}"), &case);
    }
}

#[test]
fn head_widths() {
    for (dim, n_heads) in [
        (80, 4),
        (96, 4),
        (128, 4),
        (256, 4),
        (80, 8),
        (128, 8),
        (512, 1),
        (512, 2),
        (512, 7),
    ] {
        check(
            &format!("width {dim}, {n_heads} heads"),
            &Case::new(n_heads, 1, dim, &[(40, 1), (100, 1)]),
        );
    }
}

/// Contexts with more parts than `combine` loads at once.
#[test]
fn long_contexts() {
    for (dim, n_ctx) in [(256, 2048), (128, 2560)] {
        let mut case = Case::new(2, 1, dim, &[(n_ctx - 48, 1)]);
        case.n_ctx = n_ctx;
        // The scratch memory has room for the parts of the sequences only.
        case.n_padding = 0;
        // Means of 2,000 values are small, so relative errors are larger.
        case.tolerance *= 4.0;
        check(&format!("{n_ctx} positions of width {dim}"), &case);
    }
}

/// Identifies the order of additions in the kernels with 1, 2, 4 and 8 heads per block, as exported by the image.
fn orders(gpu: &Gpu, types: KvTypes, dim: usize) -> [u8; 4] {
    let module = match types.name() {
        "F16" => "attention_decode.F16",
        "Q8_0" => "attention_decode.Q8_0",
        "F8E4M3" => "attention_decode.F8E4M3",
        "Q5_1" => "attention_decode.Q5_1",
        "Q4_0" => "attention_decode.Q4_0",
        "F16_Q8_0" => "attention_decode.F16_Q8_0",
        "Q8_0_Q4_0" => "attention_decode.Q8_0_Q4_0",
        name => unreachable!("{name}"),
    };
    let name = match dim {
        64 => "orders_64",
        80 => "orders_80",
        96 => "orders_96",
        128 => "orders_128",
        512 => "orders_512",
        _ => "orders_256",
    };
    gpu.constant(module, name).unwrap().to_le_bytes()
}

/// Returns the bits of the result, and the names of the kernels that were launched.
fn kernels(gpu: &Gpu, data: &Data, case: &Case) -> (Vec<u32>, String) {
    let mut bits = Vec::new();
    let launched = launched_by(gpu, &mut || {
        bits = data.run(gpu, case).iter().map(|x| x.to_bits()).collect();
        Ok(())
    });
    (bits, launched)
}

/// Returns the names of the kernels that `run` launches.
fn launched_by(gpu: &Gpu, run: &mut dyn FnMut() -> Result<(), GpuError>) -> String {
    let origin = Event::new(gpu).unwrap();
    origin.record().unwrap();
    let mut trace = Trace::new(gpu);
    trace.record(run).unwrap();
    gpu.synchronize().unwrap();
    let times = trace.times(&origin).unwrap();
    let kernels: Vec<&str> = times.iter().map(|time| time.kernel).collect();
    kernels.join(" ")
}

/// Which kernels rows of decode steps, and of prompts, have: those for prompts, unless dot product instructions are all
/// that a GPU has.
#[test]
fn kernels_by_widths() {
    let mut wider = Case::new(1, 1, 192, &[]);
    wider.v_dim = 128;
    for (base, decode, prompt) in [
        (Case::new(1, 1, 256, &[]), "decode_256_1", "prefill_256"),
        (Case::new(1, 1, 512, &[]), "decode_512_1", "prefill_512"),
        (wider, "decode_192_128_1", "prefill_192_128"),
        (
            latent(2, [576, 512], &[]),
            "prefill_latent_576_512",
            "prefill_latent_576_512",
        ),
        (
            latent(2, [320, 256], &[]),
            "prefill_latent_320_256",
            "prefill_latent_320_256",
        ),
        (
            latent(2, [288, 256], &[]),
            "prefill_latent_288_256",
            "prefill_latent_288_256",
        ),
        (latent(2, [96, 64], &[]), "decode_latent", "decode_latent"),
    ] {
        for (n_rows, wanted) in [(1, decode), (6, prompt)] {
            let case = Case {
                seqs: vec![(0, n_rows)],
                ..base.clone()
            };
            let data = Data::new(&case);
            for gpu in common::gpus() {
                let module = "attention_prefill.F16";
                let widest = gpu.constant(module, "widest").unwrap() as usize;
                let wanted = match (widest < case.k_dim, case.values) {
                    (false, _) => wanted,
                    (true, Values::Apart) => decode,
                    (true, Values::InKeys) => "decode_latent",
                };
                let (_, launched) = kernels(&gpu, &data, &case);
                let first = launched.split(' ').next();
                assert_eq!(first, Some(wanted), "{} rows on {}", n_rows, gpu.target());
            }
        }
    }
}

/// Rows of prompts on Hopper, of latent layers also few rows: as soon as there are enough queries.
#[test]
fn kernels_of_hopper() {
    let hopper = common::gpus()
        .into_iter()
        .find(|gpu| gpu.target() == "host-nv");
    let Some(gpu) = hopper else {
        println!("skipped: built without the target host-nv");
        return;
    };
    let wide = Case::new(8, 1, 128, &[]);
    for (base, n_rows, wanted) in [
        (wide.clone(), 7, "prefill_128"),
        (wide.clone(), 8, "attend_128"),
        (wide.clone().of(KvType::Q8_0), 50, "prefill_128"),
        (wide.of(KvType::Q8_0), 64, "kv_halves attend_128"),
        (latent(5, [320, 256], &[]), 3, "prefill_latent_320_256"),
        (latent(16, [320, 256], &[]), 1, "attend_latent_320_256"),
    ] {
        let case = Case {
            seqs: vec![(0, n_rows)],
            ..base
        };
        let (_, launched) = kernels(&gpu, &Data::new(&case), &case);
        assert!(launched.starts_with(wanted), "{n_rows} rows: {launched}");
    }
}

/// Results that are converted as they are combined have the bits of those that are converted after it, of rows with one
/// split and with several.
#[test]
fn converted_results_have_the_same_bits() {
    let shapes = [
        (4, 2, 64),
        (6, 3, 96),
        (4, 1, 128),
        (2, 2, 256),
        (1, 1, 128),
    ];
    let all_types = [KvType::F16.into(), KvType::Q8_0.into(), KvType::Q4_0.into()];
    for ((n_heads, n_kv_heads, dim), types) in shapes
        .into_iter()
        .flat_map(|shape| all_types.map(|types: KvTypes| (shape, types)))
    {
        let case = Case::new(n_heads, n_kv_heads, dim, &[(20, 1), (150, 1), (300, 1)]).of(types);
        let data = Data::new(&case);
        let (n_rows, width) = (data.positions.len(), n_heads * dim);
        let n_converted = data
            .seq_of_row
            .iter()
            .filter(|&&seq| seq != u32::MAX)
            .count();
        for gpu in common::gpus().filter(|gpu| common::has_attention(gpu, types)) {
            for form in [ActFormat::Q8x32, ActFormat::Q8x256] {
                if !width.is_multiple_of(form.block_len()) {
                    continue;
                }
                let [one, two] =
                    [(); 2].map(|()| ActsBuffer::new(&gpu, form, n_rows, width).unwrap());
                data.with_call(&gpu, &case, |queries, kv, step, scratch| {
                    ops::attention(&gpu, queries, kv, step, scratch).unwrap();
                    ops::quantize(&gpu, queries.out, &one.rows(n_rows)).unwrap();
                    let apart = gpu.read(queries.out).unwrap();
                    let acts = two.rows(n_rows);
                    let mut run =
                        || ops::attention_quantize(&gpu, queries, kv, step, (scratch, &acts));
                    let launched = launched_by(&gpu, &mut run);
                    // Rotated results are rotated back before they are converted.
                    let is_rotated = types.values() == KvType::Q4_0;
                    assert_eq!(launched.contains("combine_q8x"), !is_rotated, "{launched}");
                    let at_once = gpu.read(queries.out).unwrap();
                    assert!(
                        apart
                            .iter()
                            .zip(&at_once)
                            .all(|(a, b)| a.to_bits() == b.to_bits())
                            && bits_of(&gpu, &one, n_converted) == bits_of(&gpu, &two, n_converted),
                        "{} {n_heads} heads of {dim} {} {form:?}",
                        common::name(&gpu),
                        types.name()
                    );
                });
            }
        }
    }
}

/// A tuned number of heads per block selects another kernel with the same bits, if the image exports the same order.
#[test]
fn heads_per_block_do_not_change_bits() {
    let shapes = [
        (4, 1, 64),
        (8, 1, 64),
        (6, 2, 128),
        (8, 1, 96),
        (4, 1, 256),
        (3, 1, 512),
    ];
    for (i, (n_heads, n_kv_heads, dim)) in shapes.into_iter().enumerate() {
        for &types in common::every_second(KvTypes::ALL, i) {
            let case = Case::new(n_heads, n_kv_heads, dim, &[(75, 1), (0, 1), (150, 1)]).of(types);
            let data = Data::new(&case);
            let most = (n_heads / n_kv_heads).next_power_of_two();
            for gpu in common::gpus().filter(|gpu| common::has_attention(gpu, types)) {
                let orders = orders(&gpu, types, dim);
                assert_eq!(orders[1], orders[2], "two heads and four");
                let usual = kernels(&gpu, &data, &case);
                assert_eq!(usual.1, format!("decode_{dim}_{most} combine"));
                for (i, heads) in [1, 2, 4, 8].into_iter().enumerate() {
                    let shape = Shape::Attention {
                        types,
                        n_heads,
                        n_kv_heads,
                        dim,
                        n_rows: data.positions.len().next_power_of_two(),
                    };
                    let table = Tuning::only(shape, Choice::Attention { heads });
                    let tuned = gpu.with_tuning(table.into());
                    let (bits, launched) = kernels(&tuned, &data, &case);
                    let is_taken = heads <= most && orders[i] == orders[most.ilog2() as usize];
                    let taken = if is_taken { heads } else { most };
                    assert_eq!(launched, format!("decode_{dim}_{taken} combine"));
                    assert!(
                        bits == usual.0,
                        "{} {case_name}",
                        gpu.target(),
                        case_name = launched
                    );
                }
            }
        }
    }
}

#[test]
fn generic_head_widths() {
    for (k_dim, v_dim) in [(40, 40), (192, 64), (17, 24)] {
        assert!(!ops::is_fast(
            k_dim,
            v_dim,
            Values::Apart,
            ops::RowKind::Plain
        ));
        let mut case = Case::new(2, 1, k_dim, &[(20, 1), (200, 1), (0, 2)]);
        case.v_dim = v_dim;
        check(&format!("widths {k_dim} and {v_dim}"), &case);
    }
}

/// Includes head widths that are no multiple of the 32 values in a block.
#[test]
fn quantized_caches() {
    let heads = [
        (64, 1),
        (80, 2),
        (96, 7),
        (128, 4),
        (256, 8),
        (80, 8),
        (128, 8),
        (512, 3),
    ];
    for (i, types) in coded().enumerate() {
        for (dim, n_heads) in common::every_second(heads, i) {
            let mut case = Case::new(n_heads, 1, dim, &[(0, 1), (100, 1), (31, 2)]).of(types);
            case.page = [16, 32, 64][dim / 16 % 3];
            check(&format!("width {dim}"), &case);
        }
        for (k_dim, v_dim) in [(40, 40), (192, 128), (17, 24)] {
            let mut case = Case::new(2, 1, k_dim, &[(50, 1), (0, 2)]).of(types);
            case.v_dim = v_dim;
            check(&format!("widths {k_dim} and {v_dim}"), &case);
        }
        for page in common::every_second([16, 32, 64], i) {
            let mut case = Case::new(2, 2, 64, &[(14, 1), (16, 1), (257, 1)]).of(types);
            case.page = page;
            case.scores.mask = Mask::Window(70);
            case.scores.soft_cap = Some(5.0);
            check(&format!("pages of {page}"), &case);
        }
    }
}

/// The kernels accumulate codes in units that follow the scales.
#[test]
fn values_of_growing_and_shrinking_magnitude() {
    let growths: [fn(usize) -> f32; 4] = [
        |pos| 0.5f32.powi(10 - pos as i32 / 20),
        |pos| 2f32.powi(10 - pos as i32 / 20),
        |pos| if pos % 150 == 149 { 4096.0 } else { 1.0 },
        |_| 1e-4,
    ];
    for (i, &types) in KvTypes::ALL.iter().enumerate() {
        for growth in common::every_second(growths, i) {
            let mut case = Case::new(4, 1, 64, &[(400, 1), (130, 1)]).of(types);
            case.growth = growth;
            check("growth", &case);
        }
    }
}

#[test]
fn prompts_with_quantized_caches() {
    let shapes = [(64, 16), (80, 32), (96, 64), (128, 16), (256, 32)];
    for (i, types) in coded().enumerate() {
        for (dim, page) in common::every_second(shapes, i) {
            let mut case = Case::new(2, 1, dim, &[(10, 33), (0, 0), (70, 1)]).of(types);
            case.page = page;
            if dim == 128 {
                case.scores.mask = Mask::Window(20);
            }
            check(&format!("prompts, width {dim}"), &case);
        }
    }
}

/// A model that is split has layers without heads on each device.
#[test]
fn layers_of_another_device_need_no_copies() {
    let has_type = |gpu: &Gpu| common::has_attention(gpu, KvType::Q8_0.into());
    for gpu in common::gpus().filter(has_type) {
        let here = Case::new(4, 2, 128, &[]).of(KvType::Q8_0).shape();
        let elsewhere = KvShape {
            n_kv_heads: 0,
            ..here
        };
        let scratch = AttentionScratch::new(&gpu, here.types, 1, 4, 128, 64).unwrap();
        scratch.with_halves(&gpu, &[elsewhere, here]).unwrap();
        let scratch = AttentionScratch::new(&gpu, here.types, 1, 4, 128, 64).unwrap();
        scratch.with_halves(&gpu, &[elsewhere]).unwrap();
    }
}

/// Prompts on Hopper, which read a copy of the cache in f16: after contexts of several lengths, with pages of all sizes, and
/// with pages that no row sees.
#[test]
fn prompts_over_copies_of_quantized_caches() {
    let shapes = [
        ([64, 64], 16, Mask::All),
        ([128, 128], 32, Mask::Window(40)),
        ([192, 128], 64, Mask::All),
        ([256, 256], 16, Mask::Chunk(64)),
    ];
    for (i, types) in coded().enumerate() {
        for ([k_dim, v_dim], page, mask) in common::every_second(shapes, i) {
            let mut case = Case::new(4, 2, k_dim, &[(70, 65), (0, 40), (150, 33)]).of(types);
            (case.v_dim, case.page, case.scores.mask) = (v_dim, page, mask);
            let name = format!("prompts over copies, width {k_dim}");
            check_on(&name, &case, |gpu| {
                gpu.target() == "host-nv" && gpu.variants().is_empty()
            });
        }
    }
}

/// A row that attends to one position (even or odd) returns that position's values unchanged, unless the type rotates
/// heads: every code, with the smallest and largest scales. Single heads and pairs, which NVIDIA's matrix units compute.
#[test]
fn reads_every_code_exactly() {
    for gpu in common::gpus_with(&VARIANTS) {
        let both = KvTypes::of(KvType::F16, KvType::Q8_0).expect("it is built");
        let types = [KvType::Q8_0.into(), KvType::F8E4M3.into(), both];
        let built = types
            .into_iter()
            .filter(|&types| common::has_attention(&gpu, types));
        for (types, n_heads) in built.flat_map(|ty| [(ty, 4), (ty, 8)]) {
            let ty = types.values();
            let mut case = Case::new(n_heads, 4, 64, &[(0, 1), (9, 1), (18, 1)]).of(types);
            case.n_padding = 0;
            case.scores.mask = Mask::Window(1);
            let mut data = Data::new(&case);
            for (seq, &(position, _)) in case.seqs.iter().enumerate() {
                for head in 0..4 {
                    let codes = (0..64).map(|i| (head * 64 + i) as u8);
                    // Codes that are never stored.
                    let codes = codes.map(|code| match (ty, code) {
                        (KvType::F8E4M3, 0x7f | 0x80 | 0xff) => 0,
                        _ => code,
                    });
                    let scales = match ty {
                        KvType::F8E4M3 => bf16::from_f32([1.0, 0.0019, 1.75][seq])
                            .to_le_bytes()
                            .to_vec(),
                        _ => f16::from_f32([1.0, 0.001, 511.5][seq])
                            .to_le_bytes()
                            .repeat(2),
                    };
                    let slot = data.slot(&case, seq, position, head);
                    data.v.set(slot, [&codes.collect::<Vec<u8>>(), &scales]);
                }
            }
            let got = data.run(&gpu, &case);
            let name = common::name(&gpu);
            let is_rounded = name.contains("prefill");
            for (i, (got, wanted)) in got
                .iter()
                .zip(data.expected(&case, &data.exact_queries(), Cache::Exact))
                .enumerate()
            {
                let wanted = match is_rounded {
                    true => f16::from_f64(wanted).to_f32(),
                    false => wanted as f32,
                };
                assert_eq!(
                    *got, wanted,
                    "{types:?}, {n_heads} heads on {name}: value {i}"
                );
            }
        }
    }
}

/// NaN and infinity reach the output of the sequences that attend to them, and no other.
#[test]
fn nan_and_infinity_propagate() {
    for gpu in common::gpus_with(&VARIANTS) {
        let types = KvTypes::ALL.iter().copied();
        for types in types.filter(|&types| common::has_attention(&gpu, types)) {
            let case = Case::new(2, 1, 64, &[(20, 1), (20, 1)]).of(types);
            for of_keys in [true, false] {
                let mut data = Data::new(&case);
                let slot = data.slot(&case, 1, 7, 0);
                let (stored, ty) = match of_keys {
                    true => (&mut data.k, types.keys()),
                    false => (&mut data.v, types.values()),
                };
                let [codes, scales] = &kv::encode(ty, &[f32::INFINITY; 64]);
                stored.set(slot, [codes, scales]);
                let out = data.run(&gpu, &case);
                let (good, rest) = out.split_at(128);
                assert!(
                    good.iter().all(|x| x.is_finite()),
                    "{types:?} on {}",
                    common::name(&gpu)
                );
                assert!(
                    rest[..128].iter().all(|x| !x.is_finite()),
                    "{types:?} on {}",
                    common::name(&gpu)
                );
            }
        }
    }
}

#[test]
fn sequence_lengths_and_page_sizes() {
    for page in [16, 32, 64] {
        let mut case = Case::new(
            2,
            1,
            64,
            &[(0, 1), (14, 1), (15, 1), (16, 1), (32, 1), (256, 1)],
        );
        case.page = page;
        check(&format!("pages of {page}"), &case);
    }
}

#[test]
fn sliding_windows() {
    for window in [1, 7, 64, 100] {
        let mut case = Case::new(4, 2, 64, &[(0, 1), (63, 1), (230, 1)]);
        case.scores.mask = Mask::Window(window);
        check(&format!("window {window}"), &case);
    }
}

/// Below, among and above the scores.
const SINKS: [f32; 4] = [-2.0, 0.5, 6.0, 2.5];

#[test]
fn sinks() {
    for (n_heads, n_kv_heads, dim) in [(4, 2, 64), (4, 1, 128), (3, 3, 40)] {
        let mut case = Case::new(n_heads, n_kv_heads, dim, &[(5, 1), (90, 1), (300, 1)]);
        case.sinks = Some(SINKS[..n_heads].to_vec());
        check(&format!("sinks of {n_heads} heads of {dim}"), &case);
    }
}

#[test]
fn prompts_with_sinks() {
    for (n_heads, n_kv_heads) in [(4, 2), (3, 1)] {
        let mut case = Case::new(n_heads, n_kv_heads, 64, &[(0, 35), (90, 6)]);
        case.sinks = Some(SINKS[..n_heads].to_vec());
        case.scores.mask = Mask::Window(20);
        check(&format!("prompts, sinks of {n_heads} heads"), &case);
    }
}

#[test]
fn chunks() {
    for chunk in [16, 64] {
        let mut case = Case::new(2, 1, 64, &[(0, 1), (63, 1), (64, 1), (230, 1)]);
        case.scores.mask = Mask::Chunk(chunk);
        check(&format!("chunks of {chunk}"), &case);
        let mut case = Case::new(2, 1, 64, &[(50, 40), (0, 9)]);
        case.scores.mask = Mask::Chunk(chunk);
        check(&format!("prompts, chunks of {chunk}"), &case);
    }
}

/// Heads with a kernel for prompts, and others.
#[test]
fn positions_ahead() {
    for (n_heads, n_kv_heads, dim, masks) in [
        (4, 2, 64, &[Mask::Both, Mask::Near(0), Mask::Near(40)][..]),
        (3, 3, 32, &[Mask::Both, Mask::Near(5)]),
        (2, 1, 128, &[Mask::Near(20)]),
        (2, 2, 40, &[Mask::Both, Mask::Near(3)]),
    ] {
        let longest = if dim == 40 { 20 } else { 70 };
        for &mask in masks {
            let mut case = Case::new(n_heads, n_kv_heads, dim, &[(0, longest), (0, 1), (0, 9)]);
            case.scores.mask = mask;
            check(&format!("{mask:?}, heads of {dim}"), &case);
        }
    }
}

#[test]
fn linear_biases() {
    for (n_heads, dim, longest) in [(6, 64, 70), (2, 48, 20)] {
        for mask in [Mask::Both, Mask::All, Mask::Near(9)] {
            let mut case = Case::new(n_heads, n_heads / 2, dim, &[(0, longest), (0, 1)]);
            case.scores.mask = mask;
            case.scores.alibi = Some(Alibi { max_bias: 8.0 });
            check(&format!("biases, {mask:?}, heads of {dim}"), &case);
        }
    }
}

#[test]
fn growing_scores() {
    for (offset, seqs) in [(0, [(7, 1), (90, 1)]), (1, [(0, 20), (60, 5)])] {
        let mut case = Case::new(2, 1, 64, &seqs);
        case.scores.growth = Some(Growth {
            slope: 0.4,
            step: 8,
            offset,
        });
        check(&format!("growing scores of {seqs:?}"), &case);
    }
}

#[test]
fn soft_caps() {
    let mut case = Case::new(2, 1, 64, &[(5, 1), (90, 1)]);
    case.scores.soft_cap = Some(5.0);
    case.magnitude = 20.0;
    check("soft cap", &case);
}

#[test]
fn large_scores() {
    let mut case = Case::new(4, 1, 64, &[(100, 1), (31, 1)]);
    case.magnitude = 200.0;
    case.tolerance = 1e-4;
    check("large scores", &case);
}

#[test]
fn many_sequences() {
    let seqs: Vec<(usize, usize)> = (0..40).map(|i| (i * 3, 1)).collect();
    check("40 sequences", &Case::new(2, 1, 64, &seqs));
}

#[test]
fn prompts_with_grouped_heads() {
    for (n_heads, n_kv_heads) in [(2, 2), (4, 2), (7, 1), (8, 1)] {
        let case = Case::new(n_heads, n_kv_heads, 64, &[(0, 17), (3, 6)]);
        check(&format!("prompts, {n_heads} heads on {n_kv_heads}"), &case);
    }
}

#[test]
fn prompts_with_all_head_widths() {
    for dim in [80, 96, 128, 256, 512] {
        let case = Case::new(1, 1, dim, &[(10, 33)]);
        check(&format!("prompts, width {dim}"), &case);
    }
}

#[test]
fn prompts_of_all_lengths_and_page_sizes() {
    for (page, lengths) in [
        (16, vec![(0, 1), (0, 15), (0, 16)]),
        (32, vec![(0, 33), (0, 0), (200, 17)]),
        (64, vec![(0, 257)]),
    ] {
        let mut case = Case::new(1, 1, 64, &lengths);
        case.page = page;
        check(&format!("prompts, pages of {page}"), &case);
    }
}

#[test]
fn prompts_beside_decode_rows() {
    let mut case = Case::new(2, 1, 64, &[(90, 1), (30, 40), (0, 1), (61, 5)]);
    case.n_padding = 3;
    check("prompts between other rows", &case);
}

#[test]
fn prompts_with_windows() {
    for window in [1, 20, 40] {
        let mut case = Case::new(2, 2, 64, &[(0, 70), (150, 20)]);
        case.scores.mask = Mask::Window(window);
        check(&format!("prompts, window {window}"), &case);
    }
}

/// Kernels whose waves share the queries of a block: more rows and heads than a block has, and masks that look ahead.
#[test]
fn prompts_with_wide_heads() {
    for (n_heads, n_kv_heads, mask, with_sinks) in [
        (6, 2, Mask::Window(20), true),
        (5, 1, Mask::Chunk(16), false),
        (3, 3, Mask::Near(9), false),
    ] {
        let mut case = Case::new(n_heads, n_kv_heads, 512, &[(20, 13), (0, 5)]);
        case.scores.mask = mask;
        case.scores.soft_cap = with_sinks.then_some(5.0);
        case.sinks = with_sinks.then(|| [SINKS, SINKS].concat()[..n_heads].to_vec());
        check(&format!("prompts, wide heads, {mask:?}"), &case);
    }
    let mut case = Case::new(4, 2, 512, &[(0, 19)]);
    case.scores.alibi = Some(Alibi { max_bias: 8.0 });
    check("prompts, wide heads with biases", &case);
    for types in coded() {
        let case = Case::new(2, 1, 512, &[(10, 19), (0, 0), (30, 1)]).of(types);
        check("prompts, wide heads", &case);
    }
}

/// Keys of 192 values, and values of 128.
#[test]
fn keys_wider_than_values() {
    let kinds = [
        (1, 1, Mask::All),
        (6, 2, Mask::Window(20)),
        (7, 1, Mask::Chunk(64)),
    ];
    for (i, &types) in KvTypes::ALL.iter().enumerate() {
        let seqs = [[(20, 1), (100, 1), (0, 2)], [(10, 23), (0, 6), (70, 1)]];
        for (j, seqs) in seqs.into_iter().enumerate() {
            let (n_heads, n_kv_heads, mask) = kinds[(i + j) % kinds.len()];
            let mut case = Case::new(n_heads, n_kv_heads, 192, &seqs).of(types);
            case.v_dim = 128;
            case.scores.mask = mask;
            case.sinks = (n_heads == 6).then(|| [SINKS, SINKS].concat()[..6].to_vec());
            check(&format!("wider keys, {n_heads} heads, {mask:?}"), &case);
        }
    }
    let mut case = Case::new(2, 1, 192, &[(0, 20)]);
    case.v_dim = 128;
    case.scores.mask = Mask::Near(9);
    check("wider keys, positions ahead", &case);
}

/// Few rows far into their contexts, which are divided into splits: rows that see all splits, some, or one.
#[test]
fn prompts_in_splits() {
    for (mask, [n_heads, n_kv_heads], with_sinks) in [
        (Mask::All, [4, 2], false),
        (Mask::Window(300), [2, 1], true),
        (Mask::Chunk(256), [2, 2], true),
        (Mask::Near(400), [2, 1], false),
    ] {
        let seqs = [(520, 18), (300, 1), (0, 6), (250, 9)];
        let mut case = Case::new(n_heads, n_kv_heads, 64, &seqs);
        case.n_ctx = 1024;
        case.scores.mask = mask;
        case.sinks = with_sinks.then(|| SINKS[..n_heads].to_vec());
        case.tolerance *= 2.0;
        check(&format!("prompts in splits, {mask:?}"), &case);
    }
}

/// The same with kernels for other widths, and rows of decode steps of latent layers.
#[test]
fn prompts_of_other_widths_in_splits() {
    let latent = latent(3, [288, 256], &[]);
    let mut wider = Case::new(2, 1, 192, &[]);
    wider.v_dim = 128;
    for (base, mask) in [
        (Case::new(2, 1, 512, &[]), Mask::Window(100)),
        (latent.clone(), Mask::All),
        (wider, Mask::All),
    ] {
        let mut case = base;
        case.seqs = vec![(290, 7), (0, 5)];
        case.scores.mask = mask;
        case.tolerance *= 2.0;
        let dims = [case.k_dim, case.v_dim];
        check(&format!("prompts in splits, widths {dims:?}"), &case);
    }
    let mut case = latent;
    case.seqs = vec![(150, 2), (70, 1), (0, 1)];
    case.tolerance *= 2.0;
    check("rows of latent layers in splits", &case);
}

/// The kernels of Hopper, which need many queries: several tiles of them, of positions, and splits; what a row sees.
#[test]
fn prompts_of_many_queries() {
    let is_hopper = |gpu: &Gpu| gpu.target() == "host-nv" && gpu.variants().is_empty();
    let scores = |case: &mut Case, i: usize| match i {
        0 => {}
        1 => {
            case.scores.mask = Mask::Window(70);
            case.sinks = Some([SINKS, SINKS].concat()[..case.n_heads].to_vec());
        }
        2 => case.scores.mask = Mask::Chunk(64),
        3 => case.scores.soft_cap = Some(5.0),
        _ => {
            case.scores.mask = Mask::Near(30);
            case.scores.alibi = Some(Alibi { max_bias: 8.0 });
        }
    };
    for (i, (n_heads, n_kv_heads, [k_dim, v_dim])) in [
        (4, 2, [64, 64]),
        (6, 2, [128, 128]),
        (2, 2, [192, 128]),
        (2, 1, [256, 256]),
        (8, 2, [64, 64]),
    ]
    .into_iter()
    .enumerate()
    {
        let seqs = [(31, 75), (0, 1), (130, 66)];
        let mut case = Case::new(n_heads, n_kv_heads, k_dim, &seqs);
        case.v_dim = v_dim;
        scores(&mut case, i);
        check_on(&format!("many queries, {k_dim} values"), &case, is_hopper);
    }
    for (i, dims) in [[576, 512], [320, 256], [320, 256]].into_iter().enumerate() {
        let mut case = latent(5, dims, &[(290, 15), (0, 3), (70, 1)]);
        scores(&mut case, i);
        check_on(&format!("many queries, {dims:?} values"), &case, is_hopper);
    }
    let case = latent(70, [320, 256], &[(70, 1), (0, 1), (300, 1)]);
    check_on("many heads of few rows", &case, is_hopper);
}

#[test]
fn prompts_with_extreme_scores() {
    let mut case = Case::new(2, 1, 64, &[(5, 40)]);
    case.magnitude = 200.0;
    case.tolerance = 1e-4;
    check("prompts, large scores", &case);
    case.magnitude = 20.0;
    case.scores.soft_cap = Some(5.0);
    check("prompts, soft cap", &case);
}

#[test]
fn prompts_with_soft_caps() {
    for soft_cap in [5.0, 50.0] {
        let mut case = Case::new(2, 1, 128, &[(40, 21), (0, 5)]);
        case.scores.soft_cap = Some(soft_cap);
        check(&format!("prompts, soft cap {soft_cap}"), &case);
    }
}

/// Latent attention: one narrow head, whose values are the first part of the keys.
fn latent(n_heads: usize, [k_dim, v_dim]: [usize; 2], seqs: &[(usize, usize)]) -> Case {
    Case {
        v_dim,
        values: Values::InKeys,
        ..Case::new(n_heads, 1, k_dim, seqs)
    }
}

#[test]
fn values_in_keys() {
    for (i, (n_heads, dims)) in [
        (3, [96, 64]),
        (16, [288, 256]),
        (17, [320, 256]),
        (20, [576, 512]),
        (2, [10, 6]),
    ]
    .into_iter()
    .enumerate()
    {
        // All types of one width that matrix units take, and of one that they do not; another type of each other width.
        let types = KvType::ALL.into_iter().enumerate();
        for (_, ty) in types.filter(|&(n, _)| i >= 3 || n % 3 == i) {
            let seqs = [(40 + i, 1), (0, 1), (90, 1)];
            let case = latent(n_heads, dims, &seqs).of(ty);
            check(&format!("values in keys of {dims:?}"), &case);
        }
    }
}

#[test]
fn prompts_with_values_in_keys() {
    for (n_heads, dims, ty) in [
        (5, [96, 64], KvType::F16),
        (8, [576, 512], KvType::Q8_0),
        (5, [576, 512], KvType::F16),
        (16, [288, 256], KvType::F8E4M3),
        (16, [288, 256], KvType::Q4_0),
        (20, [320, 256], KvType::Q8_0),
        (3, [576, 512], KvType::Q5_1),
        (1, [576, 512], KvType::F8E4M3),
    ] {
        let case = latent(n_heads, dims, &[(0, 11), (40, 5)]).of(ty);
        check(&format!("prompts, values in keys of {dims:?}"), &case);
    }
}

#[test]
fn values_in_keys_with_masks_sinks_and_growth() {
    for seqs in [[(70, 1), (300, 1)], [(0, 19), (60, 7)]] {
        for (mask, dims) in [
            (Mask::Window(20), [96, 64]),
            (Mask::Chunk(64), [96, 64]),
            (Mask::Window(20), [288, 256]),
            (Mask::Chunk(64), [576, 512]),
        ] {
            let mut case = latent(4, dims, &seqs);
            case.scores.mask = mask;
            case.scores.growth = Some(Growth {
                slope: 0.4,
                step: 8,
                offset: 0,
            });
            case.sinks = Some(SINKS.to_vec());
            check(
                &format!("values in keys of {dims:?}, {mask:?}, {seqs:?}"),
                &case,
            );
        }
    }
}
