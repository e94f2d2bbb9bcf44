//! The error for a parameter outside its range.

/// A parameter whose value is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, expected {wanted}")]
pub struct ParameterError {
    /// The parameter's name as users write it.
    pub name: &'static str,
    pub value: String,
    /// The allowed values, in words.
    pub wanted: &'static str,
}
