//! Matrices whose rows lie in tiles: every kernel has the bits that it has with rows one after the other.

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, Gated, Product};
use rocmforge_gpu::{Activation, ActsBuffer, Buffer, Gpu, OutMode, RowOrder};
use rocmforge_plan::act_format;

use crate::common;
use crate::common::weights::{Fill, Packed, Random, blocks};

/// Rows of activations: of GEMVs, and of GEMMs of each tile.
const ROWS: [usize; 7] = [1, 2, 4, 8, 20, 40, 150];

fn tiles(gpu: &Gpu, ty: GgmlType, shape: [usize; 2]) -> RowOrder {
    ops::row_order(gpu, ty, shape, usize::MAX)
}

/// The bits of all that kernels compute of a gate and its up.
fn bits(gpu: &Gpu, [gate, up]: &[Packed; 2], x: &[f32]) -> Vec<Vec<u32>> {
    let (matrix, ty) = (gate.matrix(), gate.ty);
    let [n_out, n_in] = [gate.n_out, gate.n_in];
    let mut all = Vec::new();
    let values = gpu.alloc::<f32>(n_out * n_in).unwrap();
    ops::dequantize(gpu, &matrix, values.as_slice()).unwrap();
    all.push(gpu.read(values.as_slice::<u32>()).unwrap());
    let ids: Vec<u32> = (0..n_out as u32).rev().collect();
    let ids = gpu.upload(&ids).unwrap();
    ops::get_rows(
        gpu,
        &matrix,
        ids.as_slice(),
        0.5,
        OutMode::Store,
        values.as_slice(),
    )
    .unwrap();
    all.push(gpu.read(values.as_slice::<u32>()).unwrap());

    let most = x.len() / n_in;
    let acts = ActsBuffer::new(gpu, act_format(ty), most, n_in).unwrap();
    for n_rows in ROWS {
        let x = gpu.upload(&x[..n_rows * n_in]).unwrap();
        let acts = acts.rows(n_rows);
        ops::quantize(gpu, x.as_slice(), &acts).unwrap();
        let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
        let product = Product {
            matrix,
            bias: None,
            mode: OutMode::Store,
            out: out.as_slice(),
        };
        ops::products(gpu, &acts, &[product]).unwrap();
        all.push(gpu.read(out.as_slice::<u32>()).unwrap());
        if n_rows > ops::MAX_ROWS {
            continue;
        }
        let gated = Gated {
            matrices: [matrix, up.matrix()],
            biases: [None; 2],
            activation: Activation::Silu,
            out: out.as_slice(),
        };
        ops::matvec_gated(gpu, &acts, &gated).unwrap();
        all.push(gpu.read(out.as_slice::<u32>()).unwrap());
    }
    all
}

#[test]
fn tiles_have_the_bits_of_rows() {
    let mut n_compared = 0;
    for (turn, &ty) in GgmlType::COMPUTED.iter().enumerate() {
        let shape @ [n_out, n_in] = [[48, 768], [80, 1280], [32, 512]][turn % 3];
        let has_tiles = |gpu: &Gpu| tiles(gpu, ty, shape) == RowOrder::Tiles;
        for gpu in common::gpus_of(ty).filter(has_tiles) {
            let random = &mut Random(ty as u64);
            let files = [(); 2].map(|()| blocks(ty, n_out * n_in, Fill::Random, random));
            let x = random.values(ROWS[ROWS.len() - 1] * n_in);
            let orders = [RowOrder::Apart, RowOrder::Tiles];
            let packed = orders.map(|order| {
                let packed = |file: &Vec<u8>| Packed::in_order(&gpu, order, ty, shape, file);
                files.each_ref().map(packed)
            });
            let bytes = packed
                .each_ref()
                .map(|[gate, _]| gpu.read(gate.matrix().data).unwrap());
            assert!(
                bytes[0] != bytes[1],
                "{}: {} has no tiles",
                common::name(&gpu),
                ty.name()
            );
            let [rows, tiles] = packed.each_ref().map(|packed| bits(&gpu, packed, &x));
            assert!(rows == tiles, "{}: {}", common::name(&gpu), ty.name());
            n_compared += 1;
        }
    }
    let has_hopper = common::all_gpus()
        .iter()
        .any(|gpu| ["host-nv", "sm_90a"].contains(&gpu.target()));
    assert_eq!(n_compared > 0, has_hopper);
}

