//! Tests of the report on kernels that are known to be right or wrong, and on all kernels of this build.

use std::collections::BTreeSet;
use std::fs;

use super::family::Family;
use super::prove::Tally;
use super::*;
use rocmforge_testkit::sweep::first;

/// One target of each family, those whose instructions differ most first.
const TARGETS: &[&str] = &[
    "gfx942", "gfx1100", "gfx1201", "gfx906", "gfx908", "gfx90a", "gfx950", "gfx1030", "gfx1151",
];

fn targets() -> impl Iterator<Item = &'static str> {
    first(3, TARGETS.iter().copied())
}

const HEAD: &str = "#include \"gpu.h\"\nstruct Params { float* out; u32 n; };\n";

/// Compiles a kernel and returns its faults; `None` without a compiler.
fn faults(name: &str, target: &str, source: &str) -> Option<Vec<Fault>> {
    let (compiler, tools) = match (images::compiler(target), Tools::find()) {
        (Ok(compiler), Ok(tools)) => (compiler, tools),
        (Err(error), _) | (_, Err(error)) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let file = |extension: &str| {
        let name = format!("test.{name}.{target}.{}.{extension}", std::process::id());
        images::cache().unwrap().join(name)
    };
    let (source_file, object) = (file("hip"), file("o"));
    fs::write(&source_file, format!("{HEAD}{source}")).unwrap();
    images::compile(compiler, &source_file, &[], target, &object).unwrap();
    let bytes = fs::read(&object).unwrap();
    fs::remove_file(source_file).unwrap();
    fs::remove_file(object).unwrap();
    let object = (format!("test-{name}.{target}"), bytes);
    let (listing, notes) = tools.take_apart(&[object]).unwrap().remove(0);
    let reports = examine(&Parts {
        module: name,
        target,
        listing: &listing,
        notes: &notes,
    })
    .unwrap();
    assert_eq!(reports.len(), 1);
    Some(reports[0].faults.iter().map(|(fault, _)| *fault).collect())
}

fn assert_faults(name: &str, source: &str, expected: &[Fault]) {
    for target in targets() {
        if let Some(found) = faults(name, target, source) {
            assert_eq!(found, expected, "{name} for {target}");
        }
    }
}

#[test]
fn accepts_a_reduction_with_all_lanes_on() {
    // Ifs and divergent loops end before the collectives.
    assert_faults(
        "clean",
        "KERNEL(clean, Params, 256) {
            SHARED(float, part, 8);
            float v = 0;
            for (u32 i = tid(); i < p.n; i += 256) {
                if (p.out[i] > 0) v += p.out[i]; else v -= 2 * p.out[i + 1];
            }
            for (u32 i = 0; i < p.n; i++) {
                v = block_reduce<Sum, 256>(v, part);
                barrier();
            }
            if (tid() == 0) p.out[0] = v;
        }",
        &[],
    );
}

#[test]
fn finds_a_collective_under_a_condition() {
    // As assembly, so that the compiler cannot move it to where all lanes are on.
    assert_faults(
        "narrowed",
        "KERNEL(narrowed, Params, 256) {
            float v = p.out[tid()];
            if (lane() < p.n) {
                asm volatile(\"v_mov_b32_dpp %0, %0 row_ror:8 row_mask:0xf bank_mask:0xf\" : \"+v\"(v));
            }
            p.out[tid()] = v;
        }",
        &[Fault::Narrowed],
    );
}

#[test]
fn finds_a_collective_in_a_divergent_loop() {
    assert_faults(
        "leaving",
        "KERNEL(leaving, Params, 256) {
            float v = p.out[tid()];
            for (u32 i = lane(); i < p.n; i += WARP_SIZE) {
                asm volatile(\"v_mov_b32_dpp %0, %0 row_ror:8 row_mask:0xf bank_mask:0xf\" : \"+v\"(v));
            }
            p.out[tid()] = v;
        }",
        &[Fault::Narrowed],
    );
}

#[test]
fn finds_a_collective_after_an_early_return() {
    assert_faults(
        "returned",
        "KERNEL(returned, Params, 256) {
            if (tid() >= p.n) return;
            p.out[tid()] = wave_sum(p.out[tid()]);
        }",
        &[Fault::Narrowed],
    );
}

#[test]
fn the_build_does_not_sink_collectives() {
    // The result is used under a condition: clang 19 sinks the instruction there unless -disable-machine-sink is given.
    assert_faults(
        "kept",
        "KERNEL(kept, Params, 256) {
            u32 v = bits<u32>(p.out[tid()]);
        #if defined(GPU_CDNA)
            v = row_rotate<8>(v);
        #else
            v = __builtin_amdgcn_permlanex16(0, v, 0x76543210, 0xfedcba98, false, false);
        #endif
            if (tid() < p.n) p.out[tid()] = bits<float>(v);
        }",
        &[],
    );
}

#[test]
fn finds_an_array_in_scratch_memory() {
    for target in targets() {
        let source = "KERNEL(scratch, Params, 256) {
            volatile float values[64];
            for (u32 i = 0; i < 64; i++) values[i] = p.out[i * p.n];
            p.out[tid()] = values[tid() % 64];
        }";
        if let Some(found) = faults("scratch", target, source) {
            assert!(found.contains(&Fault::Scratch), "{target}");
        }
    }
}

