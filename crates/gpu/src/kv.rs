//! The KV cache: the storage types of heads (`kernels/kv_type.h`), and the memory of a layer.

use rocmforge_plan::Values;

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, KernelTable, layout};
use crate::limit::Limit;
use crate::memory::{Address, Buffer, Slice};
use crate::ops;

/// Storage type of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// f16, rounded to nearest even.
    #[default]
    F16,
    /// Blocks of 32 values of a head, as `Q8_0` of the `gguf` crate.
    Q8_0,
    /// 8 bits per value (OCP e4m3fn) and one bf16 scale per head, as `f8` of the `gguf` crate.
    F8E4M3,
    /// Blocks of 32 values of a rotated head, as `Q5_1` of the `gguf` crate, with their codes in another order.
    Q5_1,
    /// Likewise as `Q4_0`.
    Q4_0,
}

impl KvType {
    pub const ALL: [KvType; 5] = [
        KvType::F16,
        KvType::Q8_0,
        KvType::F8E4M3,
        KvType::Q5_1,
        KvType::Q4_0,
    ];

    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "F16",
            KvType::Q8_0 => "Q8_0",
            KvType::F8E4M3 => "F8E4M3",
            KvType::Q5_1 => "Q5_1",
            KvType::Q4_0 => "Q4_0",
        }
    }

    /// Bytes of the codes of one head of `dim` values.
    fn code_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 2 * dim,
            KvType::Q8_0 | KvType::F8E4M3 => dim,
            KvType::Q5_1 | KvType::Q4_0 => 16 * dim.div_ceil(32),
        }
    }

    /// Bytes of the scales of one head of `dim` values.
    fn scale_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 0,
            KvType::Q8_0 | KvType::Q4_0 => 2 * dim.div_ceil(32),
            KvType::F8E4M3 => 2,
            KvType::Q5_1 => 8 * dim.div_ceil(32),
        }
    }

    /// Bytes of one head of `dim` values at one position.
    pub fn head_bytes(self, dim: usize) -> usize {
        self.code_bytes(dim) + self.scale_bytes(dim)
    }

    /// Whether heads have scales. These are computed from the whole head before it is written.
    pub(crate) fn has_scales(self) -> bool {
        self != KvType::F16
    }
}

/// The kernels of a file in `kernels/kv`, for each storage type.
pub(crate) struct PerKvType<T>([T; KvType::ALL.len()]);

impl<T: KernelTable> PerKvType<T> {
    /// `modules` has one name for each of [`KvType::ALL`].
    pub(crate) fn of_modules(modules: [&'static str; KvType::ALL.len()]) -> PerKvType<T> {
        PerKvType(modules.map(T::of_module))
    }

    pub(crate) fn of(&self, ty: KvType) -> &T {
        &self.0[ty as usize]
    }

    pub(crate) fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.0.iter().for_each(|table| table.each(visit));
    }
}

/// The names of the modules of a file in `kernels/kv`, in the order of [`KvType::ALL`].
macro_rules! kv_modules {
    ($file:ident) => {
        [
            concat!(stringify!($file), ".F16"),
            concat!(stringify!($file), ".Q8_0"),
            concat!(stringify!($file), ".F8E4M3"),
            concat!(stringify!($file), ".Q5_1"),
            concat!(stringify!($file), ".Q4_0"),
        ]
    };
}
pub(crate) use kv_modules;

/// Dimensions of the KV cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub ty: KvType,
    pub n_blocks: usize,
    pub n_kv_heads: usize,
    /// Tokens per page: 16, 32 or 64.
    pub page: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub values: Values,
}

