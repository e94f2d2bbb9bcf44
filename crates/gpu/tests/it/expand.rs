//! Latent attention by keys and values of all heads, against sums in f64 of the same latent vectors and matrices.

use half::f16;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{
    self, AttentionScratch, HeadsMemory, LatentHeads, Queries, Scores, attend_to_heads,
};
use rocmforge_gpu::{ExpertMatrices, Gpu, KvLayer, KvShape, KvType, SeqRows, Step};
use rocmforge_plan::{ExpertStack, Mask, Values};

use crate::common;
use crate::common::any_order;
use crate::common::weights::{Fill, Packed, Random, blocks, order_of, values};

/// Largest error of an output relative to the largest output: queries, keys, values and weights are rounded to f16.
const BOUND: f64 = 4e-3;
const PAGE: usize = 16;

/// Heads, positions before the rows, and rows; the formats of both kinds of matrices.
const CASES: [(LatentHeads, [usize; 2], [GgmlType; 2]); 4] = [
    (
        LatentHeads {
            n_heads: 3,
            k_dim: 256,
            n_rot: 64,
            v_dim: 256,
            rank: 256,
        },
        [0, 130],
        [GgmlType::Q4_0, GgmlType::Q4_K],
    ),
    (
        LatentHeads {
            n_heads: 2,
            k_dim: 192,
            n_rot: 64,
            v_dim: 128,
            rank: 64,
        },
        [21, 129],
        [GgmlType::Q8_0, GgmlType::F16],
    ),
    (
        LatentHeads {
            n_heads: 5,
            k_dim: 128,
            n_rot: 64,
            v_dim: 128,
            rank: 128,
        },
        [3, 160],
        [GgmlType::Q4_0, GgmlType::Q8_0],
    ),
    (
        LatentHeads {
            n_heads: 2,
            k_dim: 256,
            n_rot: 64,
            v_dim: 256,
            rank: 256,
        },
        [0, 140],
        [GgmlType::Q5_0, GgmlType::Q4_K],
    ),
];

/// The matrices of heads, on the device and as numbers.
struct Heads {
    ty: GgmlType,
    shape: [usize; 2],
    order: rocmforge_gpu::RowOrder,
    data: rocmforge_gpu::Buffer,
    exact: Vec<Vec<f32>>,
}

impl Heads {
    fn new(
        gpu: &Gpu,
        (ty, n_heads): (GgmlType, usize),
        [n_out, n_in]: [usize; 2],
        random: &mut Random,
    ) -> Heads {
        let n_bytes = ops::packed_bytes(gpu, ty, n_out, n_in).unwrap();
        let data = gpu.alloc::<u8>(n_heads * n_bytes).unwrap();
        let exact = (0..n_heads).map(|head| {
            let file = blocks(ty, n_out * n_in, Fill::Random, random);
            let packed = Packed::new(gpu, ty, n_out, n_in, &file);
            let bytes = gpu.read(packed.matrix().data).unwrap();
            let to = data.as_slice::<u8>();
            let to = to.part(head * n_bytes..(head + 1) * n_bytes);
            gpu.write(to, &bytes).unwrap();
            values(ty, &file)
        });
        Heads {
            ty,
            shape: [n_out, n_in],
            order: order_of(gpu, ty, n_out, n_in),
            exact: exact.collect(),
            data,
        }
    }

    fn matrices(&self) -> ExpertMatrices<'_> {
        let [n_out, n_in] = self.shape;
        ExpertMatrices {
            ty: self.ty,
            stack: ExpertStack::whole(self.exact.len()),
            n_out,
            n_in,
            order: self.order,
            data: self.data.as_slice(),
        }
    }
}

/// The root mean square.
fn size(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
}

#[test]
fn attention_to_heads() {
    let has_units = |gpu: &Gpu| matches!(gpu.target(), "sm_90a" | "host-nv");
    for gpu in common::all_gpus().into_iter().filter(has_units) {
        let is_built = |types: [GgmlType; 2]| types.iter().all(|&ty| common::has_format(&gpu, ty));
        let cases = CASES.iter().enumerate();
        for (i, &case) in cases.filter(|(_, case)| is_built(case.2)) {
            check(&gpu, case, &mut Random(i as u64 + 1));
        }
    }
}

