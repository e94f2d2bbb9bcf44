//! Which quantization of a repository to download: the best that the memory of this machine holds with its context.

use rocmforge_cpu::memory::available_bytes;
use rocmforge_hub::Available;
use rocmforge_runtime::gpu::{self, OpenOptions};

use crate::output::size;

/// Names of quantizations as files have them, best first. Above six bits nothing is gained that shows in the text, and
/// each token takes longer; below four bits it is worse than that of a smaller model. Of files without quantization, only
/// where there is nothing from four to eight bits.
#[rustfmt::skip]
const BEST_FIRST: [&str; 47] = [
    "Q6_K", "Q6_K_L", "Q6_K_XL", "Q8_0", "Q8_K_XL", "Q5_K_M", "Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_1", "Q5_0",
    "MXFP4_MOE", "MXFP4", "Q4_K_XL", "Q4_K_L", "Q4_K_M", "NVFP4", "Q4_K_S", "IQ4_NL", "Q4_1", "IQ4_XS", "Q4_0",
    "BF16", "F16", "F32",
    "Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "IQ3_XXS",
    "Q2_K_XL", "Q2_K_L", "IQ2_M", "Q2_K", "IQ2_S", "Q2_K_S", "IQ2_XS", "IQ2_XXS",
    "TQ2_0", "IQ1_M", "TQ1_0", "IQ1_S", "Q2_0", "Q1_0",
];

/// The context that must fit. Its size is not known before the download.
const N_CTX: u32 = 8192;
/// What cache, buffers and a reserve take beside the weights, and a tenth of the weights, as larger models have larger
/// caches.
const BESIDE_BYTES: u64 = 1 << 30;

/// Free memory for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Such as `free on cuda:0`.
    pub place: String,
    pub bytes: u64,
}

/// The free memory of the GPUs, the largest first, and then of the machine; or as many MiB as the user has said.
pub fn memories(mib: Option<u32>) -> Vec<Memory> {
    if let Some(mib) = mib {
        return vec![Memory {
            place: "given with --memory".to_string(),
            bytes: u64::from(mib) << 20,
        }];
    }
    let options = OpenOptions::from_env();
    let gpus = gpu::survey(&options).with_free_memory(&options).devices;
    // Free memory is known of those that were opened.
    let mut all: Vec<Memory> = { gpus.into_iter() }
        .filter_map(|info| {
            Some(Memory {
                place: format!("free on {}", info.id),
                bytes: info.free_bytes?,
            })
        })
        .collect();
    all.sort_by_key(|memory| std::cmp::Reverse(memory.bytes));
    all.extend(available_bytes().map(|bytes| Memory {
        place: "free on this machine".to_string(),
        bytes,
    }));
    all
}

/// A recommended model.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice<'a> {
    /// Its index.
    pub at: usize,
    quant: &'static str,
    memory: &'a Memory,
    fit: Fit,
    beside_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// How many models were compared.
    BestOf(usize),
    /// Not even the smallest fits.
    Smallest,
}

/// Recommends one of several models: the best for the first memory that holds any. `None` if there is no choice: fewer than
/// two, two of the same quantization, or none whose name says it.
pub fn advice<'a>(models: &[Available], memories: &'a [Memory]) -> Option<Advice<'a>> {
    let mut known: Vec<(usize, usize)> = Vec::new();
    for (at, model) in models.iter().enumerate() {
        let ranks = (0..BEST_FIRST.len()).filter(|&rank| model.is_quant(BEST_FIRST[rank]));
        // A folder may repeat the name in another spelling: the longest is the exact one.
        if let Some(rank) = { ranks }.max_by_key(|&rank| BEST_FIRST[rank].len()) {
            if known.iter().any(|&(other, _)| other == rank) {
                return None;
            }
            known.push((rank, at));
        }
    }
    if models.len() < 2 {
        return None;
    }
    known.sort_unstable();
    let advice = |(rank, at): (usize, usize), memory: &'a Memory, fit| Advice {
        at,
        quant: BEST_FIRST[rank],
        memory,
        fit,
        beside_bytes: beside(models[at].bytes),
    };
    for memory in memories {
        let fits = |&&(_, at): &&(usize, usize)| {
            let bytes = models[at].bytes;
            bytes.saturating_add(beside(bytes)) <= memory.bytes
        };
        if let Some(&best) = known.iter().find(fits) {
            return Some(advice(best, memory, Fit::BestOf(known.len())));
        }
    }
    let smallest = known.into_iter().min_by_key(|&(_, at)| models[at].bytes)?;
    let largest = memories.iter().max_by_key(|memory| memory.bytes)?;
    Some(advice(smallest, largest, Fit::Smallest))
}

