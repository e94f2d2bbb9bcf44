//! GEMM with f16 activations on Hopper's matrix units (`kernels/gemm/half.h`, and of few rows `kernels/gemm/half_few.h`), and with
//! codes of few rows (`kernels/gemm/octet.h`).
//! Weights become f16 in registers; activations are converted before the products of an operation. Those for F16 and BF16
//! weights are sums of two f16 numbers, 22 bits.

mod division;
mod made;
pub(super) mod memory;
mod octets;
mod params;
mod rows;
mod tile;

use std::sync::OnceLock;

use rocmforge_gguf::GgmlType;

use self::division::{Division, is_small, waves_of};
use self::made::Made;
use self::memory::{
    HalfMemory, OCTET, counter_bytes, factor_bytes, has_octets, n_parts, value_bytes,
};
pub(super) use self::octets::OctetKernels;
use self::octets::takes_octets;
use self::params::{Chosen, HalfParams, HalfProduct, Start};
pub(super) use self::rows::{HalfRows, HalfRowsKernels};
use self::tile::{COSTS, OCTET_ROWS, Tile, kind_of, tile_names};
use super::jobs::{FEW, Mode, Work, address, planes_or_null};
use super::routing::buffer::{ExpertTile, Routing, SMALL, TILE_ROWS};
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{AnyKernel, Count, Kernel, KernelTable, Table, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts};
use crate::variant::Variant;

/// Values of a row that a thread of `half_acts_*` converts: with eight for each row of an octet, 16.
const PER_THREAD: usize = 2;
/// Threads of a block that converts codes, or f32 numbers.
const CODES_THREADS: u32 = 256;
const FLOATS_THREADS: u32 = 1024;
/// Blocks of the latter that a processor runs at once.
const BLOCKS_OF_FLOATS: usize = 2;

/// With the experts of more tokens, converting the codes in each block takes longer than in a launch (H200).
const MAX_TOKENS_OF_CODES: usize = 16;
/// With up to this many rows, most experts fill one of the smaller tiles, of which two run at once.
const SOME_ROWS: usize = 48;
#[repr(C)]
#[derive(Clone, Copy)]
struct HalfActsParams {
    codes: Address,
    scales: Address,
    values: Address,
    x: Address,
    factors: Address,
    tiles: Table<ExpertTile>,
    n_rows: u32,
    width: u32,
    n_octets: u32,
    tile_octets: u32,
    is_few: u32,
    n_columns: u32,
}

layout!(HalfActsParams {
    codes,
    scales,
    values,
    x,
    factors,
    tiles,
    n_rows,
    width,
    n_octets,
    tile_octets,
    is_few,
    n_columns
});

kernels! {
    struct HalfActsKernels {
        half_acts_q8x32: HalfActsParams,
        half_acts_q8x256: HalfActsParams,
        half_acts_f32: HalfActsParams,
    }
}

const _: () = assert!(size_of::<HalfActsParams>() == 72);

kernels! {
    /// The numbers are the rows of a tile; those of few rows have up to 32, of which the second and third multiply eight at
    /// once. The third takes codes. Half of the rows of weights in a gated tile are of gate, half of up.
    struct GemmHalfKernels {
        gemm_half_few: HalfParams,
        gemm_half_octet: HalfParams,
        gemm_half_codes: HalfParams,
        gemm_half_64: HalfParams,
        gemm_half_128: HalfParams,
        gemm_half_256: HalfParams,
        gemm_half_64_gated: HalfParams,
        gemm_half_128_gated: HalfParams,
        gemm_half_256_gated: HalfParams,
    }
}

/// The kernels of a format, and their tiles.
pub(crate) struct GemmHalves {
    kernels: GemmHalfKernels,
    /// In the order of the kernels, without the gated ones.
    tiles: OnceLock<[Tile; 6]>,
    is_built: OnceLock<bool>,
}

impl KernelTable for GemmHalves {
    fn of_module(module: &'static str) -> GemmHalves {
        GemmHalves {
            kernels: GemmHalfKernels::of_module(module),
            tiles: OnceLock::new(),
            is_built: OnceLock::new(),
        }
    }

    fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.kernels.each(visit);
    }
}

impl GemmHalves {
    fn tiles(&self, gpu: &Gpu) -> Result<&[Tile; 6], GpuError> {
        if let Some(tiles) = self.tiles.get() {
            return Ok(tiles);
        }
        let names = tile_names!(
            gemm_half_few,
            gemm_half_octet,
            gemm_half_codes,
            gemm_half_64,
            gemm_half_128,
            gemm_half_256
        );
        let module = self.kernels.gemm_half_few.module;
        let x_parts = gpu.constant(module, "gemm_half_x_parts")?;
        let mut tiles = Vec::with_capacity(names.len());
        for (names, cost) in names.into_iter().zip(COSTS) {
            tiles.push(Tile::read(gpu, module, names, cost.of_parts(x_parts))?);
        }
        let tiles = <[Tile; 6]>::try_from(tiles)
            .ok()
            .expect("one for each kernel");
        Ok(self.tiles.get_or_init(|| tiles))
    }

    /// Returns the kernel for products of these rows, its tile, and how its tiles are distributed.
    fn choose(
        &self,
        gpu: &Gpu,
        works: &[Work<'_>],
        (is_few, are_codes): (bool, bool),
    ) -> Result<Chosen<'_>, GpuError> {
        let n_rows = works[0].x.n_rows;
        let [few, octet, codes, _, many, _] = *self.tiles(gpu)?;
        let kernels = &self.kernels;
        if is_few {
            let has_octets = match &works[0].experts {
                Some(experts) => experts.routing.has_up_to(OCTET_ROWS),
                None => n_rows <= OCTET,
            };
            let (kernel, few) = match (has_octets, are_codes) {
                (true, true) => (&kernels.gemm_half_codes, codes),
                (true, false) => (&kernels.gemm_half_octet, octet),
                (false, _) => (&kernels.gemm_half_few, few),
            };
            let tile = few.of_waves(waves_of(gpu, few, works));
            return Ok((kernel, tile, Division::whole(tile, works)));
        }
        let of = |(kernel, tile)| (kernel, tile, Division::new(gpu, tile, works));
        let by_rows = self.of_many_rows(gpu, works)?.map(of);
        Ok(match works[0].experts {
            Some(experts) if experts.routing.has_up_to(SOME_ROWS) => by_rows[0],
            Some(_) => by_rows[1],
            None if gpu.takes(Variant::TilesWide) => by_rows[2],
            None => {
                let [some, larger @ ..] = by_rows;
                // Of more rows, they take longer in a model than their costs say: they make prefill of GLM 4.7 Flash 3 %
                // slower.
                let some = (n_rows <= many.rows).then_some(some);
                let fastest = larger
                    .into_iter()
                    .chain(some)
                    .min_by(|(_, _, a), (_, _, b)| a.time_us.total_cmp(&b.time_us));
                fastest.expect("two kernels or three")
            }
        })
    }

