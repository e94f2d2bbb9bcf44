//! Measures how much the memories of two backends differ: the largest error of any value, absolute and relative to the
//! magnitude of its row.
//!
//! A row's magnitude is that of its largest value. In a GEMM with only a few values per row, the terms of all of them
//! may cancel; there the magnitude is at least that of the sum with terms of random sign.

use std::borrow::Cow;

use rocmforge_cpu::{Acts, Routing, get_rows};

use super::super::cpu::ActsBuffer;
use super::{Labels, Memory, Part};
use rocmforge_plan::{BufferId, Op, Plan};

/// Values per row from which cancellation in all of them is ruled out.
const WIDE: usize = 16;

/// The largest error of a set of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Difference {
    pub(crate) abs: f64,
    /// Relative to the magnitude of the row.
    pub(crate) rel: f64,
}

impl Difference {
    const NONE: Difference = Difference { abs: 0.0, rel: 0.0 };
    const INFINITE: Difference = Difference {
        abs: f64::INFINITY,
        rel: f64::INFINITY,
    };

    fn max(self, other: Difference) -> Difference {
        Difference {
            abs: self.abs.max(other.abs),
            rel: self.rel.max(other.rel),
        }
    }
}

/// The minimum magnitude of each row of a buffer.
pub(crate) struct Floors {
    out: BufferId,
    by_row: Vec<f64>,
}

impl Labels<'_> {
    /// Returns the floors of the outputs of `op` if it is a GEMM with few values per row.
    pub(crate) fn floors(&self, op: &Op, memory: &Memory<'_>) -> Vec<Floors> {
        let (x, products) = match *op {
            Op::MatMul { x, weight, out, .. } => (x, vec![(weight, out)]),
            Op::MatMuls { x, ref products } => {
                let products = products.iter();
                (x, products.map(|&(w, out)| (w.weight, out)).collect())
            }
            _ => return vec![],
        };
        let ActsBuffer::Rows(acts) = &memory.acts[x.0 as usize] else {
            return vec![];
        };
        let products = products
            .into_iter()
            .map(|(weight, out)| (self.weights.matrix(weight), out))
            .filter(|(matrix, _)| matrix.n_out < WIDE);
        products
            .map(|(matrix, out)| {
                let ids: Vec<u32> = (0..matrix.n_out as u32).collect();
                let mut weights = vec![0.0; matrix.n_out * matrix.n_in];
                get_rows(&matrix, &ids, &mut weights);
                let by_row = term_norms(&values(acts).values, &weights, matrix.n_in);
                Floors { out, by_row }
            })
            .collect()
    }
}

/// Returns for each row of `x` the magnitude of its dot product with a row of `weights` if the terms had random signs:
/// the root of the sum of their squares, at its largest over the rows of `weights`. Rows have `n_in` values.
pub(crate) fn term_norms(x: &[f32], weights: &[f32], n_in: usize) -> Vec<f64> {
    let norm = |x: &[f32], w: &[f32]| {
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        terms.map(|term| term * term).sum::<f64>().sqrt()
    };
    x.chunks_exact(n_in)
        .map(|x| {
            let norms = weights.chunks_exact(n_in).map(|w| norm(x, w));
            norms.fold(0.0, f64::max)
        })
        .collect()
}

/// Returns the largest difference in any buffer, activation, routing or KV cache.
pub(crate) fn difference(
    got: &Memory<'_>,
    expected: &Memory<'_>,
    plan: &Plan,
    floors: &[Floors],
) -> Difference {
    let mut largest = Difference::NONE;
    let buffers = got.buffers.iter().zip(expected.buffers.iter());
    for (id, ((got, expected), info)) in buffers.zip(&plan.buffers).enumerate() {
        let floors = floors.iter().find(|floors| floors.out.0 as usize == id);
        let floors = floors.map_or(&[][..], |floors| &floors.by_row);
        largest = largest.max(compare_rows(got, expected, info.width, floors));
    }
    for (got, expected) in got.acts.iter().zip(expected.acts.iter()) {
        for (got, expected) in got.groups().iter().zip(expected.groups()) {
            let (got, expected) = (values(got), values(expected));
            largest = largest.max(compare_rows(
                &got.values,
                &expected.values,
                expected.width,
                &[],
            ));
        }
    }
    for (got, expected) in got.routings.iter().zip(expected.routings.iter()) {
        largest = largest.max(compare_routing(got, expected));
    }
    for (got, expected) in got.cache.iter().zip(expected.cache.iter()) {
        if got.is_same(expected) {
            continue;
        }
        for (got, expected) in got.parts().iter().zip(&expected.parts()) {
            largest = largest.max(compare_rows(
                &got.values,
                &expected.values,
                expected.width,
                &[],
            ));
        }
    }
    for (got, expected) in got.states.iter().zip(expected.states.iter()) {
        largest = largest.max(compare_rows(got, expected, expected.len(), &[]));
    }
    largest
}

/// Compares expert routings. Both sides route by the same logits, so only weights may differ.
fn compare_routing(got: &Routing, expected: &Routing) -> Difference {
    let choices = |routing: &Routing| {
        let tokens = 0..routing.n_tokens();
        let choices = tokens.flat_map(|token| routing.choices(token).to_vec());
        let choices = choices.map(|choice| ((choice.expert, choice.row), choice.weight));
        choices.unzip::<_, _, Vec<(u32, u32)>, Vec<f32>>()
    };
    let ((got_rows, got_weights), (rows, weights)) = (choices(got), choices(expected));
    if got_rows != rows {
        return Difference::INFINITE;
    }
    let n_used = rows.len() / expected.n_tokens().max(1);
    compare_rows(&got_weights, &weights, n_used, &[])
}

/// Dequantizes activations.
fn values(acts: &Acts) -> Part<'static> {
    let width = acts.n_in();
    let mut values = vec![0.0; acts.n_tokens() * width];
    if width > 0 {
        for (token, row) in values.chunks_exact_mut(width).enumerate() {
            acts.dequantize_row(token, row);
        }
    }
    Part {
        values: Cow::Owned(values),
        width,
    }
}

/// Returns the largest difference of two matrices with rows of `width`. `floors` are minimum magnitudes of the first
/// rows; it may be shorter than the matrices.
pub(crate) fn compare_rows(
    got: &[f32],
    expected: &[f32],
    width: usize,
    floors: &[f64],
) -> Difference {
    if got.len() != expected.len() {
        return Difference::INFINITE;
    }
    if got.is_empty() {
        return Difference::NONE;
    }
    let floors = floors.iter().copied().chain(std::iter::repeat(0.0));
    let rows = got.chunks(width).zip(expected.chunks(width)).zip(floors);
    rows.fold(Difference::NONE, |largest, ((got, expected), floor)| {
        largest.max(compare_row(got, expected, floor))
    })
}

fn compare_row(got: &[f32], expected: &[f32], floor: f64) -> Difference {
    let mut abs = 0f64;
    let mut scale = floor.max(f64::from(f32::MIN_POSITIVE));
    for (&got, &expected) in got.iter().zip(expected) {
        let same = got == expected || (got.is_nan() && expected.is_nan());
        let difference = f64::from(got) - f64::from(expected);
        abs = abs.max(match same {
            true => 0.0,
            false if difference.is_nan() => f64::INFINITY,
            false => difference.abs(),
        });
        if expected.is_finite() {
            scale = scale.max(f64::from(expected.abs()));
        }
    }
    Difference {
        abs,
        rel: abs / scale,
    }
}
