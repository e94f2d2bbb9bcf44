//! Normalization, and conversion of activations to the form that GEMV and GEMM take (`kernels/norm.hip`).

use zerocopy::{Immutable, IntoBytes};

use super::elementwise::parameters_of;
use super::half::HalfRows;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::limit::{MAX_GRID, n_values};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts};
use crate::variant::Variant;

/// Threads of a block that handles one row.
pub(super) const BLOCK_THREADS: u32 = 512;
/// Threads and rows of a block that handles several rows, each by a team of 32 threads.
const TEAM_THREADS: u32 = 256;
const TEAM_ROWS: u32 = 8;

/// Threads of a block that handles rows of three inputs.
const NORMS_THREADS: u32 = 128;

/// Threads of a block that handles a group of a row.
const GROUP_THREADS: u32 = 128;

/// Rows of up to this many values are handled by a team.
const MAX_TEAM_WIDTH: usize = 512;

/// Values that a thread loads at a time.
pub(super) const OCTET: usize = 8;

/// Destination of activations (`ActsOut` in acts.h).
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(super) struct ActsOut {
    values: Address,
    codes: Address,
    scales: Address,
    sums: Address,
}

layout!(ActsOut {
    values,
    codes,
    scales,
    sums
});

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NormParams {
    x: Address,
    weight: Address,
    bias: Address,
    normed: Address,
    out: ActsOut,
    n_rows: u32,
    width: u32,
    eps: f32,
    aligned: u32,
}

layout!(NormParams {
    x,
    weight,
    bias,
    normed,
    out,
    n_rows,
    width,
    eps,
    aligned
});

const _: () = assert!(size_of::<NormParams>() == 80);

#[repr(C)]
#[derive(Clone, Copy)]
struct RmsNormsParams {
    norms: [NormParams; 3],
}

layout!(RmsNormsParams { norms });

const _: () = assert!(size_of::<RmsNormsParams>() == 240);

#[repr(C)]
#[derive(Clone, Copy)]
struct NormGroupsParams {
    norm: NormParams,
    n_groups: u32,
    pad: u32,
}

layout!(NormGroupsParams {
    norm,
    n_groups,
    pad
});

const _: () = assert!(size_of::<NormGroupsParams>() == 88);

#[repr(C)]
#[derive(Clone, Copy)]
struct QuantizeParams {
    x: Address,
    out: ActsOut,
    n: u32,
    aligned: u32,
}

layout!(QuantizeParams { x, out, n, aligned });

const _: () = assert!(size_of::<QuantizeParams>() == 48);

#[repr(C)]
#[derive(Clone, Copy)]
struct QuantizeGatedParams {
    gate: Address,
    up: Address,
    out: ActsOut,
    n: u32,
    aligned: u32,
    numbers: [f32; 4],
    kind: u32,
    pad: u32,
}

layout!(QuantizeGatedParams {
    gate,
    up,
    out,
    n,
    aligned,
    numbers,
    kind,
    pad
});

const _: () = assert!(size_of::<QuantizeGatedParams>() == 80);

kernels! {
    struct NormKernels {
        rms_norm_block_f32: NormParams,
        rms_norm_block_q8x32: NormParams,
        rms_norm_block_q8x256: NormParams,
        rms_norm_team_f32: NormParams,
        rms_norm_team_q8x32: NormParams,
        rms_norm_team_q8x256: NormParams,
        rms_norms_f32: RmsNormsParams,
        rms_norms_q8x32: RmsNormsParams,
        rms_norms_q8x256: RmsNormsParams,
        rms_norm_groups_f32: NormGroupsParams,
        rms_norm_groups_q8x32: NormGroupsParams,
        rms_norm_groups_q8x256: NormGroupsParams,
        layer_norm_block_f32: NormParams,
        layer_norm_team_f32: NormParams,
        quantize_f32: QuantizeParams,
        quantize_q8x32: QuantizeParams,
        quantize_q8x256: QuantizeParams,
        quantize_gated_f32: QuantizeGatedParams,
        quantize_gated_q8x32: QuantizeGatedParams,
        quantize_gated_q8x256: QuantizeGatedParams,
    }
}

/// Converts `x` [n_rows, width] to the form of `out`.
///
/// # Panics
/// If the shapes differ, or `x` has 2^32 or more values.
pub fn quantize(gpu: &Gpu, x: Slice<'_, f32>, out: &Acts<'_>) -> Result<(), GpuError> {
    let n = checked_len(out);
    assert_eq!(x.len(), n, "out has the shape of x");
    match HalfRows::new(gpu, out, None) {
        Some(rows) => rows.quantize(gpu, x),
        None => quantize_alone(gpu, x, out),
    }
}

