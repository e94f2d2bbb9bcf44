//! Arithmetic in f64, of definitions that tests compare with. It is here because test programs are not optimized.

/// Products of `x` with the rows of a matrix `[n_out, x.len()]`.
pub fn product(x: &[f64], matrix: &[f64]) -> Vec<f64> {
    let rows = matrix.chunks(x.len());
    let dot = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
    rows.map(dot).collect()
}

pub fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

pub fn narrowed(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}
