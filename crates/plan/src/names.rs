//! Names of operations in reports.

use crate::{ActsId, BufferId, Op, Plan, WeightId, Weights};

/// Returns the name of operations that a backend runs as one; `None` if the name is that of the first of them.
pub fn of_merged(ops: &[Op]) -> Option<&'static str> {
    // The conversion of a result takes little of the time.
    if let [_] | [Op::GatedMatMul { .. } | Op::Attention { .. }, ..] = ops {
        return None;
    }
    let has = |is: fn(&Op) -> bool| ops.iter().any(is);
    let name = if has(|op| matches!(op, Op::LinearAttention { .. })) {
        "gated_linear_attention"
    } else if has(|op| matches!(op, Op::CausalConv { .. })) {
        "linear_inputs"
    } else if has(|op| matches!(op, Op::ExpertMatMul { .. })) {
        if has(|op| matches!(op, Op::CombineExperts { .. })) {
            "expert_sum"
        } else {
            "expert_gate"
        }
    } else if has(|op| matches!(op, Op::Route { .. })) {
        "router"
    } else if has(|op| matches!(op, Op::HeadMatMul { .. })) {
        if has(|op| matches!(op, Op::Attention { .. })) {
            "latent_attention"
        } else if has(|op| matches!(op, Op::KvAppend { .. })) {
            "latent_queries"
        } else {
            "head_matmul"
        }
    } else if has(|op| matches!(op, Op::CombineExperts { .. })) {
        "combine_experts"
    } else if has(|op| matches!(op, Op::Quantize { .. } | Op::NormQuantize { .. })) {
        "norm_quantize"
    } else {
        "rope_kv"
    };
    Some(name)
}

/// Returns the name of an operation, such as `matmul ffn_down Q6_K [4096, 14336]`: type, tensors without their layer,
/// formats, `[n_out, n_in]`.
pub fn of_op(plan: &Plan, weights: &Weights, op: &Op) -> String {
    let kind = op.name();
    let matrices = match op.table() {
        Some(table) => vec![table],
        None => op.matrices(),
    };
    if !matrices.is_empty() {
        return format!("{kind} {}", matrices_in_words(weights, &matrices));
    }
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let acts_width = |id: ActsId| plan.acts[id.0 as usize].width;
    match *op {
        Op::Attention { layer, n_heads, .. } => {
            let kv = &plan.kv[layer];
            format!("{kind} {n_heads}/{} heads [{}]", kv.n_kv_heads, kv.k_dim)
        }
        Op::KvAppend { layer, .. } => {
            let kv = &plan.kv[layer];
            format!("{kind} [{}]", kv.n_kv_heads * (kv.k_dim + kv.v_dim))
        }
        Op::Quantize { out, .. }
        | Op::NormQuantize { out, .. }
        | Op::QuantizeExperts { out, .. }
        | Op::QuantizeHeads { out, .. } => format!("{kind} [{}]", acts_width(out)),
        Op::Route { logits, .. } => format!("{kind} [{}]", width(logits)),
        _ => match op.writes().first() {
            Some(out) => format!("{kind} [{}]", width(*out)),
            None => kind.to_string(),
        },
    }
}

fn matrices_in_words(weights: &Weights, ids: &[WeightId]) -> String {
    let matrix = |id: &WeightId| weights.matrix(*id);
    let roles = ids.iter().map(|id| {
        let name = weights.tensor_name(*id);
        name.map_or("adapter", role).to_string()
    });
    let formats = ids.iter().map(|id| matrix(id).ty.name().to_string());
    let n_out: Vec<String> = ids.iter().map(|id| matrix(id).n_out.to_string()).collect();
    format!(
        "{} {} [{}, {}]",
        distinct(roles),
        distinct(formats),
        n_out.join("+"),
        ids.first().map_or(0, |id| matrix(id).n_in)
    )
}

/// Joins words as `a+b`; equal words are written once.
fn distinct(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    if words.windows(2).all(|pair| pair[0] == pair[1]) {
        words.truncate(1);
    }
    words.join("+")
}

