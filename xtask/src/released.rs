//! Random models in the widths of released ones, for the architectures that have no shape in `quantize/src/synthetic`
//! (`testkit/src/models/families/widths.rs`).

use anyhow::Result;
use rocmforge_quantize::synthetic::{Draft, Tensor, Values, types_of};
use rocmforge_testkit::models::families::widths;
use rocmforge_testkit::models::{self, OutlineTensor};

/// Returns the model `NAME:TYPE`, `None` if there is none of this name.
pub(crate) fn draft(name: &str) -> Result<Option<Draft>> {
    let Some((name, types)) = name.split_once(':') else {
        return Ok(None);
    };
    let Some(outline) = widths::outline(name) else {
        return Ok(None);
    };
    let tensors = outline.tensors.into_iter().map(tensor).collect();
    let draft = Draft::new(outline.header, tensors, &types_of(types)?)?;
    Ok(Some(draft))
}

fn tensor(outline: OutlineTensor) -> Tensor {
    let OutlineTensor { name, dims, values } = outline;
    let values = match values {
        models::Values::Matrix => Values::Matrix,
        models::Values::Floats { mean, reach } => Values::Vector { mean, reach },
    };
    Tensor { name, dims, values }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use rocmforge_gguf::{GgmlType, Gguf, Writer};
    use rocmforge_model::{Model, architectures};
    use rocmforge_quantize::synthetic::SHAPES;
    use rocmforge_testkit::models::embeddings;

    use super::*;

    #[test]
    fn every_architecture_has_a_model_that_fits() {
        let arch = |writer: Writer<'_>| {
            let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
            gguf.metadata()
                .str("general.architecture")
                .unwrap()
                .to_owned()
        };
        let mut known: BTreeSet<String> = SHAPES.iter().map(|s| s.arch.to_string()).collect();
        for case in embeddings::CASES {
            let model = embeddings::model(case.name, GgmlType::Q8_0);
            known.insert(arch(model.unwrap().unwrap()));
        }
        for name in widths::names() {
            known.insert(arch(widths::outline(name).unwrap().header));
            let bytes = draft(&format!("{name}:Q8_0"))
                .unwrap()
                .unwrap()
                .file_bytes();
            let bytes = bytes.unwrap();
            assert!(bytes < 6 << 30, "{name}: {bytes} bytes");
        }
        for arch in architectures() {
            assert!(known.contains(arch), "{arch}");
        }
    }

    #[test]
    fn the_smallest_models_load() {
        for name in [
            "ernie-4.5-0.3b:Q4_K",
            "hunyuan-ocr:Q8_0",
            "paddleocr-vl:Q4_K",
        ] {
            let draft = draft(name).unwrap().unwrap();
            let model = Model::load(Arc::new(draft.open(name).unwrap())).unwrap();
            assert_eq!(
                (model.config.n_layers(), model.config.n_embd),
                (2, 1024),
                "{name}"
            );
        }
    }

    /// Rows of 4544 values are not whole blocks of 256; llama.cpp takes these types instead.
    #[test]
    fn narrow_rows_get_other_types() {
        let draft = draft("falcon-7b:Q4_K_M").unwrap().unwrap();
        let tensor = |name| draft.plan().iter().find(|t| t.name == name).unwrap();
        let (q4, q5, q6, q8) = (
            GgmlType::Q4_K,
            GgmlType::Q5_0,
            GgmlType::Q6_K,
            GgmlType::Q8_0,
        );
        for (name, ty, wanted) in [
            ("blk.0.attn_output.weight", q5, Some(q4)),
            ("blk.1.attn_qkv.weight", q8, Some(q6)),
            // 71 blocks of 256; Falcon has this type where others have Q6_K.
            ("blk.1.ffn_down.weight", GgmlType::Q5_K, None),
        ] {
            let tensor = tensor(name);
            assert_eq!((tensor.to, tensor.instead_of), (ty, wanted), "{name}");
        }
    }

    #[test]
    fn other_names_are_not_models() {
        for name in ["llama-3.1-8b:Q8_0", "falcon-7b"] {
            assert!(draft(name).unwrap().is_none());
        }
        assert!(draft("falcon-7b:Q9").is_err());
    }
}
