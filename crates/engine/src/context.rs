//! Context shift: a sequence whose context is full drops the older half of its tokens and continues.
//!
//! The first tokens (attention sinks) always stay: attention relies on them whatever they are, and without them the
//! text degrades (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"). The remaining tokens
//! keep their keys and values and move to the freed positions.

/// Returns how many tokens after the sinks are dropped when all `n_ctx` positions are taken.
///
/// Half of them, so that a token moves at most once before it is dropped and the error of rounding its key again does
/// not add up. Rounded up to whole blocks if that leaves at least a quarter: then blocks change their place in the
/// block table and tokens stay where they are.
pub(crate) fn n_forgotten(n_ctx: usize, n_sinks: usize, block_size: usize) -> usize {
    let rest = n_ctx - n_sinks;
    let half = rest.div_ceil(2);
    let whole_blocks = half.next_multiple_of(block_size);
    if rest.saturating_sub(whole_blocks) >= rest.div_ceil(4) {
        whole_blocks
    } else {
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_half_in_whole_blocks_if_a_quarter_remains() {
        // n_ctx, sinks, block size, dropped
        let cases = [
            (2048, 4, 32, 1024),
            (8192, 4, 64, 4096),
            (8192, 3000, 32, 2624),
            (64, 4, 16, 32),
            (100, 4, 64, 64),
            (80, 4, 64, 38),
            (32, 4, 32, 14),
            (33, 4, 32, 15),
            (6, 4, 16, 1),
            (2, 0, 16, 1),
        ];
        for (n_ctx, n_sinks, block_size, expected) in cases {
            let got = n_forgotten(n_ctx, n_sinks, block_size);
            assert_eq!(got, expected, "{n_ctx} {n_sinks} {block_size}");
        }
    }
}
