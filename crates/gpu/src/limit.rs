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

/// Checks that operations support `n` values: they are counted in 32 bits.
pub fn check_values(n: usize) -> Result<(), Limit> {
    n_values(n).map(|_| ())
}

/// Returns a number of values as kernels count them.
pub(crate) fn n_values(n: usize) -> Result<u32, Limit> {
    u32::try_from(n).map_err(|_| Limit {
        wanted: format!("at most {} values in the buffers of a step", u32::MAX),
        value: n,
    })
}
