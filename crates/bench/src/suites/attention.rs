//! Measures attention over a whole sequence, computed in three ways:
//!
//! - `standard`: all scores in memory, softmax, weighted sum, with plain loops on one thread: the reference for
//!   online softmax. Not available on a GPU.
//! - `flash`: the same result from the backend's kernel, with online softmax and without a score matrix (Dao et al.
//!   2022). Its rows attend only to earlier positions, so here the queries are the heads of rows that are all at the
//!   end, 64 per KV head, as many as a tile of the CPU takes. A GPU runs its decode kernel.
//! - `causal`: the kernel as in prefill; row i attends to positions up to i.

mod gpu;
mod standard;

use rocmforge_cpu::{AttnInputs, AttnSeq, AttnShape, KvSlice, attention};
use rocmforge_plan::Mask;

use crate::case::{Case, On, Prepared, Work, time_cpu};
use crate::options::Effort;
use crate::target::{Cpu, Opened};
use crate::values::Random;

pub(super) use gpu::GpuStep;

/// Positions per page.
const PAGE: usize = 32;
/// Queries per KV head in `flash`.
const GROUP: usize = 64;

/// Sequence length, number of heads (queries, keys and values alike), and head size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    n: usize,
    n_heads: usize,
    dim: usize,
}

const fn shape(n: usize, n_heads: usize, dim: usize) -> Shape {
    Shape { n, n_heads, dim }
}

/// The specified shapes for the CPU, then those for GPUs; every device runs all of them.
const SHAPES: [Shape; 9] = [
    shape(32, 1, 32),
    shape(64, 1, 64),
    shape(128, 1, 128),
    shape(256, 1, 256),
    shape(512, 1, 512),
    shape(128, 4, 32),
    shape(256, 8, 32),
    shape(512, 8, 64),
    shape(1024, 16, 64),
];
const QUICK_SHAPES: [Shape; 3] = [shape(32, 1, 32), shape(64, 1, 64), shape(32, 2, 64)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Standard,
    Flash,
    Causal,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Standard => "standard",
            Kind::Flash => "flash",
            Kind::Causal => "causal",
        }
    }
}

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let shapes = effort.pick(&SHAPES[..], &QUICK_SHAPES[..]).iter();
    let kinds = [Kind::Standard, Kind::Flash, Kind::Causal];
    shapes
        .flat_map(|&shape| kinds.map(|kind| case(kind, shape)))
        .collect()
}

fn case(kind: Kind, shape: Shape) -> Case {
    let Shape { n, n_heads, dim } = shape;
    let shown = format!("{n}x{n_heads}x{dim}");
    let (name, format) = (format!("{}/{shown}", kind.name()), kind.format());
    let case = Case::new(name, Some(format), shown, move |target| {
        let data = Data::new(shape);
        Ok(match (&target.on, kind) {
            (Opened::Cpu(_), Kind::Standard) => on_paper(shape, data),
            (Opened::Cpu(cpu), _) => on_cpu(cpu, kind, shape, data),
            (Opened::Gpu(gpu), _) => gpu::prepare(gpu, kind, shape, data)?,
        })
    });
    Case {
        on: match kind {
            Kind::Standard => On::Cpu,
            Kind::Flash | Kind::Causal => On::All,
        },
        ..case
    }
}

impl Kind {
    /// Number of KV heads.
    fn format(self) -> &'static str {
        match self {
            Kind::Standard => "F32",
            Kind::Flash | Kind::Causal => "F16",
        }
    }
}

impl Shape {
    fn len(&self) -> usize {
        self.n * self.n_heads * self.dim
    }

    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    fn work(&self, kind: Kind) -> Work {
        let pairs = match kind {
            Kind::Standard | Kind::Flash => self.n * self.n,
            Kind::Causal => self.n * (self.n + 1) / 2,
        };
        let cache_bytes = match kind {
            Kind::Standard => size_of::<f32>(),
            Kind::Flash | Kind::Causal => size_of::<u16>(),
        };
        // Queries, outputs, keys and values are each read or written once.
        let bytes = self.len() * (2 * size_of::<f32>() + 2 * cache_bytes);
        Work {
            bytes: bytes as u64,
            // A product with a key and one with a value per pair.
            f32_ops: (4 * self.n_heads * self.dim * pairs) as u64,
            tokens: self.n as u64,
            ..Work::default()
        }
    }
}

