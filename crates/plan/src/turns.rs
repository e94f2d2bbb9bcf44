//! How cached keys take other positions: what a plan says of their rotations.

use std::collections::HashMap;

use crate::RopeStyle;

use super::op::{BufferId, Op, Plan, RopeId};

/// How the keys in a layer's cache were rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTurn {
    pub table: RopeId,
    pub style: RopeStyle,
}

impl Plan {
    /// Whether cached tokens can take other positions. They cannot where a vector for each position is part of what
    /// keys and values were computed from.
    pub fn can_shift(&self) -> bool {
        !self
            .ops
            .iter()
            .any(|op| matches!(op, Op::AddPositions { .. }))
    }

    /// How each layer's keys were rotated; `None` where they do not depend on their position.
    pub fn key_turns(&self) -> Vec<Option<KeyTurn>> {
        let mut turned: HashMap<BufferId, KeyTurn> = HashMap::new();
        let mut layers = vec![None; self.kv.len()];
        for op in &self.ops {
            match *op {
                Op::Rope {
                    x, table, style, ..
                } => {
                    turned.insert(x, KeyTurn { table, style });
                }
                Op::KvAppend { layer, k, .. } => layers[layer] = turned.get(&k).copied(),
                ref op => turned.retain(|buffer, _| !op.writes().contains(buffer)),
            }
        }
        layers
    }
}
