//! Runs batches of matrix products on a device while the host prepares the next.
//!
//! Usage: `async_launch DEVICE`, e.g. `cuda:0`, or `host:nv` for the CPU emulator.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, quant};
use rocmforge_gpu::{
    AsyncKernelLauncher, BatchQuantizedMatmul, DeviceId, Gpu, LaunchHandle, MatmulInput,
    OpenOptions, QuantizedMatmulOp, WeightHandle,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum number of batches in flight.
const CAPACITY: usize = 3;

/// Submits `n_batches` batches and prints the results in submission order.
///
/// # Errors
/// Those of the device.
pub(crate) fn run(gpu: &Gpu, n_batches: usize) -> Result<()> {
    let n = if matches!(gpu.id(), DeviceId::Host(_)) {
        256
    } else {
        4096
    };
    let mut batch = BatchQuantizedMatmul::new(gpu);
    let row: Vec<f32> = (0..n).map(|i| ((i % 17) as f32 - 8.0) / 8.0).collect();
    let mut weight = |ty: GgmlType| -> Result<WeightHandle> {
        let mut blocks = vec![0; ty.row_bytes(n).ok_or("whole blocks")?];
        quant::quantize_rows(ty, &row, n, None, &mut blocks)?;
        Ok(batch.add_weight(ty, [n, n], &blocks.repeat(n))?)
    };
    let weights = [weight(GgmlType::Q4_K)?, weight(GgmlType::Q8_0)?];

    let launcher = AsyncKernelLauncher::new(Arc::new(batch), CAPACITY)?;
    let mut handles: VecDeque<(usize, LaunchHandle)> = VecDeque::new();
    let print = |(i, handle): (usize, LaunchHandle)| -> Result<()> {
        let result = handle.wait()?;
        let firsts: Vec<f32> = (0..result.len()).map(|op| result.output(op)[0]).collect();
        println!(
            "batch {i}: {firsts:?} in {:?} on the device",
            result.total().unwrap_or_default()
        );
        Ok(())
    };
    for i in 0..n_batches {
        // The host prepares input while the device has up to CAPACITY batches.
        let x: Vec<f32> = (0..n)
            .map(|at| if at % n_batches == i { 1.0 } else { 0.0 })
            .collect();
        let ops = weights.map(|weight| QuantizedMatmulOp {
            weight,
            n_rows: 1,
            input: MatmulInput::Host(&x),
        });
        launcher.wait_for_room();
        handles.push_back((i, launcher.submit(&ops)?));
        while handles.front().is_some_and(|(_, handle)| handle.is_done()) {
            handles.pop_front().map_or(Ok(()), print)?;
        }
    }
    handles.into_iter().try_for_each(print)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device] = &args[..] else {
        return Err("expected DEVICE".into());
    };
    run(
        &Gpu::open_with(device.parse()?, &OpenOptions::from_env())?,
        12,
    )
}