/// Returns the role of a tensor: `ffn_down` for `blk.3.ffn_down.weight`.
fn role(tensor: &str) -> &str {
    let name = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let of_layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'))
        .filter(|(layer, _)| layer.bytes().all(|c| c.is_ascii_digit()));
    of_layer.map_or(name, |(_, role)| role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Activation, ConvForm, ExpertScores, ExpertStack, ExpertWeights, Router, RoutingId, Scores,
        Weighed,
    };

    #[test]
    fn roles_omit_the_layer() {
        for (tensor, expected) in [
            ("blk.3.ffn_down.weight", "ffn_down"),
            ("blk.12.ffn_gate_exps.weight", "ffn_gate_exps"),
            ("output.weight", "output"),
            ("token_embd.weight", "token_embd"),
            ("blk.x.a.weight", "blk.x.a"),
            ("blk.3", "blk.3"),
        ] {
            assert_eq!(role(tensor), expected);
        }
        let words = |list: &[&str]| distinct(list.iter().map(|word| word.to_string()));
        assert_eq!(words(&["Q4_K", "Q4_K"]), "Q4_K");
        assert_eq!(words(&["Q4_K", "Q4_K", "Q6_K"]), "Q4_K+Q4_K+Q6_K");
    }

    /// Several operations in one launch have a name of their own.
    #[test]
    fn names_merged_operations() {
        let conv = Op::CausalConv {
            state: 0,
            weight: WeightId(0),
            bias: None,
            form: ConvForm::Plain,
            x: BufferId(0),
            out: BufferId(1),
        };
        let gate = Op::GatedActivation {
            activation: Activation::Silu,
            gate: BufferId(1),
            up: BufferId(2),
            out: BufferId(3),
        };
        assert_eq!(of_merged(&[conv, gate.clone()]), Some("linear_inputs"));
        let norm = Op::RmsNorm {
            x: BufferId(0),
            weight: WeightId(0),
            n_groups: 1,
            eps: 1e-5,
            out: BufferId(1),
        };
        let quantize = Op::Quantize {
            x: BufferId(1),
            out: ActsId(0),
        };
        assert_eq!(
            of_merged(&[norm.clone(), quantize.clone()]),
            Some("norm_quantize")
        );
        let attention = Op::Attention {
            layer: 0,
            n_heads: 1,
            scores: Scores {
                scale: 1.0,
                soft_cap: None,
                growth: None,
                alibi: None,
            },
            sinks: None,
            q: BufferId(0),
            out: BufferId(1),
        };
        assert_eq!(of_merged(&[attention, quantize.clone()]), None);
        let both = Op::NormQuantize {
            x: BufferId(2),
            weight: WeightId(0),
            n_groups: 1,
            eps: 1e-5,
            out: ActsId(0),
        };
        assert_eq!(of_merged(&[norm.clone(), both]), Some("norm_quantize"));
        let route = Op::Route {
            logits: BufferId(2),
            bias: None,
            scales: None,
            router: Router {
                n_used: 2,
                scores: ExpertScores::Softmax,
                weights: ExpertWeights::Normalized,
                groups: None,
                scale: 1.0,
            },
            shared: None,
            out: RoutingId(0),
        };
        assert_eq!(of_merged(&[norm, quantize, route]), Some("router"));
        let sum = Op::CombineExperts {
            x: BufferId(0),
            routing: RoutingId(0),
            weighed: Weighed::Outputs,
            out: BufferId(1),
        };
        let add = Op::Add {
            x: BufferId(1),
            out: BufferId(2),
        };
        let down = Op::ExpertMatMul {
            x: ActsId(0),
            routing: RoutingId(0),
            weight: WeightId(0),
            scales: None,
            bias: None,
            stack: ExpertStack::whole(2),
            shared: None,
            out: BufferId(0),
        };
        assert_eq!(
            of_merged(&[down, sum.clone(), add.clone()]),
            Some("expert_sum")
        );
        assert_eq!(of_merged(&[sum, add]), Some("combine_experts"));
        assert_eq!(of_merged(&[gate.clone(), gate]), Some("rope_kv"));
    }
}
