//! Whole models with PLaMo's vocabulary, from text to text.

use std::sync::Arc;

use rocmforge::{Device, ModelFile, ModelOptions};
use rocmforge_gguf::{GgmlType, Gguf, TokenId};
use rocmforge_testkit::models::plamo;
use rocmforge_text::tokenizer::{Detokenizer, EncodeOptions, LeadingSpace, SpecialText, Tokenizer};

use crate::devices;

/// A prompt with its ids and those of the greedy answer. The ids are llama.cpp's for the same file (`cargo xtask gen-model`
/// MODEL F32); its logits of the best two tokens differ by 0.006 or more in each step.
struct Case {
    model: &'static str,
    prompt: &'static str,
    prompt_ids: &'static [TokenId],
    answer_ids: &'static [TokenId],
}

const CASES: [Case; 6] = [
    Case {
        model: "plamo2_words",
        prompt: "night and light, 日本語の川は流れる。",
        prompt_ids: &[340, 297, 360, 341, 288, 360, 350, 345, 357, 346, 359, 352],
        answer_ids: &[
            463, 30, 426, 70, 366, 299, 476, 368, 347, 75, 226, 401, 142, 75, 340, 474, 142, 228,
            103, 473, 397, 364, 75, 439,
        ],
    },
    Case {
        model: "plamo2_words",
        prompt: "two small 東京 🙂 moons\n\n'er'",
        prompt_ids: &[
            280, 283, 275, 314, 360, 354, 360, 245, 164, 158, 135, 318, 279, 362, 291, 322, 291,
        ],
        answer_ids: &[
            228, 395, 88, 31, 355, 61, 314, 181, 155, 199, 411, 144, 142, 439, 86, 23, 144, 195,
            72, 89, 250, 111, 111, 75,
        ],
    },
    Case {
        model: "plamo2_words",
        prompt: "w300 w400 is it that?",
        prompt_ids: &[283, 56, 53, 53, 400, 300, 301, 302, 290],
        answer_ids: &[
            174, 295, 50, 405, 310, 447, 181, 43, 98, 167, 22, 119, 42, 102, 226, 378, 494, 145,
            480, 273,
        ],
    },
    Case {
        model: "plamo3_words",
        prompt: "night and light, 日本語の川は流れる。",
        prompt_ids: &[340, 297, 360, 341, 288, 360, 350, 345, 357, 346, 359, 352],
        answer_ids: &[
            214, 273, 273, 119, 144, 320, 384, 506, 273, 265, 506, 201, 19, 273, 506, 400,
        ],
    },
    Case {
        model: "plamo3_words",
        prompt: "two small 東京 🙂 moons\n\n'er'",
        prompt_ids: &[
            280, 283, 275, 314, 360, 354, 360, 245, 164, 158, 135, 318, 279, 362, 291, 322, 291,
        ],
        answer_ids: &[
            327, 423, 423, 423, 423, 98, 58, 423, 423, 181, 433, 178, 274, 58, 69, 274,
        ],
    },
    Case {
        model: "plamo3_words",
        prompt: "w300 w400 is it that?",
        prompt_ids: &[283, 56, 53, 53, 400, 300, 301, 302, 290],
        answer_ids: &[234, 258, 427, 427, 427, 5, 268, 39, 424, 502, 5, 268],
    },
];

#[test]
fn greedy_answers_are_those_of_llama_cpp() {
    for name in plamo::NAMES {
        let file = plamo::model(name, GgmlType::F32).unwrap().unwrap();
        let gguf = Arc::new(Gguf::from_vec(file.to_vec().unwrap()).unwrap());
        let tokenizer = Tokenizer::from_gguf(&gguf, None).unwrap();
        for device in devices() {
            let file = ModelFile {
                gguf: Arc::clone(&gguf),
                label: name.to_string(),
                folder: None,
            };
            let model = ModelOptions::default().load(file).unwrap();
            let session = model.device(device).context(128).start().unwrap();
            // An emulated GPU is slow.
            let (n_cases, n_tokens) = match device {
                Device::Cpu => (CASES.len(), usize::MAX),
                _ => (1, 8),
            };
            let cases = CASES.iter().filter(|case| case.model == name);
            for case in cases.take(n_cases) {
                let options = EncodeOptions {
                    add_special: true,
                    parse_special: true,
                };
                let what = format!("{name} on {device:?}: {}", case.prompt);
                let prompt = tokenizer.encode(case.prompt, options);
                assert_eq!(prompt, case.prompt_ids, "{what}");
                let answer = session
                    .generate(case.prompt)
                    .greedy()
                    .max_tokens(case.answer_ids.len().min(n_tokens));
                let mut detokenizer = Detokenizer::new(SpecialText::Hide, LeadingSpace::Keep);
                let ids = case.answer_ids.iter().take(n_tokens);
                let mut expected: String =
                    ids.map(|id| detokenizer.push(&tokenizer, *id)).collect();
                expected += &detokenizer.finish();
                assert_eq!(answer.text().unwrap(), expected, "{what}");
            }
        }
    }
}
