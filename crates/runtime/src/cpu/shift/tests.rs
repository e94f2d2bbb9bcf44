//! With relative positions, a prompt computed at higher positions and shifted back must leave the same cache as the
//! prompt at its own positions. This covers every layer, RoPE table, style and factor, independent of the code under
//! test.

use rocmforge_testkit::models as synth;
use std::sync::Arc;

use rocmforge_cpu::Isa;
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_plan::SlotRun;

use super::super::{CpuBackend, CpuOptions};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_plan::{Batch, BatchSeq, InputToken};
use rocmforge_plan::{KvShift, KvType};

const PAGE: usize = 16;
/// Longer than a sliding window of 64.
const N_TOKENS: usize = 80;
const BACK_BY: u32 = 37;

fn backend(model: &Model) -> CpuBackend {
    let options = CpuOptions {
        isa: Isa::detect(),
        n_threads: 1,
        page: PAGE,
        n_blocks: N_TOKENS / PAGE,
        kv_types: KvType::F32.into(),
        n_slots: 1,
    };
    let mut plan = model.compiled_plan(Fusion::On);
    plan.rope
        .iter_mut()
        .for_each(|table| table.settle(N_TOKENS));
    CpuBackend::new(plan, Arc::clone(&model.weights), options)
}

/// Returns a prompt whose first token is at position `first`.
fn prompt_at(first: u32, n_vocab: usize) -> Batch {
    let n = N_TOKENS as u32;
    Batch {
        tokens: synth::prompt(N_TOKENS, n_vocab)
            .into_iter()
            .map(InputToken::Id)
            .collect(),
        positions: (first..first + n).collect(),
        slots: (0..n).collect(),
        seqs: vec![BatchSeq {
            first_row: 0,
            n_rows: N_TOKENS,
            first_pos: 0,
            block_table: Arc::new((0..n / PAGE as u32).collect()),
            state: None,
        }],
        ..Batch::default()
    }
}

#[test]
fn shifted_prompt_leaves_the_cache_of_an_unshifted_one() {
    let names = synth::NAMES.into_iter().filter(|name| *name != "gpt2");
    for name in names {
        let writer = synth::model(name, GgmlType::F32).unwrap().unwrap();
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let n_vocab = model.config.n_vocab;
        let (mut wanted, mut got) = (backend(&model), backend(&model));
        wanted.run(&prompt_at(0, n_vocab));
        got.run(&prompt_at(BACK_BY, n_vocab));
        let runs = (0..N_TOKENS / PAGE).map(|block| SlotRun {
            from: (block * PAGE) as u32,
            to: (block * PAGE) as u32,
            n_tokens: PAGE as u32,
        });
        let before = got.copied_cache();
        got.shift(&KvShift {
            turned: runs.collect(),
            back_by: BACK_BY,
            ..KvShift::default()
        });
        let mut n_turned = 0;
        let (got, wanted) = (got.copied_cache(), wanted.copied_cache());
        for (layer, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            for (part, (got, wanted)) in got.parts().iter().zip(&wanted.parts()).enumerate() {
                let largest = wanted.values.iter().fold(0f32, |m, x| m.max(x.abs()));
                for (got, wanted) in got.values.iter().zip(wanted.values.iter()) {
                    let error = (got - wanted).abs() / largest;
                    assert!(
                        error < 1e-4,
                        "{name}, layer {layer}, {part}: {got}, not {wanted}"
                    );
                }
            }
            n_turned += usize::from(!got.is_same(&before[layer]));
        }
        let n_layers = got.len();
        let expected = if name == "smollm3" { 3 } else { n_layers };
        assert_eq!(n_turned, expected, "{name}");
    }
}
