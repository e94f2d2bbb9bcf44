//! How the tiles of a product are distributed to blocks, by what they cost.

use super::super::jobs::Work;
use super::super::routing::buffer::SMALL;
use super::tile::{Tile, WARP, kind_of};
use crate::gpu::Gpu;
use crate::variant::Variant;

/// A part of a tile has at least this many values of k.
const MIN_VALUES: usize = 512;

/// Numbers of rows, and for up to that many the most rounds per processor that products of the same activations may have to be
/// small. Fitted to products of Q4_K, Q6_K and Q8_0 on an H100.
const SMALL_ROUNDS: [(usize, usize); 2] = [(64, 360), (128, 230)];

/// Whether products take less time in tiles of few rows, of which more run at once.
pub(super) fn is_small(gpu: &Gpu, tile: Tile, works: &[Work<'_>]) -> bool {
    let n_rows = works[0].x.n_rows;
    let Some((_, most)) = SMALL_ROUNDS.iter().find(|(most, _)| n_rows <= *most) else {
        return false;
    };
    let rounds = |work: &Work<'_>| tile.n_tiles(work) * work.matrix.n_in.div_ceil(tile.round);
    works.iter().map(rounds).sum::<usize>() <= most * gpu.n_compute_units() as usize
}

/// Returns how many waves of a block share the k of an output, for GEMMs of few rows: the number with which all blocks take
/// the least time, and at most one for each round.
pub(super) fn waves_of(gpu: &Gpu, tile: Tile, works: &[Work<'_>]) -> usize {
    const LEAST: usize = 2;
    // Of experts, fewer rounds are not worth a sum of two waves, of whatever length a round is (H200).
    const LEAST_ROUNDS: usize = 12;
    // Halves of the time of a round that a block takes beside its rounds (H200).
    const BESIDE_ROUNDS: usize = 7;
    // The waves that a processor runs at once, for any number of rows.
    const WAVES_OF_ANSWERS: usize = 16;
    if gpu.takes(Variant::SplitsOff) {
        return 1;
    }
    let n_rounds = works[0].matrix.n_in.div_ceil(tile.round);
    if works[0].experts.is_some() {
        // Not where the number is to serve a single row, too, which has few tiles.
        let is_one = n_rounds < LEAST_ROUNDS && !gpu.takes(Variant::RowsAnswer);
        return if is_one { 1 } else { LEAST };
    }
    let of_block = tile.threads as usize / WARP;
    let n_tiles = |work: &Work<'_>| tile.n_tiles(work);
    let n_out_tiles = |work: &Work<'_>| work.matrix.n_out.div_ceil(tile.outs);
    let (n_tiles, of_unit): (usize, usize) = match gpu.takes(Variant::RowsAnswer) {
        // As of one row.
        true => (works.iter().map(n_out_tiles).sum(), WAVES_OF_ANSWERS),
        false => (works.iter().map(n_tiles).sum(), of_block * tile.blocks),
    };
    let n_units = gpu.n_compute_units() as usize;
    let time = |n_waves: &usize| {
        let n_turns = n_tiles.div_ceil(n_units * of_unit / n_waves);
        n_turns * (2 * n_rounds.div_ceil(*n_waves) + BESIDE_ROUNDS)
    };
    let most = of_block.min(n_rounds).max(LEAST);
    let numbers = std::iter::successors(Some(LEAST), |n_waves| Some(2 * n_waves));
    let fastest = numbers
        .take_while(|&n_waves| n_waves <= most)
        .min_by_key(time);
    fastest.unwrap_or(LEAST)
}

/// Returns how many blocks share the rounds of `n_tiles` tiles: a multiple of these, if nearly all of the device has work then.
/// Else some blocks have parts of two tiles, which takes them longer: 1.4 % of a step with 64 sequences of llama-3.1-8b (H200).
fn sharers(n_tiles: usize, at_once: usize) -> usize {
    let even = at_once / n_tiles * n_tiles;
    match 16 * even >= 15 * at_once {
        true => even,
        false => at_once,
    }
}

/// How tiles are distributed to blocks, or to clusters of blocks: how many are computed whole, by one block after the
/// other; blocks share the others.
#[derive(Clone, Copy)]
pub(super) struct Division {
    pub(super) n_whole: usize,
    pub(super) n_blocks: usize,
    /// Tiles of rows in the second dimension of the grid: 1, except for experts with few rows.
    pub(super) n_row_blocks: usize,
    /// An estimate; of products of experts, 0.
    pub(super) time_us: f64,
}

impl Division {
    /// A block for each tile; of experts, for each tile of outputs.
    pub(super) fn whole(tile: Tile, works: &[Work<'_>]) -> Division {
        let n_tiles = works.iter().map(|work| tile.n_tiles(work)).sum();
        let tiles = { works[0].experts }.map(|experts| experts.routing.tiles[SMALL]);
        Division {
            n_whole: n_tiles,
            n_blocks: n_tiles,
            n_row_blocks: tiles.map_or(1, |tiles| tiles.len()),
            time_us: 0.0,
        }
    }

    /// A block for each tile of dense products, if `n_free` processors can run all of them at once.
    pub(super) fn beside(tile: Tile, works: &[Work<'_>], n_free: usize) -> Option<Division> {
        let n_tiles: usize = works.iter().map(|work| tile.n_tiles(work)).sum();
        (n_tiles * tile.cluster <= n_free).then(|| Division {
            time_us: tile.cost.of_tile(works[0].matrix.n_in),
            ..Division::whole(tile, works)
        })
    }

    /// For products of the same activations: the faster of whole tiles and of tiles that fill the device evenly.
    pub(super) fn new(gpu: &Gpu, tile: Tile, works: &[Work<'_>]) -> Division {
        let n_tiles: usize = works.iter().map(|work| tile.n_tiles(work)).sum();
        let n_units = (gpu.n_compute_units() as usize / tile.cluster).max(1);
        let at_once = n_units * tile.blocks;
        if let Some(experts) = &works[0].experts {
            // The device knows how many tiles of rows there are.
            let most = n_tiles * experts.routing.tiles[kind_of(gpu, &experts.routing)].len();
            return Division {
                n_whole: n_tiles,
                n_blocks: most.min(at_once),
                n_row_blocks: 1,
                time_us: 0.0,
            };
        }
        let n_in = works[0].matrix.n_in;
        let of_tile = tile.cost.of_tile(n_in);
        // Blocks of a processor take turns.
        let whole = Division {
            n_whole: n_tiles,
            n_blocks: n_tiles.min(at_once),
            n_row_blocks: 1,
            time_us: n_tiles.div_ceil(n_units) as f64 * of_tile,
        };
        let rest = n_tiles % at_once;
        if rest == 0 {
            return whole;
        }
        let most = rest * n_in.div_ceil(tile.round) * tile.round / MIN_VALUES;
        let n_blocks = match n_tiles < at_once {
            true => most.min(sharers(rest, at_once)),
            false => at_once,
        };
        let is_whole = gpu.takes(Variant::SplitsOff) || gpu.takes(Variant::RowsPrompt);
        if n_blocks <= rest || most < n_blocks || is_whole {
            return whole;
        }
        let of_block = n_tiles as f64 / n_blocks.min(n_units) as f64;
        let divided = Division {
            n_whole: n_tiles - rest,
            n_blocks,
            n_row_blocks: 1,
            time_us: of_block * of_tile + tile.cost.parts_us,
        };
        match divided.time_us < whole.time_us || gpu.takes(Variant::SplitsOn) {
            true => divided,
            false => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::sharers;

    #[test]
    fn tiles_are_shared_evenly_unless_many_blocks_are_idle() {
        // 8 blocks for each of 32 tiles, and a block for each of 250.
        assert_eq!([sharers(32, 264), sharers(250, 264)], [256, 250]);
        // 240 of 264 and 96 of 132 would be too few.
        assert_eq!([sharers(48, 264), sharers(48, 132)], [264, 132]);
    }
}
