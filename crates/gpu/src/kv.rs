//! The cache of keys and values: how heads are stored (`kernels/kv_type.h`), and where those of a layer are.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::limit::Limit;
use crate::memory::{Buffer, Slice};
use crate::ops;

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Rounded to nearest even.
    #[default]
    F16,
    /// Blocks of 32 values of a head, as `gguf`'s `Q8_0`.
    Q8_0,
    /// Eight bits a value (e4m3fn of OCP) and a bf16 scale for each head, as `gguf`'s `f8`.
    F8E4M3,
}

impl KvType {
    pub const ALL: [KvType; 3] = [KvType::F16, KvType::Q8_0, KvType::F8E4M3];

    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "F16",
            KvType::Q8_0 => "Q8_0",
            KvType::F8E4M3 => "F8E4M3",
        }
    }

    /// Bytes of a value's code.
    fn code_bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::Q8_0 | KvType::F8E4M3 => 1,
        }
    }

    /// Bytes of the scales of a head of `dim` values.
    fn scale_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 0,
            KvType::Q8_0 => 2 * dim.div_ceil(32),
            KvType::F8E4M3 => 2,
        }
    }

    /// Bytes of a head of `dim` values at one position.
    pub fn head_bytes(self, dim: usize) -> usize {
        dim * self.code_bytes() + self.scale_bytes(dim)
    }

    /// Whether rows have scales, which are written once all of the row is known.
    pub(crate) fn has_scales(self) -> bool {
        self != KvType::F16
    }
}

/// The module of a kernel file of `kernels/kv` for a type.
macro_rules! kv_module {
    ($kernel:literal, $ty:expr) => {
        match $ty {
            $crate::KvType::F16 => concat!($kernel, ".F16"),
            $crate::KvType::Q8_0 => concat!($kernel, ".Q8_0"),
            $crate::KvType::F8E4M3 => concat!($kernel, ".F8E4M3"),
        }
    };
}
pub(crate) use kv_module;

/// The extents of a cache of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub ty: KvType,
    pub n_blocks: usize,
    pub n_kv_heads: usize,
    /// Tokens of a block: 16, 32 or 64.
    pub page: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl KvShape {
    /// Heads of all positions.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_blocks * self.n_kv_heads * self.page
    }

    /// Bytes of the keys, and of the values.
    pub fn n_bytes(&self) -> [usize; 2] {
        [self.k_dim, self.v_dim].map(|dim| self.n_rows() * self.ty.head_bytes(dim))
    }

    /// Whether kernels on `gpu` write such a cache, move what is there, and attend to it with `n_heads` heads of queries.
    pub fn check(&self, gpu: &Gpu, n_heads: usize) -> Result<(), Limit> {
        ops::check_append(gpu, self, n_heads)?;
        ops::check_move(self)?;
        ops::check_heads(self.k_dim, self.v_dim)
    }

    /// Memory for the keys and the values.
    pub fn alloc(&self, gpu: &Gpu) -> Result<[Buffer; 2], GpuError> {
        let [k, v] = self.n_bytes();
        Ok([gpu.alloc::<u8>(k)?, gpu.alloc::<u8>(v)?])
    }
}

/// The keys and values of a layer, in pages that tokens of any sequence may take. Each is a plane of codes
/// `[n_blocks, n_kv_heads, page, dim]`, then one of scales `[n_blocks, n_kv_heads, page, n_scales]`: f16 bits in blocks of
/// 32 values for [`KvType::Q8_0`], those of a bf16 for [`KvType::F8E4M3`], none for [`KvType::F16`].
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
    pub(crate) codes: u64,
    pub(crate) scales: u64,
}

impl<'a> KvLayer<'a> {
    /// The memory that [`KvShape::alloc`] took.
    pub fn new(shape: KvShape, [k, v]: &'a [Buffer; 2]) -> KvLayer<'a> {
        KvLayer {
            shape,
            k: k.as_slice(),
            v: v.as_slice(),
        }
    }

    /// Where the keys and the values are.
    ///
    /// # Panics
    /// If there is not the memory that the shape takes.
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
        [(self.k, k_dim), (self.v, v_dim)].map(|(memory, dim)| {
            let codes = memory.ptr();
            // Pages have 16 rows at least: scales are aligned as codes are.
            let n_codes = self.shape.n_rows() * dim * self.shape.ty.code_bytes();
            Planes {
                codes,
                scales: codes + n_codes as u64,
            }
        })
    }
}
