//! What a model returns for a text when it is loaded for embeddings: how the hidden values of its tokens become a vector
//! or scores.

use rocmforge_gguf::Value;

use crate::classifier::Classifier;
use crate::error::LoadError;
use crate::keys::Keys;

/// Labels of a classifier beyond this number mean a damaged file.
const MAX_LABELS: usize = 1 << 16;

/// What a model is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Logits, to generate text.
    #[default]
    Text,
    /// Text, or embeddings if the model computes nothing else.
    Either,
    /// Embeddings or scores of texts, pooled in this way; `None` takes the pooling that the file names, or else that of
    /// the architecture.
    Embeddings(Option<Pooling>),
}

/// How the hidden values of a text's tokens become its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The values of the first token.
    Cls,
    /// The values of the last token.
    Last,
    /// The scores that a classifier makes of one token's values.
    Rank,
}

impl Pooling {
    pub const ALL: [Pooling; 4] = [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];

    /// The name used in options and messages, as in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        }
    }
}

/// The tokens whose values are pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PooledTokens {
    First,
    Last,
    /// All, of which the mean is taken.
    All,
}

/// What a model returns for a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    pub pooling: Pooling,
    pub tokens: PooledTokens,
    /// Names of the scores; empty if the file has none.
    pub labels: Vec<String>,
    /// Whether the scores are probabilities, by a softmax over them.
    pub softmax: bool,
    /// The function in the classifier.
    pub(crate) activation: HeadActivation,
    /// The classifier of the mean over all tokens.
    pub(crate) classifier: Option<Classifier>,
}

/// The function between the two projections of a classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadActivation {
    Tanh,
    Gelu,
}

/// What the architecture says about embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EmbeddingFacts {
    pub(crate) reads: Reads,
    pub(crate) activation: HeadActivation,
    pub(crate) softmax: bool,
    /// The tokens that the classifier reads, if the file does not say it.
    pub(crate) scored: PooledTokens,
}

/// Which tokens of a text each token sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Those before it, so that the model can continue a text.
    Backward,
    /// Those on both sides, so that the model computes embeddings only.
    BothSides,
}

impl EmbeddingFacts {
    pub(crate) const DECODER: EmbeddingFacts = EmbeddingFacts {
        reads: Reads::Backward,
        activation: HeadActivation::Tanh,
        softmax: false,
        scored: PooledTokens::Last,
    };
    /// A decoder whose scores are the probabilities of its answers.
    pub(crate) const JUDGE: EmbeddingFacts = EmbeddingFacts {
        softmax: true,
        ..EmbeddingFacts::DECODER
    };
    pub(crate) const ENCODER: EmbeddingFacts = EmbeddingFacts {
        reads: Reads::BothSides,
        scored: PooledTokens::First,
        ..EmbeddingFacts::DECODER
    };
    pub(crate) const MODERN_BERT: EmbeddingFacts = EmbeddingFacts {
        activation: HeadActivation::Gelu,
        scored: PooledTokens::All,
        ..EmbeddingFacts::ENCODER
    };
}

impl Embedding {
    /// Reads the pooling, which `wanted` replaces.
    pub(crate) fn read(
        keys: &Keys<'_>,
        facts: &EmbeddingFacts,
        reads: Reads,
        wanted: Option<Pooling>,
    ) -> Result<Embedding, LoadError> {
        let of_family = match reads {
            Reads::Backward => Pooling::Last,
            Reads::BothSides => Pooling::Mean,
        };
        let of_file = pooling(keys, "pooling_type")?;
        let of_classifier = pooling(keys, "classifier.pooling_type")?;
        let pooling = wanted.or(of_file).unwrap_or(of_family);
        let tokens = match (pooling, of_classifier) {
            (Pooling::Mean, _) | (Pooling::Rank, Some(Pooling::Mean)) => PooledTokens::All,
            (Pooling::Cls, _) | (Pooling::Rank, Some(Pooling::Cls)) => PooledTokens::First,
            (Pooling::Last, _) => PooledTokens::Last,
            (Pooling::Rank, _) => facts.scored,
        };
        Ok(Embedding {
            pooling,
            tokens,
            labels: labels(keys)?,
            softmax: facts.softmax && pooling == Pooling::Rank,
            activation: facts.activation,
            classifier: None,
        })
    }

    /// Makes the result of the pooled values: scores, their probabilities, or a vector of length 1. A vector of zeros stays
    /// as it is.
    pub fn finish(&self, values: &mut Vec<f32>) {
        if let Some(classifier) = &self.classifier {
            *values = classifier.scores(values);
        }
        if self.softmax {
            softmax(values);
        } else if self.pooling != Pooling::Rank {
            normalize(values);
        }
    }
}

/// Divides by the Euclidean length.
fn normalize(values: &mut [f32]) {
    let squares = values.iter().map(|&x| f64::from(x) * f64::from(x));
    let length = squares.sum::<f64>().sqrt();
    if length > 0.0 {
        for x in values {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}

fn softmax(values: &mut [f32]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |x: f32| f64::from(x - max).exp();
    let sum: f64 = values.iter().map(|&x| weight(x)).sum();
    for x in values {
        *x = (weight(*x) / sum) as f32;
    }
}

/// Reads the pooling that `key` names, if it names one.
fn pooling(keys: &Keys<'_>, key: &str) -> Result<Option<Pooling>, LoadError> {
    match keys.meta.opt_u32(&keys.key(key))? {
        // 0 means the values of each token.
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::Cls)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(4) => Ok(Some(Pooling::Rank)),
        Some(n) => Err(keys.bad(key, n, "a number from 0 to 4")),
    }
}

fn labels(keys: &Keys<'_>) -> Result<Vec<String>, LoadError> {
    const KEY: &str = "classifier.output_labels";
    let bad = |value: String| keys.bad(KEY, value, "a list of names");
    match keys.meta.get(&keys.key(KEY)) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_LABELS => {
            let name = |value: Value<'_>| match value {
                Value::String(name) => Ok(String::from_utf8_lossy(name).into_owned()),
                _ => Err(bad("another kind of list".to_string())),
            };
            list.iter().map(name).collect()
        }
        Some(Value::Array(list)) => Err(bad(format!("{} names", list.len()))),
        Some(_) => Err(bad("no list".to_string())),
    }
}
