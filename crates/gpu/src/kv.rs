//! The KV cache: the storage types of heads (`kernels/kv_type.h`), and the memory of a layer.

use rocmforge_plan::Values;

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, KernelTable, layout};
use crate::limit::Limit;
use crate::memory::{Address, Buffer, Slice};
use crate::ops;

include!("kv_types.rs");

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

    /// As [`rocmforge_plan::KvType::hadamard_len`].
    fn hadamard_len(self, dims: &[usize]) -> usize {
        match self {
            KvType::F16 | KvType::Q8_0 | KvType::F8E4M3 => 1,
            KvType::Q5_1 => rocmforge_plan::KvType::Q5_1.hadamard_len(dims),
            KvType::Q4_0 => rocmforge_plan::KvType::Q4_0.hadamard_len(dims),
        }
    }
}

/// The storage types of cached keys and of cached values, for which kernels are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvTypes {
    name: &'static str,
    keys: KvType,
    values: KvType,
}

macro_rules! all_kv_types {
    ($($name:ident: $keys:ident $values:ident),*) => {
        &[$(KvTypes {
            name: stringify!($name),
            keys: KvType::$keys,
            values: KvType::$values,
        }),*]
    };
}

impl KvTypes {
    pub const ALL: &[KvTypes] = kv_types!(all_kv_types);

    /// Returns these types, if there are kernels for them.
    pub fn of(keys: KvType, values: KvType) -> Option<KvTypes> {
        let mut all = KvTypes::ALL.iter().copied();
        all.find(|types| (types.keys, types.values) == (keys, values))
    }

    /// The name of the one type, or of both: `Q8_0_Q4_0`.
    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn keys(self) -> KvType {
        self.keys
    }

    pub fn values(self) -> KvType {
        self.values
    }

    /// Keys and values.
    fn both(self) -> [KvType; 2] {
        [self.keys, self.values]
    }

    /// Whether keys or values have scales.
    pub(crate) fn has_scales(self) -> bool {
        self.both().into_iter().any(KvType::has_scales)
    }
}

impl From<KvType> for KvTypes {
    fn from(ty: KvType) -> KvTypes {
        KvTypes::of(ty, ty).expect("kernels are compiled for each type")
    }
}

/// The kernels of a file in `kernels/kv` or `kernels/hopper/kv`, for each of [`KvTypes::ALL`].
pub(crate) struct PerKvTypes<T>([T; KvTypes::ALL.len()]);

impl<T: KernelTable> PerKvTypes<T> {
    /// `modules` has one name for each of [`KvTypes::ALL`].
    pub(crate) fn of_modules(modules: [&'static str; KvTypes::ALL.len()]) -> PerKvTypes<T> {
        PerKvTypes(modules.map(T::of_module))
    }

    pub(crate) fn of(&self, types: KvTypes) -> &T {
        let place = KvTypes::ALL.iter().position(|&known| known == types);
        &self.0[place.expect("there are no others")]
    }

    pub(crate) fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.0.iter().for_each(|table| table.each(visit));
    }
}

/// The names of the modules of such a file, in the order of [`KvTypes::ALL`].
macro_rules! kv_modules {
    ($file:ident) => {
        kv_types!(kv_modules @of $file)
    };
    (@of $file:ident $($name:ident: $keys:ident $values:ident),*) => {
        [$(concat!(stringify!($file), ".", stringify!($name))),*]
    };
}
pub(crate) use kv_modules;
pub(crate) use kv_types;

/// Dimensions of the KV cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub types: KvTypes,
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
        let KvTypes { keys, values, .. } = self.types;
        [
            self.n_rows() * keys.head_bytes(self.k_dim),
            match self.values {
                Values::Apart => self.n_rows() * values.head_bytes(self.v_dim),
                Values::InKeys => 0,
            },
        ]
    }

    /// How many neighbouring values of a key and of a value are rotated together before they are stored, 1 for none, as
    /// [`rocmforge_plan::KvType::hadamard_len`].
    pub fn hadamard_lens(&self) -> [usize; 2] {
        let KvTypes { keys, values, .. } = self.types;
        match self.values {
            Values::Apart => [
                keys.hadamard_len(&[self.k_dim]),
                values.hadamard_len(&[self.v_dim]),
            ],
            Values::InKeys => [keys.hadamard_len(&[self.k_dim, self.v_dim]); 2],
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
    /// If the memory does not have the size of the shape, or values in keys have another type than these.
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
        let types = self.shape.types;
        let planes = |memory: Slice<'_, u8>, ty: KvType, dim: usize| {
            // Pages have at least 16 rows, so scales are aligned as codes are.
            let n_codes = self.shape.n_rows() * ty.code_bytes(dim);
            Planes {
                codes: memory.address(),
                scales: memory.part(n_codes..memory.len()).address(),
            }
        };
        let k = planes(self.k, types.keys, k_dim);
        match self.shape.values {
            Values::Apart => [k, planes(self.v, types.values, v_dim)],
            Values::InKeys => {
                assert_eq!(types.keys, types.values, "the type of values in keys");
                [k, k]
            }
        }
    }
}
