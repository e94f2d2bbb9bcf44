//! Measures batched work: products of the same activations with several matrices, also of different formats, merged
//! into one pass or separate; gated FFN products in one pass; and generation of several sequences.
//!
//! Sizes are those of a layer of an 8B model. Weights are read from memory, as in a model.

use rocmforge_cpu as cpu;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{Activation, Buffer, Gpu, GpuError, Matrix, OutMode, RowOrder, ops};

use crate::case::{Case, Prepared, Work, time_cpu, time_gpu};
use crate::error::BenchError;
use crate::options::{Effort, Subject};
use crate::suites::inference::decode_case;
use crate::suites::matmul::{cpu_acts, gpu_acts, upload, work};
use crate::target::{Cpu, Opened};
use crate::values::{Format, n_copies};

/// Query, key and value matrices. All matrices of a set take the same activation format.
const SETS: [[GgmlType; 3]; 4] = [
    [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q4_K],
    [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K],
    [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K],
    [GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::Q8_0],
];
/// Gate and up matrices.
const GATED: [GgmlType; 2] = [GgmlType::Q4_K, GgmlType::Q4_0];
const TOKENS: [usize; 3] = [1, 4, 8];
const BATCHES: [usize; 3] = [1, 4, 8];
const QUICK_BATCHES: [usize; 2] = [1, 2];

const N_IN: usize = 4096;
const N_OUTS: [usize; 3] = [4096, 1024, 1024];
const N_FF: usize = 14336;
const QUICK_N_IN: usize = 256;
const QUICK_N_OUTS: [usize; 3] = [64, 32, 32];
const QUICK_N_FF: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passes {
    /// In one.
    Merged,
    /// One for each matrix.
    Separate,
}

impl Passes {
    const BOTH: [Passes; 2] = [Passes::Merged, Passes::Separate];

    fn name(self) -> &'static str {
        match self {
            Passes::Merged => "merged",
            Passes::Separate => "separate",
        }
    }
}

pub(super) fn cases(effort: Effort, subject: Option<Subject<'_>>) -> Vec<Case> {
    let n_outs = effort.pick(N_OUTS, QUICK_N_OUTS);
    let n_ff = effort.pick(N_FF, QUICK_N_FF);
    let mut sets: Vec<Set> = Vec::new();
    for n_tokens in TOKENS {
        for types in SETS {
            let matrices = types.into_iter().zip(n_outs).collect();
            sets.push(Set::new(Kind::Products, matrices, n_tokens, effort));
        }
        for ty in GATED {
            let matrices = vec![(ty, n_ff); 2];
            sets.push(Set::new(Kind::Gated, matrices, n_tokens, effort));
        }
    }
    let products = sets
        .into_iter()
        .flat_map(|set| Passes::BOTH.map(|passes| case(set.clone(), passes)));
    let batches = effort.pick(&BATCHES[..], &QUICK_BATCHES[..]).iter();
    let n_gen = effort.pick(32, 2);
    let decode = batches.flat_map(|&n| {
        subject.map(|subject| decode_case(format!("decode/tg{n_gen}/B{n}"), subject, n, n_gen))
    });
    products.chain(decode).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each matrix has its own output.
    Products,
    /// Two matrices whose outputs are combined by a gate.
    Gated,
}

/// Matrices multiplied with the same activations.
#[derive(Debug, Clone)]
struct Set {
    kind: Kind,
    /// Format and number of outputs of each.
    matrices: Vec<(GgmlType, usize)>,
    n_tokens: usize,
    n_in: usize,
    effort: Effort,
}

impl Set {
    fn new(kind: Kind, matrices: Vec<(GgmlType, usize)>, n_tokens: usize, effort: Effort) -> Set {
        Set {
            kind,
            matrices,
            n_tokens,
            n_in: effort.pick(N_IN, QUICK_N_IN),
            effort,
        }
    }

    fn n_bytes(&self) -> usize {
        let bytes = |&(ty, n_out): &(GgmlType, usize)| Format::Ggml(ty).bytes(n_out * self.n_in);
        self.matrices.iter().map(bytes).sum()
    }

    /// An output per matrix, and one for the gate.
    fn outs(&self) -> Vec<Vec<f32>> {
        let mut widths: Vec<usize> = self.matrices.iter().map(|(_, n_out)| *n_out).collect();
        if self.kind == Kind::Gated {
            widths.push(widths[0]);
        }
        let outs = widths.into_iter();
        outs.map(|width| vec![0.0; self.n_tokens * width]).collect()
    }

