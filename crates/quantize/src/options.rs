//! Quantization options.

use regex_automata::meta::Regex;
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::can_quantize;

use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::imatrix::Imatrix;

/// Memory limit of a compiled pattern, in bytes; patterns are short.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// The user's choices.
#[derive(Debug, Clone)]
pub struct QuantizeOptions {
    pub file_type: FileType,
    /// Rules for tensor names. The first match overrides the mix.
    pub rules: Vec<TypeRule>,
    /// The type of `output.weight`, or of the embedding if it is also the output projection.
    pub output_type: Option<GgmlType>,
    /// The type of `token_embd.weight`.
    pub embedding_type: Option<GgmlType>,
    pub mixing: Mixing,
    pub requantize: Requantize,
    /// The importance matrix, and the name of its file.
    pub importance: Option<(Imatrix, String)>,
}

impl QuantizeOptions {
    /// Options for `file_type` with nothing else changed.
    pub fn new(file_type: FileType) -> QuantizeOptions {
        QuantizeOptions {
            file_type,
            rules: Vec::new(),
            output_type: None,
            embedding_type: None,
            mixing: Mixing::Mixed,
            requantize: Requantize::Refuse,
            importance: None,
        }
    }
}

/// Whether important tensors get more bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    Mixed,
    /// Every tensor gets the same type.
    Pure,
}

/// Whether tensors that are already quantized may be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requantize {
    Refuse,
    Allow,
}

/// The type of tensors whose name contains a match of a pattern.
#[derive(Debug, Clone)]
pub struct TypeRule {
    pattern: Regex,
    ty: GgmlType,
}

impl TypeRule {
    /// Parses `REGEX=TYPE`. Matching takes time linear in the name.
    ///
    /// # Errors
    /// If it is not such a pair, the pattern is not a regular expression, or the type cannot be written.
    pub fn parse(rule: &str) -> Result<TypeRule, QuantizeError> {
        let bad = |problem: &str| QuantizeError::Rule {
            rule: rule.to_string(),
            problem: problem.to_string(),
        };
        let (pattern, ty) = rule
            .rsplit_once('=')
            .ok_or_else(|| bad("there is no '='"))?;
        if pattern.is_empty() {
            return Err(bad("the pattern is empty"));
        }
        let config = Regex::config().nfa_size_limit(Some(MAX_REGEX_BYTES));
        let pattern = Regex::builder().configure(config).build(pattern);
        Ok(TypeRule {
            pattern: pattern.map_err(|error| bad(&error_text(&error)))?,
            ty: tensor_type(ty)?,
        })
    }

    /// Returns the type for the tensor `name` if the rule matches it.
    pub(super) fn apply(&self, name: &str) -> Option<GgmlType> {
        self.pattern.is_match(name).then_some(self.ty)
    }
}

/// Returns the tensor type with this name, in any case.
///
/// # Errors
/// If there is no such type, or it cannot be written.
pub fn tensor_type(name: &str) -> Result<GgmlType, QuantizeError> {
    GgmlType::from_name(name)
        .filter(|&ty| can_quantize(ty))
        .ok_or_else(|| QuantizeError::UnknownType {
            name: name.to_string(),
            supported: supported_types().join(", "),
        })
}

/// Returns the names of the types that tensors can be quantized to.
fn supported_types() -> Vec<&'static str> {
    let supported = GgmlType::ALL.iter().filter(|&&ty| can_quantize(ty));
    supported.map(|ty| ty.name()).collect()
}

/// Returns what is wrong with a pattern, on one line.
fn error_text(error: &regex_automata::meta::BuildError) -> String {
    if error.size_limit().is_some() {
        return "the pattern is too large".to_string();
    }
    match error.syntax_error() {
        // The last line says what is wrong; those before show where.
        Some(error) => error
            .to_string()
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_string(),
        None => error.to_string(),
    }
}
