//! Grouped launches (`kernels/group.h`): many products in one launch, each with its own weights, activations and
//! output, and the conversions of those activations. Each operation is an entry of a table in device memory.

use rocmforge_gguf::GgmlType;
use zerocopy::{Immutable, IntoBytes};

use super::gemv::{self, MAX_ROWS, THREADS};
use super::jobs::{Listed, One, Product, Work};
use super::norm::{ActsOut, OCTET, acts_out, aligned, checked_len};
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::limit::n_values;
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Acts, Matrix, RowOrder};

/// Alignment of tables in bytes.
const TABLE_ALIGN: usize = 16;

/// Activations and the 8-bit form they are converted to.
#[derive(Clone, Copy)]
pub(crate) struct Conversion<'a> {
    /// `[n_rows, width]`.
    pub(crate) x: Slice<'a, f32>,
    pub(crate) out: Acts<'a>,
}

/// A product of a group, with its own activations.
#[derive(Clone, Copy)]
pub(crate) struct GroupedProduct<'a> {
    pub(crate) x: Acts<'a>,
    pub(crate) product: Product<'a>,
    /// Index in the times of [`Group::launch`].
    pub(crate) timed: usize,
}

/// `Conversion` in batch.hip.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(super) struct ConversionEntry {
    x: Address,
    out: ActsOut,
    n: u32,
    aligned: u32,
    form: u32,
    first_block: u32,
}

layout!(ConversionEntry {
    x,
    out,
    n,
    aligned,
    form,
    first_block
});

const _: () = assert!(size_of::<ConversionEntry>() == 56);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GroupParams<T> {
    first_blocks: Address,
    ops: Table<T>,
    n_ops: u32,
    pad: u32,
}

layout!(GroupParams<ConversionEntry> { first_blocks, ops, n_ops, pad });

kernels! {
    struct BatchKernels {
        quantize_group: GroupParams<ConversionEntry>,
    }
}

/// What a launch does.
#[derive(Clone, Copy)]
enum GroupKernel {
    Quantize,
    Gemv { ty: GgmlType, max_rows: usize },
}

/// A kernel, its number of blocks, and the offsets of its operations in the tables.
struct GroupLaunch {
    kernel: GroupKernel,
    n_blocks: u32,
    n_ops: u32,
    first_blocks: usize,
    ops: usize,
}

/// Collects launches of many operations and builds their tables. The tables must be uploaded before the launches run.
#[derive(Default)]
pub(crate) struct Group {
    tables: Vec<u8>,
    launches: Vec<GroupLaunch>,
}

impl Group {
    /// Returns an upper bound of the tables' bytes for `n_conversions` conversions and for products with these numbers
    /// of rows.
    pub(crate) fn max_bytes(n_conversions: usize, n_rows: impl Iterator<Item = usize>) -> usize {
        let parts: usize = n_rows.map(|n_rows| n_rows.div_ceil(MAX_ROWS)).sum();
        let product = size_of::<u32>() + size_of::<One>() + 2 * TABLE_ALIGN;
        let conversion = size_of::<u32>() + size_of::<ConversionEntry>() + 2 * TABLE_ALIGN;
        parts * product + n_conversions * conversion
    }

    /// Adds one launch for all these conversions.
    ///
    /// # Panics
    /// If a shape does not match, or a form is f32.
    pub(crate) fn convert(&mut self, gpu: &Gpu, conversions: &[Conversion<'_>]) {
        if conversions.is_empty() {
            return;
        }
        let mut first_blocks = Vec::with_capacity(conversions.len());
        let mut n_blocks = 0u32;
        let entry = |Conversion { x, out }: &Conversion<'_>| {
            let n = checked_len(out);
            assert_eq!(x.len(), n, "x and out differ in length");
            first_blocks.push(n_blocks);
            let entry = ConversionEntry {
                x: x.address(),
                out: acts_out(out),
                n: n_values(n).expect("fewer than 2^32 values"),
                aligned: aligned(gpu, n, &[x.address()]),
                form: match out.form {
                    ActFormat::Q8x32 => 0,
                    ActFormat::Q8x256 => 1,
                    ActFormat::F32 => unreachable!("f32 is not converted"),
                },
                first_block: n_blocks,
            };
            n_blocks += n.div_ceil(THREADS as usize * OCTET) as u32;
            entry
        };
        let entries: Vec<ConversionEntry> = conversions.iter().map(entry).collect();
        self.push(GroupKernel::Quantize, n_blocks, &first_blocks, &entries);
    }