/// Estimates what a model of this size needs beside its weights.
fn beside(bytes: u64) -> u64 {
    BESIDE_BYTES + bytes / 10
}

impl Advice<'_> {
    /// Whether it fits.
    pub fn fits(&self) -> bool {
        self.fit != Fit::Smallest
    }

    /// Says why, or why not, in a line.
    pub fn reason(&self) -> String {
        let Advice { quant, memory, .. } = self;
        let (free, beside) = (size(memory.bytes), size(self.beside_bytes));
        let place = &memory.place;
        match self.fit {
            Fit::BestOf(n) => format!(
                "choosing {quant}: the best of {n} that fits in {free} {place}, with about {beside} for a context of {N_CTX} tokens"
            ),
            Fit::Smallest => format!(
                "even the smallest, {quant}, exceeds the {free} {place}, with about {beside} for a context of {N_CTX} tokens; name a quantization to download it all the same, or choose a smaller model"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(place: &str, gib: u64) -> Memory {
        Memory {
            place: place.to_string(),
            bytes: gib * GIB,
        }
    }

    /// A repository of a model of 8 B parameters, in tenths of GB.
    fn models() -> Vec<Available> {
        [
            ("m-BF16.gguf", 161),
            ("m-IQ2_M.gguf", 29),
            ("m-Q2_K.gguf", 32),
            ("m-Q4_0_4_4.gguf", 47),
            ("m-Q4_K_M.gguf", 49),
            ("m-Q6_K.gguf", 66),
            ("m-Q8_0.gguf", 85),
            ("m-UD-Q4_K_XL.gguf", 51),
            ("m-what.gguf", 10),
        ]
        .map(|(name, tenths)| Available {
            name: name.to_string(),
            bytes: tenths * 100_000_000,
        })
        .to_vec()
    }

    #[test]
    fn the_best_that_fits_is_chosen() {
        let models = models();
        let chosen = |memories: &[Memory]| {
            let advice = advice(&models, memories).unwrap();
            let reason = advice.reason();
            (models[advice.at].name.clone(), reason)
        };
        for (gib, expected) in [
            (80, "m-Q6_K.gguf"),
            (8, "m-Q6_K.gguf"),
            (7, "m-UD-Q4_K_XL.gguf"),
            (5, "m-IQ2_M.gguf"),
            (4, "m-IQ2_M.gguf"),
        ] {
            let (name, reason) = chosen(&[memory("free on cuda:0", gib)]);
            assert_eq!(name, expected, "{gib} GiB");
            assert!(
                reason.contains(&format!("{gib}.0 GiB free on cuda:0")),
                "{reason}"
            );
            assert!(reason.contains("context of 8192 tokens"), "{reason}");
        }
        // What no GPU holds may fit in the machine's memory.
        let small = [
            memory("free on cuda:0", 2),
            memory("free on this machine", 8),
        ];
        let (name, reason) = chosen(&small);
        assert_eq!(name, "m-Q6_K.gguf");
        assert!(reason.contains("free on this machine"), "{reason}");
        let (name, reason) = chosen(&small[..1]);
        assert_eq!(name, "m-IQ2_M.gguf");
        assert!(reason.contains("exceed"), "{reason}");
        assert_eq!(advice(&models, &[]), None);
    }

    #[test]
    fn there_is_no_advice_without_a_choice() {
        let models = models();
        let memories = [memory("here", 80)];
        assert_eq!(advice(&models[5..6], &memories), None);
        assert_eq!(advice(&models[8..], &memories), None);
        let mut twice = models.clone();
        twice[0].name = "other/m-Q6_K.gguf".to_string();
        assert_eq!(advice(&twice, &memories), None);
    }

    /// Each quantization that the program makes is in the list, and its formats are computed.
    #[test]
    fn the_list_has_the_known_file_types() {
        use rocmforge_gguf::GgmlType;
        use rocmforge_quantize::FileType;
        for file_type in FileType::ALL {
            let Some(ty) = file_type.tensor_type() else {
                continue;
            };
            assert!(GgmlType::COMPUTED.contains(&ty), "{ty:?}");
            let name = file_type.name();
            assert!(
                BEST_FIRST.contains(&name) || name.starts_with("MXFP"),
                "{name}"
            );
        }
    }
}