#[test]
fn packed_conversions_from_fp8_are_found_on_gfx12() {
    let source = "KERNEL(packed, Params, 64) {
        u32 v = bits<u32>(p.out[tid()]);
        auto pair = __builtin_amdgcn_cvt_pk_f32_fp8((i32)v, false);
        p.out[tid()] = pair[0] + pair[1];
    }";
    for (target, expected) in [("gfx1201", vec![Fault::PackedFromFp8]), ("gfx942", vec![])] {
        if let Some(found) = faults("packed", target, source) {
            assert_eq!(found, expected, "{target}");
        }
    }
}

#[test]
fn long_code_for_gfx12_without_alu_waits_is_found() {
    let code = |wait: &str| {
        let mut lines = vec!["v_mov_b32_e32 v0, s0"; 200];
        lines.extend([wait, "s_endpgm"]);
        code::code_of(&lines)
    };
    let faults = |target: &str, wait: &str| {
        let code = code(wait);
        faults::of(
            "kernel",
            &Kernel::new(target, &code).unwrap(),
            &blocks::blocks(&code).unwrap(),
            &vec![Some(true); code.len()],
            &Metadata::default(),
        )
    };
    let kinds =
        |faults: Vec<(Fault, String)>| faults.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(faults("gfx1200", "s_nop 0")), [Fault::NoAluWait]);
    assert_eq!(kinds(faults("gfx1200", "s_wait_alu 0xff9e")), []);
    assert_eq!(kinds(faults("gfx1100", "s_nop 0")), []);
}

/// Returns the images of this build for AMD that are wanted; none, with a message, if it has none or no tools.
fn embedded(wanted: impl Fn(&Image) -> bool) -> Vec<Image> {
    let targets = rocmforge_gpu::images().iter().map(|image| image.target);
    let targets: BTreeSet<&str> = targets.filter(|target| images::is_amd(target)).collect();
    if targets.is_empty() {
        println!("skipped: built without images for AMD");
    }
    if let Err(error) = Tools::find() {
        println!("skipped: {error}");
        return Vec::new();
    }
    let all = targets.into_iter().flat_map(images::embedded);
    all.filter(wanted).collect()
}

#[test]
fn waits_that_are_taken_out_are_missed() {
    let modules = ["attention_decode.F16", "gemm.Q8_0", "gemv.Q4_K", "norm"];
    let sample = embedded(|image| modules.contains(&image.module.as_str()));
    let mut proofs: BTreeMap<String, Proof> = BTreeMap::new();
    for kernel in for_each(&sample, prove_kernels).unwrap() {
        *proofs.entry(kernel.target).or_default() += kernel.proof;
    }
    for (target, proof) in proofs {
        println!("{target}: {proof}");
        let Proof { memory, hazards } = proof;
        let share = |tally: Tally| tally.found as f64 / tally.n as f64;
        assert!(memory.n > 100 && share(memory) > 0.97, "{target}: {proof}");
        let has_hazards = Family::of(&target) != Ok(Family::Rdna2);
        assert_eq!(hazards.n > 10, has_hazards, "{target}: {proof}");
        assert!(!has_hazards || share(hazards) > 0.97, "{target}: {proof}");
    }
}

#[test]
fn the_kernels_of_this_build_are_clean() {
    let reports = for_each(&embedded(|_| true), examine).unwrap();
    assert_eq!(faults_of(&reports), Vec::<String>::new());
    // An exception that is no longer needed must go.
    for Report {
        target,
        module,
        name,
        faults,
        ..
    } in &reports
    {
        for excepted in faults::excepted(module, name, target) {
            let has = faults.iter().any(|(fault, _)| *fault == excepted);
            assert!(has, "{module} {name} for {target} has no {excepted:?}");
        }
    }
}

/// Barriers of products fence shared memory only: nothing empties the caches of RDNA.
#[test]
fn products_keep_caches() {
    let products = ["gemm.Q4_K", "gemv.Q4_K"];
    let sample = embedded(|image| {
        image.target.starts_with("gfx1") && products.contains(&image.module.as_str())
    });
    let emptied = for_each(&sample, |image| {
        let empties = |code: &code::Code| {
            let mut names = code.instructions.iter().map(|i| i.mnemonic.as_str());
            names.any(|name| ["buffer_gl0_inv", "buffer_gl1_inv", "global_inv"].contains(&name))
        };
        let all = code::parse(image.listing).into_iter();
        let names = all.filter(empties).map(|code| code.name);
        Ok(names
            .map(|name| format!("{name} for {}", image.target))
            .collect())
    });
    assert_eq!(emptied.unwrap(), Vec::<String>::new());
}

#[test]
fn cards_of_every_target_are_documented() {
    let text = fs::read_to_string(crate::root().join("docs/AMD.md")).unwrap();
    let (_, cards) = text.split_once("\n## Cards\n").unwrap();
    let rows = cards.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let mut documented: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split(','))
        .map(str::trim)
        .collect();
    let all = expand("all").unwrap();
    let mut targets: Vec<&str> = all.iter().map(String::as_str).collect();
    targets.retain(|target| images::is_amd(target));
    documented.sort_unstable();
    targets.sort_unstable();
    assert_eq!(documented, targets);
    for newest in ["gfx950", "gfx1153"] {
        assert!(targets.contains(&newest), "{newest}");
    }
    for target in targets {
        assert!(Family::of(target).is_ok(), "{target}");
    }
}

#[test]
fn targets_without_rules_are_refused() {
    let code = code::code_of(&["s_endpgm"]);
    for target in ["gfx900", "gfx1010", "gfx1250"] {
        assert!(Kernel::new(target, &code).is_err(), "{target}");
    }
}
