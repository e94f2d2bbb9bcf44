//! Batches of products: against sums in f64 over activations converted as on the device, and bit for bit against
//! separate launches.

#[path = "../../examples/async_launch.rs"]
#[expect(dead_code, reason = "the example's main is for its own program")]
mod async_launch;
#[path = "../../examples/batch_matmul.rs"]
#[expect(dead_code, reason = "the example's main is for its own program")]
mod batch_matmul;
use crate::common;
use rocmforge_plan::act_format;
use std::sync::Arc;
use std::time::Duration;

use crate::common::acts::TestActs;
use crate::common::any_order;
use crate::common::values::assert_close;
use crate::common::weights::{Fill, Packed, Random, blocks, values};
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant::mxfp6;
use rocmforge_gpu::ops::{self, Mxfp6, Product};
use rocmforge_gpu::{
    AsyncKernelLauncher, BatchError, BatchMatmulResult, BatchQuantizedMatmul, DeviceId, Gpu,
    GpuError, MatmulInput, OperationTime, OutMode, QuantizedMatmulOp, WeightHandle, set_host_seed,
};
use zerocopy::IntoBytes as _;

/// A weight and its activations.
struct Case {
    ty: GgmlType,
    n_out: usize,
    n_in: usize,
    n_rows: usize,
    file: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(ty: GgmlType, [n_out, n_in]: [usize; 2], n_rows: usize, random: &mut Random) -> Case {
        let n_in = if ty.block_len() == 1 { n_in - 23 } else { n_in };
        Case {
            ty,
            n_out,
            n_in,
            n_rows,
            file: blocks(ty, n_out * n_in, Fill::Random, random),
            x: random.values(n_rows * n_in),
        }
    }

    /// `[n_rows, n_out]` in f64, from converted activations.
    fn expected(&self, gpu: &Gpu) -> Vec<f64> {
        let x = TestActs::new(gpu, act_format(self.ty), self.n_in, &self.x).exact;
        let w = values(self.ty, &self.file);
        let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum();
        let rows = x.chunks_exact(self.n_in);
        rows.flat_map(|x| w.chunks_exact(self.n_in).map(|w| dot(x, w)))
            .collect()
    }

    /// Computes the product by separate launches.
    fn alone(&self, gpu: &Gpu) -> Vec<f32> {
        let packed = Packed::new(gpu, self.ty, self.n_out, self.n_in, &self.file);
        let x = TestActs::new(gpu, act_format(self.ty), self.n_in, &self.x);
        let rows = (0..self.n_rows).step_by(ops::MAX_ROWS);
        let parts = rows.flat_map(|first| {
            let x = x.acts().part(first..self.n_rows.min(first + ops::MAX_ROWS));
            let out = gpu.alloc::<f32>(x.n_rows * self.n_out).unwrap();
            let product = Product {
                matrix: packed.matrix(),
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            };
            ops::matvec(gpu, &x, &[product]).unwrap();
            gpu.read(out.as_slice::<f32>()).unwrap()
        });
        parts.collect()
    }

    fn op<'a>(&self, weight: WeightHandle, input: MatmulInput<'a>) -> QuantizedMatmulOp<'a> {
        QuantizedMatmulOp {
            weight,
            n_rows: self.n_rows,
            input,
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn host(case: &Case) -> MatmulInput<'_> {
    MatmulInput::Host(&case.x)
}

/// Every format at least once, ragged shapes, 1 to 20 rows; more operations than a wave has lanes.
fn cases() -> Vec<Case> {
    let random = &mut Random(21);
    let shapes = [[7, 512], [130, 256], [33, 768], [1, 2304]];
    let rows = [1, 3, 8, 2, 20, 1, 9];
    let formats = GgmlType::COMPUTED
        .iter()
        .cycle()
        .take(3 * GgmlType::COMPUTED.len() + 4);
    formats
        .enumerate()
        .map(|(i, &ty)| Case::new(ty, shapes[i % shapes.len()], rows[i % rows.len()], random))
        .collect()
}

