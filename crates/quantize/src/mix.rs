//! Chooses the type of each tensor of a mix as llama.cpp's quantizer does (`llama_tensor_get_type` and
//! `tensor_allows_quantization` in its `llama-quant.cpp`): by the tensor's role, its layer, and facts of the
//! model. The tests compare with a table of llama.cpp's choices.

use rocmforge_gguf::{GgmlType, Gguf, Metadata, TensorInfo, Value};

use crate::error::QuantizeError;
use crate::file_type::FileType;

/// The role of a tensor in the model, from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    TokenEmbedding,
    Output,
    /// Q, K and V in one tensor.
    AttnQkv,
    /// The second factor of K and V in latent attention.
    AttnKvB,
    AttnV,
    AttnK,
    AttnQ,
    AttnOutput,
    FfnUp,
    FfnGate,
    FfnDown,
    Other,
}

impl Role {
    pub(super) fn of(name: &str) -> Role {
        const PARTS: [(&str, Role); 9] = [
            ("attn_qkv.weight", Role::AttnQkv),
            ("attn_kv_b.weight", Role::AttnKvB),
            ("attn_v.weight", Role::AttnV),
            ("attn_k.weight", Role::AttnK),
            ("attn_q.weight", Role::AttnQ),
            ("attn_output.weight", Role::AttnOutput),
            ("ffn_up", Role::FfnUp),
            ("ffn_gate", Role::FfnGate),
            ("ffn_down", Role::FfnDown),
        ];
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::TokenEmbedding,
            _ => PARTS
                .iter()
                .find(|(part, _)| name.contains(part))
                .map_or(Role::Other, |(_, role)| *role),
        }
    }

    /// Whether errors in this tensor matter as much as those in V.
    fn is_like_v(self) -> bool {
        matches!(self, Role::AttnV | Role::AttnQkv | Role::AttnKvB)
    }
}

/// Name parts of matrices that keep their type: routing, positions, convolutions and other small ones.
const KEPT: [&str; 37] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "position_embd.weight",
    "token_types.weight",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Returns whether file types change this tensor: it is a matrix, or several, and not in [`KEPT`].
pub(super) fn is_quantizable(tensor: &TensorInfo) -> bool {
    let n_dims = tensor.dims.iter().rposition(|&dim| dim != 1);
    n_dims.is_some_and(|last| last >= 1)
        && tensor.name.ends_with("weight")
        && !KEPT.iter().any(|part| tensor.name.contains(part))
}

/// Returns the layer in a name such as `blk.12.attn_q.weight`.
pub(super) fn layer(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("blk.")?;
    rest[..rest.find(|c: char| !c.is_ascii_digit())?]
        .parse()
        .ok()
}

/// Facts of the model that determine types.
#[derive(Debug)]
pub(crate) struct ModelFacts {
    pub(crate) arch: String,
    pub(crate) n_layers: usize,
    pub(crate) n_experts: usize,
    /// Query heads per K and V head in the first layer.
    pub(crate) gqa: usize,
    /// Whether this is a 70B model of a family in which those have eight query heads per K and V head.
    pub(crate) is_70b: bool,
    /// Number of tensors in all layers that are like V.
    pub(crate) n_v: usize,
    /// Whether the embedding is also the output projection.
    pub(crate) is_tied: bool,
}

impl ModelFacts {
    pub(super) fn read(gguf: &Gguf) -> Result<ModelFacts, QuantizeError> {
        ModelFacts::of(gguf.metadata(), gguf.tensors())
    }

    pub(crate) fn of(
        metadata: &Metadata,
        tensors: &[TensorInfo],
    ) -> Result<ModelFacts, QuantizeError> {
        let arch = metadata.str("general.architecture")?.to_string();
        let fact = |key: &str| first_u32(metadata, &format!("{arch}.{key}"));
        let n_layers = fact("block_count")?.unwrap_or(0);
        let n_heads = fact("attention.head_count")?.unwrap_or(0);
        let n_kv_heads = fact("attention.head_count_kv")?.unwrap_or(n_heads);
        let is_70b = match arch.as_str() {
            "llama" => n_layers == 80 && n_heads != n_kv_heads,
            "deci" | "olmo" | "qwen2" => n_layers == 80,
            "jais2" => n_layers == 68,
            _ => false,
        };
        let like_v = |tensor: &&TensorInfo| Role::of(&tensor.name).is_like_v();
        Ok(ModelFacts {
            n_layers,
            n_experts: fact("expert_count")?.unwrap_or(0),
            gqa: n_heads.checked_div(n_kv_heads).unwrap_or(0),
            is_70b,
            n_v: tensors.iter().filter(like_v).count(),
            is_tied: tensors.iter().all(|tensor| tensor.name != "output.weight"),
            arch,
        })
    }
}

