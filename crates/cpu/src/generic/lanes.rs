//! Vectors of f32 as a trait: what the ops and attention are written over.
//!
//! A value of a type that implements [`Lanes`] is the proof that the CPU has its instructions, so
//! the methods are safe. They are only fast when they are inlined into a function compiled for
//! those instructions: [`Lanes::vectorize`] is that function, and every [`Kernel::run`] and all
//! that it calls are `#[inline(always)]`. Array combinators such as `map` are not inlined
//! reliably; kernels use plain loops over arrays of vectors.

/// An algorithm over some width of vector, run by [`Lanes::vectorize`].
pub(crate) trait Kernel {
    type Out;
    /// Implementations are `#[inline(always)]`.
    fn run<S: Lanes>(self, s: S) -> Self::Out;
}

/// The f32 vector operations of one instruction set.
pub(crate) trait Lanes: Copy {
    /// Values per vector: 8 or more, a power of two.
    const N: usize;
    type Vector: Copy;
    /// `[f32; N]`.
    type Chunk: Copy;

    /// Runs `kernel` in a function compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Out;

    /// `x` as whole vectors and what is left over.
    fn chunks(x: &[f32]) -> (&[Self::Chunk], &[f32]);
    fn chunks_mut(x: &mut [f32]) -> (&mut [Self::Chunk], &mut [f32]);

    fn splat(self, x: f32) -> Self::Vector;
    fn load(self, x: &Self::Chunk) -> Self::Vector;
    fn store(self, v: Self::Vector, out: &mut Self::Chunk);
    /// At most N values; the other lanes are `fill`.
    fn load_part(self, x: &[f32], fill: f32) -> Self::Vector;
    /// The first `out.len()` lanes, at most N.
    fn store_part(self, v: Self::Vector, out: &mut [f32]);
    /// N values of f16 bits.
    ///
    /// # Panics
    /// If `x` is shorter.
    fn load_f16(self, x: &[u16]) -> Self::Vector;
    /// The first N of `out`, as f16 bits, rounded to nearest even.
    ///
    /// # Panics
    /// If `out` is shorter.
    fn store_f16(self, v: Self::Vector, out: &mut [u16]);
    /// Asks for the cache line of `x[i]`; nothing if there is no such element.
    fn prefetch<T>(self, x: &[T], i: usize);

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `c - a * b`, rounded once.
    fn neg_mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn round(self, v: Self::Vector) -> Self::Vector;
    /// `v * 2^n` for integral `n` in -252..=254, exact up to the last rounding.
    fn scale_by_pow2(self, v: Self::Vector, n: Self::Vector) -> Self::Vector;

    /// Sum of all lanes, in one fixed order.
    fn sum(self, v: Self::Vector) -> f32;
    /// Largest lane; no lane may be NaN.
    fn max_lane(self, v: Self::Vector) -> f32;
    /// Lane i of the result is the sum of the lanes of `v[i]`, each in the same order.
    fn sums_of_8(self, v: [Self::Vector; 8], out: &mut [f32; 8]);

    /// `[a0 - .., a1 + .., ..]`: `a * b - c` in even lanes and `a * b + c` in odd ones.
    fn mul_sub_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Exchanges lanes 2i and 2i + 1.
    fn swap_pairs(self, v: Self::Vector) -> Self::Vector;
    /// Copies lane 2i to lane 2i + 1.
    fn dup_even(self, v: Self::Vector) -> Self::Vector;
    /// Copies lane 2i + 1 to lane 2i.
    fn dup_odd(self, v: Self::Vector) -> Self::Vector;
    /// The even and the odd elements of `a` followed by `b`.
    fn unzip(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector);

    /// e^v within 1 ulp: 0 below -104, infinity above 89, NaN for NaN.
    ///
    /// Cody-Waite reduction by ln 2 in two parts, then a polynomial of degree 6 that is minimax in
    /// relative error (3.1e-9) on |r| <= ln 2 / 2.
    #[inline(always)]
    fn exp(self, v: Self::Vector) -> Self::Vector {
        // The constant stands first so that a NaN in `v` goes through.
        let v = self.min(self.splat(89.0), self.max(self.splat(-104.0), v));
        let n = self.round(self.mul(v, self.splat(std::f32::consts::LOG2_E)));
        let r = self.neg_mul_add(n, self.splat(0.693_359_4), v);
        let r = self.neg_mul_add(n, self.splat(-2.121_944_4e-4), r);
        let mut p = self.splat(1.381_454e-3);
        for c in [8.368_745_4e-3, 4.166_839e-2, 0.166_665_21, 0.499_999_94] {
            p = self.mul_add(p, r, self.splat(c));
        }
        let p = self.mul_add(p, self.mul(r, r), r);
        self.scale_by_pow2(self.add(p, self.splat(1.0)), n)
    }
}
