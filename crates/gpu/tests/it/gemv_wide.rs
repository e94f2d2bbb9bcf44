//! GEMV with matrices that the device does not compute at once: the bits are those of products that it does.

use std::ops::Range;

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated, Product};
use rocmforge_gpu::{Activation, Gpu, Matrix, OutMode, RowOrder};
use rocmforge_plan::act_format;

use crate::common;
use crate::common::acts::TestActs;
use crate::common::weights::{Fill, Packed, Random, blocks, order_of};

/// Short rows, since the outputs are many.
const N_IN: usize = 256;

/// The outputs of a product, the kernel of two rows and of more on the emulated GPU, which runs 2,048 blocks of 16 outputs at
/// once, and numbers of rows that have all of these kernels. With repeats, all have all.
type Case = (usize, [&'static str; 2], &'static [usize]);
const CASES: [Case; 3] = [
    // On an H200, gemv_wide_2_4.
    (5_000, ["gemv_2_2", "gemv_2_4"], &ROWS),
    (33_008, ["gemv_wide_2_2", "gemv_wide_2_4"], &[2, 4]),
    (50_000, ["gemv_wide_2_2", "gemv_wide_4_4"], &[3]),
];
const ROWS: [usize; 3] = [2, 3, 4];

fn gpus() -> impl Iterator<Item = Gpu> {
    let has_kernels = |gpu: &Gpu| ["host-nv", "sm_90a"].contains(&gpu.target());
    common::all_gpus().into_iter().filter(has_kernels)
}

/// Returns the bits of a product, or of gate and up, and asserts which kernel computes them.
fn bits(gpu: &Gpu, x: &TestActs, matrices: &[Matrix<'_>], kernel: Option<&str>) -> Vec<Vec<u32>> {
    let [n_rows, n_out] = [x.acts().n_rows, matrices[0].n_out];
    let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
    let kernels = common::kernels(gpu, || match *matrices {
        [gate, up] => {
            let gated = Gated {
                matrices: [gate, up],
                biases: [None; 2],
                activation: Activation::Silu,
                out: out.as_slice(),
            };
            ops::matvec_gated(gpu, &x.acts(), &gated)
        }
        _ => {
            let product = Product {
                matrix: matrices[0],
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            };
            ops::matvec(gpu, &x.acts(), &[product])
        }
    });
    if let Some(kernel) = kernel.filter(|_| gpu.target() == "host-nv") {
        assert_eq!(kernels, [kernel]);
    }
    let bits = gpu.read(out.as_slice::<u32>()).unwrap();
    bits.chunks_exact(n_out).map(<[u32]>::to_vec).collect()
}

fn parts_have_the_same_bits(ty: GgmlType) {
    for gpu in gpus() {
        let random = &mut Random(7);
        for (n_out, kernels, rows) in CASES {
            let row_bytes = ty.row_bytes(N_IN).unwrap();
            let files = [(); 2].map(|()| blocks(ty, n_out * N_IN, Fill::Random, random));
            let packed = |order: RowOrder, rows: Range<usize>| {
                let shape = [rows.len(), N_IN];
                let rows = rows.start * row_bytes..rows.end * row_bytes;
                let of =
                    |file: &Vec<u8>| Packed::in_order(&gpu, order, ty, shape, &file[rows.clone()]);
                files.each_ref().map(of)
            };
            let parts = [0..n_out / 2, n_out / 2..n_out].map(|rows| packed(RowOrder::Apart, rows));
            let rows: &[usize] = match common::repeats() {
                Some(_) => &ROWS,
                None => rows,
            };
            for &n_rows in rows {
                // Both kernels of two and four rows, each in one order.
                let order = match n_rows {
                    4 => RowOrder::Apart,
                    _ => order_of(&gpu, ty, n_out, N_IN),
                };
                let whole = packed(order, 0..n_out);
                let x = random.values(n_rows * N_IN);
                let x = TestActs::new(&gpu, act_format(ty), N_IN, &x);
                for n_matrices in common::every_second([1, 2], n_rows) {
                    let of = |packed: &[Packed; 2]| {
                        let both = [packed[0].matrix(), packed[1].matrix()];
                        let is_whole = packed[0].n_out == n_out;
                        let kernel =
                            (is_whole && n_matrices == 1).then(|| kernels[(n_rows - 1) / 2]);
                        bits(&gpu, &x, &both[..n_matrices], kernel)
                    };
                    let all = of(&whole);
                    let [first, second] = [of(&parts[0]), of(&parts[1])];
                    let same = all.iter().zip(first.iter().zip(&second));
                    for (row, (all, (first, second))) in same.enumerate() {
                        let what = format!("{} {n_out} outputs, row {row} of {n_rows}", ty.name());
                        assert!(all[..first.len()] == first[..], "{what}");
                        assert!(all[first.len()..] == second[..], "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn parts_of_q4_k() {
    parts_have_the_same_bits(GgmlType::Q4_K);
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn parts_of_f16() {
    parts_have_the_same_bits(GgmlType::F16);
}
