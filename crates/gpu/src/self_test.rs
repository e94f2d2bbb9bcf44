//! The kernels of `kernels/selftest.hip`, which test `kernels/gpu.h` and the CPU emulator.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, Kernel, KernelTable, layout};
use crate::memory::{Address, Slice};

const THREADS: u32 = 128;

/// On every device.
const FUNCTIONS: &str = "functions";

/// On the CPU emulator only.
const EMULATED: &[&str] = &[
    "many_collectives",
    "many_barriers",
    "good",
    "missed_barrier",
    "two_barriers",
    "shuffle_in_branch",
    "reduce_in_branch",
    "not_uniform",
    "race",
    "race_of_rounds",
    "matrix_race",
    "device_race",
    "device_exchange",
    "all_write",
    "shared_overrun",
    "dynamic_overrun",
    "too_much_shared",
    "read_outside",
    "write_outside",
    "write_far",
    "misaligned",
    "order_of_blocks",
    "unwritten_shared",
];

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SelfTestParams {
    x: Address,
    out: Address,
    n: u32,
    which: u32,
}

layout!(SelfTestParams { x, out, n, which });

pub(crate) struct SelfTestKernels {
    functions: Kernel<SelfTestParams>,
    emulated: Vec<Kernel<SelfTestParams>>,
}

impl KernelTable for SelfTestKernels {
    fn of_module(module: &'static str) -> SelfTestKernels {
        let emulated = EMULATED.iter();
        SelfTestKernels {
            functions: Kernel::new(module, FUNCTIONS),
            emulated: emulated.map(|name| Kernel::new(module, name)).collect(),
        }
    }

    fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        visit(&self.functions);
    }
}

/// A launch of a kernel for tests: `n_blocks` blocks of 128 threads.
#[derive(Clone, Copy)]
pub struct SelfTest<'a> {
    pub kernel: &'a str,
    pub x: Slice<'a, u32>,
    pub out: Slice<'a, u32>,
    pub n: u32,
    pub which: u32,
    pub n_blocks: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// Launches a kernel for tests. Most of them have a fault, which only the CPU emulator notices; other devices have none
/// of those.
///
/// # Errors
/// [`GpuError::NoSymbol`] if there is no such kernel; the fault that the CPU emulator found.
pub fn self_test(gpu: &Gpu, test: &SelfTest<'_>) -> Result<(), GpuError> {
    let kernels = &gpu.kernels().selftest;
    let mut emulated = kernels.emulated.iter();
    let kernel = match test.kernel {
        FUNCTIONS => Some(&kernels.functions),
        name => emulated.find(|kernel| kernel.name == name),
    };
    let kernel = kernel.ok_or_else(|| gpu.no_symbol(kernels.functions.module, test.kernel))?;
    let params = SelfTestParams {
        x: test.x.address(),
        out: test.out.address(),
        n: test.n,
        which: test.which,
    };
    gpu.launch(
        kernel,
        [test.n_blocks, 1, 1],
        THREADS,
        test.shared_bytes,
        &params,
    )
}
