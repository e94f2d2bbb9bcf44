//! What families and blocks record a plan with: tensors by name, products with biases and adapters, norms.
//!
//! Most differences between models are read from the file: biases exist if their tensors do.

use std::ops::Range;
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, TensorInfo, TokenId};
use rocmforge_plan::{
    ActFormat, ExpertProjection, ExpertStack, Factor, Plan, Projection, Recorder, RopeId, Routing,
    Value, WeightId, Weights, act_format,
};

use crate::Model;
use crate::classifier::Classifier;
use crate::error::LoadError;
use crate::facts::{Experts, ModelConfig};
use crate::lora::{Adapter, Adapters, Product};
use crate::rope;
use crate::taps::Taps;
use crate::weights::{Faults, SkippedTensor, WeightLoader};

/// In place of a tensor whose absence was noted.
static ABSENT: TensorInfo = TensorInfo {
    name: String::new(),
    dims: Vec::new(),
    ty: GgmlType::F32,
    offset: 0,
    n_bytes: 0,
    part: 0,
};

/// A recorded model.
pub(crate) struct Recorded {
    pub(crate) plan: Plan,
    pub(crate) weights: Weights,
    pub(crate) skipped: Vec<SkippedTensor>,
    pub(crate) classifier: Option<Classifier>,
    pub(crate) output_ids: Option<Vec<TokenId>>,
}

/// Records the plan of a model and collects the tensors it refers to.
pub(crate) struct Builder<'a> {
    pub(crate) config: &'a ModelConfig,
    gguf: &'a Gguf,
    pub(crate) loader: WeightLoader<'a>,
    pub(crate) plan: Recorder,
    /// The tables of the model's rotations; `None` for one that no layer uses.
    ropes: Vec<Option<RopeId>>,
    adapters: Adapters<'a>,
    /// The classifier of the mean over all tokens, if the model has one.
    pub(crate) classifier: Option<Classifier>,
    /// Of a drafter, its first layer.
    pub(crate) first_of_drafter: usize,
    /// Of a drafter in a file of its own, the model for which it drafts.
    pub(crate) target: Option<&'a Model>,
    /// Whether the plan returns what a drafter takes.
    pub(crate) exports: bool,
    /// What goes out beside the logits.
    pub(crate) export: Option<Value>,
    /// What goes out of values of layers.
    pub(crate) taps: Option<Taps>,
    /// The tokens of the logits, if they are not those of the vocabulary in its order.
    pub(crate) output_ids: Option<Vec<TokenId>>,
}

impl<'a> Builder<'a> {
    /// Starts with the tables of the model's rotations.
    pub(crate) fn new(
        config: &'a ModelConfig,
        gguf: &'a Arc<Gguf>,
        adapters: &'a [Adapter],
        faults: Faults,
    ) -> Result<Builder<'a>, LoadError> {
        let mut builder = Builder {
            config,
            gguf,
            plan: Recorder::new(),
            adapters: Adapters::new(adapters, &config.arch_name)?,
            loader: WeightLoader::new(gguf.clone(), &config.arch_name, faults),
            ropes: Vec::new(),
            classifier: None,
            first_of_drafter: 0,
            target: None,
            exports: false,
            export: None,
            taps: None,
            output_ids: None,
        };
        // Old converters wrote these for every family.
        let reason = "it repeats RoPE frequencies that follow from the metadata";
        builder.loader.skip(reason, |name| {
            name.ends_with(".attn_rot_embd") || name.ends_with(".attn_rot_embd.weight")
        });
        let reason =
            "it belongs to layers that predict further tokens ahead, on which text does not depend";
        let (first, n) = (config.n_layers(), config.n_nextn);
        builder.loader.skip(reason, |name| {
            let layer = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
            layer.is_some_and(|layer| (first..first + n).contains(&layer))
        });
        let reason = "it is for products with activations in four bits; here they are converted with scales of their own";
        builder
            .loader
            .skip(reason, |name| name.ends_with(".input_scale"));
        builder.add_ropes()?;
        Ok(builder)
    }

    /// Finishes the plan. An adapter or a tensor that it does not use is an error.
    pub(crate) fn finish(self, logits: Value) -> Result<Recorded, LoadError> {
        self.adapters.finish(self.gguf)?;
        if self.taps.is_some() && self.export.is_none() {
            let arch = self.config.arch_name.clone();
            return Err(LoadError::NoLayerValues { arch });
        }
        let (weights, skipped) = self.loader.finish()?;
        Ok(Recorded {
            plan: match self.export {
                Some(export) => self.plan.finish_with(logits, export),
                None => self.plan.finish(logits),
            },
            weights,
            skipped,
            classifier: self.classifier,
            output_ids: self.output_ids,
        })
    }

    /// Returns a tensor that the loader has already found, or whose absence it has noted.
    fn tensor(&self, name: &str) -> &'a TensorInfo {
        self.gguf.tensor(name).unwrap_or(&ABSENT)
    }

    /// Returns the activation format for products with a tensor that the loader has already found.
    pub(crate) fn act_format(&self, name: &str) -> ActFormat {
        act_format(self.tensor(name).ty)
    }
}

