//! Scans whose keys, queries and steps are projections of their values: Mamba-1 (Gu and Dao 2023), also with norms of these
//! projections (Jamba, Falcon Mamba), and PLaMo 2, whose steps are of heads as in Mamba-2.

use rocmforge_plan::{
    Activation, Decay, Factor, LinearHeads, LinearInputs, StateRule, Value, WeightId,
};

use crate::blocks::recurrent::convolved;
use crate::builder::Builder;
use crate::error::LoadError;
use crate::facts::Layer;
use crate::recurrent::{Selective, SelectiveForm, SelectiveNorms};

/// Records the layer.
pub(super) fn selective(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    scan: &Selective,
    x: Value,
) -> Result<Value, LoadError> {
    let heads = scan.linear.heads;
    let [v, gate] = values_and_gate(m, layer, scan, x)?;
    let v = convolved(m, layer, &scan.linear, v)?;
    let [k, q, low] = projections(m, layer, scan, v)?;
    let n_steps = match scan.form {
        SelectiveForm::Values => scan.linear.n_v(),
        SelectiveForm::Heads => heads.n_heads,
    };
    let dt = layer.tensor("ssm_dt.bias");
    let dt = m.loader.required_values(&dt, n_steps)?;
    let dt = m.linear_plus(low, &layer.tensor("ssm_dt"), (n_steps, 0..n_steps), dt)?;
    let step = m.plan.activate(Activation::Softplus, dt);
    let a = layer.tensor("ssm_a");
    let (how, decay) = match scan.form {
        SelectiveForm::Values => {
            let rates = m.loader.required_rows(&a, [n_steps, heads.k_dim])?;
            let rates = m.loader.push_vector(as_state(&heads, &rates));
            ((StateRule::Add, Decay::Value(rates)), step)
        }
        SelectiveForm::Heads => {
            let decay = m.plan.activate(Activation::Softplus, dt);
            let rates = m.loader.vector(&a, n_steps, 1.0)?;
            let decay = m.plan.scale(Factor::Vector(rates), decay);
            ((StateRule::Add, Decay::Head), decay)
        }
    };
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta: step,
    };
    let out = m.plan.linear_attention(heads, how, inputs);
    let skip = skip_factors(m, layer, scan)?;
    let skipped = m.plan.scale(Factor::Vector(skip), v);
    let out = m.plan.add(skipped, out);
    let out = m.plan.gated_activation(Activation::Silu, gate, out);
    m.linear(out, &layer.tensor("ssm_out"), m.config.n_embd)
}

/// Records the inputs of the convolution, and the gates of the output.
fn values_and_gate(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    scan: &Selective,
    x: Value,
) -> Result<[Value; 2], LoadError> {
    let (n, heads) = (scan.linear.n_v(), scan.linear.heads);
    let both = layer.tensor("ssm_in");
    match scan.form {
        SelectiveForm::Values => Ok([
            m.linear_rows(x, &both, 2 * n, 0..n)?,
            m.linear_rows(x, &both, 2 * n, n..2 * n)?,
        ]),
        SelectiveForm::Heads => {
            let both = m.linear(x, &both, 2 * n)?;
            Ok([heads.v_dim, 0].map(|first| m.plan.part(both, heads.n_heads, first, n)))
        }
    }
}

/// Records the keys, the queries, and what steps are computed from, with their norms.
fn projections(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    scan: &Selective,
    v: Value,
) -> Result<[Value; 3], LoadError> {
    let (rank, n) = (scan.dt_rank, scan.linear.heads.k_dim);
    let all = layer.tensor("ssm_x");
    let [k, q, low] = match scan.form {
        SelectiveForm::Values => [rank..rank + n, rank + n..rank + 2 * n, 0..rank],
        SelectiveForm::Heads => [0..n, n..2 * n, 2 * n..2 * n + rank],
    };
    let n_rows = rank + 2 * n;
    // All products before the norms, so that they can be one.
    let mut part = |rows| m.linear_rows(v, &all, n_rows, rows);
    let parts = [part(k)?, part(q)?, part(low)?];
    let mut normed = |name: &str, part| match scan.norms {
        SelectiveNorms::None => Ok(part),
        SelectiveNorms::Plain => Ok(m.plain_rms_norm(part)),
        SelectiveNorms::Weighed => {
            // PLaMo 2 has the tensors without the usual ending.
            let [plain, usual] = [name, &format!("{name}.weight")].map(|it| layer.tensor(it));
            let name = if m.loader.has(&plain) { plain } else { usual };
            m.rms_norm_by(part, &name)
        }
    };
    let [k, q, low] = parts;
    Ok([
        normed("ssm_b_norm", k)?,
        normed("ssm_c_norm", q)?,
        normed("ssm_dt_norm", low)?,
    ])
}

/// Returns the factors with which the values pass the scan, which the file has for each value or for each head.
fn skip_factors(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    scan: &Selective,
) -> Result<WeightId, LoadError> {
    let d = layer.tensor("ssm_d");
    let LinearHeads { n_heads, v_dim, .. } = scan.linear.heads;
    match scan.form {
        SelectiveForm::Values => m.loader.vector(&d, n_heads * v_dim, 1.0),
        SelectiveForm::Heads => {
            let d = m.loader.required_values(&d, n_heads)?;
            let d = d.iter().flat_map(|&d| vec![d; v_dim]).collect();
            Ok(m.loader.push_vector(d))
        }
    }
}

/// Returns `values` `[n_heads * v_dim, k_dim]` as they lie in a state; none if a fault was noted.
fn as_state(heads: &LinearHeads, values: &[f32]) -> Vec<f32> {
    if values.is_empty() {
        return Vec::new();
    }
    let LinearHeads { k_dim, v_dim, .. } = *heads;
    let columns = heads.columns();
    let mut state = vec![0.0; heads.state_len()];
    for (index, of_value) in values.chunks_exact(k_dim).enumerate() {
        let (head, column) = (index / v_dim, index % v_dim);
        let first = head * heads.head_len() + column / columns * k_dim * columns;
        let to = &mut state[first + column % columns..];
        for (to, value) in to.iter_mut().step_by(columns).zip(of_value) {
            *to = *value;
        }
    }
    state
}
