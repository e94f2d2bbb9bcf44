//! The router of a token in one launch has the bits of a norm, products, and a choice in launches of their own.

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{
    self, ExpertScores, ExpertVectors, ExpertWeights, Product, Router, RouterRow, RoutingBuffer,
    SharedWeight,
};
use rocmforge_gpu::{ActFormat, ActsBuffer, Gpu, OutMode};

use crate::common;
use crate::common::any_order;
use crate::common::weights::{Fill, Packed, Random, blocks};

/// A router of `n_experts` experts, of which a token chooses `n_used`.
struct Case {
    width: usize,
    n_experts: usize,
    n_used: usize,
    scores: ExpertScores,
    weights: ExpertWeights,
    /// Of the products.
    has_bias: bool,
    /// Of the choice.
    has_vectors: bool,
    is_shared: bool,
    is_padding: bool,
}

const CASE: Case = Case {
    width: 2048,
    n_experts: 128,
    n_used: 8,
    scores: ExpertScores::Softmax,
    weights: ExpertWeights::Normalized,
    has_bias: false,
    has_vectors: false,
    is_shared: false,
    is_padding: false,
};

/// Widths that one turn of a block's threads covers, or two; of rows that waves share, or not. Numbers of experts that blocks
/// fill or not, up to the most. Separate launches choose from more than 256 experts by a kernel that shares no code with this one.
fn cases() -> [Case; 8] {
    [
        CASE,
        Case {
            width: 520,
            n_experts: 5,
            n_used: 2,
            weights: ExpertWeights::Scores,
            ..CASE
        },
        Case {
            width: 2880,
            n_experts: 32,
            n_used: 4,
            has_bias: true,
            ..CASE
        },
        Case {
            width: 7168,
            n_experts: 256,
            scores: ExpertScores::Sigmoid,
            has_vectors: true,
            is_shared: true,
            ..CASE
        },
        Case {
            width: 1024,
            n_experts: 512,
            n_used: 10,
            ..CASE
        },
        Case {
            n_experts: 301,
            n_used: 32,
            ..CASE
        },
        Case {
            width: 4096,
            n_experts: 9,
            n_used: 3,
            is_shared: true,
            ..CASE
        },
        Case {
            is_padding: true,
            ..CASE
        },
    ]
}

#[test]
fn a_launch_has_the_bits_of_three() {
    for (turn, gpu) in common::gpus().enumerate() {
        for (i, case) in common::every_second(cases().into_iter().enumerate(), turn) {
            check(&gpu, &case, &mut Random(i as u64));
        }
    }
}

fn check(gpu: &Gpu, case: &Case, random: &mut Random) {
    let &Case {
        width, n_experts, ..
    } = case;
    let upload = |values: Vec<f32>| gpu.upload(&values).unwrap();
    let x = upload(random.values(width));
    let weight = upload(random.values(width));
    let file = blocks(GgmlType::F32, n_experts * width, Fill::Random, random);
    let matrix = Packed::new(gpu, GgmlType::F32, n_experts, width, &file);
    let bias = case.has_bias.then(|| upload(random.values(n_experts)));
    let vectors = [0; 2].map(|_| case.has_vectors.then(|| upload(random.values(n_experts))));
    let gate = upload(vec![0.3]);
    let seq_of_row = gpu
        .upload(&[if case.is_padding { u32::MAX } else { 0 }])
        .unwrap();
    let n_shared = usize::from(case.is_shared);
    let shape = [n_experts + n_shared, case.n_used + n_shared];
    let buffer = RoutingBuffer::new(gpu, shape, 3)
        .unwrap()
        .with_shared(n_shared);
    let routing = buffer.of(1);
    let router = Router {
        n_used: case.n_used,
        scores: case.scores,
        weights: case.weights,
        groups: None,
        scale: 1.5,
    };
    let acts = ActsBuffer::new(gpu, ActFormat::F32, 1, width).unwrap();
    let acts = acts.rows(1);
    let [bias_of_choice, scales] = vectors.each_ref().map(|v| v.as_ref().map(|v| v.as_slice()));
    let run = |is_one: bool| {
        let [normed, logits] = [width, n_experts].map(|n| upload(vec![0.0; n]));
        for slice in [routing.experts, routing.rows, routing.tokens] {
            gpu.fill_bytes(slice, 0xcd).unwrap();
        }
        let vectors = ExpertVectors {
            bias: bias_of_choice,
            scales,
        };
        let shared = case
            .is_shared
            .then(|| SharedWeight::Sigmoid(gate.as_slice()));
        let row = RouterRow {
            x: x.as_slice(),
            norm: (weight.as_slice(), 1e-5),
            normed: normed.as_slice(),
            acts,
            matrix: matrix.matrix(),
            bias: bias.as_ref().map(|bias| bias.as_slice()),
            logits: logits.as_slice(),
        };
        let router = (router, shared);
        if is_one {
            let takes = (&router.0, case.has_vectors);
            assert!(ops::routes_row(gpu, &row.matrix, takes, &routing));
            ops::route_row(gpu, &row, vectors, router, seq_of_row.as_slice(), &routing).unwrap();
        } else {
            let (weight, eps) = row.norm;
            ops::rms_norm_quantize(gpu, row.x, weight, eps, Some(row.normed), &acts).unwrap();
            let product = Product {
                matrix: row.matrix,
                bias: row.bias,
                mode: OutMode::Store,
                out: row.logits,
            };
            ops::products(gpu, &acts, &[product]).unwrap();
            let logits = (row.logits, vectors);
            ops::route(gpu, logits, router, seq_of_row.as_slice(), &routing).unwrap();
        }
        let read = |slice| gpu.read::<u32>(slice).unwrap();
        let n_rows = read(routing.n_rows)[0];
        // Of the rows that there are.
        let tokens = read(routing.tokens).into_iter().take(n_rows as usize);
        let tiles = routing.tiles.map(|tiles| read(tiles.cast()));
        let words = [
            vec![n_rows],
            tokens.collect(),
            read(normed.as_slice()),
            read(logits.as_slice()),
            read(routing.experts),
            read(routing.weights.cast()),
            read(routing.rows),
        ];
        words
            .into_iter()
            .chain(tiles)
            .flatten()
            .collect::<Vec<u32>>()
    };
    let expected = run(false);
    assert_eq!(expected[0] == 0, case.is_padding);
    // The counter of blocks is ready for the next launch.
    for _ in 0..2 {
        let found = any_order(|| run(true));
        assert!(
            found == expected,
            "{} {width} {n_experts}",
            common::name(gpu)
        );
    }
}
