//! What happens to a sequence at the end of its context: it stops, or forgets its older half and goes on.
//!
//! The first tokens are never forgotten. Attention leans on them whatever they are ("attention sinks", Xiao et al. 2023,
//! "Efficient Streaming Language Models with Attention Sinks"), and without them text falls apart. The tokens that stay
//! keep their keys and values and take the positions that became free.

/// How many tokens behind the sinks are forgotten when all of `n_ctx` positions are taken.
///
/// It is half of them, so that a token is moved once at most before it is forgotten: what rounding its key again costs
/// does not add up. Whole pages where that leaves a quarter: then pages change their place and tokens stay in them.
pub(crate) fn n_forgotten(n_ctx: usize, n_sinks: usize, page: usize) -> usize {
    let rest = n_ctx - n_sinks;
    let half = rest.div_ceil(2);
    let whole_pages = half.next_multiple_of(page);
    if rest.saturating_sub(whole_pages) >= rest.div_ceil(4) {
        whole_pages
    } else {
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_forgotten_in_whole_pages_where_enough_stays() {
        // n_ctx, sinks, page, forgotten
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
        for (n_ctx, n_sinks, page, wanted) in cases {
            let got = n_forgotten(n_ctx, n_sinks, page);
            assert_eq!(got, wanted, "{n_ctx} {n_sinks} {page}");
        }
    }
}