#[test]
fn batch_of_all_formats() {
    let all = cases();
    for gpu in common::gpus_with(&["splits=off"]) {
        let built = all.iter().filter(|case| common::has_format(&gpu, case.ty));
        let cases: Vec<&Case> = built.collect();
        let formats = GgmlType::COMPUTED.iter();
        let formats = formats.filter(|&&ty| common::has_format(&gpu, ty));
        let n_formats = formats.count();
        let mut batch = BatchQuantizedMatmul::new(&gpu);
        let handles: Vec<WeightHandle> = cases
            .iter()
            .map(|case| batch.add_weight(case.ty, [case.n_out, case.n_in], &case.file))
            .collect::<Result<_, _>>()
            .unwrap();
        let inputs: Vec<_> = cases
            .iter()
            .map(|case| Arc::new(gpu.upload(&case.x).unwrap()))
            .collect();
        let all = cases.iter().zip(&handles).enumerate();
        // Inputs alternate between host and device memory.
        let ops: Vec<_> = all
            .map(|(i, (case, handle))| match i % 2 {
                0 => case.op(*handle, host(case)),
                _ => case.op(*handle, MatmulInput::Device(&inputs[i])),
            })
            .collect();
        let run = || {
            let result = batch.execute(&ops).unwrap();
            assert_eq!(result.n_launches(), 1 + n_formats);
            check_times(&gpu, &result);
            for i in 0..ops.len() {
                let on_device = gpu.read(result.device_output(i)).unwrap();
                assert_eq!(bits(&on_device), bits(result.output(i)));
            }
            (0..ops.len())
                .flat_map(|i| result.output(i).to_vec())
                .collect()
        };
        let found: Vec<f32> = match gpu.variants().is_empty() {
            true => any_order(run),
            false => run(),
        };
        let mut found = &found[..];
        for (i, case) in cases.iter().enumerate() {
            let what = format!("{}, operation {i}, {}", common::name(&gpu), case.ty.name());
            let (of_case, rest) = found.split_at(case.n_rows * case.n_out);
            found = rest;
            assert_eq!(bits(of_case), bits(&case.alone(&gpu)), "{what}");
            // With few outputs all of them may be small.
            if case.n_out > 1 {
                assert_close(of_case, &case.expected(&gpu), 2e-5, &what);
            }
        }
    }
}

fn is_host(gpu: &Gpu) -> bool {
    matches!(gpu.id(), DeviceId::Host(_))
}

/// Returns the times of all operations, which lie within the total. Clocks of real devices may tick more slowly than an
/// operation takes, and their events use other clocks.
fn check_times(gpu: &Gpu, result: &BatchMatmulResult) -> Vec<OperationTime> {
    let times = (0..result.len()).map(|op| result.timing(op).expect("the clock's rate is known"));
    let times: Vec<OperationTime> = times.collect();
    assert!(times.iter().any(|time| time.start.is_zero()), "{times:?}");
    let total = result.total().expect("the device is there");
    // Times are milliseconds in f32.
    let most = total.mul_f64(1.0 + 1e-6) + Duration::from_nanos(1);
    let is_within = |time: &OperationTime| !time.duration().is_zero() && time.end <= most;
    assert!(
        !is_host(gpu) || times.iter().all(is_within),
        "{total:?}: {times:?}"
    );
    times
}

/// The emulator runs blocks one by one from a start that the seed chooses, here in the middle of the large operation.
/// The two small operations have one block each and do not overlap; the large one spans both.
#[test]
fn reports_a_time_for_each_operation() {
    for gpu in common::gpus_of(GgmlType::Q4_0) {
        if !is_host(&gpu) {
            println!("skipped: blocks run side by side on {}", gpu.id());
            continue;
        }
        let random = &mut Random(26);
        let mut batch = BatchQuantizedMatmul::new(&gpu);
        let [small, large] = [1, 3200].map(|n_out| {
            let case = Case::new(GgmlType::Q4_0, [n_out, 64], 1, random);
            let weight = batch.add_weight(case.ty, [n_out, 64], &case.file).unwrap();
            (case, weight)
        });
        for place in 0..3 {
            let mut ops = [&small; 3];
            ops[place] = &large;
            let ops = ops.map(|(case, weight)| case.op(*weight, host(case)));
            set_host_seed(1);
            let mut times = check_times(&gpu, &batch.execute(&ops).unwrap());
            let what = format!("{}, {place}: {times:?}", gpu.target());
            let around = times.remove(place);
            for time in &times {
                assert!(around.start < time.start && time.end < around.end, "{what}");
            }
            times.sort_by_key(|time| time.start);
            assert!(times[0].end <= times[1].start, "{what}");
        }
    }
}

