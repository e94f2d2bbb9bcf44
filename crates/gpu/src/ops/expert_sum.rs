//! The down products of a token's experts and their weighted sum, in one launch (`kernels/gemv_summed.h`).

use super::formats::warp_size;
use super::jobs::{ExpertProduct, Few, RawProduct, Work};
use super::own::{OwnFew, SummedFew, acts_bytes};
use super::routing::Weighed;
use super::routing::buffer::Routing;
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::{Address, Slice};
use crate::operands::{Acts, Matrix, Source, SourceRows};

/// `SUMMED_WAVES`, `SUMMED_ROWS` and `SUMMED_CHOICES` in gemv_summed.h.
const WAVES: usize = 8;
const ROWS: usize = 8;
const MAX_CHOICES: usize = 32;

/// Dynamic shared memory that every GPU has beside what the kernel declares.
const MAX_SHARED_BYTES: usize = 40 << 10;

/// Rows of weights are padded to a multiple of this many values.
const UNIT: usize = 32;

/// The products of one token with the matrices of its experts, whose weighted sum is added to a row.
pub struct ExpertSum<'a> {
    work: Work<'a>,
    source: Source<'a>,
    routing: Routing<'a>,
    weighed: Weighed,
    sum: Slice<'a, f32>,
}

impl<'a> ExpertSum<'a> {
    /// Returns the products if one launch computes them and the sum. Their activations are converted by the products
    /// ([`Acts::source`]), which a kernel wrote that waited for `routing`. `products` [n_choices, n_out] stays as it is, `sum` is
    /// [n_out].
    ///
    /// # Errors
    /// As [`products`](super::products).
    ///
    /// # Panics
    /// If the shapes do not match, or `x` does not have the form that the weights take.
    pub fn new(
        gpu: &Gpu,
        x: &Acts<'a>,
        (routing, weighed): (&Routing<'a>, Weighed),
        product: &ExpertProduct<'a>,
        [products, sum]: [Slice<'a, f32>; 2],
    ) -> Result<Option<ExpertSum<'a>>, GpuError> {
        let Some(source) = x.source.filter(|source| source.rows == SourceRows::Each) else {
            return Ok(None);
        };
        let work = Work::of_experts(x, routing, product, products);
        let Matrix { n_in, n_out, .. } = work.matrix;
        assert_eq!(sum.len(), routing.n_tokens * n_out, "a sum for each token");
        let summed = ExpertSum {
            work,
            source,
            routing: *routing,
            weighed,
            sum,
        };
        let fits = summed.shared_bytes() <= MAX_SHARED_BYTES && routing.n_used <= MAX_CHOICES;
        let is_alone = routing.n_tokens == 1 && select::virtual_split(gpu, &work) == 1;
        if !(fits && is_alone && n_in.is_multiple_of(UNIT)) {
            return Ok(None);
        }
        // A second turn of a few blocks takes longer than a launch for the sum (H200).
        let blocks = (threads(gpu), summed.shared_bytes() as u32);
        let at_once = gpu.n_concurrent_blocks(select::summed_gemv(gpu, &work.matrix)?, blocks)?;
        Ok((n_out.div_ceil(ROWS) <= at_once).then_some(summed))
    }

    /// Computes the products, and adds their sum, with the bits of [`expert_products`](super::expert_products) and
    /// [`combine_experts`](super::combine_experts).
    ///
    /// # Errors
    /// As [`products`](super::products).
    pub fn launch(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let (work, routing) = (&self.work, &self.routing);
        let product = Work {
            out: self.sum,
            ..*work
        };
        let raw = [RawProduct::new(&product, 0)];
        let few = Few::new(&[product], &raw, Some(routing.tiles[0]));
        let params = SummedFew {
            own: OwnFew::new(gpu, few, &work.x, &self.source, warp_size(gpu)),
            rows: routing.rows.address(),
            weights: match self.weighed {
                Weighed::Outputs => routing.weights.address(),
                Weighed::Inputs => Address::NULL,
            },
            n_used: routing.n_used as u32,
            wave_bytes: self.wave_bytes() as u32,
        };
        gpu.launch(
            select::summed_gemv(gpu, &work.matrix)?,
            [work.matrix.n_out.div_ceil(ROWS) as u32, 1, 1],
            threads(gpu),
            self.shared_bytes() as u32,
            &params,
        )
    }

    /// The bytes of a row of activations in shared memory.
    fn wave_bytes(&self) -> usize {
        acts_bytes(&self.work.x).next_multiple_of(16)
    }

    fn shared_bytes(&self) -> usize {
        WAVES * self.wave_bytes()
    }
}

fn threads(gpu: &Gpu) -> u32 {
    (WAVES * warp_size(gpu)) as u32
}
