//! Gathers an importance matrix: runs a model over the windows of a text, as perplexity does, and sums the squares
//! of what goes into its matrix products.
//!
//! The sums are taken where activations are converted for products (`Op::Quantize`), so that products of the same
//! activations share the work. Projections that are rows of one tensor count once. Experts have separate sums, over
//! the tokens routed to them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use rocmforge_cpu::{Pool, Routing};
use rocmforge_engine::Engine;
use rocmforge_gguf::TokenId;
use rocmforge_model::Model;
use rocmforge_plan::{
    ActsId, Batch, ExpertVectors, Fusion, Op, RoutingId, RowsOf, WeightId, Weights,
};
use rocmforge_quantize::imatrix::{Entry, Imatrix, ImatrixError};
use rocmforge_runtime::{OpData, OpObserver};

use crate::error::GatherError;
use crate::perplexity::{Perplexity, perplexity};

/// Runs the windows of a text and returns the sums of squares of the inputs of all matrices in layers.
///
/// `engine` must run `model` without prefix sharing: tokens taken from its cache would be missed. `bos` and the
/// callback of `chunks` are those of [`perplexity`], whose result is returned as well.
///
/// # Errors
/// As [`perplexity`], and if activations are not finite.
///
/// # Panics
/// If the engine fuses operations, because some inputs of products are then in no buffer.
pub fn gather(
    engine: &mut Engine,
    model: &Model,
    tokens: &[TokenId],
    bos: Option<TokenId>,
    n_ctx: usize,
    chunks: Chunks<'_>,
) -> Result<(Imatrix, Perplexity), GatherError> {
    assert_eq!(engine.fusion(), Fusion::Off, "values are in buffers");
    let sums = Arc::new(Mutex::new(BTreeMap::new()));
    engine.observe(Some(Box::new(Collector::new(model, Arc::clone(&sums)))));
    let result = perplexity(engine, tokens, bos, n_ctx, chunks.max, chunks.on_chunk);
    engine.observe(None);
    let result = result?;
    let sums = sums.lock().expect("the observer does not panic").clone();
    let entries = sums
        .into_iter()
        .map(|(name, sum): (String, Sum)| Ok((name.clone(), sum.entry(name)?)));
    let imatrix = Imatrix {
        datasets: Vec::new(),
        n_chunks: u32::try_from(result.chunks).unwrap_or(u32::MAX),
        chunk_size: u32::try_from(n_ctx).unwrap_or(u32::MAX),
        entries: entries.collect::<Result<_, ImatrixError>>()?,
    };
    Ok((imatrix, result))
}

/// The number of windows to run, and a callback after each.
pub struct Chunks<'a> {
    /// Maximum number of windows; `None` means the whole text.
    pub max: Option<usize>,
    pub on_chunk: &'a mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
}

/// Sums over the rows of some activations, separate for each matrix that reads them.
#[derive(Debug, Clone, Default)]
struct Sum {
    /// Sums of squares, `[n_matrices, width]`.
    squares: Vec<f64>,
    /// Row counts, `[n_matrices]`.
    n_rows: Vec<u64>,
}

impl Sum {
    fn new(n_matrices: usize, width: usize) -> Sum {
        Sum {
            squares: vec![0.0; n_matrices * width],
            n_rows: vec![0; n_matrices],
        }
    }

    fn add_row(&mut self, matrix: usize, row: &[f32]) {
        let squares = &mut self.squares[matrix * row.len()..][..row.len()];
        for (total, &x) in squares.iter_mut().zip(row) {
            *total += f64::from(x) * f64::from(x);
        }
        self.n_rows[matrix] += 1;
    }

    fn add(&mut self, other: &Sum) {
        self.squares.resize(other.squares.len(), 0.0);
        for (total, x) in self.squares.iter_mut().zip(&other.squares) {
            *total += x;
        }
        self.n_rows.resize(other.n_rows.len(), 0);
        for (total, n) in self.n_rows.iter_mut().zip(&other.n_rows) {
            *total += n;
        }
    }

    fn entry(self, name: String) -> Result<Entry, ImatrixError> {
        let sums: Vec<f32> = self.squares.iter().map(|&sum| sum as f32).collect();
        if !sums.iter().all(|sum| sum.is_finite()) {
            return Err(ImatrixError::NotFinite { name });
        }
        Ok(Entry {
            sums,
            counts: self.n_rows,
        })
    }
}

