//! Rows of heads, from rows that are sorted by head.

use super::rows_per_task;
use crate::pool::Pool;

/// Writes `out[t, head] = x[head, t]`, followed by the last values of `rest[t, head]`.
///
/// - `x` [n_heads, n_tokens, width]
/// - `rest` [n_tokens, n_heads * rest_dim], if there is one
/// - `out` [n_tokens, n_heads * (width + n)]: `n` values of each head of `rest`, or none
///
/// # Panics
/// If the shapes do not match.
pub fn join_heads(
    pool: &Pool,
    [n_heads, n_tokens]: [usize; 2],
    x: &[f32],
    rest: Option<&[f32]>,
    out: &mut [f32],
) {
    let n_rows = n_heads * n_tokens;
    if n_rows == 0 {
        return;
    }
    let width_of = |values: &[f32]| {
        assert!(values.len().is_multiple_of(n_rows), "a row for each head");
        values.len() / n_rows
    };
    let (width, dim) = (width_of(x), width_of(out));
    let rest_dim = rest.map_or(0, width_of);
    assert!(
        width <= dim && dim - width <= rest_dim,
        "heads of {dim} values from {width} and {rest_dim}"
    );
    if dim == 0 {
        return;
    }
    let n_rest = dim - width;
    let per_task = rows_per_task(pool, n_rows, dim);
    pool.for_each_rows(out, dim, per_task, &|first, out| {
        for (row, out) in (first..).zip(out.chunks_exact_mut(dim)) {
            let (token, head) = (row / n_heads, row % n_heads);
            let (start, end) = out.split_at_mut(width);
            start.copy_from_slice(&x[(head * n_tokens + token) * width..][..width]);
            if let Some(rest) = rest {
                end.copy_from_slice(&rest[(row + 1) * rest_dim - n_rest..][..n_rest]);
            }
        }
    });
}
