//! LoRA adapters (Hu et al. 2021) in GGUF, as llama.cpp's converter writes them: for a matrix `W` of the model,
//! two thin matrices `NAME.lora_a` and `NAME.lora_b`, and the product becomes
//! `y = W x + scale * alpha / rank * B (A x)`.
//!
//! The plan gets two small products beside each one that an adapter changes (`Recorder::add_low_rank`). The
//! model's weights stay as they are in the file, several adapters add up, and slices of fused projections
//! use their own rows of `B`. The factor is multiplied into `A` at load. Both are kept in F32: they are small,
//! and F32 products do not round activations.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, TensorInfo, quant, shown};
use rocmforge_plan::{ActFormat, Projection, Recorder, Value, WeightId};

use crate::error::LoadError;
use crate::weights::WeightLoader;

/// Ranks up to this are accepted for any matrix: trainers use one rank for all, and routers have few rows.
const SMALL_RANK: u64 = 256;

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("not an adapter (general.type is {found}); use a LoRA adapter in GGUF")]
    NotAnAdapter { found: String },
    #[error("not a model; open the model it was made for, and add this file as an adapter")]
    NotAModel,
    #[error("adapters of type `{kind}` are not supported, only `lora`")]
    Kind { kind: String },
    #[error("it is activated by certain tokens (aLoRA), which is not supported")]
    Invocation,
    #[error(
        "it is for `{adapter}` models, and this model is `{model}`; use the model it was made for"
    )]
    Architecture { adapter: String, model: String },
    #[error("{name} is {value}, expected a finite number")]
    Number { name: &'static str, value: f32 },
    #[error("it has no tensors; the file is incomplete")]
    Empty,
    #[error(
        "tensor `{name}` is neither .lora_a nor .lora_b; ignoring it could give wrong text, so the adapter is not loaded"
    )]
    UnknownTensor { name: String },
    #[error("`{tensor}` has {present} but no {missing}; the file is incomplete")]
    Pair {
        tensor: String,
        present: &'static str,
        missing: &'static str,
    },
    #[error("it changes `{tensor}`, a tensor of experts, which is not supported")]
    Experts { tensor: String },
    #[error("it changes `{tensor}`, which the model does not have; use the model it was made for")]
    NoSuchTensor { tensor: String },
    #[error("it changes `{tensor}`, which is not a matrix that adapters can change")]
    NotAMatrix { tensor: String },
    #[error("tensor `{name}` has type {ty}, which is not supported; convert the adapter to F16")]
    TensorType { name: String, ty: &'static str },
    #[error(
        "the factors of `{tensor}` have shapes {a:?} and {b:?}, whose product is not {expected:?}; use the model the adapter was made for"
    )]
    Shape {
        tensor: String,
        a: [u64; 2],
        b: [u64; 2],
        expected: [u64; 2],
    },
    #[error(
        "the factors of `{tensor}` have rank {rank}, which is above the limit of {most} for a matrix of its size; the file is damaged"
    )]
    Rank {
        tensor: String,
        rank: u64,
        most: u64,
    },
    #[error(
        "tensor `{name}` times the scale has values that are not finite; the file is damaged or the scale too large"
    )]
    Values { name: String },
}

/// A LoRA adapter file and its scale. Whatever can be checked without the model has been checked.
#[derive(Debug, Clone)]
pub struct Adapter {
    name: String,
    gguf: Arc<Gguf>,
    arch: String,
    scale: f64,
    /// 0 if the file does not give it; the factor is then `scale`.
    alpha: f64,
    pairs: Vec<Pair>,
}

/// The two factors of one tensor of the model.
#[derive(Debug, Clone)]
struct Pair {
    tensor: String,
    /// Indices of the factors among the adapter's tensors.
    a: usize,
    b: usize,
}

impl Adapter {
    /// Reads the header of an adapter. Errors refer to it by `name`. `scale` multiplies everything the adapter adds;
    /// 1 is as trained.
    pub fn new(name: &str, gguf: Arc<Gguf>, scale: f32) -> Result<Adapter, LoadError> {
        let name = shown(name);
        Adapter::read(&name, gguf, scale).map_err(|error| LoadError::Adapter { name, error })
    }

    fn read(name: &str, gguf: Arc<Gguf>, scale: f32) -> Result<Adapter, AdapterError> {
        let facts = gguf.metadata();
        let printable = |value: &str| shown(value);
        match facts.opt_str("general.type")? {
            Some("adapter") => {}
            other => {
                let found = other.map_or("missing".to_string(), |kind| {
                    format!("`{}`", printable(kind))
                });
                return Err(AdapterError::NotAnAdapter { found });
            }
        }
        let kind = facts.str("adapter.type")?;
        if kind != "lora" {
            let kind = printable(kind);
            return Err(AdapterError::Kind { kind });
        }
        if facts.get("adapter.alora.invocation_tokens").is_some() {
            return Err(AdapterError::Invocation);
        }
        let alpha = facts.opt_f32("adapter.lora.alpha")?.unwrap_or(0.0);
        for (name, value) in [("the scale", scale), ("adapter.lora.alpha", alpha)] {
            if !value.is_finite() {
                return Err(AdapterError::Number { name, value });
            }
        }
        Ok(Adapter {
            name: name.to_string(),
            arch: facts.str("general.architecture")?.to_string(),
            pairs: pairs(&gguf)?,
            gguf,
            scale: f64::from(scale),
            alpha: f64::from(alpha),
        })
    }

