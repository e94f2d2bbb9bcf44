//! Compares eight products of mixed formats and row counts, grouped and one by one: times and output bits.
//!
//! Usage: `batch_matmul DEVICE [RUNS]`, e.g. `cuda:0 20`. The shapes are those of a 7B model, or small ones on the CPU
//! emulator (`host:nv`). Fails if an output differs in a bit.

use rocmforge_plan::act_format;
use std::error::Error;
use std::time::Duration;

use rocmforge_gguf::{GgmlType, quant};
use rocmforge_gpu::ops::{self, Product};
use rocmforge_gpu::{
    ActFormat, ActsBuffer, BatchQuantizedMatmul, Buffer, DeviceId, Event, Gpu, GpuError,
    MatmulInput, Matrix, OpenOptions, OutMode, QuantizedMatmulOp, RowOrder, WeightHandle,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Name, type, rows of activations, and `[n_out, n_in]` on devices and on the CPU emulator.
type Row = (&'static str, GgmlType, usize, [usize; 2], [usize; 2]);

const OPERATIONS: [Row; 8] = [
    ("attn_q", GgmlType::Q4_K, 1, [4096, 4096], [256, 256]),
    ("attn_k", GgmlType::Q4_K, 1, [4096, 4096], [64, 256]),
    ("attn_v", GgmlType::Q6_K, 1, [4096, 4096], [64, 256]),
    ("attn_output", GgmlType::Q8_0, 2, [4096, 4096], [100, 256]),
    ("ffn_gate", GgmlType::Q4_K, 4, [11008, 4096], [300, 256]),
    ("ffn_up", GgmlType::Q4_K, 8, [11008, 4096], [300, 256]),
    ("ffn_down", GgmlType::Q6_K, 3, [4096, 11008], [64, 768]),
    ("adapter", GgmlType::F16, 16, [64, 4096], [16, 256]),
];

/// An operation and its data.
struct Operation {
    name: &'static str,
    ty: GgmlType,
    n_rows: usize,
    shape: [usize; 2],
    blocks: Vec<u8>,
    x: Vec<f32>,
}

impl Operation {
    fn new(gpu: &Gpu, seed: usize, (name, ty, n_rows, large, small): Row) -> Result<Operation> {
        let shape = match gpu.id() {
            DeviceId::Host(_) => small,
            DeviceId::Hip(_) | DeviceId::Cuda(_) => large,
        };
        let [n_out, n_in] = shape;
        // Repeat a few rows of random weights, since quantizing is slow on the CPU.
        let some = numbers(seed, 16 * n_in);
        let row_bytes = ty.row_bytes(n_in).ok_or("rows are not whole blocks")?;
        let mut rows = vec![0; 16 * row_bytes];
        quant::quantize_rows(ty, &some, n_in, None, &mut rows)?;
        let blocks = rows.into_iter().cycle().take(n_out * row_bytes);
        Ok(Operation {
            name,
            ty,
            n_rows,
            shape,
            blocks: blocks.collect(),
            x: numbers(seed + 100, n_rows * n_in),
        })
    }
}

/// Returns pseudo-random numbers between -1 and 1 (xorshift).
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_769) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / (1u64 << 31) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

/// One product by [`ops::matvec`].
struct Single {
    ty: GgmlType,
    n_rows: usize,
    shape: [usize; 2],
    weight: Buffer,
    x: Buffer,
    acts: ActsBuffer,
    out: Buffer,
}

impl Single {
    fn new(gpu: &Gpu, op: &Operation) -> std::result::Result<Single, GpuError> {
        let [n_out, n_in] = op.shape;
        let single = Single {
            ty: op.ty,
            n_rows: op.n_rows,
            shape: op.shape,
            weight: gpu.alloc::<u8>(ops::packed_bytes(gpu, op.ty, n_out, n_in)?)?,
            x: gpu.upload(&op.x)?,
            acts: ActsBuffer::new(gpu, act_format(op.ty), op.n_rows, n_in)?,
            out: gpu.alloc::<f32>(op.n_rows * n_out)?,
        };
        let blocks = gpu.upload(&op.blocks)?;
        ops::repack(gpu, blocks.as_slice(), &single.matrix(), 0)?;
        gpu.synchronize()?;
        Ok(single)
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix {
            ty: self.ty,
            n_out: self.shape[0],
            n_in: self.shape[1],
            order: RowOrder::Apart,
            data: self.weight.as_slice(),
        }
    }

    /// Converts and multiplies, at most [`ops::MAX_ROWS`] rows per launch.
    fn queue(&self, gpu: &Gpu) -> std::result::Result<(), GpuError> {
        let acts = self.acts.rows(self.n_rows);
        ops::quantize(gpu, self.x.as_slice(), &acts)?;
        let n_out = self.shape[0];
        for first in (0..self.n_rows).step_by(ops::MAX_ROWS) {
            let rows = first..self.n_rows.min(first + ops::MAX_ROWS);
            let product = Product {
                matrix: self.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: self
                    .out
                    .as_slice()
                    .part(rows.start * n_out..rows.end * n_out),
            };
            ops::matvec(gpu, &acts.part(rows), &[product])?;
        }
        Ok(())
    }
}

/// Runs both variants `n_runs` times and prints a table.
///
/// # Errors
/// Errors of the device; if an output differs.
pub(crate) fn run(gpu: &Gpu, n_runs: usize) -> Result<()> {
    let operations = OPERATIONS.iter().enumerate();
    let operations = operations.map(|(i, row)| Operation::new(gpu, i + 1, *row));
    let operations: Vec<Operation> = operations.collect::<Result<_>>()?;

    // One by one.
    let singles = operations.iter().map(|op| Single::new(gpu, op));
    let singles: Vec<Single> = singles.collect::<std::result::Result<_, _>>()?;
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    let timed = |some: &[Single]| -> Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..n_runs {
            start.record()?;
            some.iter().try_for_each(|single| single.queue(gpu))?;
            end.record()?;
            end.wait()?;
            times.push(Duration::from_secs_f64(
                f64::from(end.elapsed_ms(&start)?) / 1e3,
            ));
        }
        Ok(median(times))
    };
    let alone: Vec<Duration> = singles
        .iter()
        .map(|single| timed(std::slice::from_ref(single)))
        .collect::<Result<_>>()?;
    let one_by_one = timed(&singles)?;

    // Grouped.
    let mut batch = BatchQuantizedMatmul::new(gpu);
    let weights: Vec<WeightHandle> = operations
        .iter()
        .map(|op| batch.add_weight(op.ty, op.shape, &op.blocks))
        .collect::<std::result::Result<_, _>>()?;
    let ops: Vec<QuantizedMatmulOp<'_>> = operations
        .iter()
        .zip(&weights)
        .map(|(op, weight)| QuantizedMatmulOp {
            weight: *weight,
            n_rows: op.n_rows,
            input: MatmulInput::Host(&op.x),
        })
        .collect();
    let mut totals = Vec::new();
    for _ in 0..n_runs {
        totals.extend(batch.execute(&ops)?.total());
    }
    let result = batch.execute(&ops)?;

    println!("{}, median of {n_runs}", gpu.info()?.name);
    println!(
        "{:<12} {:>5} {:>14} {:>4}  {:>9} {:>9}",
        "operation", "type", "weight", "rows", "alone us", "grouped"
    );
    let mut differ = 0;
    for (i, (op, single)) in operations.iter().zip(&singles).enumerate() {
        let [n_out, n_in] = op.shape;
        let grouped = result
            .timing(i)
            .map_or("?".into(), |time| micros(time.duration()));
        let (shape, alone) = (format!("{n_out}x{n_in}"), micros(alone[i]));
        println!(
            "{:<12} {:>5} {shape:>14} {:>4}  {alone:>9} {grouped:>9}",
            op.name,
            op.ty.name(),
            op.n_rows
        );
        let found = result.output(i).iter().map(|x| x.to_bits());
        let expected = gpu.read(single.out.as_slice::<f32>())?;
        if !found.eq(expected.iter().map(|x| x.to_bits())) {
            println!("{:<12} differs from the single product", op.name);
            differ += 1;
        }
    }
    let n_singles: usize = singles
        .iter()
        .map(|s| usize::from(act_format(s.ty) != ActFormat::F32) + s.n_rows.div_ceil(ops::MAX_ROWS))
        .sum();
    println!(
        "one by one: {} us in {n_singles} launches",
        micros(one_by_one)
    );
    println!(
        "grouped:    {} us in {} launches; times of operations overlap within it",
        micros(median(totals)),
        result.n_launches()
    );
    match differ {
        0 => Ok(()),
        n => Err(format!("{n} outputs differ").into()),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e6)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [device, runs @ ..] = &args[..] else {
        return Err("expected DEVICE [RUNS]".into());
    };
    let n_runs = runs.first().map_or(Ok(20), |n| n.parse::<usize>())?.max(1);
    run(
        &Gpu::open_with(device.parse()?, &OpenOptions::from_env())?,
        n_runs,
    )
}