/// Single rows use another kernel. Operations share inputs and weights.
#[test]
fn single_rows_that_share_inputs() {
    let types = [
        GgmlType::Q4_K,
        GgmlType::Q6_K,
        GgmlType::Q4_K,
        GgmlType::F16,
    ];
    for gpu in common::gpus_of_all(types) {
        let random = &mut Random(22);
        let mut cases = types.map(|ty| {
            let n_in = if ty.block_len() == 1 { 535 } else { 512 };
            Case::new(ty, [60, n_in], 1, random)
        });
        let x = random.values(512);
        let mut batch = BatchQuantizedMatmul::new(&gpu);
        let handles = cases.each_ref().map(|case| {
            let shape = [case.n_out, case.n_in];
            batch.add_weight(case.ty, shape, &case.file).unwrap()
        });
        let device = Arc::new(gpu.upload(&x).unwrap());
        let n_bytes = batch.weight_bytes();
        assert!(n_bytes > 0 && n_bytes as u64 <= gpu.allocated_bytes());
        for case in &mut cases {
            case.x.clone_from(&x);
        }
        let of = |input: MatmulInput<'_>| {
            let ops = [0, 1, 2, 0].map(|i| cases[i].op(handles[i], input));
            let result = batch.execute(&ops).unwrap();
            // One launch for the conversion, one for each format.
            assert_eq!(result.n_launches(), 3);
            (0..4)
                .map(|i| result.output(i).to_vec())
                .collect::<Vec<_>>()
        };
        let found = of(MatmulInput::Host(&x));
        assert_eq!(found, of(MatmulInput::Device(&device)));
        for (i, found) in [0, 1, 2, 0].into_iter().zip(&found) {
            assert_eq!(bits(found), bits(&cases[i].alone(&gpu)), "{}", gpu.target());
        }
        // Float formats need no conversion.
        let result = batch
            .execute(&[cases[3].op(handles[3], host(&cases[3]))])
            .unwrap();
        assert_eq!(result.n_launches(), 1);
        assert_eq!(bits(result.output(0)), bits(&cases[3].alone(&gpu)));
    }
}

#[test]
fn weights_in_mxfp6() {
    fn check<const MANTISSA: u32>(gpu: &Gpu, format: Mxfp6) {
        let random = &mut Random(23);
        let (n_out, n_in, n_rows) = (10, 96, 3);
        let blocks: Vec<_> = (0..n_out * n_in / mxfp6::LEN)
            .map(|_| mxfp6::Mxfp6::<MANTISSA> {
                e: 120 + (random.bits() % 10) as u8,
                codes: [0; 24].map(|_: u8| random.bits() as u8),
            })
            .collect();
        let mut w = Vec::new();
        for block in &blocks {
            let mut values = [0.0; mxfp6::LEN];
            block.dequantize(&mut values);
            w.extend(values.map(f64::from));
        }
        let x = random.values(n_rows * n_in);
        let mut batch = BatchQuantizedMatmul::new(gpu);
        let weight = batch
            .add_mxfp6(format, [n_out, n_in], blocks.as_bytes())
            .unwrap();
        let op = QuantizedMatmulOp {
            weight,
            n_rows,
            input: MatmulInput::Host(&x),
        };
        let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(&x, w)| f64::from(x) * w).sum();
        let rows = x.chunks_exact(n_in);
        let expected: Vec<f64> = rows
            .flat_map(|x| w.chunks_exact(n_in).map(|w| dot(x, w)))
            .collect();
        let result = batch.execute(&[op]).unwrap();
        assert_close(result.output(0), &expected, 1e-6, &format!("{format:?}"));
        let short = batch.add_mxfp6(format, [n_out, n_in], &blocks.as_bytes()[1..]);
        assert!(short.unwrap_err().to_string().contains("MXFP6"));
    }
    // Their values are stored in BF16.
    for gpu in common::gpus_of(GgmlType::BF16) {
        check::<3>(&gpu, Mxfp6::E2M3);
        check::<2>(&gpu, Mxfp6::E3M2);
    }
}