    /// Returns the factor on `B (A x)` for a given rank.
    fn factor(&self, rank: u64) -> f64 {
        match self.alpha {
            0.0 => self.scale,
            alpha => self.scale * alpha / rank as f64,
        }
    }

    /// Returns some rows of one of the adapter's tensors, times `factor`.
    fn values(
        &self,
        tensor: usize,
        rows: Range<u64>,
        factor: f64,
    ) -> Result<Vec<f32>, AdapterError> {
        let info = &self.gguf.tensors()[tensor];
        if !info.ty.can_dequantize() {
            return Err(AdapterError::TensorType {
                name: info.name.clone(),
                ty: info.ty.name(),
            });
        }
        let row_bytes = info.n_bytes / info.n_rows();
        let bytes = (rows.start * row_bytes) as usize..(rows.end * row_bytes) as usize;
        let mut values = vec![0.0; ((rows.end - rows.start) * info.row_len()) as usize];
        quant::dequantize(info.ty, &self.gguf.tensor_data(info)[bytes], &mut values)?;
        for value in &mut values {
            *value = (f64::from(*value) * factor) as f32;
        }
        if values.iter().all(|value| value.is_finite()) {
            return Ok(values);
        }
        Err(AdapterError::Values {
            name: info.name.clone(),
        })
    }

    fn failed(&self, error: AdapterError) -> LoadError {
        LoadError::Adapter {
            name: self.name.clone(),
            error,
        }
    }
}

/// Pairs up the tensors of an adapter.
fn pairs(gguf: &Gguf) -> Result<Vec<Pair>, AdapterError> {
    let mut halves: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    for (index, info) in gguf.tensors().iter().enumerate() {
        let (tensor, half) = match info.name.rsplit_once('.') {
            Some((tensor, "lora_a")) => (tensor, 0),
            Some((tensor, "lora_b")) => (tensor, 1),
            _ => {
                return Err(AdapterError::UnknownTensor {
                    name: shown(&info.name),
                });
            }
        };
        if info.dims.iter().skip(2).any(|&dim| dim != 1) {
            return Err(AdapterError::Experts {
                tensor: shown(tensor),
            });
        }
        halves.entry(tensor).or_default()[half] = Some(index);
    }
    if halves.is_empty() {
        return Err(AdapterError::Empty);
    }
    let pair = |(tensor, halves): (&str, [Option<usize>; 2])| {
        let tensor = shown(tensor);
        let (present, missing) = match halves {
            [Some(a), Some(b)] => return Ok(Pair { tensor, a, b }),
            [Some(_), None] => (".lora_a", ".lora_b"),
            _ => (".lora_b", ".lora_a"),
        };
        Err(AdapterError::Pair {
            tensor,
            present,
            missing,
        })
    };
    halves.into_iter().map(pair).collect()
}

/// Returns an error if the file is an adapter instead of a model.
pub(crate) fn refuse_adapter(gguf: &Gguf) -> Result<(), LoadError> {
    match gguf.metadata().opt_str("general.type") {
        Ok(Some("adapter")) => Err(LoadError::Adapter {
            name: "given as the model".to_string(),
            error: AdapterError::NotAModel,
        }),
        _ => Ok(()),
    }
}

/// A product of the plan, with all rows of a tensor or some of them.
pub(crate) struct Product<'a> {
    pub(crate) tensor: &'a TensorInfo,
    /// The tensor's rows that the product uses.
    pub(crate) rows: Range<usize>,
    pub(crate) from: Value,
    pub(crate) out: Value,
}

/// Applies adapters to the products of a plan, and tracks which of their pairs have been used.
pub(crate) struct Adapters<'a> {
    list: &'a [Adapter],
    /// For each pair of each adapter, the id of its `A` once a product has used it.
    used: Vec<Vec<Option<WeightId>>>,
}