/// The same, whatever products follow.
pub(super) fn quantize_alone(gpu: &Gpu, x: Slice<'_, f32>, out: &Acts<'_>) -> Result<(), GpuError> {
    let n = out.n_rows * out.width;
    let kernels = &gpu.kernels().norm;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.quantize_f32,
        ActFormat::Q8x32 => &kernels.quantize_q8x32,
        ActFormat::Q8x256 => &kernels.quantize_q8x256,
    };
    let params = QuantizeParams {
        x: x.address(),
        out: acts_out(out),
        n: n_values(n).expect("fewer than 2^32 values"),
        aligned: aligned(gpu, n, &[x.address(), out.values.address()]),
    };
    gpu.launch(kernel, [n_octet_blocks(n), 1, 1], TEAM_THREADS, 0, &params)
}

/// Converts `activation(gate) * up`, both [n_rows, width], to the form of `out`. Gives the same bits as [`quantize`] of what
/// [`gated_activation`](super::gated_activation) returns.
///
/// # Panics
/// As [`quantize`].
pub(super) fn quantize_gated(
    gpu: &Gpu,
    activation: Activation,
    [gate, up]: [Slice<'_, f32>; 2],
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    let n = checked_len(out);
    assert!(
        gate.len() == n && up.len() == n,
        "out has the shape of gate and up"
    );
    if let Some(rows) = HalfRows::new(gpu, out, None) {
        return rows.gated(gpu, activation, [gate, up]);
    }
    let kernels = &gpu.kernels().norm;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.quantize_gated_f32,
        ActFormat::Q8x32 => &kernels.quantize_gated_q8x32,
        ActFormat::Q8x256 => &kernels.quantize_gated_q8x256,
    };
    let addresses = [gate.address(), up.address(), out.values.address()];
    let (numbers, kind) = parameters_of(activation);
    let params = QuantizeGatedParams {
        gate: gate.address(),
        up: up.address(),
        out: acts_out(out),
        n: n_values(n).expect("fewer than 2^32 values"),
        aligned: aligned(gpu, n, &addresses),
        numbers,
        kind,
        pad: 0,
    };
    gpu.launch(kernel, [n_octet_blocks(n), 1, 1], TEAM_THREADS, 0, &params)
}