/// Returns the number at `key`, or the first one of an array.
fn first_u32(metadata: &Metadata, key: &str) -> Result<Option<usize>, QuantizeError> {
    let number = match metadata.get(key) {
        Some(Value::Array(_)) => metadata.u32s(key)?.first().copied(),
        _ => metadata.opt_u32(key)?,
    };
    Ok(number.map(|number| number as usize))
}

/// Chooses types tensor by tensor, in layer order.
#[derive(Debug)]
pub(super) struct Mix<'a> {
    pub(super) facts: &'a ModelFacts,
    pub(super) file_type: FileType,
    /// The user's type for the output projection.
    pub(super) output_type: Option<GgmlType>,
    pub(super) has_importance: bool,
    /// Number of tensors like V that already have a type.
    pub(super) n_v_seen: usize,
    /// Numbers of `ffn_down`, `ffn_gate` and `ffn_up` tensors that already have a type.
    pub(super) n_down_seen: usize,
    pub(super) n_gate_seen: usize,
    pub(super) n_up_seen: usize,
}

impl Mix<'_> {
    /// Chooses the type of the next tensor; `usual` is that of most. Rows need not be whole blocks of the result.
    pub(super) fn choose(
        &mut self,
        tensor: &TensorInfo,
        usual: GgmlType,
    ) -> Result<GgmlType, QuantizeError> {
        let role = Role::of(&tensor.name);
        let is_output =
            role == Role::Output || (self.facts.is_tied && role == Role::TokenEmbedding);
        if is_output {
            return Ok(self.output(tensor, usual));
        }
        if self.file_type == FileType::MXFP4_MOE {
            let is_expert = tensor.dims.get(2).is_some_and(|&n| n > 1);
            return Ok(match is_expert {
                true => GgmlType::MXFP4,
                false => GgmlType::Q8_0,
            });
        }
        if role == Role::TokenEmbedding {
            return Ok(self.embedding(usual));
        }
        if self.is_two_bits() {
            return Ok(self.two_bits(role, usual));
        }
        use FileType as F;
        Ok(match (role, self.file_type) {
            (role, _) if role.is_like_v() => self.v(usual),
            (Role::AttnK, _) if self.facts.n_experts == 8 => GgmlType::Q8_0,
            (Role::AttnK | Role::AttnQ, F::IQ3_XS) => GgmlType::IQ3_XXS,
            (Role::AttnK | Role::AttnQ, F::IQ3_XXS) => GgmlType::IQ2_S,
            (Role::AttnOutput, _) => self.attn_output(usual),
            (Role::FfnDown, _) => self.ffn_down(tensor, usual)?,
            (Role::FfnGate | Role::FfnUp, F::IQ3_XS) => self.middle(role, tensor, usual)?,
            _ => usual,
        })
    }

    /// The embedding, unless it is also the output.
    fn embedding(&self, usual: GgmlType) -> GgmlType {
        use FileType as F;
        match self.file_type {
            F::IQ1_S | F::IQ1_M | F::IQ2_XXS | F::IQ2_XS => GgmlType::Q2_K,
            F::IQ2_S | F::IQ2_M | F::IQ3_XXS => GgmlType::IQ3_S,
            F::TQ1_0 | F::TQ2_0 | F::Q2_0 => GgmlType::Q4_K,
            _ => usual,
        }
    }

    /// Whether this is a mix of IQ1 or IQ2, which have rules of their own.
    fn is_two_bits(&self) -> bool {
        use FileType as F;
        matches!(
            self.file_type,
            F::IQ1_S | F::IQ1_M | F::IQ2_XXS | F::IQ2_XS | F::IQ2_S | F::IQ2_M
        )
    }

    fn two_bits(&mut self, role: Role, usual: GgmlType) -> GgmlType {
        use FileType as F;
        let ModelFacts {
            gqa,
            n_experts,
            n_layers,
            ..
        } = *self.facts;
        let more = match self.file_type {
            F::IQ2_S | F::IQ2_M => GgmlType::IQ3_S,
            _ => GgmlType::Q2_K,
        };
        match role {
            role if role.is_like_v() && (gqa >= 4 || n_experts >= 4) => GgmlType::Q4_K,
            role if role.is_like_v() => more,
            Role::AttnK if n_experts == 8 => GgmlType::Q4_K,
            Role::AttnOutput if n_experts == 8 => GgmlType::Q5_K,
            Role::AttnOutput => match self.file_type {
                F::IQ1_S | F::IQ1_M => GgmlType::IQ2_XXS,
                F::IQ2_S | F::IQ2_M => GgmlType::IQ3_S,
                _ => usual,
            },
            Role::FfnDown => {
                // The index among these tensors, also of experts.
                let index = self.n_down_seen;
                self.n_down_seen += 1;
                if index < n_layers / 8 { more } else { usual }
            }
            _ => usual,
        }
    }

    /// `ffn_gate` and `ffn_up` of IQ3_XS, which take fewer bits in the layers between the first and the last eighth.
    fn middle(
        &mut self,
        role: Role,
        tensor: &TensorInfo,
        usual: GgmlType,
    ) -> Result<GgmlType, QuantizeError> {
        let seen = match role {
            Role::FfnGate => &mut self.n_gate_seen,
            _ => &mut self.n_up_seen,
        };
        let index = *seen;
        *seen += 1;
        let (layer, n) = (self.layer_of(tensor, index)?, self.facts.n_layers);
        Ok(match layer >= n / 8 && layer < 7 * n / 8 {
            true => GgmlType::IQ3_XXS,
            false => usual,
        })
    }

    fn output(&self, tensor: &TensorInfo, usual: GgmlType) -> GgmlType {
        let has_whole_blocks = tensor.row_len().is_multiple_of(usual.block_len() as u64);
        match (self.output_type, usual) {
            (Some(wanted), _) => wanted,
            (None, GgmlType::Q8_0) => GgmlType::Q8_0,
            _ if self.file_type == FileType::MXFP4_MOE => GgmlType::Q8_0,
            _ if self.facts.arch == "falcon" || !has_whole_blocks => GgmlType::Q8_0,
            _ if self.is_two_bits() || self.file_type == FileType::IQ3_XXS => GgmlType::Q5_K,
            _ => GgmlType::Q6_K,
        }
    }

    fn v(&mut self, usual: GgmlType) -> GgmlType {
        use FileType as F;
        let ModelFacts { gqa, n_v, .. } = *self.facts;
        let index = self.n_v_seen;
        self.n_v_seen += 1;
        if self.facts.n_experts == 8 {
            return GgmlType::Q8_0;
        }
        let ty = match self.file_type {
            F::Q2_K if gqa >= 4 => GgmlType::Q4_K,
            F::Q2_K => GgmlType::Q3_K,
            F::Q2_K_S if gqa >= 4 => GgmlType::Q4_K,
            F::IQ3_XXS | F::IQ3_XS | F::IQ3_S if gqa >= 4 => GgmlType::Q4_K,
            F::IQ3_XXS if !self.has_importance => GgmlType::IQ3_S,
            F::IQ3_M => GgmlType::Q4_K,
            F::Q3_K_M if index < 2 => GgmlType::Q5_K,
            F::Q3_K_M => GgmlType::Q4_K,
            F::Q3_K_L => GgmlType::Q5_K,
            F::IQ4_NL | F::IQ4_XS if gqa >= 4 => GgmlType::Q5_K,
            F::Q4_K_M | F::Q5_K_M if wants_more_bits(index, n_v) => GgmlType::Q6_K,
            F::Q4_K_S if index < 4 => GgmlType::Q5_K,
            _ => usual,
        };
        match ty {
            // The matrix is an eighth as large as Q's here, so extra bits cost little.
            GgmlType::Q3_K | GgmlType::Q4_K if self.facts.is_70b => GgmlType::Q5_K,
            ty => ty,
        }
    }

    fn attn_output(&self, usual: GgmlType) -> GgmlType {
        use FileType as F;
        let ModelFacts {
            n_experts, arch, ..
        } = self.facts;
        match self.file_type {
            F::Q3_K_L if arch == "falcon" => GgmlType::Q4_K,
            _ if arch == "falcon" => usual,
            F::Q2_K | F::Q3_K_S | F::Q3_K_M | F::IQ4_NL | F::IQ4_XS | F::Q4_K_S | F::Q4_K_M
                if *n_experts == 8 =>
            {
                GgmlType::Q5_K
            }
            F::IQ3_XXS | F::IQ3_XS | F::IQ3_S | F::IQ3_M if *n_experts == 8 => GgmlType::Q5_K,
            _ if *n_experts == 8 => usual,
            F::Q2_K => GgmlType::Q3_K,
            F::IQ3_XXS => GgmlType::IQ3_S,
            F::Q3_K_M | F::IQ3_M => GgmlType::Q4_K,
            F::Q3_K_L => GgmlType::Q5_K,
            _ => usual,
        }
    }

    fn ffn_down(
        &mut self,
        tensor: &TensorInfo,
        usual: GgmlType,
    ) -> Result<GgmlType, QuantizeError> {
        use FileType as F;
        let n = self.facts.n_layers;
        let index = self.layer_of(tensor, self.n_down_seen)?;
        self.n_down_seen += 1;
        let is_falcon = self.facts.arch == "falcon";
        Ok(match self.file_type {
            F::Q2_K => GgmlType::Q3_K,
            F::Q2_K_S if index < n / 8 => GgmlType::Q4_K,
            F::IQ3_XXS if self.has_importance => usual,
            F::IQ3_XXS if index < n / 8 => GgmlType::Q4_K,
            F::IQ3_XXS => GgmlType::Q3_K,
            F::IQ3_M if index < n / 8 => GgmlType::Q4_K,
            F::IQ3_M if self.facts.n_experts == 8 && wants_more_bits(index, n) => GgmlType::Q4_K,
            F::Q3_K_M if index < n / 16 => GgmlType::Q5_K,
            F::Q3_K_M if !is_falcon || wants_more_bits(index, n) => GgmlType::Q4_K,
            F::Q3_K_L if is_falcon => GgmlType::Q4_K,
            F::Q3_K_L => GgmlType::Q5_K,
            F::Q4_K_M if is_falcon && index < n / 16 => GgmlType::Q6_K,
            F::Q4_K_M if is_falcon && wants_more_bits(index, n) => GgmlType::Q5_K,
            F::Q4_K_M if !is_falcon && wants_more_bits(index, n) => GgmlType::Q6_K,
            F::Q5_K_M if wants_more_bits(index, n) => GgmlType::Q6_K,
            F::IQ4_NL | F::IQ4_XS if index < n / 8 && !self.has_importance => GgmlType::Q5_K,
            F::Q4_K_S if index < n / 8 && !is_falcon => GgmlType::Q5_K,
            F::Q4_0 if index < n / 8 && self.has_importance => GgmlType::Q4_1,
            F::Q5_0 if index < n / 8 && self.has_importance => GgmlType::Q5_1,
            _ => usual,
        })
    }

    /// Returns the layer of a tensor of a feed-forward network: its `index` among those of its role, except in a mixture
    /// of experts, where a layer may have several such tensors and the name gives the layer.
    fn layer_of(&self, tensor: &TensorInfo, index: usize) -> Result<usize, QuantizeError> {
        if self.facts.n_experts <= 1 {
            return Ok(index);
        }
        let n_layers = self.facts.n_layers;
        layer(&tensor.name)
            .filter(|&layer| layer < n_layers)
            .ok_or_else(|| QuantizeError::Layer {
                name: tensor.name.clone(),
                n_layers,
            })
    }
}

/// Returns whether a layer is in the first or last eighth, or every third between them.
fn wants_more_bits(layer: usize, n_layers: usize) -> bool {
    layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2
}

/// Returns `ty`, or a replacement if rows of `row_len` values are not whole blocks of `ty`.
pub(super) fn fitting(ty: GgmlType, row_len: u64) -> GgmlType {
    let fits = |ty: GgmlType| row_len.is_multiple_of(ty.block_len() as u64);
    if fits(ty) {
        return ty;
    }
    let smaller = match ty {
        GgmlType::IQ1_S | GgmlType::IQ1_M | GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => GgmlType::IQ4_NL,
        GgmlType::IQ3_XXS | GgmlType::IQ3_S => GgmlType::IQ4_NL,
        GgmlType::Q1_0 | GgmlType::Q2_0 | GgmlType::TQ1_0 | GgmlType::TQ2_0 => GgmlType::Q4_0,
        GgmlType::Q2_K | GgmlType::Q3_K => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        other => other,
    };
    if fits(smaller) {
        smaller
    } else {
        GgmlType::F16
    }
}
