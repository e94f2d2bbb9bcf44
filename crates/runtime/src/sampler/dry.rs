//! DRY, "don't repeat yourself" (Weidmann 2024), as llama.cpp defines it: penalizes a token that would continue a
//! repetition of the text's end, exponentially in the length of the longest such repetition.

use std::collections::BTreeMap;

use super::candidates::Candidates;
use rocmforge_gguf::TokenId;
use rocmforge_plan::Breakers;
use rocmforge_plan::Dry;

/// The logarithm of the largest f32, which bounds `base ^ exponent`.
const MAX_LOG: f32 = 88.722_84;

/// Penalizes the tokens that continue a repetition. `text` holds the last tokens, oldest first.
pub(crate) fn penalize(
    candidates: &mut Candidates<'_>,
    dry: &Dry,
    breakers: &Breakers,
    text: &[TokenId],
) {
    let repeats = continued_repeats(dry, breakers, text);
    let max_exponent = if dry.base > 1.000_001 {
        (MAX_LOG / dry.base.ln()) as usize
    } else {
        usize::MAX
    };
    let penalties: Vec<(TokenId, f32)> = repeats
        .into_iter()
        .filter(|&(id, _)| !breakers.is_whole(id))
        .map(|(id, length)| {
            let exponent = (length - dry.allowed_length).min(max_exponent);
            (id, dry.multiplier * dry.base.powf(exponent as f32))
        })
        .collect();
    candidates.adjust(&penalties, |logit, penalty| logit - penalty);
}

/// Returns the tokens that would continue a repetition of at least the allowed length, each with the longest length.
fn continued_repeats(dry: &Dry, breakers: &Breakers, text: &[TokenId]) -> BTreeMap<TokenId, usize> {
    let mut repeats = BTreeMap::new();
    let reversed: Vec<TokenId> = text.iter().rev().take(dry.last_n).copied().collect();
    if reversed.len() <= dry.allowed_length {
        return repeats;
    }
    let longest = breakers.tokens_since(&reversed);
    if longest < dry.allowed_length {
        return repeats;
    }
    for (at, common) in common_prefixes(&reversed).into_iter().enumerate().skip(1) {
        let length = common.min(longest);
        if length >= dry.allowed_length {
            let follower = repeats.entry(reversed[at - 1]).or_insert(0);
            *follower = length.max(*follower);
        }
    }
    repeats
}

/// Computes the length of the common prefix of `text` and its suffix at each position (the Z function; Gusfield 1997,
/// section 1.3), in linear time.
fn common_prefixes(text: &[TokenId]) -> Vec<usize> {
    let mut z = vec![0; text.len()];
    // text[start..end] equals text[..end - start], with the largest end so far.
    let (mut start, mut end) = (0, 0);
    for at in 1..text.len() {
        let mut n = if at < end {
            z[at - start].min(end - at)
        } else {
            0
        };
        while text.get(at + n).is_some_and(|token| *token == text[n]) {
            n += 1;
        }
        z[at] = n;
        if at + n > end {
            (start, end) = (at, at + n);
        }
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefixes_match_a_direct_comparison() {
        for seed in 0..200u32 {
            let text: Vec<TokenId> = (0..seed % 40)
                .map(|i| (i * i + seed).wrapping_mul(2654435761) >> 30 & (1 + seed % 3))
                .collect();
            for (at, &got) in common_prefixes(&text).iter().enumerate().skip(1) {
                let pairs = text[at..].iter().zip(&text);
                let expected = pairs.take_while(|(a, b)| a == b).count();
                assert_eq!(got, expected, "{text:?} at {at}");
            }
        }
    }
}
