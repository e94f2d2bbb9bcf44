//! Checks that the suites have every specified case: size, format and scenario.

use std::path::Path;
use std::sync::Arc;

use rocmforge_bench::{BenchDevice, Effort, Options, Subject, Suite, row_names};
use rocmforge_cpu::Isa;
use rocmforge_gguf::{GgmlType, Gguf, LoadMode};
use rocmforge_model::Model;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    Model::load(Arc::new(Gguf::open(&path, LoadMode::Mmap).unwrap())).unwrap()
}

/// Names of the rows of a suite, without suite and device.
fn names(suite: Suite, device: BenchDevice) -> Vec<String> {
    let model = model();
    let devices = [device];
    let options = Options {
        suite,
        devices: &devices,
        isa: Isa::detect(),
        n_threads: 1,
        effort: Effort::Full,
        filter: None,
        subject: Some(Subject {
            name: "forge-mini",
            format: None,
            model: &model,
        }),
    };
    let (before, after) = (
        format!("{}/", suite.name()),
        format!("/{}", devices[0].label()),
    );
    row_names(&options, &devices[0])
        .iter()
        .map(|name| {
            let rest = name
                .strip_prefix(&before)
                .and_then(|name| name.strip_suffix(&after));
            rest.unwrap_or_else(|| panic!("{name}")).to_string()
        })
        .collect()
}

fn gpu() -> BenchDevice {
    let id = "cuda:0".parse().unwrap();
    BenchDevice::Gpu(id, Default::default())
}

/// Every combination of name parts.
fn combined(parts: &[&[&str]]) -> Vec<String> {
    let mut names = vec![String::new()];
    for part in parts {
        names = names
            .iter()
            .flat_map(|name| part.iter().map(move |part| format!("{name}{part}")))
            .collect();
    }
    names
}

/// Every format with kernels.
fn formats() -> Vec<&'static str> {
    GgmlType::COMPUTED.iter().map(|ty| ty.name()).collect()
}

fn expected(suite: Suite) -> Vec<String> {
    match suite {
        Suite::Matmul => {
            let dense = [
                "512x512x512",
                "1024x1024x1024",
                "2048x2048x2048",
                "4096x4096x4096",
                "1x4096x4096",
                "32x128x4096",
                "128x128x1024",
                "32x32x768",
                "2048x4096x2048",
            ];
            let mut names = combined(&[&["dense/F32/"], &dense]);
            let tokens = ["/1", "/4", "/8", "/512"];
            names.extend(combined(&[
                &["quantized/"],
                &formats(),
                &tokens,
                &["x4096x4096"],
            ]));
            names
        }
        Suite::Attention => combined(&[
            &["standard/", "flash/", "causal/"],
            &[
                "32x1x32",
                "64x1x64",
                "128x1x128",
                "256x1x256",
                "512x1x512",
                "128x4x32",
                "256x8x32",
                "512x8x64",
                "1024x16x64",
            ],
        ]),
        Suite::Dequant => {
            let formats = formats().into_iter().chain(["MXFP6-E2M3", "MXFP6-E3M2"]);
            combined(&[&formats.collect::<Vec<_>>(), &["/16777216"]])
        }
        Suite::Inference => combined(&[
            &["ttft/", "decode/"],
            &["pp128/", "pp512/", "pp2048/"],
            &["B1", "B4", "B8"],
        ]),
        Suite::Memory => {
            let pages = ["page-16", "page-32", "page-64"];
            let models = ["1B", "7B", "13B", "70B"];
            let mut names = combined(&[&["kv-growth/"], &models, &["/512", "/2048"]]);
            let chunks = ["1", "16", "64", "256"];
            names.extend(combined(&[
                &["allocation/"],
                &chunks,
                &["-tokens/"],
                &pages,
            ]));
            let lengths = ["short/", "mixed/", "long/"];
            names.extend(combined(&[&["fragmentation/"], &lengths, &pages]));
            names.extend(combined(&[
                &["page-table/4096/"],
                &pages,
                &["/in-order", "/scattered"],
            ]));
            names
        }
        Suite::Batch => {
            let sets = [
                "products/Q4_K+Q4_K+Q4_K",
                "products/Q4_K+Q4_K+Q6_K",
                "products/Q4_K+Q5_K+Q6_K",
                "products/Q4_0+Q5_0+Q8_0",
                "gated/Q4_K+Q4_K",
                "gated/Q4_0+Q4_0",
            ];
            let passes = ["/merged", "/separate"];
            let mut names = combined(&[&sets, &["/1x4096", "/4x4096", "/8x4096"], &passes]);
            names.extend(combined(&[&["decode/tg32/"], &["B1", "B4", "B8"]]));
            names
        }
    }
}

/// Cases only on the CPU: materialised attention, and KV-cache accounting, which always runs on the CPU.
fn is_of_the_cpu(name: &str) -> bool {
    ["standard/", "allocation/", "fragmentation/"]
        .iter()
        .any(|group| name.starts_with(group))
}

#[test]
fn suites_have_every_specified_case() {
    for suite in Suite::ALL {
        let mut expected = expected(suite);
        expected.sort();
        let mut found = names(suite, BenchDevice::Cpu);
        found.sort();
        assert_eq!(found, expected, "{}", suite.name());
        found.dedup();
        assert_eq!(found.len(), expected.len(), "a name is one row's");

        let mut on_gpu = names(suite, gpu());
        on_gpu.sort();
        expected.retain(|name| !is_of_the_cpu(name));
        assert_eq!(on_gpu, expected, "{} on a GPU", suite.name());
    }
}
