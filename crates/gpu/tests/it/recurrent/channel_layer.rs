//! All between the products of a layer with a decay of each channel in one launch, against the separate launches.

use rocmforge_gpu::ops::{self, ChannelFactors, ChannelInput, Conv, GroupNorm};
use rocmforge_gpu::{Activation, Buffer, Gpu, SeqState, Slice};
use rocmforge_plan::{ConvForm, Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::{N_PADDING, N_SLOTS, ONE_ROW, Sequence, Uploaded, n_rows};
use crate::common;
use crate::common::any_order;
use crate::common::weights::Random;

const EPS: f32 = 1e-4;

/// Heads, values of a key and of a head of values, taps, and the bound of decays.
const LAYERS: [([usize; 4], Option<f32>); 6] = [
    ([2, 128, 128, 4], None),
    ([3, 128, 128, 4], Some(-5.0)),
    ([4, 32, 32, 4], None),
    ([1, 64, 40, 2], Some(-3.0)),
    ([5, 7, 7, 1], None),
    ([3, 50, 128, 3], None),
];

/// No sequence begins from zeros, and one of them keeps copies.
const FROM_SLOTS: [Sequence; 2] = [
    Sequence {
        n_rows: 1,
        slot: 2,
        start: 2,
        kept: &[(0, 6), (1, 7)],
    },
    Sequence {
        n_rows: 1,
        slot: 8,
        start: 3,
        kept: &[],
    },
];

/// A layer's inputs and weights, and the states before the step.
struct Layer {
    heads: LinearHeads,
    bound: Option<f32>,
    /// Queries, keys, values, decays, the gate and beta.
    inputs: [Vec<f32>; 6],
    /// Of the convolutions.
    kernels: [Buffer; 3],
    norms: [Buffer; 3],
    rate: Buffer,
    /// Of the convolutions, and of the heads.
    states: [Vec<f32>; 4],
}

/// A layer's inputs, its states and its output in device memory.
struct Memory {
    inputs: [Buffer; 6],
    states: [Buffer; 4],
    out: Buffer,
}

impl Layer {
    fn new(
        gpu: &Gpu,
        ([n_heads, k_dim, v_dim, n_taps], bound): ([usize; 4], Option<f32>),
        n_rows: usize,
        random: &mut Random,
    ) -> Layer {
        let heads = LinearHeads {
            n_heads,
            n_k_heads: n_heads,
            k_dim,
            v_dim,
            sharing: KeySharing::Neighbours,
        };
        let (n_k, n_v) = (n_heads * k_dim, n_heads * v_dim);
        let upload = |values: Vec<f32>| gpu.upload(&values).unwrap();
        let rate = random.values(n_k).iter().map(|x| -1.0 - x).collect();
        let mut state = random.values(N_SLOTS * heads.state_len());
        // Columns behind the last one of a head are zeros.
        let columns = heads.columns();
        for (i, value) in state.iter_mut().enumerate() {
            let of_head = i % heads.head_len();
            let column = of_head / (k_dim * columns) * columns + i % columns;
            if column >= v_dim {
                *value = 0.0;
            }
        }
        let convs = [n_k, n_k, n_v].map(|width| random.values(N_SLOTS * (n_taps - 1) * width));
        let [q, k, v] = convs;
        Layer {
            heads,
            bound,
            inputs: [n_k, n_k, n_v, n_k, n_v, n_heads].map(|width| random.values(n_rows * width)),
            kernels: [n_k, n_k, n_v].map(|width| upload(random.values(n_taps * width))),
            norms: [k_dim, k_dim, v_dim].map(|width| upload(random.values(width))),
            rate: upload(rate),
            states: [q, k, v, state],
        }
    }

    fn memory(&self, gpu: &Gpu) -> Memory {
        Memory {
            inputs: { self.inputs.each_ref() }.map(|values| gpu.upload(values).unwrap()),
            states: { self.states.each_ref() }.map(|values| gpu.upload(values).unwrap()),
            out: gpu.upload(&vec![7.5f32; self.inputs[4].len()]).unwrap(),
        }
    }

    fn norm(&self, index: usize) -> GroupNorm<'_> {
        GroupNorm {
            weight: self.norms[index].as_slice(),
            eps: EPS,
        }
    }

    /// Returns the output and the states of the separate launches.
    fn separate(&self, gpu: &Gpu, sequences: &[Sequence]) -> Vec<f32> {
        let uploaded = Uploaded::new(gpu, sequences);
        let (step, places) = uploaded.step();
        let (step, places) = (&step, &places);
        let memory = self.memory(gpu);
        let [q, k, v, decay, gate, beta] = memory.inputs.each_ref().map(Buffer::as_slice);
        let new = |like: Slice<'_, f32>| gpu.alloc::<f32>(like.len()).unwrap();
        let [of_q, of_k, of_v, of_heads] = memory.states.each_ref().map(Buffer::as_slice);
        let [q, k, v] = [(q, of_q, 0), (k, of_k, 1), (v, of_v, 2)].map(|(x, states, index)| {
            let conv = Conv {
                weight: self.kernels[index].as_slice(),
                bias: None,
                form: ConvForm::Plain,
                width: x.len() / step.n_rows(),
            };
            let (convolved, out) = (new(x), new(x));
            let to = convolved.as_slice();
            ops::causal_conv(gpu, &conv, x, (step, places), states, to).unwrap();
            ops::activate(gpu, Activation::Silu, to, out.as_slice()).unwrap();
            if index == 2 {
                return out;
            }
            let norm = self.norm(index);
            ops::rms_norm(gpu, out.as_slice(), norm.weight, norm.eps, to).unwrap();
            convolved
        });
        let (open, factor) = (new(decay), new(beta));
        match self.bound {
            None => {
                ops::activate(gpu, Activation::Softplus, decay, open.as_slice()).unwrap();
                ops::scale_rows(gpu, self.rate.as_slice(), open.as_slice()).unwrap();
            }
            Some(bound) => {
                ops::scale_rows(gpu, self.rate.as_slice(), decay).unwrap();
                ops::activate(gpu, Activation::Sigmoid, decay, open.as_slice()).unwrap();
                ops::scale(gpu, bound, open.as_slice()).unwrap();
            }
        }
        ops::activate(gpu, Activation::Sigmoid, beta, factor.as_slice()).unwrap();
        let inputs = LinearInputs {
            q: q.as_slice(),
            k: k.as_slice(),
            v: v.as_slice(),
            decay: open.as_slice(),
            beta: factor.as_slice(),
        };
        let (attended, normed) = (new(gate), new(gate));
        let (attended, normed) = (attended.as_slice(), normed.as_slice());
        let how = (&self.heads, StateRule::Delta, Decay::Channel);
        ops::linear_attention(gpu, how, inputs, (step, places), of_heads, attended).unwrap();
        let norm = self.norm(2);
        ops::rms_norm(gpu, attended, norm.weight, norm.eps, normed).unwrap();
        let out = memory.out.as_slice();
        ops::gated_activation(gpu, Activation::Sigmoid, gate, normed, out).unwrap();
        self.read(gpu, sequences, &memory, &memory.out)
    }

    /// Returns the output and the states of one launch that writes to this input, or to memory of its own.
    fn fused(&self, gpu: &Gpu, sequences: &[Sequence], place: Option<usize>) -> Vec<f32> {
        let uploaded = Uploaded::new(gpu, sequences);
        let (step, places) = uploaded.step();
        any_order(|| {
            let memory = self.memory(gpu);
            let [q, k, v, decay, gate, beta] = memory.inputs.each_ref().map(Buffer::as_slice);
            let [of_q, of_k, of_v, of_heads] = memory.states.each_ref().map(Buffer::as_slice);
            let input = |index: usize, x, states| ChannelInput {
                x,
                conv: self.kernels[index].as_slice(),
                states,
                norm: (index < 2).then(|| self.norm(index)),
            };
            let parts = [input(0, q, of_q), input(1, k, of_k), input(2, v, of_v)];
            let factors = ChannelFactors {
                beta,
                decay,
                rate: self.rate.as_slice(),
                bound: self.bound,
            };
            let out = place.map_or(&memory.out, |index| &memory.inputs[index]);
            ops::channel_decode(
                gpu,
                &self.heads,
                (parts, factors),
                (self.norm(2), gate),
                (&step, &places),
                (of_heads, out.as_slice()),
            )
            .unwrap();
            self.read(gpu, sequences, &memory, out)
        })
    }

    /// The rows of sequences in `out`, and the states.
    fn read(&self, gpu: &Gpu, sequences: &[Sequence], memory: &Memory, out: &Buffer) -> Vec<f32> {
        let mut all = gpu.read(out.as_slice::<f32>()).unwrap();
        all.truncate(n_rows(sequences) * self.heads.n_heads * self.heads.v_dim);
        for states in &memory.states {
            all.extend(gpu.read(states.as_slice::<f32>()).unwrap());
        }
        all
    }
}

