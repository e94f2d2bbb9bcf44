//! Which rotations the cached keys of a plan have, so that cached tokens can move to other positions.

use std::collections::HashMap;

use crate::op::{BufferId, Op, Plan, RopeId};
use crate::params::RopeStyle;

/// Why tokens cannot be dropped from a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// Learned position embeddings are part of what keys and values were computed from.
    Positions,
    /// Layers keep states, which cannot forget a token.
    States,
    /// Tokens have seen those after them.
    LooksAhead,
}

/// The rotation that was applied to a layer's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTurn {
    pub table: RopeId,
    pub style: RopeStyle,
    /// The first rotated value of a head.
    pub start: usize,
}

impl Plan {
    /// Returns why cached tokens cannot move to other positions; `None` if they can.
    pub fn fixed_by(&self) -> Option<Fixed> {
        let has_positions = |op: &Op| matches!(op, Op::AddPositions { .. });
        if self.looks_ahead() {
            return Some(Fixed::LooksAhead);
        }
        if !self.states.is_empty() {
            return Some(Fixed::States);
        }
        self.ops
            .iter()
            .any(has_positions)
            .then_some(Fixed::Positions)
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