    /// Returns the GEMM kernels for many rows, with their tiles.
    fn of_many_rows(
        &self,
        gpu: &Gpu,
        works: &[Work<'_>],
    ) -> Result<[(&Kernel<HalfParams>, Tile); 3], GpuError> {
        let [.., some, many, most] = *self.tiles(gpu)?;
        let all = &self.kernels;
        let kernels = match works[0].up {
            None => [&all.gemm_half_64, &all.gemm_half_128, &all.gemm_half_256],
            Some(_) => [
                &all.gemm_half_64_gated,
                &all.gemm_half_128_gated,
                &all.gemm_half_256_gated,
            ],
        };
        let [of_some, of_many, of_most] = kernels;
        Ok([(of_some, some), (of_many, many), (of_most, most)])
    }

    /// Chooses a kernel to run at the same time as the launch before, on the processors that it does not use. Returns `None` if
    /// running one after the other is faster. No tiles are divided, because launches share the memory for parts of tiles.
    fn choose_beside(
        &self,
        gpu: &Gpu,
        works: &[Work<'_>],
        before: Before,
    ) -> Result<Option<Chosen<'_>>, GpuError> {
        let others = [Variant::TilesWide, Variant::SplitsOn];
        if others.iter().any(|&variant| gpu.takes(variant)) {
            return Ok(None);
        }
        let fitting = self
            .of_many_rows(gpu, works)?
            .into_iter()
            .filter_map(|(kernel, tile)| {
                Some((kernel, tile, Division::beside(tile, works, before.n_free)?))
            });
        let fastest = fitting.min_by(|(_, _, a), (_, _, b)| a.time_us.total_cmp(&b.time_us));
        let (.., own) = self.choose(gpu, works, (false, false))?;
        let apart_us = before.time_us + own.time_us;
        Ok(fastest.filter(|(.., division)| division.time_us < apart_us))
    }

    /// Whether the device's images have these kernels.
    fn is_built(&self, gpu: &Gpu) -> bool {
        let find = || Image::find(gpu.target(), self.kernels.gemm_half_few.module).is_some();
        *self.is_built.get_or_init(find)
    }
}

/// Whether products of many rows with weights of this type can take f16 activations.
pub(super) fn has_kernels(gpu: &Gpu, ty: GgmlType) -> bool {
    let kernels = gpu.kernels().gemm_half.of(ty);
    kernels.is_ok_and(|kernels| kernels.is_built(gpu))
}

/// Whether [`products`](super::products) of these activations with weights of this type round both to f16.
pub fn takes_halves(gpu: &Gpu, x: &Acts<'_>, ty: GgmlType) -> bool {
    let halves = x.half.filter(|_| can_take(gpu, x, ty, None));
    halves.is_some()
        && n_parts(x.form) == 1
        && !select::is_gemv(gpu, x.n_rows, halves)
        && !takes_octets(gpu, x, None)
}

/// Whether [`expert_products`](super::expert_products) of these activations with weights of this type round both to f16.
pub fn takes_halves_of_experts(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    ty: GgmlType,
) -> bool {
    let can = can_take(gpu, x, ty, Some(routing));
    can && n_parts(x.form) == 1
        && !select::is_gemv_of_experts(gpu, routing, can)
        && !takes_octets(gpu, x, Some(routing))
}

/// Whether GEMM takes these activations as f16.
fn can_take(gpu: &Gpu, x: &Acts<'_>, ty: GgmlType, routing: Option<&Routing<'_>>) -> bool {
    let fits = |memory| fits(gpu, x, routing, memory);
    !is_of_codes(gpu) && x.half.is_some_and(fits) && has_kernels(gpu, ty)
}

/// Whether variants let GEMM take codes.
fn is_of_codes(gpu: &Gpu) -> bool {
    let of_codes = [
        Variant::ProductsCodes,
        Variant::TilesSmall,
        Variant::TilesLarge,
    ];
    of_codes.iter().any(|&v| gpu.takes(v))
}

/// Whether the memory has room for the activations, and kernels can count its bytes in 32 bits.
fn fits(gpu: &Gpu, x: &Acts<'_>, routing: Option<&Routing<'_>>, memory: HalfMemory<'_>) -> bool {
    let n_bytes = value_bytes(x.form, n_octets(gpu, x, routing), x.width);
    factor_bytes(x.n_rows) + n_bytes <= memory.x.len() && u32::try_from(n_bytes).is_ok()
}

/// Returns the memory if products of these activations take them as f16.
pub(super) fn memory<'a>(gpu: &Gpu, works: &[Work<'a>]) -> Option<HalfMemory<'a>> {
    let takes = |work: &Work<'_>| {
        let routing = work.experts.as_ref().map(|experts| &experts.routing);
        can_take(gpu, &work.x, work.matrix.ty, routing)
    };
    works.iter().all(takes).then(|| works.first()?.x.half)?
}

