//! Products of a single token with the matrices of experts or heads that convert its activations themselves, so that the
//! conversion takes no launch of its own (`kernels/own_acts.h`).

use super::formats::{n_chunks, warp_size};
use super::gemv::{THREADS, products};
use super::jobs::{Few, Work};
use super::norm::{OCTET, aligned};
use super::select::{self, Waves};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::layout;
use crate::memory::Address;
use crate::operands::{ActFormat, Acts, Source, SourceRows};
use crate::variant::Variant;

/// Up to this many values, each block converts a row in less time than a launch takes (measured on an H200).
const MAX_WIDTH: usize = 2048;

/// Whether products with the matrices of experts or heads convert the activations of a single token themselves, for rows of
/// `width` values. Then they may have [`Acts::source`], and the conversion need not be launched. They have the same bits.
pub fn converts(gpu: &Gpu, width: usize) -> bool {
    let others = [
        Variant::ActsSeparate,
        Variant::ProductsMatmul,
        Variant::RowsPrompt,
        Variant::RowsAnswer,
    ];
    width <= MAX_WIDTH && !others.iter().any(|&variant| gpu.takes(variant))
}

/// `OwnFew` in own_acts.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OwnFew {
    few: Few,
    source: RawSource,
    lanes_log: u32,
    pad: u32,
}

layout!(OwnFew {
    few,
    source,
    lanes_log,
    pad
});

impl OwnFew {
    /// `n_lanes` share a row of weights.
    pub(super) fn new(
        gpu: &Gpu,
        few: Few,
        x: &Acts<'_>,
        source: &Source<'_>,
        n_lanes: usize,
    ) -> OwnFew {
        OwnFew {
            few,
            source: RawSource::new(gpu, source, x.n_rows, x.width),
            lanes_log: n_lanes.ilog2(),
            pad: 0,
        }
    }
}

/// `SummedFew` in gemv_summed.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SummedFew {
    pub(super) own: OwnFew,
    pub(super) rows: Address,
    pub(super) weights: Address,
    pub(super) n_used: u32,
    pub(super) wave_bytes: u32,
}

layout!(SummedFew {
    own,
    rows,
    weights,
    n_used,
    wave_bytes
});

/// `Source` in own_acts.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawSource {
    x: Address,
    stride: u32,
    aligned: u32,
}

layout!(RawSource { x, stride, aligned });

impl RawSource {
    /// # Panics
    /// If the source does not have `n_rows` rows of `width` values.
    fn new(gpu: &Gpu, source: &Source<'_>, n_rows: usize, width: usize) -> RawSource {
        let Source { x, rows } = *source;
        let (x, stride) = match rows {
            SourceRows::One => (x, 0),
            SourceRows::Each => (x, width),
            SourceRows::Heads { start } => (x.part(start..x.len()), x.len() / n_rows),
        };
        assert!(
            (n_rows - 1) * stride + width <= x.len(),
            "the source has all rows"
        );
        RawSource {
            x: x.address(),
            stride: stride as u32,
            aligned: match stride.is_multiple_of(OCTET) {
                true => aligned(gpu, width, &[x.address()]),
                false => 0,
            },
        }
    }
}

/// Launches products of one token that convert its activations themselves.
///
/// # Panics
/// If they are not of experts or heads, or of several tokens.
pub(super) fn launch(gpu: &Gpu, works: &[Work<'_>], source: &Source<'_>) -> Result<(), GpuError> {
    let first = &works[0];
    let experts = first.experts.expect("products of experts");
    assert_eq!(experts.routing.n_tokens, 1, "the activations of one token");
    let (kernel, mut waves) = select::own_gemv(gpu, first)?;
    let n_lanes = lanes_of_row(gpu, first, source);
    let n_rows_of_wave = warp_size(gpu) / n_lanes;
    if n_rows_of_wave > 1 {
        waves = Waves::of_rows(n_rows_of_wave);
    }
    let (raw, n_blocks) = products(gpu, works, waves);
    let (n_tiles, tiles) = match source.rows {
        // In order.
        SourceRows::Heads { .. } => (experts.routing.n_experts, None),
        _ => (
            experts.routing.tiles[0].len(),
            Some(experts.routing.tiles[0]),
        ),
    };
    let few = Few::new(works, &raw, tiles);
    let params = OwnFew::new(gpu, few, &first.x, source, n_lanes);
    gpu.launch(
        kernel,
        [n_tiles as u32, n_blocks, 1],
        THREADS,
        acts_bytes(&first.x) as u32,
        &params,
    )
}

/// The bytes of a row of activations in shared memory: values; or codes, a scale for each block, and sums of 16.
pub(super) fn acts_bytes(x: &Acts<'_>) -> usize {
    match x.form {
        ActFormat::F32 => x.width * size_of::<f32>(),
        form => {
            x.width
                + x.width / form.block_len() * size_of::<f32>()
                + x.width / 16 * size_of::<i16>()
        }
    }
}

/// Returns how many lanes share a row of weights: those of a wave, or of heads with short rows as many as it has chunks. On
/// AMD GPUs all, whose order of additions in a wave is another.
fn lanes_of_row(gpu: &Gpu, work: &Work<'_>, source: &Source<'_>) -> usize {
    let n_lanes = n_chunks(work.matrix.ty, work.matrix.n_in).next_power_of_two();
    let is_of_heads = matches!(source.rows, SourceRows::Heads { .. }) && work.up.is_none();
    let is_coded = work.x.form != ActFormat::F32;
    match is_of_heads && is_coded && !gpu.target().starts_with("gfx") {
        true => n_lanes.min(warp_size(gpu)),
        false => warp_size(gpu),
    }
}
