//! Latent attention (MLA; DeepSeek-AI 2024, DeepSeek-V2, section 2.1) in absorbed form.
//!
//! Keys and values of all heads are products of a narrow vector `c` with matrices of each head, `K_h c` and `V_h c`, and
//! each key ends in a rotated part that all heads share. So `q_h . K_h c = (K_h^T q_h) . c`: queries are multiplied with
//! `K_h^T`, all heads attend to one key per token, `c` and the rotated part, whose value is `c`, and their outputs are
//! multiplied with `V_h`. The cache holds one narrow head.

use rocmforge_gguf::GgmlType;
use rocmforge_plan::{KvSpec, Projection, Value, Values, act_format};

use crate::blocks::attention::gated;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::{Latent, Layer};

/// Records `attn_output(attention(x))`.
pub(super) fn latent_attention(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    latent: &Latent,
    x: Value,
) -> Result<Value, LoadError> {
    let facts = layer.facts;
    let Latent { kv_rank, n_rot, .. } = *latent;
    let (n_heads, n_plain) = (facts.n_heads, facts.k_dim - n_rot);
    let dim = kv_rank + n_rot;
    let [of_keys, of_values] = matrices(m, layer, latent)?;

    // The products of x come first, side by side; then what belongs together on the way to the cache.
    let q = match latent.q_rank {
        Some(rank) => m.linear(x, &layer.tensor("attn_q_a"), rank)?,
        None => m.linear(x, &layer.tensor("attn_q"), n_heads * facts.k_dim)?,
    };
    let down = layer.tensor("attn_kv_a_mqa");
    let c = m.linear_rows(x, &down, dim, 0..kv_rank)?;
    let rotated = m.linear_rows(x, &down, dim, kv_rank..dim)?;
    let q = match latent.q_rank {
        Some(_) => {
            let low = m.rms_norm(q, &layer.tensor("attn_q_a_norm"), m.config.norm_eps)?;
            m.linear(low, &layer.tensor("attn_q_b"), n_heads * facts.k_dim)?
        }
        None => q,
    };
    let plain = m
        .plan
        .head_matmul(q, [0, n_plain], (of_keys, n_heads), kv_rank);
    let c = m.rms_norm(c, &layer.tensor("attn_kv_a_norm"), m.config.norm_eps)?;
    let mut k = m.plan.join_heads(1, c, Some((rotated, n_rot)));
    let mut q = m.plan.join_heads(n_heads, plain, Some((q, n_rot)));
    if let Some(rope) = facts.rope {
        q = m.rotate(q, [dim, kv_rank], rope);
        k = m.rotate(k, [dim, kv_rank], rope);
    }
    let cache = m.plan.kv_layer(KvSpec {
        n_kv_heads: 1,
        k_dim: dim,
        v_dim: kv_rank,
        mask: facts.mask,
        values: Values::InKeys,
        heads: Some([facts.k_dim, facts.v_dim]),
    });
    m.plan.kv_append(cache, k, k);
    let out = m.plan.attention(cache, (n_heads, None), facts.scores, q);
    let out = m
        .plan
        .head_matmul(out, [0, kv_rank], (of_values, n_heads), facts.v_dim);
    let out = m.plan.join_heads(n_heads, out, None);
    let out = gated(m, layer, (x, None), out)?;
    m.linear(out, &layer.tensor("attn_output"), m.config.n_embd)
}

/// Returns the heads' matrices `K_h^T` and `V_h`. Older files have `K_h` and `V_h` in one tensor.
fn matrices(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    latent: &Latent,
) -> Result<[Projection; 2], LoadError> {
    let facts = layer.facts;
    let (n_heads, kv_rank) = (facts.n_heads, latent.kv_rank);
    let n_plain = facts.k_dim - latent.n_rot;
    let both = layer.tensor("attn_kv_b.weight");
    if m.loader.has(&both) {
        let parts = m
            .loader
            .keys_and_values(&both, n_heads, [n_plain, facts.v_dim], kv_rank)?;
        let projection = |(weight, ty): (_, GgmlType)| Projection::of(weight, act_format(ty));
        return Ok(parts.map(projection));
    }
    let [of_keys, of_values] =
        ["attn_k_b", "attn_v_b"].map(|name| layer.tensor(&format!("{name}.weight")));
    let keys = m.loader.experts(&of_keys, n_heads, kv_rank, n_plain)?;
    let values = m
        .loader
        .experts(&of_values, n_heads, facts.v_dim, kv_rank)?;
    Ok([
        Projection::of(keys, m.act_format(&of_keys)),
        Projection::of(values, m.act_format(&of_values)),
    ])
}
