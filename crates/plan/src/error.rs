//! A parameter outside its range.

/// A parameter whose value is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, expected {wanted}")]
pub struct ParameterError {
    /// The parameter, as users know it.
    pub name: &'static str,
    pub value: String,
    /// What is allowed, in words.
    pub wanted: &'static str,
}