    /// Adds the products, with one launch per weight format. Products of more than [`MAX_ROWS`] rows are split into
    /// several parts of that launch. Outputs have the same bits as [`super::matvec()`].
    ///
    /// # Errors
    /// [`GpuError::Format`] for formats without kernels.
    ///
    /// # Panics
    /// If a shape does not match.
    pub(crate) fn multiply(
        &mut self,
        gpu: &Gpu,
        products: &[GroupedProduct<'_>],
    ) -> Result<(), GpuError> {
        for (i, first) in products.iter().enumerate() {
            let Matrix { ty, order, .. } = first.product.matrix;
            assert_eq!(
                order,
                RowOrder::Apart,
                "tables are of matrices without tiles"
            );
            let is_of_ty = |other: &&GroupedProduct<'_>| other.product.matrix.ty == ty;
            if products[..i].iter().any(|other| is_of_ty(&other)) {
                continue;
            }
            let same = || products[i..].iter().filter(is_of_ty);
            let max_rows = same().map(|product| product.x.n_rows).max().unwrap_or(0);
            let (_, waves) = select::listed_gemv(gpu, ty, max_rows)?;
            let (mut first_blocks, mut entries, mut n_blocks) = (Vec::new(), Vec::new(), 0);
            for GroupedProduct { x, product, timed } in same() {
                let work = Work::new(x, product);
                for first in (0..x.n_rows).step_by(MAX_ROWS) {
                    let part = work.part(first..x.n_rows.min(first + MAX_ROWS));
                    let (raw, n) = gemv::product(gpu, &part, waves, n_blocks);
                    let mut entry = One::new(&part, raw, None);
                    entry.timed = *timed as u32;
                    first_blocks.push(n_blocks);
                    entries.push(entry);
                    n_blocks += n;
                }
            }
            self.push(
                GroupKernel::Gemv { ty, max_rows },
                n_blocks,
                &first_blocks,
                &entries,
            );
        }
        Ok(())
    }

    fn push<T: IntoBytes + Immutable>(
        &mut self,
        kernel: GroupKernel,
        n_blocks: u32,
        first_blocks: &[u32],
        entries: &[T],
    ) {
        let ops = self.place(entries.as_bytes());
        let first_blocks_at = self.place(first_blocks.as_bytes());
        self.launches.push(GroupLaunch {
            kernel,
            n_blocks,
            n_ops: entries.len() as u32,
            first_blocks: first_blocks_at,
            ops,
        });
    }

    fn place(&mut self, bytes: &[u8]) -> usize {
        let at = self.tables.len().next_multiple_of(TABLE_ALIGN);
        self.tables.resize(at, 0);
        self.tables.extend_from_slice(bytes);
        at
    }

    /// Returns the tables that [`Group::launch`] expects on the device.
    pub(crate) fn tables(&self) -> &[u8] {
        &self.tables
    }

    pub(crate) fn n_launches(&self) -> usize {
        self.launches.len()
    }

    /// Queues the launches. `times` `[2, n_timed]` gets the start and end time of the blocks of each operation, by the
    /// device's clock. Before the launch, all bits of the first half must be set, and all bits of the second half
    /// clear.
    ///
    /// # Panics
    /// If `tables` has another length.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        tables: Slice<'_, u8>,
        times: Slice<'_, u64>,
    ) -> Result<(), GpuError> {
        assert_eq!(
            tables.len(),
            self.tables.len(),
            "length of the group's tables"
        );
        self.launches.iter().try_for_each(|launch| {
            let grid = [launch.n_blocks, 1, 1];
            let first_blocks = launch.first_blocks(tables);
            match launch.kernel {
                GroupKernel::Quantize => {
                    let params = GroupParams {
                        first_blocks: first_blocks.address(),
                        ops: launch.entries::<ConversionEntry>(tables).table(),
                        n_ops: launch.n_ops,
                        pad: 0,
                    };
                    let kernel = &gpu.kernels().batch.quantize_group;
                    gpu.launch(kernel, grid, THREADS, 0, &params)
                }
                GroupKernel::Gemv { ty, max_rows } => {
                    let params = Listed::new(first_blocks, launch.entries(tables), times);
                    let (kernel, _) = select::listed_gemv(gpu, ty, max_rows)?;
                    gpu.launch(kernel, grid, THREADS, 0, &params)
                }
            }
        })
    }
}

impl GroupLaunch {
    fn first_blocks<'t>(&self, tables: Slice<'t, u8>) -> Slice<'t, u32> {
        let end = self.first_blocks + self.n_ops as usize * size_of::<u32>();
        tables.part(self.first_blocks..end).cast()
    }

    fn entries<'t, T>(&self, tables: Slice<'t, u8>) -> Slice<'t, T> {
        let end = self.ops + self.n_ops as usize * size_of::<T>();
        tables.part(self.ops..end).cast()
    }
}
