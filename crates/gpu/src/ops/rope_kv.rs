//! RoPE of queries and keys, and the append of keys and values to the KV cache (`kernels/kv/rope_kv.hip`).

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::kv::{KvLayer, KvShape, KvType, KvTypes, Planes};
use crate::limit::{Limit, MAX_GRID};
use crate::memory::{Address, Slice};
use crate::step::Step;
use crate::variant::Variant;
pub use rocmforge_plan::RopeStyle;

const THREADS: u32 = 256;

/// Heads per block.
const TEAMS: u32 = 8;

/// RMS norms of the heads of queries and keys, applied before the rotation.
#[derive(Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Weights, `[k_dim]` each.
    pub q: Slice<'a, f32>,
    pub k: Slice<'a, f32>,
    pub eps: f32,
}

/// The rotary position embedding (RoPE) of a model.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    pub style: RopeStyle,
    /// Cosine and sine, `[n_ctx, n_rot / 2, 2]`. Positions past the end use the last one.
    pub table: Slice<'a, f32>,
    /// Number of values of a head that are rotated, from `start` on.
    pub n_rot: usize,
    pub start: usize,
}

/// The operands of [`rope_kv`].
#[derive(Clone, Copy)]
pub struct RopeKv<'a> {
    /// `[n_rows, n_heads * k_dim]`.
    pub q: Slice<'a, f32>,
    /// The rotated queries, as `q`. May be the same memory.
    pub q_out: Slice<'a, f32>,
    /// `[n_rows, n_kv_heads * k_dim]`. Not changed; the rotated keys go to the cache.
    pub k: Slice<'a, f32>,
    /// `[n_rows, n_kv_heads * v_dim]`.
    pub v: Slice<'a, f32>,
    pub rotation: Rotation<'a>,
    pub norms: Option<HeadNorms<'a>>,
}

/// The operands of [`latent_rope_kv`]: queries and keys whose last values are rotated and come from elsewhere.
#[derive(Clone, Copy)]
pub struct LatentRopeKv<'a> {
    /// `[n_rows, n_heads * k_dim]`: only the rotated values are written. Perhaps empty.
    pub q: Slice<'a, f32>,
    /// `[n_rows, n_heads * dim]`: the last values of each head are rotated.
    pub q_tail: Slice<'a, f32>,
    /// `[n_rows, k_dim - n_rot]`.
    pub k: Slice<'a, f32>,
    /// `[n_rows, n_rot]`.
    pub k_tail: Slice<'a, f32>,
    pub rotation: Rotation<'a>,
    /// The weight of the RMS norm of `k`, `[k_dim - n_rot]`.
    pub norm: Slice<'a, f32>,
    pub eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RopeKvParams {
    q: Address,
    q_out: Address,
    k: Address,
    v: Address,
    k_cache: Planes,
    v_cache: Planes,
    table: Address,
    q_norm: Address,
    k_norm: Address,
    q_tail: Address,
    k_tail: Address,
    positions: Address,
    slots: Address,
    n_q_heads: u32,
    n_kv_heads: u32,
    k_dim: u32,
    v_dim: u32,
    n_rot: u32,
    n_ctx: u32,
    page: u32,
    n_slots: u32,
    eps: f32,
    widest: u32,
    first_rot: u32,
    q_tail_dim: u32,
    k_hadamard: u32,
    v_hadamard: u32,
}

layout!(RopeKvParams {
    q,
    q_out,
    k,
    v,
    k_cache,
    v_cache,
    table,
    q_norm,
    k_norm,
    q_tail,
    k_tail,
    positions,
    slots,
    n_q_heads,
    n_kv_heads,
    k_dim,
    v_dim,
    n_rot,
    n_ctx,
    page,
    n_slots,
    eps,
    widest,
    first_rot,
    q_tail_dim,
    k_hadamard,
    v_hadamard
});

const _: () = assert!(size_of::<RopeKvParams>() == 176);

kernels! {
    struct RopeKvKernels {
        rope_kv_norm_4: RopeKvParams,
        rope_kv_norm_1: RopeKvParams,
        rope_kv_neox_4: RopeKvParams,
        rope_kv_neox_1: RopeKvParams,
    }
}

/// Checks that heads of `dim` values consist of pairs.
pub(crate) fn check_pairs(dim: usize) -> Result<(), Limit> {
    Limit::check(dim.is_multiple_of(2), dim, || {
        "heads of an even number of values".into()
    })
}

/// Checks that kernels on `gpu` can rotate `n_heads` query heads and append their keys and values to caches of this
/// shape.
pub(crate) fn check_append(gpu: &Gpu, shape: &KvShape, n_heads: usize) -> Result<(), Limit> {
    check_pairs(shape.k_dim)?;
    check_pairs(shape.v_dim)?;
    let most = MAX_GRID * TEAMS as usize;
    let n_heads = n_heads.saturating_add(shape.n_kv_heads.saturating_mul(2));
    Limit::check(n_heads <= most, n_heads, || {
        format!("at most {most} heads of queries, keys and values")
    })?;
    let widest = shape.k_dim.max(shape.v_dim).saturating_add(7) / 8 * 8;
    let most = gpu.max_shared_bytes() as usize / TEAMS as usize / size_of::<f32>();
    Limit::check(!shape.types.has_scales() || widest <= most, widest, || {
        let types = shape.types.name();
        format!("heads of at most {most} values in a cache of {types}")
    })
}

