//! Quantization with a search for the scales: the error that counts is
//! Σ weight * (value - restored)², with weights from an importance matrix where
//! there is one. Two searches serve every format: for a scale ([`scale`]) and for
//! a scale and a minimum ([`affine`]). [`super_block`] carries them to formats whose
//! groups have integer scales, and [`pack`] lays the codes out in bytes.

mod affine;
mod codes;
mod lanes;
mod pack;
mod scale;
mod super_block;

use self::codes::sums;
use self::lanes::F32x4;
use super::Block;
use super::plain::F16;

/// A block that can be fitted to values.
pub(super) trait Fit: Block {
    /// How far to search where no importance is known. Brief for formats that ggml
    /// then only rounds to, or searches little for.
    const PLAIN: Search = Search::Thorough;

    /// The block with the least error found, for values in units of `unit` and
    /// their weights, [`super::GgmlType::block_len`] of each.
    fn fit(x: &[f32], w: &[f32], unit: Unit, search: Search) -> Self;
}

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// A few candidates, the best of which is taken as it is: most of the gain. Where
    /// half precision has few digits, the thorough search.
    Brief,
    /// All candidates, refined, and half precision numbers chosen by error.
    Thorough,
}

/// A power of two by which a block's values are divided, so that no product of the
/// searches overflows or vanishes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit(f32);

/// A half precision number, and its value in units.
#[derive(Clone, Copy, Debug)]
struct Half {
    stored: F16,
    value: f32,
}

impl Half {
    /// Whether it is below the normal numbers, so that the next ones are far away.
    fn has_few_digits(self) -> bool {
        self.stored.bits() & 0x7c00 == 0
    }
}

impl Unit {
    /// `x` (in units) in half precision, the largest finite number at most.
    fn half(self, x: f32) -> Half {
        self.of(F16::from_f32((x * self.0).clamp(-65504.0, 65504.0)))
    }

    /// `x >= 0` or `x <= 0` as a factor of integers: where half precision has few
    /// digits the number beyond it, which no integer is too small for.
    fn factor(self, x: f32) -> Half {
        let near = self.half(x);
        if near.has_few_digits() && near.value.abs() < x.abs() {
            self.beyond(near, x)
        } else {
            near
        }
    }

    /// The half precision numbers on both sides of `x`, the nearest first.
    fn halves(self, x: f32) -> [Half; 2] {
        let near = self.half(x);
        let other = if near.value.abs() > x.abs() {
            self.of(F16((near.stored.bits() - 1).to_le_bytes()))
        } else {
            self.beyond(near, x)
        };
        [near, if other.value.is_finite() { other } else { near }]
    }

    /// The number next to `near` away from zero, on the side of `x`.
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

/// The most values of a block.
const MAX_LEN: usize = super::k::QK_K;

/// Half of the smallest number that a half precision scale can hold. Formats with
/// such scales have nothing nearer to smaller values than zero.
const VANISHING: f32 = 1.0 / (1 << 25) as f32;

/// The weight of a value that importance has at zero, relative to the mean: it is
/// kept near its value, and does not count against any other.
const FLOOR: f32 = 1e-6;

/// How much the mean square counts beside a value's own where nothing is known of
/// the activations.
const BALANCE: f32 = 1.5;

/// Fits blocks to rows; lengths are checked, values are finite and below 2^16.
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
            let out = out.next().expect("a place for every block");
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
            weigh(x, importance, w);
            out.copy_from_slice(B::fit(x, w, Unit(unit), search).as_bytes());
        }
    }
}

/// Weights of the values of a block, after ggml's: large values count more, since
/// they are what products are made of, and less so where importance says which
/// columns are. How much more is a compromise between the plain error and the one
/// weighted by the square that ggml uses for some formats, so that neither is larger
/// than ggml's.
fn weigh(x: &[f32], importance: Option<&[f32]>, w: &mut [f32]) {
    let n = x.len() as f32;
    let mean_square = total(x, |x| x * x) / n;
    let largest = importance.map_or(0.0, largest);
    let Some(importance) = importance.filter(|_| largest > 0.0) else {
        for (w, x) in w.iter_mut().zip(x) {
            *w = BALANCE * mean_square + x * x;
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

/// The sum of a term of every value.
fn total(x: &[f32], term: impl Fn(F32x4) -> F32x4) -> f32 {
    let groups = x.as_chunks::<32>().0;
    groups.iter().map(|x| sums(x, x, |x, _| [term(x)])[0]).sum()
}
