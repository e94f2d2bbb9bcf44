//! Quantization that also writes what GEMM takes: f16 activations, with the bits that a launch of `half_acts_*` would give them
//! (`kernels/hopper/half_rows.hip`). Of many rows, two launches take less time, since the second one starts while the first
//! runs; but not of tokens for their experts, where each row would be converted for each of these, nor after gate and up in a launch
//! of their own, where they would be three with the gate's (H200).

use super::super::elementwise::parameters_of;
use super::super::norm::{ActsOut, BLOCK_THREADS, NormParams, OCTET, acts_out, aligned};
use super::super::routing::CombineNormParams;
use super::super::routing::buffer::{ExpertTile, Routing, SMALL};
use super::super::select;
use super::memory::{HalfMemory, OCTET as ROWS, factor_bytes, value_bytes};
use super::octets::takes_octets;
use super::tile::{WARP, kind_of};
use super::{fits, is_of_codes, made, n_octets, takes_codes};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, Table, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts};
use crate::variant::Variant;

/// The most threads of a block.
const MAX_THREADS: usize = 1024;

/// Threads of a block with an octet of rows: a wave for each.
const OCTET_THREADS: u32 = (ROWS * WARP) as u32;

/// Rows with more octets than twice this number are divided among blocks of about as many threads.
const THREADS_OF_SEVERAL: usize = 256;

/// Values that blocks do not divide.
const UNIT: usize = 256;

/// The most rows: those of a tile of few rows.
const MAX_ROWS: usize = 32;
/// The same where all steps of answers take these tiles ([`Variant::RowsAnswer`]).
const MAX_ROWS_OF_ANSWERS: usize = 64;

/// Codes of longer rows would leave no room for other blocks.
const MAX_SHARED_BYTES: usize = 64 << 10;
/// The same of an octet of rows.
const MAX_OCTET_BYTES: usize = 96 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct HalfOut {
    x: Address,
    factors: Address,
    tiles: Table<ExpertTile>,
    n_octets: u32,
    n_tiles: u32,
    is_few: u32,
    pad: u32,
}

layout!(HalfOut {
    x,
    factors,
    tiles,
    n_octets,
    n_tiles,
    is_few,
    pad
});

#[repr(C)]
#[derive(Clone, Copy)]
struct NormHalfParams {
    norm: NormParams,
    half: HalfOut,
}

layout!(NormHalfParams { norm, half });

#[repr(C)]
#[derive(Clone, Copy)]
struct CombineHalfParams {
    combine_norm: CombineNormParams,
    half: HalfOut,
}

layout!(CombineHalfParams { combine_norm, half });

#[repr(C)]
#[derive(Clone, Copy)]
struct QuantizeHalfParams {
    x: Address,
    up: Address,
    n_rows: Address,
    tokens: Address,
    out: ActsOut,
    half: HalfOut,
    width: u32,
    aligned: u32,
    numbers: [f32; 4],
    kind: u32,
    n_blocks: u32,
    n_values: u32,
    pad: u32,
}

layout!(QuantizeHalfParams {
    x,
    up,
    n_rows,
    tokens,
    out,
    half,
    width,
    aligned,
    numbers,
    kind,
    n_blocks,
    n_values,
    pad
});

kernels! {
    struct HalfRowsKernels {
        rms_norm_half_q8x32: NormHalfParams,
        rms_norm_half_q8x256: NormHalfParams,
        combine_norm_half_q8x32: CombineHalfParams,
        combine_norm_half_q8x256: CombineHalfParams,
        quantize_half_q8x32: QuantizeHalfParams,
        quantize_half_q8x256: QuantizeHalfParams,
        gated_half_q8x32: QuantizeHalfParams,
        gated_half_q8x256: QuantizeHalfParams,
        quantize_octets_q8x32: QuantizeHalfParams,
        quantize_octets_q8x256: QuantizeHalfParams,
    }
}

/// Activations that are written in both forms.
pub(in crate::ops) struct HalfRows<'a> {
    out: Acts<'a>,
    routing: Option<Routing<'a>>,
    half: HalfOut,
    memory: HalfMemory<'a>,
}

