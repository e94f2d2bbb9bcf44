//! Files of the log-probabilities with which a model scores a text, as llama.cpp's `llama-perplexity` writes and reads them
//! (`--kl-divergence-base`), all numbers little-endian:
//!
//! ```text
//! "_logits_"  n_ctx u32  n_vocab i32  n_chunks i32  tokens i32 [n_chunks, n_ctx]
//! of each window and each position from n_ctx / 2 on, without the last:
//!     scale f32  least f32  codes u16 [n_vocab, rounded up to an even number]
//! ```
//!
//! The log-probability of a token is `scale * code + least`. Tokens more than 16 below the most likely one have code 0.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use rocmforge_gguf::TokenId;

const MAGIC: &[u8; 8] = b"_logits_";
const HEADER_BYTES: u64 = 20;
/// Codes do not reach further below the most likely token.
const RANGE: f32 = 16.0;
/// The least tokens of a window.
pub(crate) const MIN_CTX: usize = 4;

/// Why a file of log-probabilities cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedLogitsError {
    #[error("it does not hold log-probabilities; save them with --save-logits")]
    OtherFile,
    #[error(
        "its header is damaged: windows of {n_ctx} tokens, {n_chunks} windows, {n_vocab} tokens of a vocabulary; save it again"
    )]
    Header {
        n_ctx: u32,
        n_vocab: i32,
        n_chunks: i32,
    },
    #[error("it has {got} bytes instead of {wanted}: it is incomplete or damaged; save it again")]
    Size { got: u64, wanted: u64 },
    #[error("token {token} is not in its vocabulary of {n_vocab} tokens; save it again")]
    Token { token: i32, n_vocab: usize },
    #[error(
        "its vocabulary has {got} tokens, and the model's {wanted}; only models of one vocabulary can be compared"
    )]
    Vocabulary { got: usize, wanted: usize },
    #[error("it has log-probabilities that are not numbers; save it again")]
    NotFinite,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Positions of a window whose logits are saved.
pub(crate) fn scored(n_ctx: usize) -> std::ops::Range<usize> {
    n_ctx / 2..n_ctx.saturating_sub(1)
}

/// Bytes of a row.
fn row_bytes(n_vocab: usize) -> u64 {
    8 + 2 * (n_vocab as u64).next_multiple_of(2)
}

/// The log-probabilities after a position.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    scale: f32,
    least: f32,
    codes: Vec<u16>,
}

impl Row {
    /// Rounds the log-probabilities of `logits`.
    pub fn new(logits: &[f32]) -> Row {
        let most = logits
            .iter()
            .fold(f32::NEG_INFINITY, |most, &x| most.max(x));
        let lowest = logits.iter().fold(f32::INFINITY, |least, &x| least.min(x));
        let lowest = lowest.max(most - RANGE);
        let sum: f64 = logits.iter().map(|&x| f64::from((x - most).exp())).sum();
        let scale = (most - lowest) / f32::from(u16::MAX);
        let code = |&x: &f32| match scale > 0.0 && x > lowest {
            true => ((x - lowest) / scale).round_ties_even() as u16,
            false => 0,
        };
        Row {
            scale,
            least: lowest - most - sum.ln() as f32,
            codes: logits.iter().map(code).collect(),
        }
    }

    /// The log-probability of a token.
    pub fn log_prob(&self, token: usize) -> f32 {
        self.scale * f32::from(self.codes[token]) + self.least
    }

    pub fn n_vocab(&self) -> usize {
        self.codes.len()
    }
}

/// Writes such a file.
pub struct SavedLogitsWriter<W: Write> {
    to: BufWriter<W>,
}

impl<W: Write> SavedLogitsWriter<W> {
    /// Writes what precedes the rows. `tokens` are whole windows.
    ///
    /// # Errors
    /// Those of writing.
    ///
    /// # Panics
    /// If there are more tokens than the format can say.
    pub fn new(to: W, tokens: &[TokenId], n_ctx: usize, n_vocab: usize) -> io::Result<Self> {
        let number = |n: usize| i32::try_from(n).expect("fits 31 bits").to_le_bytes();
        let mut to = BufWriter::new(to);
        to.write_all(MAGIC)?;
        for n in [n_ctx, n_vocab, tokens.len() / n_ctx] {
            to.write_all(&number(n))?;
        }
        for &token in tokens {
            to.write_all(&number(token as usize))?;
        }
        Ok(SavedLogitsWriter { to })
    }