#[test]
fn rejects_invalid_batches_with_a_reason() {
    let Some(gpu) = common::gpus().next() else {
        return;
    };
    let random = &mut Random(24);
    let case = Case::new(GgmlType::Q4_0, [8, 64], 1, random);
    let shape = [case.n_out, case.n_in];
    let mut batch = BatchQuantizedMatmul::new(&gpu);
    let mut other = BatchQuantizedMatmul::new(&gpu);
    let weight = batch.add_weight(case.ty, shape, &case.file).unwrap();
    let foreign = other.add_weight(case.ty, shape, &case.file).unwrap();

    let weights: [(GgmlType, [usize; 2], &[u8], &str); 6] = [
        (GgmlType::Q4_0, [8, 64], &case.file[1..], "expected"),
        (
            GgmlType::Q4_0,
            [8, 65],
            &case.file,
            "not whole blocks of 32",
        ),
        (GgmlType::Q4_0, [0, 64], &[], "is empty"),
        (GgmlType::Q4_0, [8, 0], &[], "is empty"),
        (
            GgmlType::Q4_0,
            [usize::MAX, 64],
            &case.file,
            "more bytes than can be counted",
        ),
        (GgmlType::Q8_K, [1, 256], &[0; 292], "no GPU kernels"),
    ];
    for (ty, shape, blocks, wanted) in weights {
        let error = batch.add_weight(ty, shape, blocks).unwrap_err().to_string();
        let wanted = wanted.replace("expected", "have 288");
        assert!(error.contains(&wanted), "{error}");
    }

    let op = case.op(weight, host(&case));
    let long = vec![0.0; 64 * 65];
    let of = |values| MatmulInput::Host(values);
    let with = |n_rows, input| QuantizedMatmulOp {
        n_rows,
        input,
        ..op
    };
    let odd = Arc::new(gpu.alloc::<u8>(255).unwrap());
    let many = vec![op; 1025];
    let batches: [(&[QuantizedMatmulOp<'_>], &str); 8] = [
        (&[], "no operations"),
        (&many, "1025 operations; the limit is 1024"),
        (&[op, with(0, of(&[]))], "operation 1 has no rows"),
        (&[with(65, of(&long))], "65 rows; the limit is 64"),
        (
            &[op, op, case.op(foreign, host(&case))],
            "operation 2 names a weight of another batch",
        ),
        (
            &[with(1, of(&long[..63]))],
            "operation 0 has 63 values of input; 1 rows of 64 columns need 64",
        ),
        (&[with(2, host(&case))], "need 128"),
        (&[with(1, MatmulInput::Device(&odd))], "has 0 values"),
    ];
    let launcher = AsyncKernelLauncher::new(Arc::new(other), 1).unwrap();
    for (ops, wanted) in batches {
        let error = batch.execute(ops).map(drop).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(launcher.submit(ops).is_err(), "{wanted}");
    }
    // A valid batch still works.
    assert_eq!(
        bits(batch.execute(&[op]).unwrap().output(0)),
        bits(&case.alone(&gpu))
    );

    if let Some(second) = common::all_gpus().into_iter().nth(1) {
        let far = Arc::new(second.upload(&case.x).unwrap());
        let error = batch
            .execute(&[with(1, MatmulInput::Device(&far))])
            .map(drop);
        let wanted = GpuError::Batch(BatchError::OtherDevice { op: 0 });
        assert_eq!(error.unwrap_err(), wanted);
    }
}

#[test]
fn in_flight_batches() {
    for gpu in common::gpus() {
        let random = &mut Random(25);
        let cases: Vec<Case> = [GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::F32]
            .into_iter()
            .zip([1, 2, 1])
            .map(|(ty, n_rows)| Case::new(ty, [20, 256], n_rows, random))
            .collect();
        let before = gpu.allocated_bytes();
        let mut batch = BatchQuantizedMatmul::new(&gpu);
        let handles: Vec<_> = cases
            .iter()
            .map(|case| batch.add_weight(case.ty, [case.n_out, case.n_in], &case.file))
            .collect::<Result<_, _>>()
            .unwrap();
        let error = AsyncKernelLauncher::new(Arc::new(BatchQuantizedMatmul::new(&gpu)), 0);
        assert_eq!(
            error.map(drop).unwrap_err(),
            GpuError::Batch(BatchError::NoRoom)
        );
        let launcher = AsyncKernelLauncher::new(Arc::new(batch), 3).unwrap();
        let submit = |i: usize| {
            // The host's copy and the device's buffer are freed when this returns.
            let (x, buffer) = (
                cases[i].x.clone(),
                Arc::new(gpu.upload(&cases[i].x).unwrap()),
            );
            let input = match i % 2 {
                0 => MatmulInput::Host(&x),
                _ => MatmulInput::Device(&buffer),
            };
            launcher.wait_for_room();
            launcher.submit(&[cases[i].op(handles[i], input)]).unwrap()
        };
        let flying: Vec<_> = (0..3).map(submit).collect();
        // A dropped handle frees its memory and its place in the queue.
        drop(submit(1));
        launcher.wait_for_all();
        assert_eq!(launcher.n_in_flight(), 0);
        let late = submit(2);
        for (handle, case) in flying.into_iter().zip(&cases).rev() {
            assert!(handle.is_done());
            let result = handle.wait().unwrap();
            assert_eq!((result.len(), result.is_empty()), (1, false));
            assert_eq!(
                bits(result.output(0)),
                bits(&case.alone(&gpu)),
                "{}",
                gpu.target()
            );
        }
        // Handles outlive the launcher, and results outlive both.
        drop(launcher);
        let result = late.wait().unwrap();
        assert_eq!(bits(result.output(0)), bits(&cases[2].alone(&gpu)));
        drop(result);
        assert_eq!(gpu.allocated_bytes(), before, "all memory is given back");
    }
}

#[test]
fn examples_run() {
    for gpu in common::gpus_of_all([GgmlType::Q4_0, GgmlType::Q6_K]) {
        batch_matmul::run(&gpu, 1).unwrap();
        async_launch::run(&gpu, 5).unwrap();
    }
}
