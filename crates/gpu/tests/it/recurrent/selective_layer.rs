//! What is between the products of a layer of Mamba-1 in few launches, against the separate launches, which are compared with
//! their formulas.

use rocmforge_gpu::ops::{self, Conv, SelectiveWeights};
use rocmforge_gpu::{ActFormat, Activation, ActsBuffer, Buffer, Gpu, Slice};
use rocmforge_plan::{ConvForm, Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::{N_PADDING, N_SLOTS, ONE_ROW, Uploaded, n_rows};
use crate::common;
use crate::common::any_order;
use crate::common::weights::Random;

/// Where the result of a fused launch is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Apart,
    /// In the place of the input with this number.
    Input(usize),
}

/// The bits of the first values of `out`, of the activations' rows of sequences, and of the states.
fn bits(
    gpu: &Gpu,
    out: Slice<'_, f32>,
    acts: Option<(&ActsBuffer, usize)>,
    states: &Buffer,
) -> Vec<u32> {
    let of = |values: Slice<'_, f32>| -> Vec<u32> {
        let values = gpu.read(values).unwrap();
        values.iter().map(|x| x.to_bits()).collect()
    };
    let mut all = of(out);
    if let Some((acts, n_rows)) = acts {
        let acts = acts.rows(n_rows);
        all.extend(of(acts.values));
        all.extend(of(acts.scales));
        all.extend(gpu.read(acts.codes).unwrap().iter().map(|&x| x as u32));
        all.extend(gpu.read(acts.sums).unwrap().iter().map(|&x| x as u32));
    }
    all.extend(of(states.as_slice()));
    all
}

fn assert_same(found: &[u32], expected: &[u32], what: &str) {
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}");
    assert_eq!(expected.len(), found.len(), "{what}");
}

/// Width, taps, form of the activations.
const CONVS: [(usize, usize, ActFormat); 5] = [
    (1280, 4, ActFormat::Q8x256),
    (96, 4, ActFormat::Q8x32),
    (1064, 3, ActFormat::F32),
    (36, 2, ActFormat::F32),
    (7, 1, ActFormat::F32),
];

#[test]
fn convolutions_with_silu_have_the_bits_of_separate_launches() {
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (seed, (width, n_taps, form)) in CONVS.into_iter().enumerate() {
            let random = &mut Random(seed as u64);
            let n = n_rows(&ONE_ROW);
            let n_all = n + N_PADDING;
            let x = random.values(n_all * width);
            let weight = gpu.upload(&random.values(n_taps * width)).unwrap();
            let bias = gpu.upload(&random.values(width)).unwrap();
            let before = random.values(N_SLOTS * (n_taps - 1) * width);
            let conv = Conv {
                weight: weight.as_slice(),
                bias: (seed % 2 == 0).then(|| bias.as_slice()),
                form: ConvForm::Plain,
                width,
            };
            let uploaded = Uploaded::new(&gpu, &ONE_ROW);
            let (step, places) = uploaded.step();
            let at = (&step, &places);
            let new = || gpu.alloc::<f32>(n_all * width).unwrap();
            let acts = || ActsBuffer::new(&gpu, form, n_all, width).unwrap();
            let separate = || {
                let (x, states) = (gpu.upload(&x).unwrap(), gpu.upload(&before).unwrap());
                let (convolved, out, acts) = (new(), new(), acts());
                let (x, to, out) = (x.as_slice(), convolved.as_slice(), out.as_slice());
                ops::causal_conv(&gpu, &conv, x, at, states.as_slice(), to).unwrap();
                ops::activate(&gpu, Activation::Silu, to, out).unwrap();
                ops::quantize(&gpu, out, &acts.rows(n_all)).unwrap();
                bits(&gpu, out.part(0..n * width), Some((&acts, n)), &states)
            };
            let expected = separate();
            for place in [Place::Apart, Place::Input(0)] {
                let found = any_order(|| {
                    let (x, states) = (gpu.upload(&x).unwrap(), gpu.upload(&before).unwrap());
                    let (apart, acts) = (new(), acts());
                    let out = match place {
                        Place::Apart => apart.as_slice(),
                        Place::Input(_) => x.as_slice(),
                    };
                    let to = (out, &acts.rows(n_all));
                    ops::conv_silu(&gpu, (&conv, x.as_slice()), at, states.as_slice(), to).unwrap();
                    bits(&gpu, out.part(0..n * width), Some((&acts, n)), &states)
                });
                let what = format!(
                    "{} {n_taps} x {width} {form:?} {place:?}",
                    common::name(&gpu)
                );
                assert_same(&found, &expected, &what);
            }
        }
    }
}