impl<'a> HalfRows<'a> {
    /// Returns the activations if products of them take f16 numbers in tiles of few rows. `routing`: that of their experts.
    pub(in crate::ops) fn new(
        gpu: &Gpu,
        out: &Acts<'a>,
        routing: Option<&Routing<'a>>,
    ) -> Option<HalfRows<'a>> {
        let are_few = match routing {
            Some(routing) => kind_of(gpu, routing) == SMALL,
            None => {
                let most = match gpu.takes(Variant::RowsAnswer) {
                    true => MAX_ROWS_OF_ANSWERS,
                    false => MAX_ROWS,
                };
                !gpu.takes(Variant::RowsPrompt) && out.n_rows <= most
            }
        };
        are_few.then(|| HalfRows::any(gpu, out, routing))?
    }

    /// The same of the experts' rows, however many.
    pub(in crate::ops) fn of_experts(
        gpu: &Gpu,
        out: &Acts<'a>,
        routing: &Routing<'a>,
    ) -> Option<HalfRows<'a>> {
        HalfRows::any(gpu, out, Some(routing))
    }

    /// The same for the rows of tokens, unless these are many and too wide for `quantize_octets_*`.
    pub(in crate::ops) fn of_tokens(
        gpu: &Gpu,
        out: &Acts<'a>,
        routing: &Routing<'a>,
    ) -> Option<HalfRows<'a>> {
        let are_few = kind_of(gpu, routing) == SMALL;
        HalfRows::any(gpu, out, Some(routing))
            .filter(|rows| are_few || rows.octet_bytes().is_some())
    }

    fn any(gpu: &Gpu, out: &Acts<'a>, routing: Option<&Routing<'a>>) -> Option<HalfRows<'a>> {
        let memory = out.half?;
        let is_gemv = match routing {
            Some(routing) => select::is_gemv_of_experts(gpu, routing, true),
            None => select::is_gemv(gpu, out.n_rows, Some(memory)),
        };
        let takes_halves = !is_gemv
            && out.form != ActFormat::F32
            && !is_of_codes(gpu)
            && !takes_codes(gpu, out, routing)
            && !takes_octets(gpu, out, routing)
            && fits(gpu, out, routing, memory)
            && shared_bytes(out.form, out.width) <= MAX_SHARED_BYTES;
        if !takes_halves {
            return None;
        }
        let n_octets = n_octets(gpu, out, routing);
        let kind = routing.map_or(SMALL, |routing| kind_of(gpu, routing));
        let tiles = routing.map(|routing| routing.tiles[kind]);
        let factors = factor_bytes(out.n_rows);
        let values = factors..factors + value_bytes(out.form, n_octets, out.width);
        let half = HalfOut {
            x: memory.x.part(values).address(),
            factors: memory.x.address(),
            tiles: tiles.map_or(Table::NULL, |tiles| tiles.table()),
            n_octets: n_octets as u32,
            n_tiles: tiles.map_or(0, |tiles| tiles.len() as u32),
            is_few: u32::from(kind == SMALL),
            pad: 0,
        };
        Some(HalfRows {
            out: *out,
            routing: routing.copied(),
            half,
            memory,
        })
    }

    /// RMS norm of rows, each by a block.
    pub(in crate::ops) fn rms_norm(&self, gpu: &Gpu, norm: NormParams) -> Result<(), GpuError> {
        let kernels = &gpu.kernels().half_rows;
        let kernel = self.of_form(&kernels.rms_norm_half_q8x32, &kernels.rms_norm_half_q8x256);
        let params = NormHalfParams {
            norm,
            half: self.half,
        };
        gpu.launch(kernel, self.grid(), BLOCK_THREADS, self.shared(), &params)?;
        self.remember(gpu);
        Ok(())
    }

    /// The sum of each token's experts, and its norm.
    pub(in crate::ops) fn combine_norm(
        &self,
        gpu: &Gpu,
        combine_norm: CombineNormParams,
    ) -> Result<(), GpuError> {
        let kernels = &gpu.kernels().half_rows;
        let kernel = self.of_form(
            &kernels.combine_norm_half_q8x32,
            &kernels.combine_norm_half_q8x256,
        );
        let params = CombineHalfParams {
            combine_norm,
            half: self.half,
        };
        gpu.launch(kernel, self.grid(), BLOCK_THREADS, self.shared(), &params)?;
        self.remember(gpu);
        Ok(())
    }

    /// Converts `x`, a row for each row of the activations.
    pub(in crate::ops) fn quantize(&self, gpu: &Gpu, x: Slice<'_, f32>) -> Result<(), GpuError> {
        self.quantize_of(gpu, x, Address::NULL)
    }

    /// Converts `x`, a row for each token, to the rows of its experts.
    pub(in crate::ops) fn quantize_tokens(
        &self,
        gpu: &Gpu,
        x: Slice<'_, f32>,
    ) -> Result<(), GpuError> {
        let routing = self.routing.as_ref().expect("the rows are of experts");
        self.quantize_of(gpu, x, routing.tokens.address())
    }

    fn quantize_of(&self, gpu: &Gpu, x: Slice<'_, f32>, tokens: Address) -> Result<(), GpuError> {
        let kernels = &gpu.kernels().half_rows;
        let params = QuantizeHalfParams {
            tokens,
            ..self.params(gpu, [x.address(), Address::NULL])?
        };
        let Some(shared) = self.octet_bytes() else {
            let kernel = self.of_form(&kernels.quantize_half_q8x32, &kernels.quantize_half_q8x256);
            return self.launch(gpu, kernel, &params);
        };
        let kernel = self.of_form(
            &kernels.quantize_octets_q8x32,
            &kernels.quantize_octets_q8x256,
        );
        let grid = [self.half.n_octets, 1, 1];
        gpu.launch(kernel, grid, OCTET_THREADS, shared, &params)?;
        self.remember(gpu);
        Ok(())
    }

    /// Converts `activation(gate) * up`.
    pub(in crate::ops) fn gated(
        &self,
        gpu: &Gpu,
        activation: Activation,
        sides: [Slice<'_, f32>; 2],
    ) -> Result<(), GpuError> {
        let kernels = &gpu.kernels().half_rows;
        let kernel = self.of_form(&kernels.gated_half_q8x32, &kernels.gated_half_q8x256);
        let (numbers, kind) = parameters_of(activation);
        let params = QuantizeHalfParams {
            numbers,
            kind,
            ..self.params(gpu, sides.map(|side| side.address()))?
        };
        self.launch(gpu, kernel, &params)
    }

    fn params(&self, gpu: &Gpu, [x, up]: [Address; 2]) -> Result<QuantizeHalfParams, GpuError> {
        let n_rows = { self.routing }.map(|routing| routing.n_rows.address());
        let n_octets = self.out.width.div_ceil(OCTET);
        let most = gpu.constant("half_rows", "half_rows_cluster")? as usize;
        let n_blocks = match self.routing.is_none() && n_octets > 2 * THREADS_OF_SEVERAL {
            true => n_octets
                .div_ceil(THREADS_OF_SEVERAL)
                .next_power_of_two()
                .min(most),
            false => 1,
        };
        let n_values = self.out.width.div_ceil(n_blocks).next_multiple_of(UNIT);
        Ok(QuantizeHalfParams {
            x,
            up,
            n_rows: n_rows.unwrap_or(Address::NULL),
            tokens: Address::NULL,
            out: acts_out(&self.out),
            half: self.half,
            width: self.out.width as u32,
            aligned: aligned(gpu, self.out.width, &[x, up]),
            numbers: [0.0; 4],
            kind: 0,
            n_blocks: n_blocks as u32,
            n_values: n_values as u32,
            pad: 0,
        })
    }

    /// Launches blocks with as many threads as divide their octets evenly.
    fn launch(
        &self,
        gpu: &Gpu,
        kernel: &Kernel<QuantizeHalfParams>,
        params: &QuantizeHalfParams,
    ) -> Result<(), GpuError> {
        let n_values = params.n_values as usize;
        let n_octets = n_values / OCTET;
        let n_rounds = n_octets.div_ceil(MAX_THREADS);
        let threads = n_octets.div_ceil(n_rounds).next_multiple_of(WARP) as u32;
        let [n_rows, ..] = self.grid();
        let clusters = ([n_rows * params.n_blocks, 1, 1], params.n_blocks);
        let shared = shared_bytes(self.out.form, n_values) as u32;
        gpu.launch_clusters(kernel, clusters, threads, shared, params)?;
        self.remember(gpu);
        Ok(())
    }

    /// Bytes of shared memory for a block with an octet of experts' rows (`row_bytes` in `half_rows.hip`), if these are many and an
    /// octet fits.
    fn octet_bytes(&self) -> Option<u32> {
        let n_values = self.out.width.next_multiple_of(UNIT);
        let row = (shared_bytes(self.out.form, n_values) - 16).next_multiple_of(128) + 16;
        let is_wide = self.routing.is_some() && self.half.is_few == 0;
        (is_wide && ROWS * row <= MAX_OCTET_BYTES).then_some((ROWS * row) as u32)
    }

    /// The kernel of the two that makes codes of the activations' form.
    fn of_form<'k, P>(&self, q8x32: &'k Kernel<P>, q8x256: &'k Kernel<P>) -> &'k Kernel<P> {
        match self.out.form {
            ActFormat::Q8x32 => q8x32,
            _ => q8x256,
        }
    }

    fn grid(&self) -> [u32; 3] {
        [self.out.n_rows as u32, 1, 1]
    }

    /// Bytes for a whole row.
    fn shared(&self) -> u32 {
        shared_bytes(self.out.form, self.out.width) as u32
    }

    fn remember(&self, gpu: &Gpu) {
        let made = made(gpu, &self.out, self.half.tiles, self.half.is_few != 0);
        self.memory.remember(Some(made));
    }
}

/// Bytes of the codes, scales and sums of `n` values.
fn shared_bytes(form: ActFormat, n: usize) -> usize {
    n + n / form.block_len() * size_of::<f32>() + n / 16 * size_of::<i16>()
}