/// Queries as f32, keys and values as f16 bits, `[n_heads, n, dim]`.
struct Data {
    q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
}

impl Data {
    fn new(shape: Shape) -> Data {
        let mut random = Random(3);
        Data {
            q: random.floats(shape.len()),
            k: random.halves(shape.len()),
            v: random.halves(shape.len()),
        }
    }
}

fn to_f32(x: &[u16]) -> Vec<f32> {
    x.iter()
        .map(|&x| half::f16::from_bits(x).to_f32())
        .collect()
}

fn on_paper<'t>(shape: Shape, data: Data) -> Prepared<'t> {
    let (k, v) = (to_f32(&data.k), to_f32(&data.v));
    let mut scores = vec![0.0; shape.n * shape.n];
    let mut out = vec![0.0; shape.len()];
    Prepared::new(shape.work(Kind::Standard), move |n| {
        time_cpu(n, || {
            standard::attend(&shape, &data.q, &k, &v, &mut scores, &mut out)
        })
    })
    .note("reference: all scores in memory, plain loops, one thread")
    .metric("score_bytes", (shape.n * shape.n * size_of::<f32>()) as f64)
}

/// How a whole sequence is laid out for a kernel: its rows, and which part of `[n_heads, n, dim]` each head is.
struct Layout {
    n_rows: usize,
    /// Query heads per KV head.
    group: usize,
    n_heads: usize,
}

impl Layout {
    fn new(kind: Kind, shape: &Shape) -> Layout {
        let group = match kind {
            Kind::Flash => GROUP.min(shape.n),
            Kind::Standard | Kind::Causal => 1,
        };
        Layout {
            n_rows: shape.n / group,
            group,
            n_heads: group * shape.n_heads,
        }
    }

    /// Rearranges `x` `[n_heads, n, dim]` to rows `[n_rows, n_heads * group, dim]`: query `row * group + i` of a head
    /// becomes head i of its group in the row.
    fn rows(&self, shape: &Shape, x: &[f32]) -> Vec<f32> {
        let mut rows = Vec::with_capacity(x.len());
        for row in 0..self.n_rows {
            for head in 0..shape.n_heads {
                let from = (head * shape.n + row * self.group) * shape.dim;
                rows.extend(&x[from..from + self.group * shape.dim]);
            }
        }
        rows
    }

    /// The sequences of the rows: first row, number of rows, position of the first.
    fn seqs(&self, kind: Kind, shape: &Shape) -> Vec<[usize; 3]> {
        match kind {
            Kind::Flash => (0..self.n_rows).map(|row| [row, 1, shape.n - 1]).collect(),
            Kind::Standard | Kind::Causal => vec![[0, self.n_rows, 0]],
        }
    }
}

/// Rearranges keys or values `[n_heads, n, dim]` to pages `[n_pages, n_heads, PAGE, dim]`.
fn paged(shape: &Shape, x: &[u16]) -> Vec<u16> {
    let mut pages = Vec::with_capacity(x.len());
    for page in 0..shape.n / PAGE {
        for head in 0..shape.n_heads {
            let from = (head * shape.n + page * PAGE) * shape.dim;
            pages.extend(&x[from..from + PAGE * shape.dim]);
        }
    }
    pages
}

/// The shape of attention that the CPU kernel computes.
fn cpu_shape(layout: &Layout, shape: &Shape) -> AttnShape {
    AttnShape {
        n_heads: layout.n_heads,
        n_kv_heads: shape.n_heads,
        k_dim: shape.dim,
        v_dim: shape.dim,
        k_hadamard: 1,
        v_hadamard: 1,
        page: PAGE,
        scale: shape.scale(),
        soft_cap: None,
        growth: None,
        alibi: None,
        mask: Mask::All,
    }
}