/// Blocks of [`TEAM_THREADS`] with an octet of `n` values for each thread.
fn n_octet_blocks(n: usize) -> u32 {
    n.div_ceil(TEAM_THREADS as usize * OCTET) as u32
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` on groups of `weight.len()` values: rows, or heads of a row.
///
/// # Panics
/// If `x` is not a whole number of groups, or `out` has another length.
pub fn rms_norm(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    weight: Slice<'_, f32>,
    eps: f32,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let norm = Norm::new(x, weight, eps);
    norm.launch(gpu, Kind::Rms, &f32_acts(out, weight.len()))
}

/// [`rms_norm`] of the rows of `x`, written in the form of `out`, and to `normed` if there is one. Gives the same bits as
/// [`quantize`] of its result.
///
/// # Panics
/// If the shapes do not match.
pub fn rms_norm_quantize(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    weight: Slice<'_, f32>,
    eps: f32,
    normed: Option<Slice<'_, f32>>,
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    Norm::of_rows(x, (weight, eps), normed).launch(gpu, Kind::Rms, out)
}

/// The input of an RMS norm of rows.
#[derive(Clone, Copy)]
pub struct RowNorm<'a> {
    /// `[n_rows, width]`.
    pub x: Slice<'a, f32>,
    /// `[width]`.
    pub weight: Slice<'a, f32>,
    pub eps: f32,
}

/// Norms of the rows of three inputs: of two to f32, of one in the form of `out`. Gives the same bits as [`rms_norm`] and
/// [`rms_norm_quantize`], which it launches if rows are wide. A result may be in the place of an input as wide.
///
/// # Panics
/// If the shapes do not match.
pub fn rms_norms(
    gpu: &Gpu,
    norms: [(RowNorm<'_>, Slice<'_, f32>); 2],
    (last, out): (RowNorm<'_>, &Acts<'_>),
) -> Result<(), GpuError> {
    let is_wide = |norm: RowNorm<'_>| is_of_block(gpu, norm.weight.len());
    if is_wide(last) || norms.iter().any(|(norm, _)| is_wide(*norm)) {
        for (norm, out) in norms {
            rms_norm(gpu, norm.x, norm.weight, norm.eps, out)?;
        }
        return rms_norm_quantize(gpu, last.x, last.weight, last.eps, None, out);
    }
    let params = |norm: RowNorm<'_>, out: &Acts<'_>| {
        Norm::new(norm.x, norm.weight, norm.eps).params(gpu, out)
    };
    let last = params(last, out);
    let [first, second] = norms.map(|(norm, to)| {
        let to = f32_acts(to, norm.weight.len());
        assert_eq!(to.n_rows, out.n_rows, "as many rows as out");
        params(norm, &to)
    });
    let kernels = &gpu.kernels().norm;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.rms_norms_f32,
        ActFormat::Q8x32 => &kernels.rms_norms_q8x32,
        ActFormat::Q8x256 => &kernels.rms_norms_q8x256,
    };
    let params = RmsNormsParams {
        norms: [first, second, last],
    };
    gpu.launch(kernel, [last.n_rows, 1, 1], NORMS_THREADS, 0, &params)
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` on groups of `weight.len() / n_groups` values; so many neighbouring groups have
/// weights of their own.
///
/// # Panics
/// If `x` is not a whole number of rows of `n_groups` groups, or `out` has another length.
pub fn rms_norm_groups(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    (weight, n_groups): (Slice<'_, f32>, usize),
    eps: f32,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let acts = f32_acts(out, weight.len());
    rms_norm_groups_quantize(gpu, x, (weight, n_groups), eps, &acts)
}

/// [`rms_norm_groups`], written in the form of `out`, whose rows are `n_groups` groups. Gives the same bits as [`quantize`]
/// of its result.
///
/// # Panics
/// If the shapes do not match, or groups are not whole blocks of the form.
pub fn rms_norm_groups_quantize(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    (weight, n_groups): (Slice<'_, f32>, usize),
    eps: f32,
    out: &Acts<'_>,
) -> Result<(), GpuError> {
    assert!(
        (1..=MAX_GRID).contains(&n_groups) && weight.len().is_multiple_of(n_groups),
        "rows are whole groups"
    );
    assert_eq!(out.width, weight.len(), "rows of all groups");
    let groups = Acts {
        n_rows: out.n_rows * n_groups,
        width: out.width / n_groups,
        ..*out
    };
    let weights = weight.part(0..groups.width);
    let params = NormGroupsParams {
        norm: Norm::new(x, weights, eps).params(gpu, &groups),
        n_groups: n_groups as u32,
        pad: 0,
    };
    let kernels = &gpu.kernels().norm;
    let kernel = match out.form {
        ActFormat::F32 => &kernels.rms_norm_groups_f32,
        ActFormat::Q8x32 => &kernels.rms_norm_groups_q8x32,
        ActFormat::Q8x256 => &kernels.rms_norm_groups_q8x256,
    };
    let grid = [out.n_rows as u32, n_groups as u32, 1];
    gpu.launch(kernel, grid, GROUP_THREADS, 0, &params)
}

/// The parameters of [`rms_norm_quantize`] by a block for each row.
///
/// # Panics
/// As [`rms_norm_quantize`].
pub(super) fn rms_norm_params(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    (weight, eps): (Slice<'_, f32>, f32),
    normed: Option<Slice<'_, f32>>,
    out: &Acts<'_>,
) -> NormParams {
    Norm::of_rows(x, (weight, eps), normed).params(gpu, out)
}

/// Whether a block handles each row of `width` values.
pub(super) fn is_of_block(gpu: &Gpu, width: usize) -> bool {
    width > MAX_TEAM_WIDTH || gpu.takes(Variant::NormsBlock)
}

/// `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` on groups of `weight.len()` values.
///
/// # Panics
/// If `x` is not a whole number of groups, or `out` or `bias` has another length.
pub fn layer_norm(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    weight: Slice<'_, f32>,
    bias: Slice<'_, f32>,
    eps: f32,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    assert_eq!(bias.len(), weight.len(), "bias has the shape of weight");
    let mut norm = Norm::new(x, weight, eps);
    norm.bias = bias.address();
    norm.launch(gpu, Kind::Layer, &f32_acts(out, weight.len()))
}

enum Kind {
    Rms,
    Layer,
}

/// The operands of a norm.
struct Norm {
    x: Address,
    bias: Address,
    /// Null if there is none.
    normed: Address,
    weight: Address,
    n_rows: usize,
    width: usize,
    eps: f32,
}

impl Norm {
    fn new(x: Slice<'_, f32>, weight: Slice<'_, f32>, eps: f32) -> Norm {
        let width = weight.len();
        assert!(
            width > 0 && x.len().is_multiple_of(width),
            "x is not whole rows"
        );
        Norm {
            x: x.address(),
            bias: Address::NULL,
            normed: Address::NULL,
            weight: weight.address(),
            n_rows: x.len() / width,
            width,
            eps,
        }
    }

    fn of_rows(
        x: Slice<'_, f32>,
        (weight, eps): (Slice<'_, f32>, f32),
        normed: Option<Slice<'_, f32>>,
    ) -> Norm {
        let mut norm = Norm::new(x, weight, eps);
        if let Some(normed) = normed {
            assert_eq!(normed.len(), x.len(), "normed has the shape of x");
            norm.normed = normed.address();
        }
        norm
    }

    fn params(&self, gpu: &Gpu, out: &Acts<'_>) -> NormParams {
        assert_eq!(
            [self.n_rows, self.width],
            [out.n_rows, out.width],
            "out has the shape of x"
        );
        checked_len(out);
        let pointers = [
            self.x,
            self.weight,
            self.bias,
            self.normed,
            out.values.address(),
        ];
        NormParams {
            x: self.x,
            weight: self.weight,
            bias: self.bias,
            normed: self.normed,
            out: acts_out(out),
            n_rows: self.n_rows as u32,
            width: self.width as u32,
            eps: self.eps,
            aligned: aligned(gpu, self.width, &pointers),
        }
    }

    fn launch(&self, gpu: &Gpu, kind: Kind, out: &Acts<'_>) -> Result<(), GpuError> {
        let is_team = !is_of_block(gpu, self.width);
        if let (Kind::Rms, false) = (&kind, is_team)
            && let Some(rows) = HalfRows::new(gpu, out, None)
        {
            return rows.rms_norm(gpu, self.params(gpu, out));
        }
        let kernels = &gpu.kernels().norm;
        let kernel = match (kind, out.form, is_team) {
            (Kind::Rms, ActFormat::F32, false) => &kernels.rms_norm_block_f32,
            (Kind::Rms, ActFormat::Q8x32, false) => &kernels.rms_norm_block_q8x32,
            (Kind::Rms, ActFormat::Q8x256, false) => &kernels.rms_norm_block_q8x256,
            (Kind::Rms, ActFormat::F32, true) => &kernels.rms_norm_team_f32,
            (Kind::Rms, ActFormat::Q8x32, true) => &kernels.rms_norm_team_q8x32,
            (Kind::Rms, ActFormat::Q8x256, true) => &kernels.rms_norm_team_q8x256,
            (Kind::Layer, _, false) => &kernels.layer_norm_block_f32,
            (Kind::Layer, _, true) => &kernels.layer_norm_team_f32,
        };
        let params = self.params(gpu, out);
        let (n_blocks, n_threads) = if is_team {
            (params.n_rows.div_ceil(TEAM_ROWS), TEAM_THREADS)
        } else {
            (params.n_rows, BLOCK_THREADS)
        };
        gpu.launch(kernel, [n_blocks, 1, 1], n_threads, 0, &params)
    }
}

fn f32_acts(out: Slice<'_, f32>, width: usize) -> Acts<'_> {
    Acts {
        form: ActFormat::F32,
        n_rows: out.len() / width,
        width,
        values: out,
        codes: out.part(0..0).cast(),
        scales: out.part(0..0),
        sums: out.part(0..0).cast(),
        half: None,
        source: None,
    }
}

/// Returns the number of values, after checking that the buffers have that size.
pub(super) fn checked_len(out: &Acts<'_>) -> usize {
    let n = out.n_rows * out.width;
    let block_len = out.form.block_len();
    assert!(
        out.width.is_multiple_of(block_len),
        "a row is not whole blocks"
    );
    match out.form {
        ActFormat::F32 => assert_eq!(out.values.len(), n, "length of the values"),
        ActFormat::Q8x32 | ActFormat::Q8x256 => assert_eq!(
            [out.codes.len(), out.scales.len(), out.sums.len()],
            [n, n / block_len, n / 16],
            "lengths of codes, scales and sums"
        ),
    }
    n
}

/// Returns the addresses for a kernel that writes the activations, of which there is no f16 form from now on.
pub(super) fn acts_out(out: &Acts<'_>) -> ActsOut {
    if let Some(half) = &out.half {
        half.forget();
    }
    ActsOut {
        values: out.values.address(),
        codes: out.codes.address(),
        scales: out.scales.address(),
        sums: out.sums.address(),
    }
}

/// Whether octets of rows of `width` values can be moved 16 bytes at a time.
pub(super) fn aligned(gpu: &Gpu, width: usize, pointers: &[Address]) -> u32 {
    let can = width.is_multiple_of(OCTET) && pointers.iter().all(|ptr| ptr.is_aligned_to(16));
    u32::from(can && !gpu.takes(Variant::LoadsNarrow))
}
