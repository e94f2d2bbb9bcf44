//! Products of heads with matrices of their own, against sums in f64.

use crate::common;
use crate::common::acts::TestActs;
use crate::common::any_order;
use crate::common::formats::for_each_format;
use crate::common::weights::{Fill, Packed, Random, blocks, order_of, values};
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{self, ExpertProduct, RoutingBuffer};
use rocmforge_gpu::{ActsBuffer, ExpertMatrices, Source, SourceRows};
use rocmforge_plan::{ExpertStack, act_format};

/// Tokens, heads, and values of a head before and after those that are multiplied; variants to run as well.
const CASES: [([usize; 2], [usize; 2], &[&str]); 4] = [
    ([1, 5], [8, 32], &["loads=narrow"]),
    ([9, 3], [8, 0], &["products=matmul", "loads=narrow"]),
    ([3, 5], [8, 0], &[]),
    (
        [33, 4],
        [0, 3],
        &["products=matvec", "products=matmul,tiles=large"],
    ),
];

for_each_format!(products_of_heads);

/// The values of each head are converted, multiplied with the head's matrix and joined with others. The kernels are those
/// of experts, whose tests have all formats with many rows: here one of each kind of activations has them.
fn products_of_heads(ty: GgmlType) {
    let has_many = matches!(ty, GgmlType::F16 | GgmlType::Q8_0 | GgmlType::Q4_K);
    let n_cases = if has_many { CASES.len() } else { 2 };
    let f = GgmlType::COMPUTED.iter().position(|format| *format == ty);
    let f = f.expect("it is a format");
    for (turn, gpu) in common::gpus_of(ty).enumerate() {
        let random = &mut Random(f as u64);
        // Rows of which a part of a wave has a chunk each, or all of it.
        let n_in = match ty.block_len() {
            32 => [192, 512, 1024][f % 3],
            _ => [256, 512][f % 2],
        };
        let cases = CASES[..n_cases].iter().enumerate();
        let cases = common::every_second(cases, turn + f);
        for (i, &([n_tokens, n_heads], [before, after], variants)) in cases {
            let variants = if has_many { variants } else { &[] };
            let n_out = [40, 33, 64][(f + i) % 3];
            let head_dim = before + n_in + after;
            let x = random.values(n_tokens * n_heads * head_dim);
            let n_bytes = ops::packed_bytes(&gpu, ty, n_out, n_in).unwrap();
            let data = gpu.alloc::<u8>(n_heads * n_bytes).unwrap();
            let matrices = ExpertMatrices {
                ty,
                stack: ExpertStack::whole(n_heads),
                n_out,
                n_in,
                order: order_of(&gpu, ty, n_out, n_in),
                data: data.as_slice(),
            };
            let mut weights = Vec::new();
            for head in 0..n_heads {
                let file = blocks(ty, n_out * n_in, Fill::Random, random);
                weights.push(values(ty, &file));
                let packed = Packed::new(&gpu, ty, n_out, n_in, &file);
                let bytes = gpu.read(packed.matrix().data).unwrap();
                gpu.write(matrices.matrix(head).data, &bytes).unwrap();
            }
            let product = ExpertProduct {
                shared: None,
                matrices,
                scales: None,
                bias: None,
            };
            let form = act_format(ty);
            let part = |token: usize, head: usize| {
                let start = (token * n_heads + head) * head_dim + before;
                &x[start..start + n_in]
            };
            // What the values become when they are converted, sorted by head.
            let sorted: Vec<f32> = (0..n_heads)
                .flat_map(|head| (0..n_tokens).flat_map(move |token| part(token, head).to_vec()))
                .collect();
            let exact = TestActs::new(&gpu, form, n_in, &sorted).exact;
            let mut expected = Vec::new();
            for token in 0..n_tokens {
                for head in 0..n_heads {
                    let of_head = &exact[(head * n_tokens + token) * n_in..][..n_in];
                    for w in weights[head].chunks_exact(n_in) {
                        let products = of_head.iter().zip(w).map(|(x, &w)| x * f64::from(w));
                        expected.push(products.sum::<f64>());
                    }
                    let end = (token * n_heads + head + 1) * head_dim;
                    expected.extend(x[end - after..end].iter().map(|&x| f64::from(x)));
                }
            }
            let dx = gpu.upload(&x).unwrap();
            // Heads of more tokens than there are.
            let routing = RoutingBuffer::new(&gpu, [n_heads; 2], n_tokens + 3).unwrap();
            for gpu in &common::with_variants(&gpu, variants) {
                let found = any_order(|| {
                    let heads = routing.of(n_tokens);
                    let acts = ActsBuffer::new(gpu, form, n_tokens * n_heads, n_in).unwrap();
                    let acts = acts.rows(n_tokens * n_heads);
                    ops::quantize_heads(gpu, dx.as_slice(), before, &heads, &acts).unwrap();
                    let rows = gpu.alloc::<f32>(n_tokens * n_heads * n_out).unwrap();
                    ops::expert_products(gpu, &acts, &heads, &product, rows.as_slice()).unwrap();
                    let out = gpu.alloc::<f32>(expected.len()).unwrap();
                    let rest = (after > 0).then(|| dx.as_slice());
                    let shape = [n_heads, n_tokens];
                    ops::join_heads(gpu, shape, rows.as_slice(), rest, out.as_slice()).unwrap();
                    let joined = gpu.read(out.as_slice::<f32>()).unwrap();
                    // The same, written where it belongs.
                    let out = gpu.upload(&vec![-1.0f32; expected.len()]).unwrap();
                    ops::head_products(gpu, &acts, &heads, matrices, out.as_slice()).unwrap();
                    let placed = gpu.read(out.as_slice::<f32>()).unwrap();
                    for (at, (placed, joined)) in placed.iter().zip(&joined).enumerate() {
                        let is_product = at % (n_out + after) < n_out;
                        assert_eq!(*placed, if is_product { *joined } else { -1.0 });
                    }
                    if n_tokens == 1 {
                        // The same of values that the products convert, without a list of tiles.
                        let other = RoutingBuffer::new(gpu, [n_heads; 2], 1).unwrap();
                        let unmade = ActsBuffer::new(gpu, form, n_heads, n_in).unwrap();
                        let mut own = unmade.rows(n_heads);
                        own.source = Some(Source {
                            x: dx.as_slice(),
                            rows: SourceRows::Heads { start: before },
                        });
                        let out = gpu.upload(&vec![-1.0f32; expected.len()]).unwrap();
                        ops::head_products(gpu, &own, &other.of(1), matrices, out.as_slice())
                            .unwrap();
                        assert_eq!(gpu.read(out.as_slice::<f32>()).unwrap(), placed);
                    }
                    joined
                });
                let what = format!("{} {}, case {i}", common::name(gpu), ty.name());
                let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(
                        error <= 1e-5 * largest,
                        "{what}: value {at} is {found}, not {expected}"
                    );
                }
            }
        }
    }
}
