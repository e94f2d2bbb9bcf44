//! Which rotations the cached keys of a plan have, so that cached tokens can move to other positions.

use std::collections::HashMap;

use crate::op::{BufferId, Op, Plan, RopeId};
use crate::params::RopeStyle;

/// The rotation that was applied to a layer's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTurn {
    pub table: RopeId,
    pub style: RopeStyle,
    /// The first rotated value of a head.
    pub start: usize,
}

impl Plan {
    /// Returns whether cached tokens can move to other positions. They cannot if learned position embeddings are part
    /// of what keys and values were computed from.
    pub fn can_shift(&self) -> bool {
        !self
            .ops
            .iter()
            .any(|op| matches!(op, Op::AddPositions { .. }))
    }

    /// Returns the rotation of each layer's keys; `None` if they do not depend on position.
    pub fn key_turns(&self) -> Vec<Option<KeyTurn>> {
        let mut turned: HashMap<BufferId, KeyTurn> = HashMap::new();
        let mut layers = vec![None; self.kv.len()];
        for op in &self.ops {
            match *op {
                Op::Rope {
                    x,
                    table,
                    style,
                    start,
                    ..
                } => {
                    let turn = KeyTurn {
                        table,
                        style,
                        start,
                    };
                    turned.insert(x, turn);
                }
                Op::KvAppend { layer, k, .. } => layers[layer] = turned.get(&k).copied(),
                ref op => turned.retain(|buffer, _| !op.writes().contains(buffer)),
            }
        }
        layers
    }
}
