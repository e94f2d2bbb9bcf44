//! Tuned choices change launches and no bits; trials measure the choices and leave the device unchanged.

use crate::common;
use crate::common::formats::for_each_format;
use rocmforge_plan::{Mask, Values, act_format};
use std::sync::Arc;

use crate::common::acts::TestActs;
use crate::common::weights::{Fill, Packed, Random, blocks};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, AttentionScratch, Product, Scores};
use rocmforge_gpu::{
    BlockOrder, Buffer, Choice, Gpu, KvShape, KvTypes, MatmulTiles, Matrix, OutMode, Shape, Trial,
    Tuning, Variants, Work, tuning_key,
};

/// Rows of three matrices in one launch: more than a block handles, one, and two.
const N_OUT: [usize; 3] = [9, 1, 2];

/// The matrices and activations of a launch.
struct Launch {
    packed: Vec<Packed>,
    x: TestActs,
}

impl Launch {
    fn new(gpu: &Gpu, ty: GgmlType, n_out: &[usize], [n_rows, n_in]: [usize; 2]) -> Launch {
        let random = &mut Random(3);
        let matrix = |&n_out: &usize| {
            let file = blocks(ty, n_out * n_in, Fill::Random, random);
            Packed::new(gpu, ty, n_out, n_in, &file)
        };
        let packed = n_out.iter().map(matrix).collect();
        let x = random.values(n_rows * n_in);
        let x = TestActs::new(gpu, act_format(ty), n_in, &x);
        Launch { packed, x }
    }