/// The same bits as the separate launches, which are compared with their formulas, also where the output replaces an input.
#[test]
fn one_launch_has_the_bits_of_many() {
    for (turn, gpu) in common::gpus_with(&["loads=narrow"]).enumerate() {
        for (seed, shape) in LAYERS.into_iter().enumerate() {
            for sequences in common::every_second([&ONE_ROW[..], &FROM_SLOTS], turn + seed) {
                let random = &mut Random(seed as u64);
                let layer = Layer::new(&gpu, shape, n_rows(sequences) + N_PADDING, random);
                assert!(ops::takes_channels(&layer.heads), "{:?}", layer.heads);
                let expected = layer.separate(&gpu, sequences);
                let k_dim = layer.heads.k_dim;
                let inputs: &[usize] = match k_dim == layer.heads.v_dim {
                    true => &[0, 1, 2, 3, 4],
                    false => &[2, 4],
                };
                let places = inputs.iter().map(|&index| Some(index));
                for place in places.chain([None]) {
                    let found = layer.fused(&gpu, sequences, place);
                    let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
                    let what = format!("{} {shape:?} in {place:?}", common::name(&gpu));
                    assert_eq!(differs, None, "{what}");
                    assert_eq!(expected.len(), found.len(), "{what}");
                }
                assert!(expected.iter().all(|x| x.is_finite()), "{shape:?}");
            }
        }
    }
}

/// Keys that heads share would have their convolution in several blocks, and longer ones no lanes.
#[test]
fn other_heads_are_left_to_separate_launches() {
    for ([n_heads, n_k_heads, k_dim, v_dim], takes) in [
        ([4, 4, 128, 128], true),
        ([4, 2, 128, 128], false),
        ([4, 4, 129, 128], false),
        ([4, 4, 128, 129], false),
    ] {
        let heads = LinearHeads {
            n_heads,
            n_k_heads,
            k_dim,
            v_dim,
            sharing: KeySharing::Neighbours,
        };
        assert_eq!(ops::takes_channels(&heads), takes, "{heads:?}");
    }
    assert_eq!(ONE_ROW[1].start, SeqState::EMPTY, "one begins from zeros");
}