impl Builder<'_> {
    fn add_ropes(&mut self) -> Result<(), LoadError> {
        for (index, rope) in self.config.ropes.iter().enumerate() {
            let factors = rope::factors(rope, &mut self.loader)?;
            let mut layers = self.config.layers.iter();
            let is_used = layers.any(|layer| layer.rope == Some(index));
            let table = is_used.then(|| self.plan.rope_table(rope::table(rope, &factors)));
            self.ropes.push(table);
        }
        Ok(())
    }

    /// Rotates heads of `head_dim` values by the model's rotation `rope`, from value `start` on.
    pub(crate) fn rotate(&mut self, x: Value, [head_dim, start]: [usize; 2], rope: usize) -> Value {
        let table = self.ropes[rope].expect("there is a table if a layer uses it");
        let style = self.config.ropes[rope].style;
        self.plan.rope(x, [head_dim, start], table, style)
    }

    /// Records the RMS norm `{tensor}.weight` of whole rows.
    pub(crate) fn rms_norm(
        &mut self,
        x: Value,
        tensor: &str,
        eps: f32,
    ) -> Result<Value, LoadError> {
        self.scaled_rms_norm(x, tensor, eps, 1.0)
    }

    /// As `rms_norm`, times `factor`.
    pub(crate) fn scaled_rms_norm(
        &mut self,
        x: Value,
        tensor: &str,
        eps: f32,
        factor: f64,
    ) -> Result<Value, LoadError> {
        let weight = format!("{tensor}.weight");
        let weight = self.loader.vector(&weight, x.width(), factor)?;
        Ok(self.plan.rms_norm(x, weight, eps))
    }

    /// Records the RMS norm `{tensor}.weight` of whole rows, plus `{tensor}.bias`; `x` has a row for each token.
    pub(crate) fn biased_rms_norm(&mut self, x: Value, tensor: &str) -> Result<Value, LoadError> {
        let normed = self.rms_norm(x, tensor, self.config.norm_eps)?;
        // A table of one row is added everywhere.
        let bias = format!("{tensor}.bias");
        let bias = self.loader.matrix(&bias, 1, x.width())?;
        Ok(self.plan.add_positions(bias, normed))
    }

    /// Records the layer norm `{tensor}.weight` with `{tensor}.bias`.
    pub(crate) fn layer_norm(&mut self, x: Value, tensor: &str) -> Result<Value, LoadError> {
        let [weight, bias] = ["weight", "bias"].map(|part| format!("{tensor}.{part}"));
        let weight = self.loader.vector(&weight, x.width(), 1.0)?;
        let bias = self.loader.vector(&bias, x.width(), 1.0)?;
        Ok(self.plan.layer_norm(x, weight, bias, self.config.norm_eps))
    }

    /// Records the layer norm `{tensor}.weight`, times `factor`, which has no bias.
    pub(crate) fn scaled_layer_norm(
        &mut self,
        x: Value,
        tensor: &str,
        factor: f64,
    ) -> Result<Value, LoadError> {
        let weight = format!("{tensor}.weight");
        let weight = self.loader.vector(&weight, x.width(), factor)?;
        let bias = self.loader.push_constant(x.width(), 0.0);
        Ok(self.plan.layer_norm(x, weight, bias, self.config.norm_eps))
    }

    /// Records the layer norm of each `width` values, without weight and bias.
    pub(crate) fn plain_layer_norm(&mut self, x: Value, width: usize) -> Value {
        let weight = self.loader.push_constant(width, 1.0);
        let bias = self.loader.push_constant(width, 0.0);
        self.plan.layer_norm(x, weight, bias, self.config.norm_eps)
    }

    /// Records the RMS norm of whole rows whose weight is the tensor `name`.
    pub(crate) fn rms_norm_by(&mut self, x: Value, name: &str) -> Result<Value, LoadError> {
        let weight = self.loader.vector(name, x.width(), 1.0)?;
        Ok(self.plan.rms_norm(x, weight, self.config.norm_eps))
    }

    /// Records the RMS norm of whole rows without a weight.
    pub(crate) fn plain_rms_norm(&mut self, x: Value) -> Value {
        let weight = self.loader.push_constant(x.width(), 1.0);
        self.plan.rms_norm(x, weight, self.config.norm_eps)
    }

    /// Records `x * {tensor}.weight^T`, times `{tensor}.scale` and plus `{tensor}.bias` if the file has them; `n_out`
    /// values per row.
    pub(crate) fn linear(
        &mut self,
        x: Value,
        tensor: &str,
        n_out: usize,
    ) -> Result<Value, LoadError> {
        self.linear_rows(x, tensor, n_out, 0..n_out)
    }

    /// Records `[a, b] * {tensor}.weight^T`, the product of two values of the same width side by side; `n_out` values per row.
    pub(crate) fn side_by_side(
        &mut self,
        parts: [Value; 2],
        tensor: &str,
        n_out: usize,
    ) -> Result<Value, LoadError> {
        let name = format!("{tensor}.weight");
        let halves = [n_out, parts[0].width()];
        let halves = self.loader.column_halves(&name, halves)?;
        let scale = self.loader.scale_of(tensor)?;
        let format = self.act_format(&name);
        let [a, b] = halves.map(|weight| Projection::of(weight, format));
        let sum = self.plan.matmul(parts[0], a, n_out);
        let sum = self.plan.add_matmul(parts[1], b, sum);
        Ok(match scale {
            1.0 => sum,
            scale => self.plan.scale(Factor::Constant(scale), sum),
        })
    }

    /// As `linear`, for some rows of a matrix that holds several projections, of `n_rows` in all.
    pub(crate) fn linear_rows(
        &mut self,
        x: Value,
        tensor: &str,
        n_rows: usize,
        rows: Range<usize>,
    ) -> Result<Value, LoadError> {
        let name = format!("{tensor}.weight");
        let bias = format!("{tensor}.bias");
        let weight = self.loader.rows(&name, n_rows, x.width(), rows.clone())?;
        let scale = self.loader.scale_of(tensor)?;
        let bias = self
            .loader
            .opt_part(&bias, n_rows, rows.clone(), 1.0 / f64::from(scale))?;
        let out = self.scaled_product(x, &name, (weight, bias, scale), rows.len());
        self.adapt(x, &name, rows, out)?;
        Ok(out)
    }

    /// Records `x * {tensor}.weight^T` of some rows of a matrix of `n_rows`, plus `bias`.
    pub(crate) fn linear_plus(
        &mut self,
        x: Value,
        tensor: &str,
        (n_rows, rows): (usize, Range<usize>),
        bias: Vec<f32>,
    ) -> Result<Value, LoadError> {
        let name = format!("{tensor}.weight");
        let weight = { &mut self.loader }.rows(&name, n_rows, x.width(), rows.clone())?;
        let scale = self.loader.scale_of(tensor)?;
        let bias = bias.into_iter().map(|x| x / scale).collect();
        let bias = self.loader.push_vector(bias);
        let out = self.scaled_product(x, &name, (weight, Some(bias), scale), rows.len());
        self.adapt(x, &name, rows, out)?;
        Ok(out)
    }

    /// Records the product with the matrix of each row's expert, `{tensor}.weight`, times the expert's number in
    /// `{tensor}.scale` and plus its row of `{tensor}.bias` if the file has them.
    pub(crate) fn expert_linear(
        &mut self,
        x: Value,
        tensor: &str,
        chosen: (Routing, &Experts),
        n_out: usize,
    ) -> Result<Value, LoadError> {
        let scales = self.expert_scales(tensor, chosen.1.n_experts)?;
        self.scaled_expert_linear(x, (tensor, scales), chosen, n_out)
    }

    /// As [`Builder::expert_linear`], with the factors `scales`.
    pub(crate) fn scaled_expert_linear(
        &mut self,
        x: Value,
        (tensor, scales): (&str, Option<WeightId>),
        (routing, experts): (Routing, &Experts),
        n_out: usize,
    ) -> Result<Value, LoadError> {
        let stack = ExpertStack::whole(experts.n_experts);
        self.expert_part(x, (tensor, scales), (routing, stack), n_out)
    }

    /// As [`Builder::expert_linear`], with one of the parts of `n_out` rows of each expert's matrix.
    pub(crate) fn expert_part(
        &mut self,
        x: Value,
        (tensor, scales): (&str, Option<WeightId>),
        (routing, stack): (Routing, ExpertStack),
        n_out: usize,
    ) -> Result<Value, LoadError> {
        let name = format!("{tensor}.weight");
        let (n_experts, n_rows) = (stack.n_experts, stack.n_parts * n_out);
        let weight = self.loader.experts(&name, n_experts, n_rows, x.width())?;
        let bias = format!("{tensor}.bias");
        let of_part = stack.part * n_out..(stack.part + 1) * n_out;
        let linear = Projection {
            weight,
            bias: self.loader.opt_rows(&bias, [n_experts, n_rows], of_part)?,
            format: self.act_format(&name),
        };
        let experts = ExpertProjection {
            linear,
            scales,
            stack,
        };
        Ok(self.plan.expert_matmul(x, routing, experts, n_out))
    }

    /// Returns the factors on the products of each expert, `{tensor}.scale`, which files have beside matrices in NVFP4.
    pub(crate) fn expert_scales(
        &mut self,
        tensor: &str,
        n_experts: usize,
    ) -> Result<Option<WeightId>, LoadError> {
        let name = format!("{tensor}.scale");
        self.loader.opt_finite(&name, n_experts)
    }

    /// Records the product with a tensor that the loader has found, without adapters.
    pub(crate) fn product(
        &mut self,
        x: Value,
        tensor: &str,
        (weight, bias): (WeightId, Option<WeightId>),
        n_out: usize,
    ) -> Value {
        let projection = Projection {
            weight,
            bias,
            format: self.act_format(tensor),
        };
        self.plan.matmul(x, projection, n_out)
    }

    /// As [`Builder::product`], times `scale`, which also multiplies the bias.
    pub(crate) fn scaled_product(
        &mut self,
        x: Value,
        tensor: &str,
        (weight, bias, scale): (WeightId, Option<WeightId>, f32),
        n_out: usize,
    ) -> Value {
        let out = self.product(x, tensor, (weight, bias), n_out);
        match scale {
            1.0 => out,
            scale => self.plan.scale(Factor::Constant(scale), out),
        }
    }

    /// Adds the adapters' terms for some rows of the matrix `name` to their product.
    pub(crate) fn adapt(
        &mut self,
        from: Value,
        name: &str,
        rows: Range<usize>,
        out: Value,
    ) -> Result<(), LoadError> {
        let product = Product {
            tensor: self.tensor(name),
            rows,
            from,
            out,
        };
        self.adapters
            .add(&product, &mut self.plan, &mut self.loader)
    }

    /// Adds the adapters' terms for the embedding `name`, times `scale`.
    pub(crate) fn adapt_embedding(
        &mut self,
        name: &str,
        scale: f32,
        out: Value,
    ) -> Result<Value, LoadError> {
        let table = self.tensor(name);
        self.adapters
            .add_embedding(table, scale, out, &mut self.plan, &mut self.loader)
    }
}
