//! Limits of the kernels that a model or a request may exceed. Each limit sits beside the check of its operation, so
//! the plan compiler can check them before anything is launched.

/// An exceeded limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted}, not {value}")]
pub struct Limit {
    /// The values that kernels support.
    pub wanted: String,
    pub value: usize,
}

impl Limit {
    /// Returns an error with `value` and `wanted` unless `holds`.
    pub(crate) fn check(
        holds: bool,
        value: usize,
        wanted: impl FnOnce() -> String,
    ) -> Result<(), Limit> {
        match holds {
            true => Ok(()),
            false => Err(Limit {
                wanted: wanted(),
                value,
            }),
        }
    }
}

/// Maximum number of blocks in the second and third dimension of a grid.
pub(crate) const MAX_GRID: usize = 65_535;
