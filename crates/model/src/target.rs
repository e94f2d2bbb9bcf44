//! What drafters in files of their own read of the model that checks their drafts.

use rocmforge_plan::{Op, WeightId};

use crate::Model;
use crate::error::LoadError;
use crate::facts::ModelConfig;

/// The embedding of tokens.
pub(crate) const EMBEDDING: &str = "token_embd.weight";
/// The matrix that makes logits.
pub(crate) const OUTPUT: &str = "output.weight";
/// The tokens of the logits.
pub(crate) const OUTPUT_IDS: &str = "d2t";

/// A model, as the drafter of the architecture `arch` sees it.
pub(crate) struct Target<'a> {
    arch: &'a str,
    pub(crate) model: &'a Model,
}

impl<'a> Target<'a> {
    pub(crate) fn new(config: &'a ModelConfig, model: &'a Model) -> Target<'a> {
        Target {
            arch: &config.arch_name,
            model,
        }
    }

    /// Refuses the model if it has another number of something than the drafter expects.
    pub(crate) fn same(
        &self,
        what: &'static str,
        got: usize,
        wanted: usize,
    ) -> Result<(), LoadError> {
        same(self.arch, what, [got, wanted])
    }

    /// Returns the embedding of tokens.
    pub(crate) fn embedding(&self) -> WeightId {
        let tables = self.model.plan.ops.iter().filter_map(Op::table);
        self.named(tables, EMBEDDING)
            .expect("a model embeds its tokens")
    }

    /// Returns the matrix that makes logits: the embedding if there is no other.
    pub(crate) fn output(&self) -> WeightId {
        let matrices = self.model.plan.ops.iter().flat_map(Op::matrices);
        self.named(matrices, OUTPUT)
            .unwrap_or_else(|| self.embedding())
    }

    fn named(&self, mut ids: impl Iterator<Item = WeightId>, name: &str) -> Option<WeightId> {
        ids.find(|&id| self.model.weights.tensor_name(id) == Some(name))
    }
}

/// Refuses a model for which a drafter of the architecture `arch` was not made, whose `what` differs.
pub(crate) fn same(
    arch: &str,
    what: &'static str,
    [got, wanted]: [usize; 2],
) -> Result<(), LoadError> {
    match got == wanted {
        true => Ok(()),
        false => Err(LoadError::OtherTarget {
            arch: arch.to_string(),
            what,
            got,
            wanted,
        }),
    }
}