/// Heads, heads of keys, values of a key and of a head of values.
const SCANS: [[usize; 4]; 4] = [
    [2, 1, 16, 128],
    [3, 3, 7, 45],
    [1, 1, 61, 30],
    [2, 1, 33, 128],
];

#[test]
fn scans_have_the_bits_of_separate_launches() {
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (seed, [n_heads, n_k_heads, k_dim, v_dim]) in SCANS.into_iter().enumerate() {
            let heads = LinearHeads {
                n_heads,
                n_k_heads,
                k_dim,
                v_dim,
                sharing: KeySharing::Neighbours,
            };
            assert!(ops::takes_selective(&heads), "{heads:?}");
            let random = &mut Random(seed as u64);
            let (n, width) = (n_rows(&ONE_ROW), n_heads * v_dim);
            let n_all = n + N_PADDING;
            // Values, what steps are computed from, the gate.
            let wide = [(); 3].map(|()| random.values(n_all * width));
            let keys = [(); 2].map(|()| random.values(n_all * n_k_heads * k_dim));
            let [q, k] = keys.map(|values| gpu.upload(&values).unwrap());
            let mut rates = random.values(heads.state_len());
            rates.iter_mut().for_each(|rate| *rate -= 1.0);
            let [rates, skip] =
                [rates, random.values(width)].map(|values| gpu.upload(&values).unwrap());
            let before = random.values(N_SLOTS * heads.state_len());
            let uploaded = Uploaded::new(&gpu, &ONE_ROW);
            let (step, places) = uploaded.step();
            let at = (&step, &places);
            let upload = || {
                let wide = wide.each_ref().map(|values| gpu.upload(values).unwrap());
                (wide, gpu.upload(&before).unwrap())
            };
            let new = || gpu.alloc::<f32>(n_all * width).unwrap();
            let separate = || {
                let (wide, states) = upload();
                let [v, dt, gate] = wide.each_ref().map(Buffer::as_slice);
                let (steps, attended, out) = (new(), new(), new());
                let (steps, attended) = (steps.as_slice(), attended.as_slice());
                ops::activate(&gpu, Activation::Softplus, dt, steps).unwrap();
                let how = (&heads, StateRule::Add, Decay::Value(rates.as_slice()));
                let inputs = LinearInputs {
                    q: q.as_slice(),
                    k: k.as_slice(),
                    v,
                    decay: steps,
                    beta: steps,
                };
                let of_heads = states.as_slice();
                ops::linear_attention(&gpu, how, inputs, at, of_heads, attended).unwrap();
                ops::scale_rows(&gpu, skip.as_slice(), v).unwrap();
                ops::add(&gpu, v, attended).unwrap();
                let out = out.as_slice();
                ops::gated_activation(&gpu, Activation::Silu, gate, attended, out).unwrap();
                bits(&gpu, out.part(0..n * width), None, &states)
            };
            let expected = separate();
            let places = (0..3).map(Place::Input).chain([Place::Apart]);
            for place in places {
                let found = any_order(|| {
                    let (wide, states) = upload();
                    let apart = new();
                    let out = match place {
                        Place::Apart => apart.as_slice(),
                        Place::Input(index) => wide[index].as_slice(),
                    };
                    let [v, dt, gate] = wide.each_ref().map(Buffer::as_slice);
                    let weights = SelectiveWeights {
                        rates: rates.as_slice(),
                        skip: skip.as_slice(),
                    };
                    let inputs = ([q.as_slice(), k.as_slice(), v], dt);
                    let to = (states.as_slice(), out);
                    ops::selective_decode(&gpu, (&heads, weights), inputs, gate, at, to).unwrap();
                    bits(&gpu, out.part(0..n * width), None, &states)
                });
                let what = format!("{} {heads:?} {place:?}", common::name(&gpu));
                assert_same(&found, &expected, &what);
            }
            assert!(expected.iter().all(|&x| f32::from_bits(x).is_finite()));
        }
    }
}
