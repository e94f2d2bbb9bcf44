//! Measures the KV cache: filling it for models of known shapes, allocating pages in chunks of several sizes,
//! fragmentation after long use, and reading it through a page table.
//!
//! Pages come from the engine's KV-cache accounting ([`rocmforge_engine::kv_cache`]); keys and values are written by
//! the backend's own operation.

mod accounting;
mod growth;
mod page_table;

use crate::case::Case;
use crate::options::Effort;

/// Tokens per page, for short, medium and long contexts.
const PAGES: [usize; 3] = [16, 32, 64];

/// KV-cache shape of a model: layers, KV heads, head size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KvShape {
    name: &'static str,
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

/// TinyLlama 1.1B, Llama 2 7B, 13B and 70B. Only the first and the last use grouped-query attention.
const MODELS: [KvShape; 4] = [
    kv_shape("1B", [22, 4, 64]),
    kv_shape("7B", [32, 32, 128]),
    kv_shape("13B", [40, 40, 128]),
    kv_shape("70B", [80, 8, 128]),
];

const fn kv_shape(name: &'static str, [n_layers, n_kv_heads, head_dim]: [usize; 3]) -> KvShape {
    KvShape {
        name,
        n_layers,
        n_kv_heads,
        head_dim,
    }
}

impl KvShape {
    /// Returns the bytes per token as f16: keys and values of every layer.
    fn bytes_per_token(&self) -> usize {
        2 * self.n_layers * self.n_kv_heads * self.head_dim * size_of::<u16>()
    }
}

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let mut cases = growth::cases(effort);
    cases.extend(accounting::cases());
    cases.extend(page_table::cases(effort));
    cases
}

#[cfg(test)]
mod tests {
    use rocmforge_plan::{KvSpec, KvType, Mask};

    use super::*;

    /// The specification ignored grouped-query attention: its 3,276,800 bytes for 70B are 327,680.
    #[test]
    fn bytes_per_token_match_the_models() {
        for (shape, expected) in MODELS.iter().zip([22_528, 524_288, 819_200, 327_680]) {
            assert_eq!(shape.bytes_per_token(), expected, "{}", shape.name);
            let spec = KvSpec {
                n_kv_heads: shape.n_kv_heads,
                k_dim: shape.head_dim,
                v_dim: shape.head_dim,
                mask: Mask::All,
                values: rocmforge_plan::Values::Apart,
                heads: None,
            };
            let engine_s = spec.bytes_per_token(KvType::F16) * shape.n_layers as u64;
            assert_eq!(engine_s, expected as u64);
        }
    }
}