    /// Writes the next row.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        self.to.write_all(&row.scale.to_le_bytes())?;
        self.to.write_all(&row.least.to_le_bytes())?;
        for code in &row.codes {
            self.to.write_all(&code.to_le_bytes())?;
        }
        match row.codes.len() % 2 {
            0 => Ok(()),
            _ => self.to.write_all(&[0; 2]),
        }
    }

    /// Writes what is left in memory.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Reads such a file.
pub struct SavedLogits {
    from: BufReader<File>,
    n_ctx: usize,
    n_vocab: usize,
    /// Of all windows.
    tokens: Vec<TokenId>,
    bytes: Vec<u8>,
}

impl SavedLogits {
    /// Opens a file and reads what precedes the rows.
    ///
    /// # Errors
    /// If it is no such file, or not a complete one.
    pub fn open(path: &Path) -> Result<SavedLogits, SavedLogitsError> {
        let found = fs::metadata(path)?;
        let got = found.len();
        if !found.is_file() || got < HEADER_BYTES {
            return Err(SavedLogitsError::OtherFile);
        }
        let mut from = BufReader::new(File::open(path)?);
        let mut magic = [0; 8];
        from.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(SavedLogitsError::OtherFile);
        }
        let mut number = || {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes)?;
            Ok::<_, io::Error>(i32::from_le_bytes(bytes))
        };
        let [ctx, vocab, chunks] = [number()?, number()?, number()?];
        let sizes = [ctx, vocab, chunks].map(|n| usize::try_from(n).unwrap_or(0));
        let [n_ctx, n_vocab, n_chunks] = sizes;
        if n_ctx < MIN_CTX || n_vocab == 0 || n_chunks == 0 {
            return Err(SavedLogitsError::Header {
                n_ctx: ctx as u32,
                n_vocab: vocab,
                n_chunks: chunks,
            });
        }
        // Of numbers below 2^31, none of these overflows 128 bits.
        let of_window =
            4 * n_ctx as u128 + scored(n_ctx).len() as u128 * u128::from(row_bytes(n_vocab));
        let wanted = u128::from(HEADER_BYTES) + n_chunks as u128 * of_window;
        if u128::from(got) != wanted {
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            return Err(SavedLogitsError::Size { got, wanted });
        }
        let mut tokens = Vec::with_capacity(n_chunks * n_ctx);
        for _ in 0..n_chunks * n_ctx {
            let token = number()?;
            let known = TokenId::try_from(token).ok();
            let known = known.filter(|&token| (token as usize) < n_vocab);
            tokens.push(known.ok_or(SavedLogitsError::Token { token, n_vocab })?);
        }
        Ok(SavedLogits {
            from,
            n_ctx,
            n_vocab,
            tokens,
            bytes: vec![0; row_bytes(n_vocab) as usize],
        })
    }

    /// Tokens of a window.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The tokens of all windows.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Reads the next row.
    ///
    /// # Errors
    /// Those of reading, and [`SavedLogitsError::NotFinite`].
    pub fn read(&mut self, row: &mut Row) -> Result<(), SavedLogitsError> {
        self.from.read_exact(&mut self.bytes)?;
        let float = |at: usize| f32::from_le_bytes([0, 1, 2, 3].map(|i| self.bytes[at + i]));
        (row.scale, row.least) = (float(0), float(4));
        if !(row.scale * f32::from(u16::MAX) + row.least).is_finite() {
            return Err(SavedLogitsError::NotFinite);
        }
        row.codes.clear();
        let codes = self.bytes[8..].chunks_exact(2).take(self.n_vocab);
        row.codes
            .extend(codes.map(|code| u16::from_le_bytes([code[0], code[1]])));
        Ok(())
    }
}
