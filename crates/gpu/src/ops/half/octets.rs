//! GEMM of few rows of codes on int8 units (`kernels/gemm/octet.h`).

use rocmforge_gguf::GgmlType;

use super::super::jobs::Work;
use super::super::routing::buffer::Routing;
use super::division::{Division, waves_of};
use super::memory::OCTET;
use super::params::{Chosen, HalfParams};
use super::tile::{OCTET_ROWS, OF_FEW, Tile, tile_names};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::kernels;
use crate::operands::{ActFormat, Acts};
use crate::variant::{MAX_ANSWER_ROWS, Variant};

kernels! {
    /// Of few rows of codes, on int8 units (`kernels/gemm/octet.h`), for each format of `may_have_octets`: dense ones, of
    /// experts, and of experts with several tiles of outputs for a block.
    struct OctetKernels {
        gemm_octet_q4_k: HalfParams,
        gemm_octet_q6_k: HalfParams,
        gemm_octet_experts_q4_k: HalfParams,
        gemm_octet_experts_q6_k: HalfParams,
        gemm_octet_short_q4_k: HalfParams,
        gemm_octet_short_q6_k: HalfParams,
    }
}

/// Whether products of these activations take their codes, if there are kernels for the weights.
pub(super) fn takes_octets(gpu: &Gpu, x: &Acts<'_>, routing: Option<&Routing<'_>>) -> bool {
    let others = [Variant::RowsPrompt, Variant::TilesWide, Variant::SplitsOn];
    let are_few = match (gpu.takes(Variant::RowsAnswer), routing) {
        (false, Some(routing)) => routing.has_up_to(OCTET_ROWS),
        (false, None) => x.n_rows <= OCTET,
        // For any number of tokens alike. Dense products of many would take too long.
        (true, Some(routing)) => routing.has_up_to_with(MAX_ANSWER_ROWS, OCTET),
        (true, None) => false,
    };
    are_few
        && x.form == ActFormat::Q8x256
        && x.half.is_some_and(|memory| memory.has_octets)
        && !others.iter().any(|&variant| gpu.takes(variant))
}

/// Returns the kernel for products with weights of one format, its tile, and how its tiles are distributed.
pub(super) fn choose<'g>(gpu: &'g Gpu, works: &[Work<'_>]) -> Result<Chosen<'g>, GpuError> {
    let kernels = &gpu.kernels().gemm_octet;
    let [q4_k, q6_k] = tile_names!(gemm_octet_q4_k, gemm_octet_q6_k);
    let is_q6_k = works[0].matrix.ty == GgmlType::Q6_K;
    let names = if is_q6_k { q6_k } else { q4_k };
    let tile = Tile::read(gpu, kernels.gemm_octet_q4_k.module, names, OF_FEW)?;
    let n_waves = waves_of(gpu, tile, works);
    let out_shift = out_shift_of(gpu, (tile, n_waves), works);
    let kernel = match (works[0].experts.is_some(), out_shift, is_q6_k) {
        (false, _, false) => &kernels.gemm_octet_q4_k,
        (false, _, true) => &kernels.gemm_octet_q6_k,
        (true, 0, false) => &kernels.gemm_octet_experts_q4_k,
        (true, 0, true) => &kernels.gemm_octet_experts_q6_k,
        (true, _, false) => &kernels.gemm_octet_short_q4_k,
        (true, _, true) => &kernels.gemm_octet_short_q6_k,
    };
    let tile = tile.of_waves(n_waves).of_tiles(out_shift);
    Ok((kernel, tile, Division::whole(tile, works)))
}

/// Returns log2 of the tiles of outputs that a block takes, of products with blocks of this many waves: several of experts whose rows
/// are short, where there are blocks enough.
fn out_shift_of(gpu: &Gpu, (tile, n_waves): (Tile, usize), works: &[Work<'_>]) -> u32 {
    // In a block of as many rounds, the wait for the first weights is short. Blocks for two turns of the waves that processors run
    // at once are enough (H200).
    const ROUNDS: usize = 6;
    const WAVES: usize = 2 * 20;
    let Some(experts) = works[0].experts.filter(|_| n_waves == 1) else {
        return 0;
    };
    let n_rounds = works[0].matrix.n_in.div_ceil(tile.round);
    let n_tiles: usize = works.iter().map(|work| tile.n_tiles(work)).sum();
    let n_blocks = n_tiles * experts.routing.max_rows().min(experts.routing.n_experts);
    let least = WAVES * gpu.n_compute_units() as usize;
    let mut shift = 0;
    while n_rounds << shift < ROUNDS && n_blocks >> (shift + 1) >= least {
        shift += 1;
    }
    shift
}