/// Products with matrices of both orders have the bits of each alone, in GEMVs, which are in two launches, and GEMMs, which are in
/// one.
#[test]
fn products_may_have_both_orders() {
    let n_in = 512;
    for ty in [GgmlType::Q4_K, GgmlType::Q8_0] {
        let has_tiles = |gpu: &Gpu| tiles(gpu, ty, [48, n_in]) == RowOrder::Tiles;
        for gpu in common::gpus_of(ty).filter(has_tiles) {
            // How many waves or blocks share a row depends on the other products.
            let gpu = gpu.with_variants("splits=off".parse().unwrap());
            let random = &mut Random(3);
            let packed = [48, 40, 32].map(|n_out| {
                let file = blocks(ty, n_out * n_in, Fill::Random, random);
                Packed::new(&gpu, ty, n_out, n_in, &file)
            });
            let orders = packed.each_ref().map(|packed| packed.matrix().order);
            assert_eq!(orders, [RowOrder::Tiles, RowOrder::Apart, RowOrder::Tiles]);
            for n_rows in ROWS {
                let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
                let acts = ActsBuffer::new(&gpu, act_format(ty), n_rows, n_in).unwrap();
                let acts = acts.rows(n_rows);
                ops::quantize(&gpu, x.as_slice(), &acts).unwrap();
                let run = |parts: &[&[Packed]]| {
                    let mut all = Vec::new();
                    for part in parts {
                        let outs: Vec<_> = { part.iter() }
                            .map(|packed| gpu.alloc::<f32>(n_rows * packed.n_out).unwrap())
                            .collect();
                        let products = part.iter().zip(&outs).map(|(packed, out)| Product {
                            matrix: packed.matrix(),
                            bias: None,
                            mode: OutMode::Store,
                            out: out.as_slice(),
                        });
                        let products: Vec<_> = products.collect();
                        ops::products(&gpu, &acts, &products).unwrap();
                        let read = |out: &Buffer| gpu.read(out.as_slice::<u32>()).unwrap();
                        all.extend(outs.iter().map(read));
                    }
                    all
                };
                let [first, second, third] = &packed;
                let alone = [first, second, third].map(std::slice::from_ref);
                assert!(run(&[&packed]) == run(&alone), "{} {n_rows}", ty.name());
            }
        }
    }
}

#[test]
fn matrices_of_partial_tiles_have_none() {
    for gpu in common::all_gpus() {
        for (ty, shape) in [
            (GgmlType::F16, [32, 512]),
            (GgmlType::Q4_K, [40, 512]),
            (GgmlType::Q8_0, [32, 480]),
        ] {
            assert_eq!(tiles(&gpu, ty, shape), RowOrder::Apart);
        }
        let few = ops::row_order(&gpu, GgmlType::Q4_K, [32, 512], 2);
        assert_eq!(few, RowOrder::Apart);
    }
}

/// With kernels that take codes, matrices lie in tiles for fewer rows, and products are GEMMs of fewer rows.
#[test]
fn products_of_codes_are_gemms_of_fewer_rows() {
    for (ty, last_gemv) in [(GgmlType::Q2_K, 4), (GgmlType::Q4_K, 2)] {
        let shape @ [n_out, n_in] = [32, 512];
        let has_tiles = |gpu: &Gpu| tiles(gpu, ty, shape) == RowOrder::Tiles;
        for gpu in common::gpus_of(ty).filter(has_tiles) {
            for max_rows in 1..=8 {
                let order = ops::row_order(&gpu, ty, shape, max_rows);
                assert_eq!(order == RowOrder::Tiles, max_rows > last_gemv, "{max_rows}");
            }
            let random = &mut Random(9);
            let file = blocks(ty, n_out * n_in, Fill::Random, random);
            let packed = Packed::in_order(&gpu, RowOrder::Tiles, ty, shape, &file);
            let most = last_gemv + 1;
            let acts = ActsBuffer::new(&gpu, act_format(ty), ops::MAX_ROWS + 1, n_in).unwrap();
            let acts = acts.beside(&[(ty, RowOrder::Tiles)]);
            for n_rows in 1..=most {
                let x = gpu.upload(&random.values(n_rows * n_in)).unwrap();
                let out = gpu.alloc::<f32>(n_rows * n_out).unwrap();
                let product = Product {
                    matrix: packed.matrix(),
                    bias: None,
                    mode: OutMode::Store,
                    out: out.as_slice(),
                };
                let kernels = common::kernels(&gpu, || {
                    ops::quantize(&gpu, x.as_slice(), &acts.rows(n_rows))?;
                    ops::products(&gpu, &acts.rows(n_rows), &[product])
                });
                let is_gemm = kernels.iter().any(|kernel| kernel.starts_with("gemm"));
                assert_eq!(is_gemm, n_rows == most, "{n_rows}: {kernels:?}");
            }
        }
    }
}