/// Whether products of the same activations take the GEMM of few rows: up to its tile's rows, and small products of more.
fn is_few(gpu: &Gpu, works: &[Work<'_>]) -> Result<bool, GpuError> {
    let first = &works[0];
    if let Some(experts) = &first.experts {
        return Ok(kind_of(gpu, &experts.routing) == SMALL);
    }
    for (variant, is_few) in [(Variant::RowsPrompt, false), (Variant::RowsAnswer, true)] {
        if gpu.takes(variant) {
            return Ok(is_few);
        }
    }
    let [few, ..] = *gpu.kernels().gemm_half.of(first.matrix.ty)?.tiles(gpu)?;
    let others = [Variant::TilesWide, Variant::SplitsOn, Variant::SplitsOff];
    let takes_others = others.iter().any(|&variant| gpu.takes(variant));
    Ok(first.x.n_rows <= few.rows || !takes_others && is_small(gpu, few, works))
}

/// Returns the octets of activations: of experts, each tile of rows may have one more.
fn n_octets(gpu: &Gpu, x: &Acts<'_>, routing: Option<&Routing<'_>>) -> usize {
    let n_tiles = routing.map_or(0, |routing| routing.tiles[kind_of(gpu, routing)].len());
    x.n_rows.div_ceil(OCTET) + n_tiles
}

fn made(gpu: &Gpu, acts: &Acts<'_>, tiles: Table<ExpertTile>, is_few: bool) -> Made {
    let of = [acts.codes.address(), acts.values.address()];
    Made::new(gpu, of, acts.n_rows, tiles.address(), is_few)
}

/// Converts the activations of the products, and computes these. All have the same activations.
pub(super) fn launch(
    gpu: &Gpu,
    memory: HalfMemory<'_>,
    works: &[Work<'_>],
) -> Result<(), GpuError> {
    let x = HalfActs::new(gpu, memory, works)?;
    prepare(gpu, memory, &works[0], &x)?;
    // Launches may run at the same time if each product has an output of its own.
    let are_apart = works
        .iter()
        .all(|work| work.experts.is_none() && work.mode == Mode::Store);
    let mut rest = works;
    let mut before = None;
    while let Some(first) = rest.first() {
        let same = |work: &&Work<'_>| work.matrix.ty == first.matrix.ty;
        let n = rest.iter().take(FEW).take_while(same).count();
        before = multiply(gpu, (memory, &x), &rest[..n], before)?.filter(|_| are_apart);
        rest = &rest[n..];
    }
    Ok(())
}

/// Computes gate and up together, and writes `activation(gate) * up` to the output of the gate. Returns false, and computes
/// nothing, if there is no kernel for that.
pub(super) fn launch_gated(
    gpu: &Gpu,
    pair: &[Work<'_>; 2],
    activation: Activation,
) -> Result<bool, GpuError> {
    let [gate, up] = pair;
    let is_plain = |work: &Work<'_>| work.bias.is_none() && work.scales.is_none();
    if activation != Activation::Silu || !gate.is_like(up) || !pair.iter().all(is_plain) {
        return Ok(false);
    }
    let Some(memory) = memory(gpu, pair) else {
        return Ok(false);
    };
    let x = HalfActs::new(gpu, memory, pair)?;
    if x.is_few || x.has_codes() {
        return Ok(false);
    }
    prepare(gpu, memory, gate, &x)?;
    multiply(
        gpu,
        (memory, &x),
        &[gate.with_up(up, Mode::of_gate(activation))],
        None,
    )?;
    Ok(true)
}

/// Converts the activations of products unless that was done.
fn prepare(
    gpu: &Gpu,
    memory: HalfMemory<'_>,
    work: &Work<'_>,
    x: &HalfActs<'_>,
) -> Result<(), GpuError> {
    let made = made(gpu, &work.x, x.table(), x.is_few);
    if !x.has_codes() && !memory.has(made) {
        convert(gpu, work, x)?;
        memory.remember(Some(made));
    }
    Ok(())
}

/// Whether the GEMM of few rows takes the codes of experts' rows as they are, eight at once. Sums then have other bits than
/// those of converted ones.
fn takes_codes(gpu: &Gpu, x: &Acts<'_>, routing: Option<&Routing<'_>>) -> bool {
    let are_few = routing.is_some_and(|routing| {
        routing.n_tokens <= MAX_TOKENS_OF_CODES && routing.has_up_to(OCTET_ROWS)
    });
    are_few && x.form == ActFormat::Q8x256 && !gpu.takes(Variant::RowsAnswer)
}

/// How products take activations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As f16.
    Halves,
    /// As codes, of which the GEMM of few rows makes f16 numbers.
    Codes,
    /// As codes, by [`OctetKernels`].
    Octets,
}

/// Activations as products take them.
struct HalfActs<'a> {
    /// Or the scales of the codes.
    factors: Address,
    values: Address,
    way: Way,
    n_octets: usize,
    /// Whether their order is that of the GEMM of few rows.
    is_few: bool,
    /// The tiles of experts.
    tiles: Option<Slice<'a, ExpertTile>>,
}

impl<'a> HalfActs<'a> {
    fn new(
        gpu: &Gpu,
        memory: HalfMemory<'a>,
        works: &[Work<'a>],
    ) -> Result<HalfActs<'a>, GpuError> {
        let work = &works[0];
        let routing = work.experts.as_ref().map(|experts| &experts.routing);
        let has_octets = |work: &Work<'_>| has_octets(work.matrix.ty, work.matrix.order);
        let is_of_octets = takes_octets(gpu, &work.x, routing) && works.iter().all(has_octets);
        let is_few = is_few(gpu, works)?;
        let n_octets = n_octets(gpu, &work.x, routing);
        let way = if is_of_octets {
            Way::Octets
        } else if is_few && takes_codes(gpu, &work.x, routing) {
            Way::Codes
        } else {
            Way::Halves
        };
        let (factors, values) = match way {
            Way::Codes | Way::Octets => (work.x.scales.address(), work.x.codes.address()),
            Way::Halves => {
                let factors = factor_bytes(work.x.n_rows);
                let values = factors..factors + value_bytes(work.x.form, n_octets, work.x.width);
                (memory.x.address(), memory.x.part(values).address())
            }
        };
        Ok(HalfActs {
            factors,
            values,
            way,
            n_octets,
            is_few,
            tiles: routing.map(|routing| routing.tiles[kind_of(gpu, routing)]),
        })
    }

    fn has_codes(&self) -> bool {
        self.way != Way::Halves
    }

    fn table(&self) -> Table<ExpertTile> {
        self.tiles.map_or(Table::NULL, |tiles| tiles.table())
    }
}

fn convert(gpu: &Gpu, work: &Work<'_>, to: &HalfActs<'_>) -> Result<(), GpuError> {
    let x = &work.x;
    let kernels = &gpu.kernels().half_acts;
    let (kernel, threads) = match x.form {
        ActFormat::Q8x32 => (&kernels.half_acts_q8x32, CODES_THREADS),
        ActFormat::Q8x256 => (&kernels.half_acts_q8x256, CODES_THREADS),
        ActFormat::F32 => (&kernels.half_acts_f32, FLOATS_THREADS),
    };
    let tile_octets = work.experts.as_ref().map_or(0, |experts| {
        TILE_ROWS[kind_of(gpu, &experts.routing)] / OCTET
    });
    let n_octets = match &to.tiles {
        Some(tiles) => tiles.len() * tile_octets,
        None => to.n_octets,
    };
    let mut n_columns = x.width.div_ceil(PER_THREAD * threads as usize);
    if x.form == ActFormat::F32 {
        // Each block reads its rows whole, for the largest value.
        n_columns = n_columns
            .min((BLOCKS_OF_FLOATS * gpu.n_compute_units() as usize).div_ceil(n_octets.max(1)));
    }
    let params = HalfActsParams {
        codes: x.codes.address(),
        scales: x.scales.address(),
        values: x.values.address(),
        x: to.values,
        factors: to.factors,
        tiles: to.table(),
        n_rows: x.n_rows as u32,
        width: x.width as u32,
        n_octets: to.n_octets as u32,
        tile_octets: tile_octets as u32,
        is_few: to.is_few.into(),
        n_columns: n_columns as u32,
    };
    let grid = [n_octets as u32, n_columns as u32, 1];
    gpu.launch(kernel, grid, threads, 0, &params)
}

/// A launch that leaves processors to the next one.
#[derive(Clone, Copy)]
struct Before {
    /// Processors that it does not use.
    n_free: usize,
    time_us: f64,
}

/// Launches up to [`FEW`] products of one format, maybe at the same time as the launch `before`. Returns this launch if the next one
/// may do the same.
fn multiply(
    gpu: &Gpu,
    (memory, x): (HalfMemory<'_>, &HalfActs<'_>),
    works: &[Work<'_>],
    before: Option<Before>,
) -> Result<Option<Before>, GpuError> {
    let n_rows = works[0].x.n_rows;
    let kernels = gpu.kernels().gemm_half.of(works[0].matrix.ty)?;
    let beside = match before {
        Some(before) if !x.is_few => kernels.choose_beside(gpu, works, before)?,
        _ => None,
    };
    let (kernel, tile, division) = match (x.way, beside) {
        (_, Some(beside)) => beside,
        (Way::Octets, None) => octets::choose(gpu, works)?,
        (_, None) => kernels.choose(gpu, works, (x.is_few, x.has_codes()))?,
    };
    let start = match works[0].experts {
        Some(experts) if experts.routing.is_chosen() => Start::Early,
        None if beside.is_some() => Start::Beside,
        _ => Start::After,
    };
    let mut n_tiles = 0;
    let product = |work: &Work<'_>, first_tile: usize| HalfProduct {
        w: (&work.matrix).into(),
        bias: address(work.bias),
        out: work.out.address(),
        scales: address(work.scales),
        shared: planes_or_null(work.shared),
        first_tile: first_tile as u32,
        mode: work.mode as u32,
    };
    let unused = HalfProduct {
        first_tile: u32::MAX,
        ..product(&works[0], 0)
    };
    let mut products = [unused; FEW];
    for (to, work) in products.iter_mut().zip(works) {
        *to = product(work, n_tiles);
        n_tiles += tile.n_tiles(work);
    }
    if let Some(up) = works[0].of_up() {
        assert_eq!(works.len(), 1, "a gated product is alone");
        products[1] = HalfProduct {
            first_tile: u32::MAX,
            ..product(&up, 0)
        };
    }
    let counters = counter_bytes(gpu);
    let [expert_bytes, n_stacked] = works[0]
        .experts
        .map_or([0; 2], |experts| [experts.n_bytes, experts.n_stacked]);
    let params = HalfParams {
        x: x.values,
        factors: x.factors,
        x_sums: works[0].x.sums.address(),
        parts: memory.parts.part(counters..memory.parts.len()).address(),
        counters: memory.parts.address(),
        tiles: x.table(),
        expert_bytes: Count(expert_bytes as u64),
        out_skip: Count(works[0].places.skip as u64),
        out_stride: works[0].places.stride as u32,
        n_rows: n_rows as u32,
        n_octets: x.n_octets as u32,
        n_row_tiles: n_rows.div_ceil(tile.rows) as u32,
        n_tiles: u32::try_from(n_tiles).expect("the number of tiles fits 32 bits"),
        n_whole: division.n_whole as u32,
        n_blocks: division.n_blocks as u32,
        n_stacked: n_stacked as u32,
        start: start as u32,
        out_shift: tile.out_shift,
        products,
    };
    let n_blocks = (division.n_blocks * tile.cluster) as u32;
    let grid = [n_blocks, division.n_row_blocks as u32, 1];
    let clusters = (grid, tile.cluster as u32);
    let shared_bytes = match x.is_few && x.tiles.is_none() {
        true => {
            let at_once = tile.blocks * gpu.n_compute_units() as usize;
            gpu.shared_bytes_for_even_blocks(n_blocks, at_once, tile.shared_bytes)
        }
        false => tile.shared_bytes,
    };
    gpu.launch_clusters(kernel, clusters, tile.threads, shared_bytes, &params)?;
    Ok((start != Start::Beside).then_some(Before {
        n_free: (gpu.n_compute_units() as usize).saturating_sub(n_blocks as usize),
        time_us: division.time_us,
    }))
}