    fn formats(&self) -> String {
        let names: Vec<&str> = self.matrices.iter().map(|(ty, _)| ty.name()).collect();
        names.join("+")
    }

    fn work(&self) -> Work {
        let parts = self.matrices.iter();
        let parts = parts.map(|&(ty, n_out)| work(ty, [self.n_tokens, n_out, self.n_in]));
        let sum = parts.fold(Work::default(), |a, b| Work {
            bytes: a.bytes + b.bytes,
            f32_ops: a.f32_ops + b.f32_ops,
            i8_ops: a.i8_ops + b.i8_ops,
            ..a
        });
        Work {
            tokens: self.n_tokens as u64,
            ..sum
        }
    }
}

fn case(set: Set, passes: Passes) -> Case {
    let kind = match set.kind {
        Kind::Products => "products",
        Kind::Gated => "gated",
    };
    let (formats, n_tokens) = (set.formats(), set.n_tokens);
    let name = format!("{kind}/{formats}/{n_tokens}x{}/{}", set.n_in, passes.name());
    let n_outs: Vec<String> = set.matrices.iter().map(|(_, n)| n.to_string()).collect();
    let shape = format!("{n_tokens}x({})x{}", n_outs.join("+"), set.n_in);
    Case::new(name, Some(&formats), shape, move |target| {
        let n = n_copies(set.n_bytes(), set.effort);
        target.check_memory((n * set.n_bytes()) as u64)?;
        let blocks = set.matrices.iter();
        let blocks = blocks.map(|&(ty, n_out)| Format::Ggml(ty).matrix(n_out, set.n_in));
        let blocks: Vec<Vec<u8>> = blocks.collect::<Result<_, _>>()?;
        Ok(match &target.on {
            Opened::Cpu(cpu) => on_cpu(cpu, set.clone(), passes, (blocks, n)),
            Opened::Gpu(gpu) => on_gpu(gpu, set.clone(), passes, (blocks, n))?,
        })
    })
}

fn on_cpu(
    cpu: &Cpu,
    set: Set,
    passes: Passes,
    (blocks, n_copies): (Vec<Vec<u8>>, usize),
) -> Prepared<'_> {
    let acts = cpu_acts(cpu, set.matrices[0].0, set.n_tokens, set.n_in);
    let mut outs = set.outs();
    let copies = vec![blocks; n_copies];
    let mut i = 0;
    Prepared::new(set.work(), move |n| {
        time_cpu(n, || {
            let blocks = &copies[i];
            i = (i + 1) % copies.len();
            let weights: Vec<rocmforge_plan::Weight<'_>> = set
                .matrices
                .iter()
                .zip(blocks)
                .map(|(&(ty, n_out), data)| rocmforge_plan::Weight {
                    ty,
                    n_out,
                    n_in: set.n_in,
                    data,
                })
                .collect();
            compute(cpu, (set.kind, passes), &weights, &acts, &mut outs);
        })
    })
}

