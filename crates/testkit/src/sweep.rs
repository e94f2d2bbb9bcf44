//! What tests leave out unless `.ci/run --full` runs them: cases that repeat what others show.

/// Whether tests leave nothing out: `.ci/run --full` sets `ROCMFORGE_TEST_REPEATS`, and a real GPU, which
/// `ROCMFORGE_TEST_DEVICE` names, is fast.
pub fn is_full_run() -> bool {
    ["ROCMFORGE_TEST_REPEATS", "ROCMFORGE_TEST_DEVICE"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

/// The first `n` cases, which show every path, or all of them in a full run.
pub fn first<T>(n: usize, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    cases
        .into_iter()
        .take(if is_full_run() { usize::MAX } else { n })
}

/// Every `n`-th case, others for each `turn`, or all of them in a full run.
pub fn every_nth<T>(
    n: usize,
    turn: usize,
    cases: impl IntoIterator<Item = T>,
) -> impl Iterator<Item = T> {
    let n = if is_full_run() { 1 } else { n };
    let cases = cases.into_iter().enumerate();
    cases.filter_map(move |(i, case)| (i + turn).is_multiple_of(n).then_some(case))
}