fn on_cpu(cpu: &Cpu, kind: Kind, shape: Shape, data: Data) -> Prepared<'_> {
    let layout = Layout::new(kind, &shape);
    let attn = cpu_shape(&layout, &shape);
    let q = layout.rows(&shape, &data.q);
    let (k, v) = (paged(&shape, &data.k), paged(&shape, &data.v));
    let table: Vec<u32> = (0..(shape.n / PAGE) as u32).collect();
    let spans = layout.seqs(kind, &shape);
    let mut out = vec![0.0; shape.len()];
    Prepared::new(shape.work(kind), move |n| {
        let seqs: Vec<AttnSeq<'_>> = spans
            .iter()
            .map(|&[first_row, n_rows, first_pos]| AttnSeq {
                first_row,
                n_rows,
                first_pos,
                block_table: &table,
            })
            .collect();
        time_cpu(n, || {
            let inputs = AttnInputs {
                q: &q,
                k: KvSlice::F16(&k),
                v: Some(KvSlice::F16(&v)),
                sinks: None,
            };
            attention(cpu.isa, &cpu.pool, &attn, inputs, &seqs, &mut out);
        })
    })
}

#[cfg(test)]
mod tests {
    use rocmforge_cpu::{Isa, Pool};

    use super::*;

    /// The kernel's layout computes what the reference computes.
    #[test]
    fn kernel_matches_the_reference() {
        let shape = shape(64, 2, 32);
        let data = Data::new(shape);
        let (k, v) = (to_f32(&data.k), to_f32(&data.v));
        for kind in [Kind::Flash, Kind::Causal] {
            let layout = Layout::new(kind, &shape);
            let attn = cpu_shape(&layout, &shape);
            let spans = layout.seqs(kind, &shape);
            let seqs = spans.iter().map(|&[first_row, n_rows, first_pos]| AttnSeq {
                first_row,
                n_rows,
                first_pos,
                block_table: &[0, 1],
            });
            let mut out = vec![0.0; shape.len()];
            attention(
                Isa::detect(),
                &Pool::new(2),
                &attn,
                AttnInputs {
                    q: &layout.rows(&shape, &data.q),
                    k: KvSlice::F16(&paged(&shape, &data.k)),
                    v: Some(KvSlice::F16(&paged(&shape, &data.v))),
                    sinks: None,
                },
                &seqs.collect::<Vec<_>>(),
                &mut out,
            );
            let mut expected = vec![0.0; shape.len()];
            let mut scores = vec![0.0; shape.n * shape.n];
            match kind {
                Kind::Causal => {
                    for last in 0..shape.n {
                        // The sequence of this row ends with it.
                        let (len, row) = (last + 1, last);
                        let part = Shape { n: len, ..shape };
                        let cut = |x: &[f32]| -> Vec<f32> {
                            let heads = x.chunks(shape.n * shape.dim);
                            heads
                                .flat_map(|head| head[..len * shape.dim].to_vec())
                                .collect()
                        };
                        let mut out = vec![0.0; part.len()];
                        standard::attend(
                            &part,
                            &cut(&data.q),
                            &cut(&k),
                            &cut(&v),
                            &mut scores[..len * len],
                            &mut out,
                        );
                        for head in 0..shape.n_heads {
                            let from = (head * len + row) * shape.dim;
                            let to = (head * shape.n + row) * shape.dim;
                            expected[to..to + shape.dim]
                                .copy_from_slice(&out[from..from + shape.dim]);
                        }
                    }
                }
                _ => standard::attend(&shape, &data.q, &k, &v, &mut scores, &mut expected),
            }
            for (got, expected) in out.iter().zip(layout.rows(&shape, &expected)) {
                assert!((got - expected).abs() < 1e-5, "{kind:?}: {got} {expected}");
            }
        }
    }

    #[test]
    fn counts_two_products_per_pair() {
        let shape = shape(4, 2, 8);
        assert_eq!(shape.work(Kind::Flash).f32_ops, 16 * 2 * (2 * 8 + 2 * 8));
        assert_eq!(shape.work(Kind::Causal).f32_ops, 10 * 2 * (2 * 8 + 2 * 8));
        assert_eq!(shape.work(Kind::Standard).bytes, 4 * 4 * 4 * 2 * 8);
    }
}
