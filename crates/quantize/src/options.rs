//! What the user asks of a quantization.

use regex_automata::meta::Regex;
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::can_quantize;

use super::{FileType, QuantizeError};
use crate::imatrix::Imatrix;

/// Memory that a pattern may take, in bytes: patterns are short.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// The user's choices.
#[derive(Debug, Clone)]
pub struct QuantizeOptions {
    pub file_type: FileType,
    /// The first rule that fits a tensor's name decides, before the mix.
    pub rules: Vec<TypeRule>,
    /// For `output.weight`, and for the embedding where it is the output projection, too.
    pub output_type: Option<GgmlType>,
    /// For `token_embd.weight`.
    pub embedding_type: Option<GgmlType>,
    pub mixing: Mixing,
    pub requantize: Requantize,
    /// Which columns of each tensor matter, and the name of the file that says so.
    pub importance: Option<(Imatrix, String)>,
}

impl QuantizeOptions {
    /// The mix of `file_type` without anything special.
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

/// Whether tensors that matter more get more bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    Mixed,
    /// Every tensor gets the type of most.
    Pure,
}

/// Whether tensors that are quantized already may be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requantize {
    Refuse,
    Allow,
}

/// Tensors whose name contains a match of a pattern, and the type they get.
#[derive(Debug, Clone)]
pub struct TypeRule {
    pattern: Regex,
    ty: GgmlType,
}

impl TypeRule {
    /// Reads `REGEX=TYPE`. Matching takes time linear in the name.
    ///
    /// # Errors
    /// If it is no such pair, the pattern is no regular expression, or no tensor can be made of that type.
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

    /// The type for the tensor `name`, if the rule is about it.
    pub(super) fn apply(&self, name: &str) -> Option<GgmlType> {
        self.pattern.is_match(name).then_some(self.ty)
    }
}

/// The tensor type `name`, in any case.
///
/// # Errors
/// If there is none, or none that can be made.
pub fn tensor_type(name: &str) -> Result<GgmlType, QuantizeError> {
    GgmlType::from_name(name)
        .filter(|&ty| can_quantize(ty))
        .ok_or_else(|| QuantizeError::UnknownType {
            name: name.to_string(),
            supported: supported_types().join(", "),
        })
}

/// Names of the types that tensors can be made of.
fn supported_types() -> Vec<&'static str> {
    let supported = GgmlType::ALL.iter().filter(|&&ty| can_quantize(ty));
    supported.map(|ty| ty.name()).collect()
}

/// What is wrong with a pattern, on one line.
fn error_text(error: &regex_automata::meta::BuildError) -> String {
    if error.size_limit().is_some() {
        return "the pattern is too large".to_string();
    }
    match error.syntax_error() {
        // Its last line says what is wrong, those before it show where.
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