    fn matrices(&self) -> Vec<Matrix<'_>> {
        self.packed.iter().map(Packed::matrix).collect()
    }

    /// Returns the bits of all outputs and the kernels that computed them.
    fn run(
        &self,
        gpu: &Gpu,
        launch: impl Fn(&Gpu, &[Product<'_>]) -> Result<(), rocmforge_gpu::GpuError>,
    ) -> (Vec<u32>, Vec<&'static str>) {
        let n_rows = self.x.acts().n_rows;
        let outs = self.packed.iter().map(|packed| {
            let values = vec![f32::NAN; n_rows * packed.n_out];
            gpu.upload(&values).unwrap()
        });
        let outs: Vec<Buffer> = outs.collect();
        let products = self.packed.iter().zip(&outs).map(|(packed, out)| Product {
            matrix: packed.matrix(),
            bias: None,
            mode: OutMode::Store,
            out: out.as_slice(),
        });
        let products: Vec<Product<'_>> = products.collect();
        let kernels = common::kernels(gpu, || launch(gpu, &products));
        let bits = outs
            .iter()
            .flat_map(|out| gpu.read(out.as_slice::<u32>()).unwrap());
        (bits.collect(), kernels)
    }

    fn matvec(&self, gpu: &Gpu) -> (Vec<u32>, Vec<&'static str>) {
        self.run(gpu, |gpu, products| {
            ops::matvec(gpu, &self.x.acts(), products)
        })
    }
}

fn tuned(gpu: &Gpu, shape: Shape, choice: Choice) -> Gpu {
    gpu.with_tuning(Arc::new(Tuning::only(shape, choice)))
}

for_each_format!(every_choice_gives_the_same_bits);

/// Whether two rows take the kernel of `kernels/hopper/format/gemv_wide.hip`.
fn has_wide(gpu: &Gpu, ty: GgmlType) -> bool {
    matches!(gpu.target(), "sm_90a" | "host-nv") && ty != GgmlType::F32
}

fn every_choice_gives_the_same_bits(ty: GgmlType) {
    for gpu in common::gpus_of(ty) {
        // 8 virtual waves of 32 lanes, and a rest.
        let n_in = match ty.block_len() {
            1 => 16 / ty.block_bytes() * 259,
            _ => 8448,
        };
        let launch = Launch::new(&gpu, ty, &N_OUT, [1, n_in]);
        let sets = vec![launch.matrices()];
        let (shape, ways) = Work::Few { sets }.ways(&gpu).unwrap();
        let waves = if gpu.target() == "host-cdna" { 4 } else { 8 };
        let splits = std::iter::successors(Some(waves), |split| Some(split / 2));
        let splits = splits.take_while(|&split| split > 0);
        let mut expected: Vec<Choice> = splits
            .map(|split| Choice::Matvec { rows: 1, split })
            .collect();
        let two = Choice::Matvec {
            rows: 2,
            split: waves,
        };
        expected.insert(1, two);
        assert_eq!(ways, expected, "{} {}", gpu.target(), ty.name());
        let (usual, kernels) = launch.matvec(&gpu);
        assert_eq!(kernels, ["gemv_1_1"]);
        for (i, &way) in ways.iter().enumerate() {
            let kernel = match i {
                0 => "gemv_1_1",
                1 if has_wide(&gpu, ty) => "gemv_wide_2_1",
                1 => "gemv_2_1",
                _ => "gemv_1_1_turns",
            };
            let found = launch.matvec(&tuned(&gpu, shape, way));
            let what = format!("{} {} {way}", gpu.target(), ty.name());
            assert_eq!(found.1, [kernel], "{what}");
            assert!(found.0 == usual, "{what}: other bits");
        }
    }
}

#[test]
fn tiles_of_one_order_and_block_orders_give_the_same_bits() {
    for gpu in common::gpus() {
        for ty in [GgmlType::Q4_K, GgmlType::Q8_0, GgmlType::F16, GgmlType::F32] {
            // Several blocks in both directions, with partial last ones.
            let launch = Launch::new(&gpu, ty, &[70], [140, 256]);
            let matrices = launch.matrices();
            let n_rows = 140;
            let (shape, ways) = Work::Many { matrices, n_rows }.ways(&gpu).unwrap();
            let [large, small, ..] = ops::gemm_tiles(&gpu, ty).unwrap();
            let both = [BlockOrder::OutputsFirst, BlockOrder::RowsFirst];
            // The default, small tiles for few blocks, comes first.
            let mut expected = vec![MatmulTiles::Small];
            if large.order == small.order {
                expected.push(MatmulTiles::Large);
            }
            let of = |tiles| both.map(|order| Choice::Matmul { tiles, order });
            let mut expected: Vec<Choice> = expected.into_iter().flat_map(of).collect();
            // All types but F32 are multiplied as f16 there, and small matrices of F32 by a kernel of their own.
            let is_hopper = matches!(gpu.target(), "sm_90a" | "host-nv");
            if is_hopper {
                expected.truncate(1);
            }
            let kernel_of = |tiles| match tiles {
                _ if is_hopper && ty == GgmlType::F32 => "many_floats",
                MatmulTiles::Large => "gemm_large",
                MatmulTiles::Small => "gemm_small",
            };
            assert_eq!(ways, expected, "{} {}", gpu.target(), ty.name());
            let run = |gpu: &Gpu| {
                launch.run(gpu, |gpu, products| {
                    ops::matmul(gpu, &launch.x.acts(), &products[0])
                })
            };
            let usual = run(&gpu);
            assert_eq!(usual.1, [kernel_of(MatmulTiles::Small)]);
            let nan = f32::NAN.to_bits();
            assert!(!usual.0.contains(&nan), "all outputs are written");
            for way in ways {
                let Choice::Matmul { tiles, .. } = way else {
                    panic!("{way} is of a GEMM");
                };
                let kernel = kernel_of(tiles);
                let (bits, kernels) = run(&tuned(&gpu, shape, way));
                let what = format!("{} {} {way}", gpu.target(), ty.name());
                assert_eq!(kernels, [kernel], "{what}");
                assert!(bits == usual.0, "{what}: other bits");
            }
            // Tiles of another order are ignored.
            if large.order != small.order {
                let other = Choice::Matmul {
                    tiles: MatmulTiles::Large,
                    order: BlockOrder::OutputsFirst,
                };
                assert!(run(&tuned(&gpu, shape, other)) == usual, "{}", ty.name());
            }
        }
    }
}

#[test]
fn ignores_choices_that_do_not_fit() {
    for gpu in common::gpus() {
        let launch = Launch::new(&gpu, GgmlType::Q8_0, &N_OUT, [1, 256]);
        let sets = vec![launch.matrices()];
        let (shape, _) = Work::Few { sets }.ways(&gpu).unwrap();
        let usual = launch.matvec(&gpu);
        // A row of 8 chunks has one wave. The others are choices for other launches.
        for choice in ["rows 1 split 8", "heads 2", "small tiles rows first"] {
            let gpu = tuned(&gpu, shape, choice.parse().unwrap());
            assert_eq!(launch.matvec(&gpu), usual, "{choice}");
        }
        for (rows, split) in [(77, 1), (0, 0)] {
            let odd = Choice::Matvec { rows, split };
            assert_eq!(launch.matvec(&tuned(&gpu, shape, odd)), usual);
        }
        let long = Launch::new(&gpu, GgmlType::Q8_0, &N_OUT, [1, 8448]);
        let sets = vec![long.matrices()];
        let (of_long, _) = Work::Few { sets }.ways(&gpu).unwrap();
        for split in [0, 3, usize::MAX] {
            let odd = Choice::Matvec { rows: 1, split };
            assert_eq!(long.matvec(&tuned(&gpu, of_long, odd)), long.matvec(&gpu));
        }
        let two = "rows 2 split 1".parse().unwrap();
        let (bits, kernels) = launch.matvec(&tuned(&gpu, shape, two));
        assert_eq!((bits, &kernels[..]), (usual.0.clone(), &["gemv_2_1"][..]));
        // Forced variants override tuning.
        for variants in ["tuning=off", "loads=narrow"] {
            let variants: Variants = variants.parse().unwrap();
            let gpu = tuned(&gpu, shape, two).with_variants(variants);
            assert_eq!(launch.matvec(&gpu), usual);
        }
    }
}

/// Runs a trial to its end. Times on a CPU are meaningless and not checked.
fn run(gpu: &Gpu, work: &Work<'_>) {
    let mut trial = Trial::begin(gpu, work)
        .unwrap()
        .expect("ways to choose from");
    while !trial.is_done() {
        trial.go_on(work).unwrap();
    }
    let decided = trial.decide();
    let (shape, ways) = work.ways(gpu).unwrap();
    let tried: Vec<Choice> = decided.ways.iter().map(|(choice, _)| *choice).collect();
    assert_eq!((decided.shape, &tried), (shape, &ways));
    assert!(decided.differing.is_empty(), "{:?}", decided.differing);
    let samples = decided.ways.iter().map(|(_, samples)| samples);
    assert!(samples.clone().all(|samples| samples.len() == 15));
    assert!(samples.flatten().all(|ms| *ms >= 0.0));
    assert!(ways.contains(&decided.choice()));
}

#[test]
fn trials_of_every_kind() {
    for (turn, gpu) in common::gpus().enumerate() {
        let few = [2, 3].map(|_| Launch::new(&gpu, GgmlType::Q8_0, &[9, 2], [1, 2048]));
        let sets = few.iter().map(Launch::matrices).collect();
        run(&gpu, &Work::Few { sets });
        let many = Launch::new(&gpu, GgmlType::F32, &[1032], [1, 64]);
        let matrices = many.matrices();
        run(
            &gpu,
            &Work::Many {
                matrices,
                n_rows: 12,
            },
        );
        let types = common::every_second(KvTypes::ALL.iter().copied(), turn);
        for types in types.filter(|&types| common::has_attention(&gpu, types)) {
            let scratch = AttentionScratch::new(&gpu, types, 2, 4, 64, 128).unwrap();
            let attention = |n_heads, dim| Work::Attention {
                n_rows: 2,
                n_heads,
                scores: Scores {
                    scale: 0.125,
                    soft_cap: None,
                    growth: None,
                    alibi: None,
                    mask: Mask::All,
                },
                kv: KvShape {
                    types,
                    n_blocks: 0,
                    n_kv_heads: 1,
                    page: 16,
                    k_dim: dim,
                    v_dim: dim,
                    values: Values::Apart,
                },
                n_positions: 90,
                scratch: &scratch,
            };
            run(&gpu, &attention(4, 64));
            for (n_heads, dim) in [(1, 64), (8, 128), (4, 40)] {
                let trial = Trial::begin(&gpu, &attention(n_heads, dim)).unwrap();
                assert!(trial.is_none(), "{n_heads} heads of {dim} have one way");
            }
        }
    }
}

#[test]
fn keys_differ_by_device_and_kernels() {
    let keys: Vec<String> = common::all_gpus()
        .iter()
        .map(|gpu| tuning_key(gpu).unwrap())
        .collect();
    for (i, key) in keys.iter().enumerate() {
        assert!(!key.contains('\n') && !keys[..i].contains(key), "{key}");
    }
}
