//! What kernels take, where a model or a request may ask for more. Each limit is beside the check of the operation that has
//! it, so that who compiles a model can ask before anything is launched.

/// A limit that something is beyond.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted}, not {value}")]
pub struct Limit {
    /// What kernels take.
    pub wanted: String,
    pub value: usize,
}

impl Limit {
    /// An error with `value` and what is `wanted` unless `holds`.
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

/// Blocks of a grid across its second and third dimension.
pub(crate) const MAX_GRID: usize = 65_535;
