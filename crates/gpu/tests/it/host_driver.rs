//! The CPU emulator reports faults that a GPU would ignore.

use crate::common;
use rocmforge_gpu::{Gpu, GpuError, SelfTest, self_test};

const THREADS: u32 = 128;

/// Runs a kernel of selftest.hip with THREADS words of input and of output.
fn run(
    gpu: &Gpu,
    kernel: &'static str,
    which: u32,
    shared_bytes: u32,
) -> Result<Vec<u32>, GpuError> {
    let x: Vec<u32> = (0..THREADS).map(|i| i * i).collect();
    let x = gpu.upload(&x)?;
    let out = gpu.upload(&[0u32; THREADS as usize])?;
    let test = SelfTest {
        kernel,
        x: x.as_slice(),
        out: out.as_slice(),
        n: 100,
        which,
        n_blocks: 2,
        shared_bytes,
    };
    self_test(gpu, &test)?;
    gpu.read(out.as_slice())
}

#[test]
fn correct_kernels_run() {
    for gpu in common::gpus() {
        let out = common::any_order(|| run(&gpu, "good", 0, 0).unwrap());
        let expected: Vec<u32> = (0..THREADS).rev().map(|i| i * i).collect();
        assert_eq!(out, expected);
        common::any_order(|| run(&gpu, "many_collectives", 0, 0).unwrap());
        common::any_order(|| run(&gpu, "device_exchange", 0, 0).unwrap());
        common::any_order(|| run(&gpu, "dynamic_overrun", 0, THREADS * 4).unwrap());
    }
}

/// The line of selftest.hip with `text` in this kernel.
fn line(kernel: &str, text: &str) -> usize {
    let source = include_str!("../../kernels/selftest.hip");
    let start = source.find(&format!("KERNEL({kernel},")).unwrap();
    let at = start + source[start..].find(text).unwrap();
    source[..at].matches('\n').count() + 1
}

#[test]
fn faults_are_reported_with_their_location() {
    // Kernel, its parameter, bytes of dynamic shared memory, the source text whose line the error names, parts of the
    // error. For races the order decides which of the two lines is named.
    type Case = (
        &'static str,
        u32,
        u32,
        &'static str,
        &'static [&'static str],
    );
    let cases: &[Case] = &[
        (
            "missed_barrier",
            77,
            0,
            "barrier()",
            &["divergent collective", "thread 77", "done"],
        ),
        (
            "two_barriers",
            1,
            0,
            "barrier();\n    else",
            &["divergent collective"],
        ),
        (
            "shuffle_in_branch",
            3,
            0,
            "shuffle_xor",
            &["divergent collective"],
        ),
        (
            "reduce_in_branch",
            5,
            0,
            "wave_max",
            &["divergent collective", "wave operation"],
        ),
        ("not_uniform", 9, 0, "uniform(", &["uniform()", "lane 0"]),
        (
            "race",
            0,
            0,
            "",
            &["race", "values[", "selftest.hip:", "without a barrier"],
        ),
        (
            "race_of_rounds",
            0,
            0,
            "",
            &["race", "bytes[", "selftest.hip:"],
        ),
        ("matrix_race", 0, 0, "", &["race", "values["]),
        ("matrix_race", 1, 0, "", &["race", "values["]),
        ("all_write", 0, 0, "total[0] = tid()", &["race", "total[0]"]),
        (
            "device_race",
            0,
            0,
            "(tid() + WARP_SIZE)",
            &["race", "reads device memory that wave", "barrier()"],
        ),
        (
            "shared_overrun",
            1,
            0,
            "values[tid() + p.which]",
            &["thread 127 writes outside of shared memory", "values[128]"],
        ),
        (
            // Within the gap before the next array; beyond it this would be a race.
            "shared_overrun",
            60,
            0,
            "values[tid() + p.which]",
            &["outside of shared memory"],
        ),
        (
            "dynamic_overrun",
            0,
            THREADS * 4 - 4,
            "values[tid()] = 0",
            &["thread 127 writes outside", "dynamic shared memory"],
        ),
        ("too_much_shared", 0, 0, "", &["values", "52000 bytes"]),
        (
            "read_outside",
            1,
            0,
            "p.x[tid()",
            &[
                "thread 127 reads outside of device memory",
                "512 bytes after the start of a buffer of 512",
            ],
        ),
        (
            "write_outside",
            5,
            0,
            "p.out[tid()",
            &["writes outside of device memory"],
        ),
        (
            "write_far",
            5,
            0,
            "((u32*)0)",
            &["writes outside of device memory"],
        ),
        ("misaligned", 1, 0, "store16", &["not aligned"]),
    ];
    for gpu in common::gpus().filter(|gpu| !common::is_unchecked(gpu)) {
        for &(kernel, which, shared_bytes, place, parts) in cases {
            let error = run(&gpu, kernel, which, shared_bytes)
                .unwrap_err()
                .to_string();
            println!("{}: {error}", gpu.target());
            assert!(
                error.contains(kernel) && error.contains("block "),
                "{kernel}: {error}"
            );
            for part in parts {
                assert!(error.contains(part), "{kernel}, {part}: {error}");
            }
            if !place.is_empty() {
                let place = format!("selftest.hip:{}", line(kernel, place));
                assert!(error.contains(&place), "{kernel}, {place}: {error}");
            }
        }
        // The driver still works.
        assert!(run(&gpu, "good", 0, 0).is_ok());
    }
}

/// Images are shared by emulated GPUs with different limits of shared memory.
#[test]
fn limits_shared_memory_as_the_emulated_gpu_does() {
    for gpu in common::all_gpus() {
        let result = run(&gpu, "dynamic_overrun", 0, 100 * 1024);
        let fits = gpu.max_shared_bytes() >= 100 * 1024;
        assert_eq!(result.is_ok(), fits, "{}: {result:?}", gpu.target());
    }
}

#[test]
fn shuffles_order_and_fills_shared_memory_with_nan() {
    for gpu in common::gpus() {
        let last_blocks: Vec<u32> = (1..20)
            .map(|seed| {
                rocmforge_gpu::set_host_seed(seed);
                run(&gpu, "order_of_blocks", 0, 0).unwrap()[0]
            })
            .collect();
        assert!(last_blocks.contains(&0) && last_blocks.contains(&1));
        let sums = run(&gpu, "unwritten_shared", 3, 0).unwrap();
        assert!(f32::from_bits(sums[3]).is_nan());
        assert_eq!(f32::from_bits(sums[4]), 2.0);
    }
}
