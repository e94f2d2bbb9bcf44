//! The widths of released models, from their configuration files, for the architectures of the rows: what a row says, with
//! so many values, heads and experts. The layers are the fewest among which one of each kind is. Some experts are left out
//! where the layers would take more than 6 GB in Q8_0. The vocabulary stays small.

use super::Key::{F, Ints, U};
use super::{Key, Latent, Mixture, Outline, Recurrent, Row, find};

/// A row in the widths of a released model.
struct Released {
    name: &'static str,
    row: &'static str,
    n_layers: usize,
    change: fn(Row) -> Row,
}

/// Names of the released models.
pub fn names() -> impl Iterator<Item = &'static str> {
    RELEASED.iter().map(|released| released.name)
}

/// Returns the model of this name, `None` if there is none.
pub fn outline(name: &str) -> Option<Outline> {
    Some(row(name)?.outline())
}

/// Returns the positions that are visible in the model's layers with windows, if it has such layers.
pub fn window(name: &str) -> Option<usize> {
    let row = row(name)?;
    let mut keys = row.keys.iter().chain(row.released).rev();
    keys.find_map(|(key, value)| match value {
        U(n) if *key == "attention.sliding_window" => Some(*n as usize),
        _ => None,
    })
}

fn row(name: &str) -> Option<Row> {
    let released = RELEASED.iter().find(|released| released.name == name)?;
    let row = find(released.row).expect("a row that exists");
    Some((released.change)(Row {
        name: released.name,
        n_layers: released.n_layers,
        // They are left out when a model is loaded.
        n_nextn: 0,
        ..*row
    }))
}

impl Row {
    /// Width of the embedding and of the networks; query heads, heads of K and V, values per head.
    fn wide(self, [n_embd, n_ff]: [usize; 2], heads: [usize; 3]) -> Row {
        Row {
            n_embd,
            n_ff,
            heads,
            ..self
        }
    }

    /// Experts, those used by a token, the width of each, and of the shared ones together.
    fn experts(self, [n_experts, n_used, n_ff, n_ff_shared]: [usize; 4]) -> Row {
        let mixture = self.mixture.map(|mixture| Mixture {
            n_experts,
            n_used: n_used as u32,
            n_ff,
            n_ff_shared: (n_ff_shared > 0).then_some(n_ff_shared),
            ..mixture
        });
        Row { mixture, ..self }
    }

    /// Heads, ranks of queries and of keys and values, plain and rotated values of a key, values per head of V.
    fn ranks(self, [n_heads, q_rank, kv_rank, n_plain, n_rot, v_dim]: [usize; 6]) -> Row {
        let latent = self.latent.map(|latent| Latent {
            n_heads,
            q_rank,
            kv_rank,
            n_plain,
            n_rot,
            v_dim,
            ..latent
        });
        Row { latent, ..self }
    }

    /// Heads of values and of keys, values per head of a key and of a value.
    fn states(self, heads: [usize; 4]) -> Row {
        let recurrent = self
            .recurrent
            .map(|recurrent| Recurrent { heads, ..recurrent });
        Row { recurrent, ..self }
    }

    fn windows(self, windows: &'static [bool]) -> Row {
        Row { windows, ..self }
    }

    fn factors(self, n_factors: usize) -> Row {
        Row { n_factors, ..self }
    }

    fn keys(self, released: &'static [(&'static str, Key)]) -> Row {
        Row { released, ..self }
    }
}

const fn released(
    (name, row): (&'static str, &'static str),
    n_layers: usize,
    change: fn(Row) -> Row,
) -> Released {
    Released {
        name,
        row,
        n_layers,
        change,
    }
}

const N_ROT: &str = "rope.dimension_count";
const SECTIONS: &str = "rope.dimension_sections";
const WINDOW: &str = "attention.sliding_window";
const PERIOD: &str = "attention.sliding_window_pattern";
const SHARED: &str = "expert_shared_feed_forward_length";
const N_SHARED: &str = "expert_shared_count";

