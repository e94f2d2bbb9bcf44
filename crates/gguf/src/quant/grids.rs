//! The grids of the IQ formats: the points of a lattice from which the magnitudes of 8 or 4 neighbouring values are
//! chosen together. Their choice is ggml's (`ggml-common.h`), from the statistics of real weights; it follows from no
//! rule. Each is stored as a set, which the compiler expands to a table (see `grids/make.py`).
//!
//! Byte k of an entry is the magnitude of value k, or for IQ1 its code.

/// The magnitudes of IQ2.
pub const IQ2_MAGNITUDES: [u8; 3] = [8, 25, 43];
/// The magnitudes of IQ3_XXS.
pub const IQ3_XXS_MAGNITUDES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
/// The magnitudes of IQ3_S.
pub const IQ3_S_MAGNITUDES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Eight times the values -1, 0 and 1 of IQ1, and one, as bytes of i8.
const IQ1_CODES: [u8; 3] = [0xf9, 0x01, 0x09];

pub static IQ2_XXS: [u64; 256] = expand(include_str!("grids/iq2_xxs.inc"), &IQ2_MAGNITUDES, 8);
pub static IQ2_XS: [u64; 512] = expand(include_str!("grids/iq2_xs.inc"), &IQ2_MAGNITUDES, 8);
pub static IQ2_S: [u64; 1024] = expand(include_str!("grids/iq2_s.inc"), &IQ2_MAGNITUDES, 8);
pub static IQ3_XXS: [u32; 256] = lower(expand(
    include_str!("grids/iq3_xxs.inc"),
    &IQ3_XXS_MAGNITUDES,
    4,
));
pub static IQ3_S: [u32; 512] = lower(expand(
    include_str!("grids/iq3_s.inc"),
    &IQ3_S_MAGNITUDES,
    4,
));
/// Also that of IQ1_M.
pub static IQ1_S: [u64; 2048] = expand(include_str!("grids/iq1_s.inc"), &IQ1_CODES, 8);

/// Bytes of 255 where a bit is set.
pub static MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut signs = 0;
    while signs < 256 {
        let mut bit = 0;
        while bit < 8 {
            masks[signs] |= (signs as u64 >> bit & 1) * (255 << (8 * bit));
            bit += 1;
        }
        signs += 1;
    }
    masks
};

/// [`MASKS`] of the signs that seven bits stand for: the eighth makes the number of set bits even.
pub static EVEN_MASKS: [u64; 128] = {
    let mut masks = [0; 128];
    let mut signs = 0;
    while signs < 128 {
        masks[signs] = MASKS[even_signs(signs as u8) as usize];
        signs += 1;
    }
    masks
};

/// The eight signs that the lower seven bits of `index` stand for: the eighth makes their number even.
pub const fn even_signs(index: u8) -> u8 {
    let seven = index & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The entries of a set, in order: `set` is a list of words in hexadecimal, of which bit i of all is set if the
/// `n_digits` digits of i, the lowest first, are an entry. A digit stands for one of `values`.
const fn expand<const N: usize>(set: &str, values: &[u8], n_digits: u32) -> [u64; N] {
    let set = set.as_bytes();
    let mut entries = [0; N];
    let (mut n, mut first, mut at) = (0, 0, 0);
    while at < set.len() {
        if set[at] != b'x' {
            at += 1;
            continue;
        }
        let mut word = 0;
        let mut digit = 1;
        while digit <= 16 {
            let c = set[at + digit];
            word = word << 4 | (if c >= b'a' { c - b'a' + 10 } else { c - b'0' }) as u64;
            digit += 1;
        }
        while word != 0 {
            let number = first + word.trailing_zeros() as usize;
            entries[n] = entry(number, values, n_digits);
            n += 1;
            word &= word - 1;
        }
        first += 64;
        at += 17;
    }
    assert!(
        n == N,
        "the set has as many entries as the format has indices"
    );
    entries
}

const fn entry(number: usize, values: &[u8], n_digits: u32) -> u64 {
    let (mut entry, mut rest, mut k) = (0, number, 0);
    while k < n_digits {
        entry |= (values[rest % values.len()] as u64) << (8 * k);
        rest /= values.len();
        k += 1;
    }
    entry
}

const fn lower<const N: usize>(wide: [u64; N]) -> [u32; N] {
    let mut narrow = [0; N];
    let mut i = 0;
    while i < N {
        narrow[i] = wide[i] as u32;
        i += 1;
    }
    narrow
}