/// Computes the products of `acts` with `weights` into `outs`; the gated result goes to the last.
fn compute(
    cpu: &Cpu,
    (kind, passes): (Kind, Passes),
    weights: &[rocmforge_plan::Weight<'_>],
    acts: &cpu::Acts,
    outs: &mut [Vec<f32>],
) {
    let mode = rocmforge_plan::OutMode::Store;
    match (kind, passes) {
        (Kind::Products, Passes::Merged) => {
            let products = weights.iter().zip(outs).map(|(&w, out)| cpu::Product {
                w,
                bias: None,
                mode,
                out,
            });
            cpu::matmul_all(cpu.isa, &cpu.pool, acts, products.collect());
        }
        (Kind::Gated, Passes::Merged) => {
            let gate = |i: usize| cpu::Gate {
                w: weights[i],
                bias: None,
            };
            let (sides, silu) = ([gate(0), gate(1)], rocmforge_plan::Activation::Silu);
            cpu::matmul_gated(cpu.isa, &cpu.pool, acts, sides, silu, &mut outs[2]);
        }
        (_, Passes::Separate) => {
            for (w, out) in weights.iter().zip(outs.iter_mut()) {
                let product = cpu::Product {
                    w: *w,
                    bias: None,
                    mode,
                    out,
                };
                cpu::matmul(cpu.isa, &cpu.pool, acts, product);
            }
            if kind == Kind::Gated {
                let (sides, out) = outs.split_at_mut(2);
                let silu = rocmforge_plan::Activation::Silu;
                cpu::gated_activation(cpu.isa, &cpu.pool, silu, &sides[0], &sides[1], &mut out[0]);
            }
        }
    }
}

fn on_gpu(
    gpu: &Gpu,
    set: Set,
    passes: Passes,
    (blocks, n_copies): (Vec<Vec<u8>>, usize),
) -> Result<Prepared<'_>, BenchError> {
    // Indexed by matrix, then by copy.
    let mut weights: Vec<Vec<Buffer>> = Vec::new();
    let mut outs: Vec<Buffer> = Vec::new();
    for (&(ty, n_out), data) in set.matrices.iter().zip(&blocks) {
        weights.push(upload(gpu, ty, [n_out, set.n_in], data, n_copies)?);
        outs.push(gpu.alloc::<f32>(set.n_tokens * n_out)?);
    }
    let acts = gpu_acts(gpu, set.matrices[0].0, set.n_tokens, set.n_in)?;
    let mut i = 0;
    Ok(Prepared::new(set.work(), move |n| {
        let x = acts.rows(set.n_tokens);
        time_gpu(gpu, n, || {
            let products: Vec<ops::Product<'_>> = set
                .matrices
                .iter()
                .zip(&weights)
                .zip(&outs)
                .map(|((&(ty, n_out), copies), out)| ops::Product {
                    matrix: Matrix {
                        ty,
                        n_out,
                        n_in: set.n_in,
                        order: RowOrder::Apart,
                        data: copies[i].as_slice(),
                    },
                    bias: None,
                    mode: OutMode::Store,
                    out: out.as_slice(),
                })
                .collect();
            i = (i + 1) % n_copies;
            launch(gpu, (set.kind, passes), &x, &products)
        })
    }))
}

/// Computes the products with `x`; a gated result goes to the first output.
fn launch(
    gpu: &Gpu,
    (kind, passes): (Kind, Passes),
    x: &rocmforge_gpu::Acts<'_>,
    products: &[ops::Product<'_>],
) -> Result<(), GpuError> {
    let out = products[0].out;
    match (kind, passes) {
        (Kind::Products, Passes::Merged) => ops::matvec(gpu, x, products),
        (Kind::Gated, Passes::Merged) => {
            let gated = ops::Gated {
                matrices: [products[0].matrix, products[1].matrix],
                biases: [None; 2],
                activation: Activation::Silu,
                out,
            };
            ops::matvec_gated(gpu, x, &gated)
        }
        (_, Passes::Separate) => {
            for product in products {
                ops::matvec(gpu, x, std::slice::from_ref(product))?;
            }
            match kind {
                Kind::Products => Ok(()),
                Kind::Gated => {
                    ops::gated_activation(gpu, Activation::Silu, out, products[1].out, out)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rocmforge_cpu::{Isa, Pool};

    use super::*;

    /// Merged and separate passes compute the same numbers, so only their times differ.
    #[test]
    fn merged_and_separate_passes_agree() {
        let cpu = Cpu {
            isa: Isa::detect(),
            pool: Pool::new(2),
        };
        let sets = SETS.map(|types| types.into_iter().zip(QUICK_N_OUTS).collect());
        let sets = sets.map(|matrices| Set::new(Kind::Products, matrices, 3, Effort::Quick));
        let gated = GATED.map(|ty| Set::new(Kind::Gated, vec![(ty, 64); 2], 3, Effort::Quick));
        for set in sets.into_iter().chain(gated) {
            let acts = cpu_acts(&cpu, set.matrices[0].0, set.n_tokens, set.n_in);
            let formats = set.matrices.iter();
            let blocks: Vec<Vec<u8>> = formats
                .map(|&(ty, n_out)| Format::Ggml(ty).matrix(n_out, set.n_in).unwrap())
                .collect();
            let weights: Vec<rocmforge_plan::Weight<'_>> = set
                .matrices
                .iter()
                .zip(&blocks)
                .map(|(&(ty, n_out), data)| rocmforge_plan::Weight {
                    ty,
                    n_out,
                    n_in: set.n_in,
                    data,
                })
                .collect();
            let [merged, separate] = Passes::BOTH.map(|passes| {
                let mut outs = set.outs();
                compute(&cpu, (set.kind, passes), &weights, &acts, &mut outs);
                match set.kind {
                    Kind::Products => outs,
                    Kind::Gated => outs.split_off(2),
                }
            });
            assert_eq!(merged, separate, "{}", set.formats());
            assert!(merged.iter().flatten().all(|x| *x != 0.0 && x.is_finite()));
        }
    }
}