fn check(
    gpu: &Gpu,
    (heads, [n_before, n_rows], [of_keys, of_values]): (LatentHeads, [usize; 2], [GgmlType; 2]),
    random: &mut Random,
) {
    let LatentHeads {
        n_heads,
        k_dim,
        n_rot,
        v_dim,
        rank,
    } = heads;
    let (n_positions, n_plain, width) = (n_before + n_rows, k_dim - n_rot, rank + n_rot);
    let keys = Heads::new(gpu, (of_keys, n_heads), [rank, n_plain], random);
    let of_values = Heads::new(gpu, (of_values, n_heads), [v_dim, rank], random);
    let latents: Vec<f16> = { random.values(n_positions * width).into_iter() }
        .map(f16::from_f32)
        .collect();
    let q = random.values(n_rows * n_heads * k_dim);
    // Keys and values of each head, as numbers, and queries, whose products with keys are scores of size 1.
    let latent = |pos: usize, i: usize| latents[pos * width + i].to_f64();
    let (mut all_k, mut all_v) = (Vec::new(), Vec::new());
    for pos in 0..n_positions {
        for head in 0..n_heads {
            let (wk, wv) = (&keys.exact[head], &of_values.exact[head]);
            all_k.extend((0..n_plain).map(|j| -> f64 {
                (0..rank)
                    .map(|i| latent(pos, i) * f64::from(wk[i * n_plain + j]))
                    .sum()
            }));
            all_k.extend((rank..width).map(|i| latent(pos, i)));
            all_v.extend((0..v_dim).map(|j| -> f64 {
                (0..rank)
                    .map(|i| latent(pos, i) * f64::from(wv[j * rank + i]))
                    .sum()
            }));
        }
    }
    let scale = (1.0 / size(&all_k) / (k_dim as f64).sqrt()) as f32;
    let mut expected = Vec::new();
    for row in 0..n_rows {
        for head in 0..n_heads {
            let q = &q[(row * n_heads + head) * k_dim..][..k_dim];
            let mut weights: Vec<f64> = (0..=n_before + row)
                .map(|pos| {
                    let k = &all_k[(pos * n_heads + head) * k_dim..][..k_dim];
                    let dot: f64 = q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum();
                    (dot * f64::from(scale)).exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            expected.extend((0..v_dim).map(|j| -> f64 {
                { weights.iter().enumerate() }
                    .map(|(pos, weight)| weight * all_v[(pos * n_heads + head) * v_dim + j])
                    .sum()
            }));
        }
    }

    let n_pages = n_positions.div_ceil(PAGE);
    let shape = KvShape {
        types: KvType::F16.into(),
        n_blocks: n_pages + 2,
        n_kv_heads: 1,
        page: PAGE,
        k_dim: width,
        v_dim: rank,
        values: Values::InKeys,
    };
    // The pages are in another order.
    let table: Vec<u32> = (0..n_pages as u32).rev().map(|page| page + 1).collect();
    let mut bytes = vec![0xff; shape.n_bytes()[0]];
    for (pos, latent) in latents.chunks(width).enumerate() {
        let slot = table[pos / PAGE] as usize * PAGE + pos % PAGE;
        let from: Vec<u8> = latent.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes[slot * width * 2..][..width * 2].copy_from_slice(&from);
    }
    let cache = [gpu.upload(&bytes).unwrap(), gpu.alloc::<u8>(0).unwrap()];
    let positions: Vec<u32> = (n_before as u32..n_positions as u32).collect();
    let seqs = [SeqRows {
        n_rows: n_rows as u32,
        first_pos: n_before as u32,
        ..SeqRows::default()
    }];
    let [d_positions, d_seq_of_row, d_table] =
        [&positions, &vec![0; n_rows], &table].map(|x| gpu.upload(x).unwrap());
    let d_seqs = gpu.upload(&seqs).unwrap();
    let step = Step {
        positions: d_positions.as_slice(),
        slots: d_positions.as_slice(),
        seq_of_row: d_seq_of_row.as_slice(),
        seqs: d_seqs.as_slice(),
        block_tables: d_table.as_slice(),
        max_pages: n_pages,
        max_rows_of_seq: n_rows,
        longest: n_positions,
    };
    let new = |ty: KvType, n_ctx, max_rows| {
        HeadsMemory::new(gpu, ty.into(), heads, [PAGE, n_ctx, max_rows]).unwrap()
    };
    let memory = new(KvType::F16, n_positions + 40, n_rows);
    let memory = memory.expect("there is a kernel for these heads");
    assert!(new(KvType::Q8_0, n_positions, n_rows).is_none());
    assert!(new(KvType::F16, n_positions, 100).is_none(), "short steps");
    assert!(memory.is_faster(gpu, n_rows, n_positions));
    assert!(!memory.is_faster(gpu, 8, n_positions), "few rows");
    assert!(!memory.is_faster(gpu, n_rows, n_positions + 100), "no room");
    let scratch =
        AttentionScratch::new(gpu, KvType::F16.into(), 1, n_heads, v_dim, n_positions).unwrap();
    let dq = gpu.upload(&q).unwrap();
    let found = any_order(|| {
        let out = gpu.alloc::<f32>(n_rows * n_heads * v_dim).unwrap();
        let queries = Queries {
            q: dq.as_slice(),
            n_heads,
            scores: Scores {
                scale,
                soft_cap: None,
                growth: None,
                alibi: None,
                mask: Mask::All,
            },
            sinks: None,
            out: out.as_slice(),
        };
        let layer = KvLayer::new(shape, &cache);
        let matrices = [keys.matrices(), of_values.matrices()];
        let latents = (&layer, n_positions);
        attend_to_heads(gpu, &queries, latents, matrices, &step, (&memory, &scratch)).unwrap();
        gpu.read(out.as_slice::<f32>()).unwrap()
    });
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= BOUND * largest,
            "{heads:?} on {}: value {at} is {found}, not {expected}",
            common::name(gpu)
        );
    }
}