impl<'a> Adapters<'a> {
    /// Creates the state for a model of the architecture `arch`.
    pub(crate) fn new(list: &'a [Adapter], arch: &str) -> Result<Adapters<'a>, LoadError> {
        if let Some(other) = list.iter().find(|adapter| adapter.arch != arch) {
            return Err(other.failed(AdapterError::Architecture {
                adapter: shown(&other.arch),
                model: arch.to_string(),
            }));
        }
        Ok(Adapters {
            list,
            used: list.iter().map(|it| vec![None; it.pairs.len()]).collect(),
        })
    }

    /// Adds the adapters' terms to `product`, which has just been recorded.
    pub(crate) fn add(
        &mut self,
        product: &Product<'_>,
        plan: &mut Recorder,
        loader: &mut WeightLoader<'_>,
    ) -> Result<(), LoadError> {
        let expected = matrix_dims(product.tensor);
        for (i, adapter) in self.list.iter().enumerate() {
            let Some(j) = adapter.pair_of(product.tensor) else {
                continue;
            };
            let [a, b] = adapter.factors(j, expected, |[a0, a1], [b0, b1]| [a0, b1, a1, b0])?;
            let rank = b[0];
            let first = match self.used[i][j] {
                Some(first) => first,
                None => {
                    let a_values =
                        adapter.values(adapter.pairs[j].a, 0..a[1], adapter.factor(rank));
                    let values = a_values.map_err(|error| adapter.failed(error))?;
                    let first = loader.push_matrix(a[0] as usize, &values)?;
                    *self.used[i][j].insert(first)
                }
            };
            let rows = product.rows.start as u64..product.rows.end as u64;
            let b_values = adapter.values(adapter.pairs[j].b, rows, 1.0);
            let values = b_values.map_err(|error| adapter.failed(error))?;
            let second = loader.push_matrix(rank as usize, &values)?;
            plan.add_low_rank(product.from, [first, second], rank as usize, product.out);
        }
        Ok(())
    }

    /// Adds the adapters' terms for the embedding `table` to the rows of `x`, times `scale`. `A` of an embedding has a
    /// row per token.
    pub(crate) fn add_embedding(
        &mut self,
        table: &TensorInfo,
        scale: f32,
        mut x: Value,
        plan: &mut Recorder,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Value, LoadError> {
        let expected = matrix_dims(table);
        for (i, adapter) in self.list.iter().enumerate() {
            let Some(j) = adapter.pair_of(table) else {
                continue;
            };
            let [a, b] = adapter.factors(j, expected, |[a0, a1], [b0, b1]| [b1, a1, a0, b0])?;
            let rank = b[0];
            let factor = adapter.factor(rank) * f64::from(scale);
            let weight = |tensor, n_rows, factor, loader: &mut WeightLoader<'_>| {
                let values = adapter.values(tensor, 0..n_rows, factor);
                loader.push_matrix(
                    rank as usize,
                    &values.map_err(|error| adapter.failed(error))?,
                )
            };
            let first = weight(adapter.pairs[j].a, a[1], factor, loader)?;
            let second = weight(adapter.pairs[j].b, b[1], 1.0, loader)?;
            self.used[i][j] = Some(first);
            let low = plan.embed(first, 1.0, rank as usize);
            x = plan.add_matmul(low, Projection::of(second, ActFormat::F32), x);
        }
        Ok(x)
    }

    /// Checks that every pair has been used.
    pub(crate) fn finish(self, model: &Gguf) -> Result<(), LoadError> {
        for (adapter, used) in self.list.iter().zip(&self.used) {
            let Some(j) = used.iter().position(Option::is_none) else {
                continue;
            };
            let tensor = adapter.pairs[j].tensor.clone();
            return Err(adapter.failed(match model.tensor(&tensor) {
                None => AdapterError::NoSuchTensor { tensor },
                Some(_) => AdapterError::NotAMatrix { tensor },
            }));
        }
        Ok(())
    }
}

impl Adapter {
    fn pair_of(&self, tensor: &TensorInfo) -> Option<usize> {
        self.pairs
            .iter()
            .position(|pair| pair.tensor == tensor.name)
    }

    /// Returns the dimensions of both factors of pair `j` after checking them. `inner_last` sorts them into those of
    /// the product, which must be `expected`, and the two inner ones, which must agree.
    fn factors(
        &self,
        j: usize,
        expected: [u64; 2],
        inner_last: fn([u64; 2], [u64; 2]) -> [u64; 4],
    ) -> Result<[[u64; 2]; 2], LoadError> {
        let pair = &self.pairs[j];
        let [a, b] = [pair.a, pair.b].map(|index| matrix_dims(&self.gguf.tensors()[index]));
        let [n_in, n_out, rank, same] = inner_last(a, b);
        let tensor = || pair.tensor.clone();
        if [n_in, n_out] != expected || rank != same {
            return Err(self.failed(AdapterError::Shape {
                tensor: tensor(),
                a,
                b,
                expected,
            }));
        }
        // A few bytes of a file may expand to gigabytes of F32, and a rank above the matrix's own adds nothing.
        let most = n_in.min(n_out).max(SMALL_RANK);
        if rank > most {
            return Err(self.failed(AdapterError::Rank {
                tensor: tensor(),
                rank,
                most,
            }));
        }
        Ok([a, b])
    }
}

/// Returns the row length and the number of rows of a matrix.
fn matrix_dims(info: &TensorInfo) -> [u64; 2] {
    [info.row_len(), info.n_rows()]
}