/// Model and row; layers; embedding, feed-forward; heads, KV heads, head size; experts, used, width, shared.
#[rustfmt::skip]
static RELEASED: &[Released] = &[
    released(("qwen2.5-vl-7b", "qwen2vl"), 2, |r| r.wide([3584, 18944], [28, 4, 128]).keys(&[(SECTIONS, Ints(&[16, 24, 24, 0])), ("rope.freq_base", F(1e6))])),
    released(("qwen2.5-omni-3b", "qwen2_5_omni"), 2, |r| r.wide([2048, 11008], [16, 2, 128])),
    released(("qwen3-vl-4b", "qwen3vl"), 2, |r| r.wide([2560, 9728], [32, 8, 128]).keys(&[(SECTIONS, Ints(&[24, 20, 20, 0])), ("rope.freq_base", F(5e6))])),
    released(("qwen3-vl-30b-a3b", "qwen3vlmoe"), 2, |r| r.wide([2048, 6144], [32, 4, 128]).experts([128, 8, 768, 0]).keys(&[(SECTIONS, Ints(&[24, 20, 20, 0]))])),
    released(("glm-4-9b-0414", "glm4"), 2, |r| r.wide([4096, 13696], [32, 2, 128]).keys(&[(N_ROT, U(64))])),
    released(("glm-4.1v-9b", "glm4_vision"), 2, |r| r.wide([4096, 13696], [32, 2, 128]).keys(&[(N_ROT, U(64)), (SECTIONS, Ints(&[8, 12, 12, 0]))])),
    released(("glm-4.5-air", "glm4moe"), 2, |r| r.wide([4096, 10944], [96, 8, 128]).experts([128, 8, 1408, 1408]).keys(&[(N_ROT, U(64))])),
    // Half of its 256 experts.
    released(("minimax-m2", "minimax_m2"), 2, |r| r.wide([3072, 1536], [48, 8, 128]).experts([128, 8, 1536, 0]).keys(&[(N_ROT, U(64))])),
    released(("minicpm4-8b", "minicpm"), 2, |r| r.wide([4096, 16384], [32, 2, 128]).keys(&[("logit_scale", F(16.0))])),
    released(("granite-3.1-3b-a800m", "granitemoe_single"), 2, |r| r.wide([1536, 512], [24, 8, 64]).experts([40, 8, 512, 0]).keys(&[("residual_scale", F(0.22))])),
    released(("ling-lite", "bailingmoe"), 2, |r| r.wide([2048, 5632], [16, 4, 128]).experts([64, 6, 1408, 2816])),
    released(("ling-mini-2.0", "bailingmoe2"), 2, |r| r.wide([2048, 5120], [16, 4, 128]).experts([256, 8, 512, 512]).keys(&[("expert_group_count", U(8)), ("expert_group_used_count", U(4)), (N_ROT, U(64))])),
    released(("ernie-4.5-0.3b", "ernie4_5"), 2, |r| r.wide([1024, 3072], [16, 2, 128])),
    released(("ernie-4.5-21b-a3b", "ernie4_5_moe"), 2, |r| r.wide([2560, 12288], [20, 4, 128]).experts([64, 6, 1536, 3072]).keys(&[(SHARED, U(3072))])),
    released(("hunyuan-7b", "hunyuan_dense"), 2, |r| r.wide([4096, 14336], [32, 8, 128])),
    released(("hunyuan-a13b", "hunyuan_moe"), 2, |r| r.wide([4096, 3072], [32, 8, 128]).experts([64, 8, 3072, 3072]).keys(&[(SHARED, U(3072))])),
    released(("hy3-preview", "hy_v3"), 2, |r| r.wide([4096, 13312], [64, 8, 128]).experts([192, 8, 1536, 1536])),
    released(("muse-glimmer-30b", "muse_glimmer"), 2, |r| r.wide([6656, 19968], [32, 2, 128]).keys(&[(WINDOW, U(2048)), (PERIOD, U(2)), ("final_logit_softcapping", F(20.0))])),
    released(("command-r-35b", "command_r"), 2, |r| r.wide([8192, 22528], [64, 64, 128])),
    released(("command-r7b", "cohere2"), 2, |r| r.wide([4096, 14336], [32, 8, 128]).keys(&[(WINDOW, U(4096)), (PERIOD, U(2))])),
    released(("exaone-4.0-32b", "exaone4"), 2, |r| r.wide([5120, 27392], [40, 8, 128])),
    released(("olmoe-1b-7b", "olmoe"), 2, |r| r.wide([2048, 1024], [16, 16, 128]).experts([64, 8, 1024, 0])),
    released(("gemma-2b", "gemma"), 2, |r| r.wide([2048, 16384], [8, 1, 256])),
    released(("deepseek-moe-16b", "deepseek"), 2, |r| r.wide([2048, 10944], [16, 16, 128]).experts([64, 6, 1408, 2816])),
    released(("stablelm-2-1.6b", "stablelm"), 2, |r| r.wide([2048, 5632], [32, 32, 64]).keys(&[(N_ROT, U(16))])),
    released(("stablelm-2-12b", "stablelm_12b"), 2, |r| r.wide([5120, 13824], [32, 8, 160]).keys(&[(N_ROT, U(40))])),
    released(("internlm2-7b", "internlm2"), 2, |r| r.wide([4096, 14336], [32, 8, 128])),
    released(("phi-2", "phi2"), 2, |r| r.wide([2560, 10240], [32, 32, 80]).keys(&[(N_ROT, U(32))])),
    released(("falcon-7b", "falcon"), 2, |r| r.wide([4544, 18176], [71, 1, 64])),
    released(("falcon-40b", "falcon_two_norms"), 2, |r| r.wide([8192, 32768], [128, 8, 64])),
    released(("minitron-8b", "nemotron"), 2, |r| r.wide([4096, 16384], [48, 8, 128]).keys(&[(N_ROT, U(64))])),
    released(("afm-4.5b", "arcee"), 2, |r| r.wide([2560, 18432], [20, 4, 128])),
    released(("dots.llm1", "dots1"), 2, |r| r.wide([4096, 10944], [32, 32, 128]).experts([128, 6, 1408, 2816]).keys(&[(N_SHARED, U(2))])),
    // A quarter of its 256 experts.
    released(("deepseek-v3", "deepseek3"), 2, |r| r.wide([7168, 18432], [128, 1, 192]).ranks([128, 1536, 512, 128, 64, 128]).experts([64, 8, 2048, 2048]).keys(&[("expert_group_count", U(8)), ("expert_group_used_count", U(4))])),
    // Half of its 16 experts.
    released(("llama-4-scout", "llama4"), 4, |r| every_layer(r).wide([5120, 16384], [40, 8, 128]).experts([8, 1, 8192, 8192]).factors(64).keys(&[("interleave_moe_layer_step", U(1))])),
    released(("phi-3.5-moe", "phimoe"), 2, |r| r.wide([4096, 6400], [32, 8, 128]).experts([16, 2, 6400, 0]).factors(64)),
    released(("apertus-8b", "apertus"), 2, |r| r.wide([4096, 21504], [32, 8, 128]).factors(64)),
    released(("smallthinker-21b-a3b", "smallthinker"), 2, |r| r.wide([2560, 768], [28, 4, 128]).experts([64, 6, 768, 0]).keys(&[(WINDOW, U(4096))])),
    released(("maincoder-1b", "maincoder"), 2, |r| r.wide([1536, 4096], [16, 4, 96])),
    released(("openpangu-embedded-7b", "pangu_embedded"), 2, |r| r.wide([4096, 12800], [32, 8, 128])),
    released(("exaone-3.5-7.8b", "exaone"), 2, |r| r.wide([4096, 14336], [32, 8, 128]).factors(64)),
    released(("chatglm3-6b", "chatglm"), 2, |r| r.wide([4096, 13696], [32, 2, 128]).keys(&[(N_ROT, U(64))])),
    released(("deepseek-ocr", "deepseek2_ocr"), 2, |r| r.wide([1280, 6848], [10, 10, 128]).experts([64, 6, 896, 1792])),
    released(("hunyuan-ocr", "hunyuan_vl"), 2, |r| r.wide([1024, 3584], [16, 8, 128]).keys(&[(SECTIONS, Ints(&[22, 21, 21, 0]))])),
    released(("paddleocr-vl", "paddleocr"), 2, |r| r.wide([1024, 3072], [16, 2, 128]).keys(&[(SECTIONS, Ints(&[16, 24, 24, 0]))])),
    released(("plm-1.8b", "plm"), 2, |r| r.wide([2048, 8192], [16, 16, 192]).ranks([16, 0, 512, 128, 64, 128])),
    // As PLaMo 2 8B, with more heads of K and V; not from its configuration file.
    released(("plamo-3-8b", "plamo3"), 2, |r| r.wide([4096, 16384], [32, 4, 128]).keys(&[(WINDOW, U(2048))])),
    released(("jais-2-8b", "jais2"), 2, |r| r.wide([3328, 26624], [26, 26, 128])),
    // An eighth of its 128 experts.
    released(("arctic", "arctic"), 2, |r| r.wide([7168, 4864], [56, 8, 128]).experts([16, 2, 4864, 0])),
    // Its first layer, one of the middle, and the last.
    released(("openelm-3b", "openelm"), 3, |r| Row { uneven: &[[12, 3, 1536], [16, 4, 6912], [24, 6, 12288]], ..r.wide([3072, 12288], [12, 3, 128]) }),
    released(("olmo-7b", "olmo"), 2, |r| r.wide([4096, 11008], [32, 32, 128])),
    // Each of its kinds of layer: also without attention, empty, and with a product in place of attention.
    released(("nemotron-51b", "deci"), 4, |r| Row { uneven: &[[64, 8, 28672], [0, 0, 5632], [0, 0, 0], [64, 0, 11264]], ..r.wide([8192, 28672], [64, 8, 128]).factors(64) }),
    // Windows of three layers in four; the fourth sees everything and does not rotate.
    released(("laguna-xs.2", "laguna"), 3, |r| Row { window_heads: [64, 8], ..r.wide([2048, 8192], [48, 8, 128]).windows(&[false, true, false]).experts([256, 8, 512, 512]).keys(&[(WINDOW, U(512)), (N_ROT, U(64)), ("rope.dimension_count_swa", U(128)), (SHARED, U(512))]) }),
    // A quarter of its 256 experts.
    released(("mimo-v2-flash", "mimo2"), 3, |r| Row { window_heads: [64, 8], v_dim: 128, ..r.wide([4096, 16384], [64, 4, 192]).windows(&[false, true, false]).experts([64, 8, 2048, 0]).keys(&[(WINDOW, U(128)), (N_ROT, U(64))]) }),
    // A third of its 288 experts.
    released(("step-3.5-flash", "step35"), 3, |r| Row { window_heads: [96, 8], ..r.wide([4096, 11264], [64, 8, 128]).windows(&[false, true, false]).experts([96, 8, 1280, 1280]).factors(64).keys(&[(WINDOW, U(512)), (SHARED, U(1280))]) }),
    released(("ministral-3-3b", "mistral3_tied"), 2, |r| r.wide([3072, 9216], [32, 8, 128]).keys(&[("attention.temperature_scale", F(0.1)), ("rope.scaling.factor", F(16.0)), ("rope.freq_base", F(1e6))])),
    // The widths of Command R7B with 64 experts; those of the released model are not known here.
    released(("command-moe", "cohere2moe"), 3, |r| r.wide([4096, 14336], [32, 8, 128]).experts([64, 8, 1792, 1792]).keys(&[(WINDOW, U(4096)), (PERIOD, U(2))])),
    // A quarter of its 128 experts.
    released(("k-exaone-236b", "exaone_moe"), 3, |r| r.wide([6144, 18432], [64, 8, 128]).windows(&[true, true, false]).experts([32, 8, 2048, 2048]).keys(&[(WINDOW, U(128))])),
    released(("trinity-mini", "afmoe"), 4, |r| r.wide([2048, 6144], [32, 4, 128]).experts([128, 8, 1024, 1024]).keys(&[(WINDOW, U(2048))])),
    released(("mellum2-12b-a2.5b", "mellum"), 2, |r| r.wide([2304, 7168], [32, 4, 128]).experts([64, 8, 896, 0]).keys(&[(WINDOW, U(1024)), (PERIOD, U(2))])),
    released(("lfm2-1.2b", "lfm2"), 2, |r| r.wide([2048, 8192], [32, 8, 64])),
    released(("lfm2-8b-a1b", "lfm2moe"), 3, |r| r.wide([2048, 7168], [32, 8, 64]).experts([32, 4, 1792, 0])),
    released(("qwen3-next-80b-a3b", "qwen3next"), 2, |r| r.wide([2048, 5120], [16, 2, 256]).states([32, 16, 128, 128]).experts([512, 10, 512, 512]).keys(&[(SHARED, U(512)), (N_ROT, U(64))])),
    released(("mamba-codestral-7b", "mamba2"), 2, |r| r.wide([4096, 512], [8, 2, 512]).states([128, 8, 128, 64])),
    released(("granite-4.0-h-micro", "granitehybrid"), 2, |r| r.wide([2048, 8192], [32, 8, 64]).states([64, 1, 128, 64])),
    released(("granite-4.0-h-tiny", "granitehybrid_moe"), 2, |r| r.wide([1536, 512], [12, 4, 128]).states([48, 1, 128, 64]).experts([64, 6, 512, 1024]).keys(&[(SHARED, U(1024))])),
    released(("falcon-h1-7b", "falcon_h1"), 2, |r| r.wide([3072, 12288], [12, 2, 128]).states([24, 1, 256, 128])),
    released(("nemotron-nano-9b-v2", "nemotron_h"), 3, |r| r.wide([4480, 15680], [40, 8, 128]).states([128, 8, 128, 80])),
    released(("nemotron-3-nano-30b-a3b", "nemotron_h_moe"), 3, |r| r.wide([2688, 1856], [32, 2, 128]).states([64, 8, 128, 64]).experts([128, 6, 1856, 3712]).keys(&[(SHARED, U(3712))])),
    released(("nemotron-3-super-120b-a12b", "nemotron_h_latent"), 3, |r| latent_experts(r, 1024).wide([4096, 2688], [32, 2, 128]).states([128, 8, 128, 64]).experts([512, 22, 2688, 5376]).keys(&[(SHARED, U(5376)), ("moe_latent_size", U(1024))])),
    released(("kimi-linear-48b-a3b", "kimi_linear"), 2, |r| r.wide([2304, 9216], [32, 1, 128]).ranks([32, 0, 512, 128, 64, 128]).states([32, 32, 128, 128]).experts([256, 8, 1024, 1024])),
    // The width and the experts of Ling 3 tiny; its heads are not known here.
    released(("ling-3-tiny", "bailingmoe3"), 2, |r| r.wide([1536, 6144], [12, 1, 128]).ranks([12, 0, 512, 128, 64, 128]).states([12, 12, 128, 128]).experts([128, 8, 512, 512]).keys(&[(SHARED, U(512))])),
    released(("jamba-v0.1", "jamba"), 2, |r| r.wide([4096, 14336], [32, 8, 128]).states([256, 1, 16, 32]).experts([16, 2, 14336, 0])),
    released(("mamba-2.8b", "mamba"), 2, |r| r.wide([2560, 512], [8, 2, 320]).states([160, 1, 16, 32])),
    released(("falcon-mamba-7b", "falcon_mamba"), 2, |r| r.wide([4096, 512], [8, 2, 512]).states([256, 1, 16, 32])),
    // What llama.cpp's converter takes for numbers that a configuration file does not state.
    released(("plamo-2-8b", "plamo2"), 2, |r| r.wide([4096, 13312], [32, 4, 128]).states([64, 1, 64, 128])),
    // Half of its experts.
    released(("grok-1", "grok"), 2, |r| r.wide([6144, 32768], [48, 8, 128]).experts([4, 2, 32768, 0]).keys(&[("embedding_scale", F(78.383_67)), ("logit_scale", F(0.577_350_3)), ("attention.output_scale", F(0.088_388_35)), ("attn_logit_softcapping", F(30.0))])),
    released(("bitnet-b1.58-large", "bitnet"), 2, |r| r.wide([1536, 4096], [16, 16, 96])),
    released(("gemma-3n-e2b", "gemma3n_wide"), 5, |r| r.wide([2048, 8192], [8, 2, 256]).keys(&[(WINDOW, U(512))])),
];

/// The row with experts in every layer.
fn every_layer(row: Row) -> Row {
    let mixture = row.mixture.map(|mixture| Mixture {
        period: 1,
        ..mixture
    });
    Row { mixture, ..row }
}

/// The row with projections of this width around the experts.
fn latent_experts(row: Row, n_latent: usize) -> Row {
    let mixture = row.mixture.map(|mixture| Mixture {
        n_latent: Some(n_latent),
        ..mixture
    });
    Row { mixture, ..row }
}
