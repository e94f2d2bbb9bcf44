//! GPU kernels and the drivers that run them.
//!
//! One set of kernel sources (`kernels/`) is compiled ahead of time for each target and embedded. A [`Gpu`] is one open
//! device. Three drivers sit behind the same function table: HIP, CUDA and `host`, a CPU emulator that tests everything
//! but speed on machines without a GPU. `ops` has a safe function for each kernel; [`BatchQuantizedMatmul`] runs many
//! matrix products in few launches.

mod batch;
mod deferred_free;
mod device;
mod driver;
mod error;
mod event;
mod gpu;
mod graph;
mod image;
mod kernel;
mod kv;
mod launch;
mod limit;
mod memory;
mod operands;
pub mod ops;
mod pinned;
mod ranges;
mod roofline;
mod selection;
mod self_test;
mod step;
mod trace;
mod transfer;
mod tune;
mod tuning;
mod upload;
mod variant;

pub use batch::{
    AsyncKernelLauncher, BatchMatmulResult, BatchQuantizedMatmul, LaunchHandle,
    MAX_BATCH_OPERATIONS, MAX_BATCH_ROWS, MatmulInput, OperationTime, QuantizedMatmulOp,
    WeightHandle,
};
pub use device::{DeviceId, DeviceInfo, OpenOptions, Persona, RangeTool, Survey, image_targets};
pub use driver::api::Field;
pub use driver::host::checks::set_host_seed;
pub use driver::libraries::{FoundBy, HIP_LIBRARIES, HipFolders, hip_libraries};
pub use error::{BatchError, GpuError};
pub use event::Event;
pub use gpu::Gpu;
pub use graph::Graph;
pub use image::{Image, compilers, fingerprint, images, kernel_archive, left_out};
pub use kernel::KernelLayout;
pub use kv::{KvLayer, KvShape, KvType, KvTypes};
pub use limit::Limit;
pub use memory::{Buffer, Slice};
pub use operands::{
    ActFormat, Activation, Acts, ActsBuffer, ExpertMatrices, Matrix, OutMode, RowOrder, Source,
    SourceRows,
};
pub use pinned::Pinned;
pub use ranges::NamedRange;
pub use roofline::{Factors, MatrixStep, matrix_ops, multiply_all, read_all, read_bandwidth};
pub use selection::{Candidate, Reason, Selection, candidates, pci_address};
pub use self_test::{SelfTest, self_test};
pub use step::{KeptState, SeqRows, SeqState, States, Step};
pub use trace::{KernelTime, Trace, n_traced};
pub use tune::{Decided, Trial, Work, choose};
pub use tuning::{BlockOrder, Choice, MatmulTiles, NoTuning, Shape, Tuning, tuning_key};
pub use upload::{Uploader, chunk_bytes};
pub use variant::{Variant, Variants};
