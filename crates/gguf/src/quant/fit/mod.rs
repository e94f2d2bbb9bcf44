//! Quantization with a search for the scales that minimize Σ weight * (value - restored)². Weights come from an
//! importance matrix if there is one. Two searches serve all formats: for a scale ([`scale`]), and for a scale and a
//! minimum ([`affine`]). [`super_block`] extends them to groups with integer scales, and [`pack`] packs the codes into
//! bytes. [`lattice`] fits the formats whose codes are points of a grid.

mod affine;
mod codes;
mod grid;
mod lanes;
mod lattice;
mod pack;
mod scale;
mod super_block;

use self::codes::sums;
use self::lanes::F32x4;
use super::Block;
use super::plain::F16;

/// A block that can be fitted to values.
pub(super) trait Fit: Block {
    /// Search effort without an importance matrix. Brief for formats that ggml then merely rounds, or searches little.
    const PLAIN: Search = Search::Thorough;
    /// Weight of the mean square beside a value's own square, without an importance matrix.
    const BALANCE: f32 = 1.5;

    /// Returns the block with the least error found. `x` is in units of `unit` and `w` has the weights,
    /// [`super::GgmlType::block_len`] values each.
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self;
}

/// Search effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Takes the best of a few candidates as it is, which is most of the gain. Where an f16 scale would be subnormal,
    /// the search is thorough.
    Brief,
    /// Refines the best of all candidates and chooses f16 scales by error.
    Thorough,
}

/// A power of two that the values of a block are divided by, so that no product in a search overflows or vanishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit(f32);

/// An f16 and its value in units.
#[derive(Clone, Copy, Debug)]
struct Half {
    stored: F16,
    value: f32,
}

impl Half {
    /// Whether it is zero or subnormal, so that neighbouring numbers are far away.
    fn is_subnormal(self) -> bool {
        self.stored.bits() & 0x7c00 == 0
    }
}

impl Unit {
    /// Rounds `x` (in units) to f16, saturating at the largest finite number.
    fn half(self, x: f32) -> Half {
        self.of(F16::from_f32((x * self.0).clamp(-65504.0, 65504.0)))
    }

    /// Rounds `x`, a factor of integer scales, to f16. Subnormal results are rounded away from zero, so that the
    /// largest integer is large enough.
    fn factor(self, x: f32) -> Half {
        let near = self.half(x);
        if near.is_subnormal() && near.value.abs() < x.abs() {
            self.beyond(near, x)
        } else {
            near
        }
    }

    /// The f16 numbers on both sides of `x`, the nearest first.
    fn halves(self, x: f32) -> [Half; 2] {
        let near = self.half(x);
        let other = if near.value.abs() > x.abs() {
            self.of(F16((near.stored.bits() - 1).to_le_bytes()))
        } else {
            self.beyond(near, x)
        };
        [near, if other.value.is_finite() { other } else { near }]
    }

    /// The f16 after `near`, away from zero on the side of `x`.
    fn beyond(self, near: Half, x: f32) -> Half {
        let sign = if x < 0.0 { 0x8000 } else { 0 };
        let bits = ((near.stored.bits() & 0x7fff) + 1) | sign;
        self.of(F16(bits.to_le_bytes()))
    }

    fn of(self, stored: F16) -> Half {
        Half {
            stored,
            value: stored.to_f32() / self.0,
        }
    }
}

/// Largest number of values per block.
const MAX_LEN: usize = super::k::QK_K;

/// Half of the smallest positive f16. Smaller values are nearest to zero in formats with f16 scales.
const VANISHING: f32 = 1.0 / (1 << 25) as f32;

/// Weight of a value of zero importance, relative to the mean weight: keeps it near its value without displacing
/// others.
const FLOOR: f32 = 1e-6;

/// Fits blocks to rows. Lengths are already checked; values are finite and below 2^16.
pub(super) fn fit_rows<B: Fit>(
    src: &[f32],
    row_len: usize,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) {
    let len = B::TYPE.block_len();
    let mut out = dst.chunks_exact_mut(B::TYPE.block_bytes());
    let (mut x, mut w) = ([0.0; MAX_LEN], [0.0; MAX_LEN]);
    let (x, w) = (&mut x[..len], &mut w[..len]);
    let search = match importance {
        Some(_) => Search::Thorough,
        None => B::PLAIN,
    };
    for row in src.chunks_exact(row_len.max(1)) {
        for (i, values) in row.chunks_exact(len).enumerate() {
            let importance = importance.map(|all| &all[i * len..][..len]);
            let out = out.next().expect("dst has a place for every block");
            let largest = largest(values);
            if largest < VANISHING {
                out.fill(0);
                continue;
            }
            let unit = f32::from_bits(largest.to_bits() & 0x7f80_0000) * 2.0;
            let inverse = 1.0 / unit;
            for (x, value) in x.iter_mut().zip(values) {
                *x = value * inverse;
            }
            weigh(x, importance, B::BALANCE, w);
            out.copy_from_slice(B::fit(x, w, Unit(unit), search).as_bytes());
        }
    }
}

/// Computes the weights of a block's values, similar to ggml's: large values count more, since they dominate the
/// products, but less so if importance is known. The weighting is a compromise between the plain error and the error
/// weighted by the square, which ggml uses for some formats, so that neither exceeds ggml's.
fn weigh(x: &[f32], importance: Option<&[f32]>, balance: f32, w: &mut [f32]) {
    let n = x.len() as f32;
    let mean_square = total(x, |x| x * x) / n;
    let largest = importance.map_or(0.0, largest);
    let Some(importance) = importance.filter(|_| largest > 0.0) else {
        for (w, x) in w.iter_mut().zip(x) {
            *w = balance * mean_square + x * x;
        }
        return;
    };
    for ((w, x), i) in w.iter_mut().zip(x).zip(importance) {
        *w = i / largest * (mean_square + x * x).sqrt();
    }
    let floor = FLOOR * total(w, |w| w) / n;
    for w in w.iter_mut() {
        *w += floor;
    }
}

/// The largest magnitude.
fn largest(x: &[f32]) -> f32 {
    let groups = x.as_chunks::<4>().0.as_chunks::<2>().0.iter();
    let most = groups.fold([F32x4::splat(0.0); 2], |most, x| {
        let [x, y] = x.map(|x| F32x4::new(x).abs());
        [most[0].fast_max(x), most[1].fast_max(y)]
    });
    let [a, b, c, d] = most[0].fast_max(most[1]).to_array();
    a.max(c).max(b.max(d))
}

/// Sums a term over all values.
fn total(x: &[f32], term: impl Fn(F32x4) -> F32x4) -> f32 {
    let groups = x.as_chunks::<32>().0;
    groups.iter().map(|x| sums(x, x, |x, _| [term(x)])[0]).sum()
}