/// Bytes of shared memory for the heads of a block.
fn shared_bytes(types: KvTypes, widest: u32) -> u32 {
    match types.has_scales() {
        true => TEAMS * widest * size_of::<f32>() as u32,
        false => 0,
    }
}

/// Rotates every head of `x` [n_rows, n_heads * head_dim] in place by the angles of the row's position.
///
/// # Panics
/// If the shapes do not match, or `head_dim`, `n_rot` or `start` is odd.
pub fn rope(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    head_dim: usize,
    rotation: &Rotation<'_>,
    step: &Step<'_>,
) -> Result<(), GpuError> {
    rope_to(gpu, [x, x], head_dim, rotation, step)
}

/// As [`rope`], from one buffer to another.
///
/// # Panics
/// As [`rope`].
pub fn rope_to(
    gpu: &Gpu,
    from_to: [Slice<'_, f32>; 2],
    head_dim: usize,
    rotation: &Rotation<'_>,
    step: &Step<'_>,
) -> Result<(), GpuError> {
    let mut params = RopeKvParams::default();
    params.set_step(step);
    params.set_queries(from_to, head_dim, step.n_rows());
    params.set_table(rotation);
    params.launch(gpu, KvType::F16.into(), rotation.style, step.n_rows())
}

/// Appends the keys `k` [n_rows, n_kv_heads * k_dim] and values `v` [n_rows, n_kv_heads * v_dim] to the KV cache, at
/// the slots of their rows and converted to the cache type; `v` is not read if the values are in the keys. Rows with slot `u32::MAX` write nothing.
///
/// # Panics
/// If the shapes do not match, or a head has an odd number of values.
pub fn kv_append(
    gpu: &Gpu,
    layer: &KvLayer<'_>,
    k: Slice<'_, f32>,
    v: Slice<'_, f32>,
    step: &Step<'_>,
) -> Result<(), GpuError> {
    let mut params = RopeKvParams::default();
    params.set_step(step);
    params.set_cache(layer, k, v, step.n_rows());
    params.launch(gpu, layer.shape.types, RopeStyle::Norm, step.n_rows())
}

/// Does both rotations and the append in one launch: [`rope`] of `q` to `q_out` and of `k` to the cache, after the
/// norms of their heads if there are any, and [`kv_append`] of `v`.
///
/// # Panics
/// If the shapes do not match, or `n_rot` or a head dimension is odd.
pub fn rope_kv(
    gpu: &Gpu,
    operands: &RopeKv<'_>,
    layer: &KvLayer<'_>,
    step: &Step<'_>,
) -> Result<(), GpuError> {
    let mut params = RopeKvParams::default();
    params.set_step(step);
    let k_dim = layer.shape.k_dim;
    params.set_queries([operands.q, operands.q_out], k_dim, step.n_rows());
    params.set_cache(layer, operands.k, operands.v, step.n_rows());
    params.set_table(&operands.rotation);
    if let Some(norms) = &operands.norms {
        assert_eq!(
            [norms.q.len(), norms.k.len()],
            [k_dim; 2],
            "one weight per value of a head"
        );
        (params.q_norm, params.k_norm) = (norms.q.address(), norms.k.address());
        params.eps = norms.eps;
    }
    let style = operands.rotation.style;
    params.launch(gpu, layer.shape.types, style, step.n_rows())
}

/// Rotates the ends of queries of latent attention, normalizes the keys, and appends these with their rotated ends to the
/// KV cache, all in one launch.
///
/// # Panics
/// If the shapes do not match, a dimension is odd, the layer has several KV heads or values of its own, or the rotated
/// values are not the last ones.
pub fn latent_rope_kv(
    gpu: &Gpu,
    operands: &LatentRopeKv<'_>,
    layer: &KvLayer<'_>,
    step: &Step<'_>,
) -> Result<(), GpuError> {
    let (n_rows, shape) = (step.n_rows(), &layer.shape);
    let Rotation { n_rot, start, .. } = operands.rotation;
    assert_eq!(
        (shape.n_kv_heads, shape.stored_v_dim(), start + n_rot),
        (1, 0, shape.k_dim),
        "one latent head, rotated at its end"
    );
    assert_eq!(
        [operands.k, operands.k_tail, operands.norm].map(|x| x.len()),
        [n_rows * start, n_rows * n_rot, start],
        "the parts of a key"
    );
    let mut params = RopeKvParams::default();
    params.set_step(step);
    params.set_queries([operands.q; 2], shape.k_dim, n_rows);
    let n_heads = n_rows * params.n_q_heads as usize;
    let tail_dim = operands.q_tail.len() / n_heads.max(1);
    assert!(
        operands.q_tail.len() == n_heads * tail_dim && (n_heads == 0 || tail_dim >= n_rot),
        "heads with ends of {n_rot} values"
    );
    params.set_layer(layer);
    params.set_table(&operands.rotation);
    (params.k, params.k_tail) = (operands.k.address(), operands.k_tail.address());
    (params.q_tail, params.q_tail_dim) = (operands.q_tail.address(), tail_dim as u32);
    (params.k_norm, params.eps) = (operands.norm.address(), operands.eps);
    params.launch(gpu, shape.types, operands.rotation.style, n_rows)
}

impl RopeKvParams {
    fn set_step(&mut self, step: &Step<'_>) {
        assert_eq!(step.slots.len(), step.positions.len(), "one slot per row");
        self.positions = step.positions.address();
        self.slots = step.slots.address();
    }

    fn set_queries(&mut self, [q, out]: [Slice<'_, f32>; 2], head_dim: usize, n_rows: usize) {
        let row = n_rows * head_dim;
        assert_eq!(q.len(), out.len(), "as many rotated queries as queries");
        assert_eq!(check_pairs(head_dim), Ok(()));
        assert!(
            q.is_empty() || q.len().is_multiple_of(row),
            "{n_rows} rows of heads of {head_dim} values"
        );
        (self.q, self.q_out) = (q.address(), out.address());
        self.n_q_heads = (q.len() / row.max(1)) as u32;
        self.k_dim = head_dim as u32;
    }

    fn set_cache(
        &mut self,
        layer: &KvLayer<'_>,
        k: Slice<'_, f32>,
        v: Slice<'_, f32>,
        n_rows: usize,
    ) {
        let (k_dim, v_dim) = (layer.shape.k_dim, layer.shape.stored_v_dim());
        let n_heads = n_rows * layer.shape.n_kv_heads;
        assert!(
            k.len() == n_heads * k_dim && (v_dim == 0 || v.len() == n_heads * v_dim),
            "[n_rows, n_kv_heads * dim]"
        );
        (self.k, self.v) = (k.address(), v.address());
        self.set_layer(layer);
    }

    fn set_layer(&mut self, layer: &KvLayer<'_>) {
        let KvShape {
            n_blocks,
            n_kv_heads,
            page,
            k_dim,
            ..
        } = layer.shape;
        let v_dim = layer.shape.stored_v_dim();
        assert_eq!([k_dim, v_dim].map(check_pairs), [Ok(()), Ok(())]);
        [self.k_cache, self.v_cache] = layer.planes();
        self.n_kv_heads = n_kv_heads as u32;
        (self.k_dim, self.v_dim) = (k_dim as u32, v_dim as u32);
        self.page = page as u32;
        self.n_slots = u32::try_from(n_blocks * page).unwrap_or(u32::MAX);
        self.widest = self.k_dim.max(self.v_dim).next_multiple_of(8);
        [self.k_hadamard, self.v_hadamard] = layer.shape.hadamard_lens().map(|len| len as u32);
    }

    fn set_table(&mut self, rotation: &Rotation<'_>) {
        let &Rotation {
            table,
            n_rot,
            start,
            ..
        } = rotation;
        assert!(
            n_rot.is_multiple_of(2)
                && start.is_multiple_of(2)
                && start + n_rot <= self.k_dim as usize,
            "{n_rot} of {} values rotated, from {start} on",
            self.k_dim
        );
        if n_rot > 0 {
            assert!(
                !table.is_empty() && table.len().is_multiple_of(n_rot),
                "the table is not [n_ctx, n_rot / 2, 2]"
            );
            self.n_ctx = (table.len() / n_rot) as u32;
        }
        self.table = table.address();
        self.n_rot = n_rot as u32;
        self.first_rot = start as u32;
    }

    fn launch(
        &self,
        gpu: &Gpu,
        types: KvTypes,
        style: RopeStyle,
        n_rows: usize,
    ) -> Result<(), GpuError> {
        let lengths = [
            self.k_dim,
            self.v_dim,
            self.n_rot,
            self.first_rot,
            self.q_tail_dim,
        ];
        let pointers = [
            self.q,
            self.q_out,
            self.k,
            self.v,
            self.k_cache.codes,
            self.v_cache.codes,
            self.table,
            self.q_norm,
            self.k_norm,
            self.q_tail,
            self.k_tail,
        ];
        let is_aligned = lengths.iter().all(|len| len.is_multiple_of(8))
            && pointers.iter().all(|ptr| ptr.is_aligned_to(16))
            && !gpu.takes(Variant::LoadsNarrow);
        let kernels = gpu.kernels().rope_kv.of(types);
        let kernel = match (style, is_aligned) {
            (RopeStyle::Norm, true) => &kernels.rope_kv_norm_4,
            (RopeStyle::Norm, false) => &kernels.rope_kv_norm_1,
            (RopeStyle::Neox, true) => &kernels.rope_kv_neox_4,
            (RopeStyle::Neox, false) => &kernels.rope_kv_neox_1,
        };
        let n_heads = self.n_q_heads + 2 * self.n_kv_heads;
        let grid = [n_rows as u32, n_heads.div_ceil(TEAMS), 1];
        gpu.launch(
            kernel,
            grid,
            THREADS,
            shared_bytes(types, self.widest),
            self,
        )
    }
}