impl KvShape {
    /// Number of heads over all positions.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_blocks * self.n_kv_heads * self.page
    }

    /// Bytes of the keys and of the values.
    pub fn n_bytes(&self) -> [usize; 2] {
        let [k, v] = [self.k_dim, self.v_dim].map(|dim| self.n_rows() * self.ty.head_bytes(dim));
        match self.values {
            Values::Apart => [k, v],
            Values::InKeys => [k, 0],
        }
    }

    /// How many neighbouring values of a key and of a value are rotated together before they are stored, 1 for none, as
    /// [`rocmforge_plan::KvType::hadamard_len`].
    pub fn hadamard_lens(&self) -> [usize; 2] {
        let len = |dims: &[usize]| match self.ty {
            KvType::F16 | KvType::Q8_0 | KvType::F8E4M3 => 1,
            KvType::Q5_1 => rocmforge_plan::KvType::Q5_1.hadamard_len(dims),
            KvType::Q4_0 => rocmforge_plan::KvType::Q4_0.hadamard_len(dims),
        };
        match self.values {
            Values::Apart => [len(&[self.k_dim]), len(&[self.v_dim])],
            Values::InKeys => [len(&[self.k_dim, self.v_dim]); 2],
        }
    }

    /// Width of values in memory of their own; 0 if they are in the keys.
    pub(crate) fn stored_v_dim(&self) -> usize {
        match self.values {
            Values::Apart => self.v_dim,
            Values::InKeys => 0,
        }
    }

    /// Checks that kernels on `gpu` can append to such a cache, move its entries, and attend to it with `n_heads` query
    /// heads.
    pub fn check(&self, gpu: &Gpu, n_heads: usize) -> Result<(), Limit> {
        ops::check_append(gpu, self, n_heads)?;
        ops::check_move(self)?;
        ops::check_heads(self.k_dim, self.v_dim)
    }

    /// Allocates memory for the keys and the values.
    pub fn alloc(&self, gpu: &Gpu) -> Result<[Buffer; 2], GpuError> {
        let [k, v] = self.n_bytes();
        Ok([gpu.alloc::<u8>(k)?, gpu.alloc::<u8>(v)?])
    }
}

/// The keys and values of one layer, in pages that tokens of any sequence may use. Each is a plane of codes `[n_blocks,
/// n_kv_heads, page, dim]`, then a plane of scales `[n_blocks, n_kv_heads, page, n_scales]`: f16 bits per block of 32
/// values for [`KvType::Q8_0`] and [`KvType::Q4_0`], these, the minimum and the fifth bits for [`KvType::Q5_1`], bf16 bits
/// for [`KvType::F8E4M3`], none for [`KvType::F16`].
#[derive(Clone, Copy)]
pub struct KvLayer<'a> {
    pub shape: KvShape,
    pub k: Slice<'a, u8>,
    pub v: Slice<'a, u8>,
}

/// `kv::Planes` in kv_type.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Planes {
    pub(crate) codes: Address,
    pub(crate) scales: Address,
}

layout!(Planes { codes, scales });

impl<'a> KvLayer<'a> {
    /// Wraps memory from [`KvShape::alloc`].
    pub fn new(shape: KvShape, [k, v]: &'a [Buffer; 2]) -> KvLayer<'a> {
        KvLayer {
            shape,
            k: k.as_slice(),
            v: v.as_slice(),
        }
    }

    /// Returns the addresses of the keys and of the values, or of the keys that they are in.
    ///
    /// # Panics
    /// If the memory does not have the size of the shape.
    pub(crate) fn planes(&self) -> [Planes; 2] {
        let KvShape {
            k_dim, v_dim, page, ..
        } = self.shape;
        assert!([16, 32, 64].contains(&page), "pages of {page} tokens");
        assert_eq!(
            [self.k.len(), self.v.len()],
            self.shape.n_bytes(),
            "the cache of {:?}",
            self.shape
        );
        let planes = |memory: Slice<'_, u8>, dim: usize| {
            // Pages have at least 16 rows, so scales are aligned as codes are.
            let n_codes = self.shape.n_rows() * self.shape.ty.code_bytes(dim);
            Planes {
                codes: memory.address(),
                scales: memory.part(n_codes..memory.len()).address(),
            }
        };
        let k = planes(self.k, k_dim);
        match self.shape.values {
            Values::Apart => [k, planes(self.v, v_dim)],
            Values::InKeys => [k, k],
        }
    }
}
