//! Limits on time, memory and states. What reaches one fails with an error.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Longest source. Some steps of compiling take quadratic time.
pub(crate) const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Longest token that takes part in a grammar; llguidance's tries hold 1,024 bytes. Released vocabularies have tokens of
/// up to 256 bytes, and a few of spaces only.
pub(crate) const MAX_TOKEN_BYTES: usize = 1000;

/// Bytes of a forced text that are looked at, at most. It is looked at again for every token.
pub(crate) const MAX_FORCED_BYTES: usize = 1 << 10;

/// Stack of the thread that compiles. Schemas nest up to 128 levels, and expressions up to 250.
pub(crate) const COMPILER_STACK_BYTES: usize = 64 << 20;

/// A source that takes longer to compile is refused.
pub(crate) const COMPILE_TIME: Duration = Duration::from_secs(5);

/// A mask, or the next step of a sequence, that takes longer fails. A mask usually takes a few milliseconds.
pub(crate) const STEP_TIME: Duration = Duration::from_secs(2);

/// What the steps of a sequence may take beyond [`USUAL_STEP_TIME`] on average, all together: others wait for them.
pub(crate) const EXTRA_TIME: Duration = Duration::from_secs(5);
pub(crate) const USUAL_STEP_TIME: Duration = Duration::from_millis(50);

/// At most this many sources that were refused for their time may still be compiling: parts of that cannot be cancelled, and
/// end by llguidance's limits.
pub(crate) const MAX_OVERDUE: usize = 8;

/// Parts that a terminal of a GBNF grammar has when the rules in it are written out.
pub(crate) const MAX_TERMINAL_PARTS: usize = 20_000;

/// Returns the limits of llguidance's parser.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 100_000,
        // About 15 ms for the mask of one token.
        step_lexer_fuel: 200_000,
        // About 10 ms for the mask of one token.
        step_max_items: 200_000,
        max_items_in_row: 2000,
        // 1 to 2 kB each, for each sequence.
        max_lexer_states: 25_000,
        max_grammar_size: 200_000,
        // Would run large expressions over the whole vocabulary.
        precompute_large_lexemes: false,
        // Errors would quote the text so far.
        verbose_errors: false,
    }
}