/// An observer of the products with matrices in layers.
struct Collector {
    /// The tensors to gather for, each at the first product that reads it.
    tensors: HashMap<WeightId, String>,
    /// The activations that these products read.
    wanted: HashSet<ActsId>,
    widths: Vec<usize>,
    buffer_widths: Vec<usize>,
    /// The experts chosen for this step's tokens, and the number of experts.
    routings: HashMap<RoutingId, (Routing, usize)>,
    /// Holds the biases of routers.
    weights: Arc<Weights>,
    /// Runs the router. One thread, since it is little work.
    pool: Pool,
    /// The sums of this step's activations.
    acts: HashMap<ActsId, Sum>,
    sums: Arc<Mutex<BTreeMap<String, Sum>>>,
}

impl Collector {
    fn new(model: &Model, sums: Arc<Mutex<BTreeMap<String, Sum>>>) -> Collector {
        let mut tensors = HashMap::new();
        let mut wanted = HashSet::new();
        let mut names = HashSet::new();
        for op in &model.plan.ops {
            let (Op::MatMul { x, weight, .. } | Op::ExpertMatMul { x, weight, .. }) = op else {
                continue;
            };
            match model.weights.tensor_name(*weight) {
                Some(name) if name.starts_with("blk.") && names.insert(name) => {
                    tensors.insert(*weight, name.to_string());
                    wanted.insert(*x);
                }
                _ => {}
            }
        }
        Collector {
            tensors,
            wanted,
            widths: model.plan.acts.iter().map(|info| info.width).collect(),
            buffer_widths: model.plan.buffers.iter().map(|info| info.width).collect(),
            routings: HashMap::new(),
            weights: model.weights.clone(),
            pool: Pool::new(1),
            acts: HashMap::new(),
            sums,
        }
    }
}

impl Collector {
    /// Returns the sums of the rows of `values` per expert that reads them.
    fn expert_sum(&self, routing: RoutingId, rows_of: RowsOf, values: &[f32], width: usize) -> Sum {
        let (routing, n_experts) = &self.routings[&routing];
        let mut sum = Sum::new(*n_experts, width);
        for token in 0..routing.n_tokens() {
            for choice in routing.choices(token) {
                let (row, weight) = match rows_of {
                    RowsOf::Tokens => (token, 1.0),
                    RowsOf::WeighedTokens => (token, choice.weight),
                    RowsOf::Choices => (choice.row as usize, 1.0),
                };
                let row = values[row * width..][..width].iter();
                let row: Vec<f32> = row.map(|value| value * weight).collect();
                sum.add_row(choice.expert as usize, &row);
            }
        }
        sum
    }
}

impl OpObserver for Collector {
    fn before(&mut self, _index: usize, op: &Op, _batch: &Batch, data: &dyn OpData) {
        match op {
            Op::Quantize { x, out } if self.wanted.contains(out) => {
                let width = self.widths[out.0 as usize];
                let mut sum = Sum::new(1, width);
                for row in data.buffer(*x).chunks_exact(width) {
                    sum.add_row(0, row);
                }
                self.acts.insert(*out, sum);
            }
            Op::Route {
                logits,
                bias,
                scales,
                router,
                out,
                ..
            } => {
                let n_experts = self.buffer_widths[logits.0 as usize];
                let vectors = ExpertVectors {
                    bias: *bias,
                    scales: *scales,
                };
                let vectors = vectors.map(|id| self.weights.vector(id));
                let (routing, n) = self.routings.entry(*out).or_default();
                *n = n_experts;
                routing.route(
                    &self.pool,
                    // Plans whose operations are not fused have no shared choices.
                    (router, None),
                    &data.buffer(*logits),
                    (n_experts, vectors),
                );
            }
            Op::QuantizeExperts {
                x,
                rows_of,
                routing,
                out,
            } if self.wanted.contains(out) => {
                let width = self.widths[out.0 as usize];
                let sum = self.expert_sum(*routing, *rows_of, &data.buffer(*x), width);
                self.acts.insert(*out, sum);
            }
            // The parts of a tensor are multiplied with the same inputs, which count once.
            Op::ExpertMatMul { stack, .. } if stack.part > 0 => {}
            Op::MatMul { x, weight, .. } | Op::ExpertMatMul { x, weight, .. } => {
                if let (Some(name), Some(sum)) = (self.tensors.get(weight), self.acts.get(x)) {
                    let mut sums = self.sums.lock().expect("nobody panics with the lock");
                    sums.entry(name.clone()).or_default().add(sum);
                }
            }
            _ => {}
        }
    }

    fn after(&mut self, _index: usize, _op: &Op, _batch: &Batch, _data: &dyn OpData) {}
}
