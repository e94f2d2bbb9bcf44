//! One test function per case, so that cases run in parallel and a failure names its case.

/// `test_cases! { check: name(args), ... }` defines tests `check::name`, which call `check(args)`. A case may have attributes.
macro_rules! test_cases {
    ($check:ident: $($(#[$attribute:meta])* $name:ident($($arg:expr),+)),+ $(,)?) => {
        mod $check {
            #[allow(unused_imports, reason = "the arguments of some cases are only literals")]
            use super::*;

            /// The arguments of each case, as written.
            #[allow(dead_code, reason = "few lists are compared with others")]
            pub(super) const ARGUMENTS: &[&str] = &[$(stringify!($($arg),+)),+];

            $(
                #[test]
                $(#[$attribute])*
                fn $name() {
                    super::$check($($arg),+);
                }
            )+
        }
    };
}

/// `for_each_model!(check)` defines tests `check::llama` and so on, which call `check("llama")`.
macro_rules! for_each_model {
    (@all $check:ident: $($name:ident),+) => {
        mod $check {
            $(
                #[test]
                fn $name() {
                    super::$check(stringify!($name));
                }
            )+

            #[test]
            fn covers_every_model() {
                assert_eq!([$(stringify!($name)),+].as_slice(), rocmforge_testkit::models::NAMES.as_slice());
            }
        }
    };
    ($check:ident) => {
        $crate::common::cases::for_each_model! {
            @all $check: llama, qwen2, qwen3, granite, smollm3, olmo2, olmo3, phi3, gemma2, gemma3, gpt2, starcoder2,
            mixtral, qwen2moe, qwen3moe, seed_oss, mistral3, gemma4, gemma4_wide, gemma4_moe, gpt_oss,
            deepseek2, deepseek2_old, mistral4, minicpm3, gemma3n
        }
    };
}

/// `for_each_family!(check)` defines tests `check::glm4` and so on, which call `check("glm4")`. Those of second shapes of an
/// architecture have the attributes that are given.
macro_rules! for_each_family {
    (@all $attributes:tt $check:ident: $($name:ident),+; $($second:ident),+) => {
        mod $check {
            $($crate::common::cases::for_each_family! { @one () $check $name })+
            $($crate::common::cases::for_each_family! { @one $attributes $check $second })+

            #[test]
            fn covers_every_family() {
                let names = rocmforge_testkit::models::families::names();
                let all = [$(stringify!($name)),+].into_iter().chain([$(stringify!($second)),+]);
                assert_eq!(all.collect::<Vec<_>>(), names.collect::<Vec<_>>());
            }
        }
    };
    (@one ($(#[$attribute:meta])*) $check:ident $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            super::$check(stringify!($name));
        }
    };
    ($(#[$attribute:meta])* $check:ident) => {
        $crate::common::cases::for_each_family! {
            @all ($(#[$attribute])*) $check: qwen2vl, qwen2_5_omni, qwen3vl, qwen3vlmoe, glm4, glm4_vision, glm4moe, glm4moe_wide, minimax_m2, minicpm,
            granitemoe, bailingmoe, bailingmoe2, ernie4_5, ernie4_5_moe, hunyuan_dense, hunyuan_moe, hy_v3,
            muse_glimmer, command_r, cohere2, exaone4, exaone4_windows, olmoe, gemma, deepseek, stablelm,
            stablelm_parallel, internlm2, phi2, falcon, falcon_two_norms, nemotron, arcee, dots1,
            deepseek3, glm4_flash, deepseek2_growing, llama4, llama4_long,
            phimoe, apertus, smallthinker, smallthinker_global, maincoder, pangu_embedded,
            laguna, laguna_global, mimo2, step35, cohere2moe, cohere2moe_softmax, exaone_moe, exaone_moe_listed,
            afmoe, afmoe_softmax, mellum, mellum_global,
            lfm2, lfm2moe, qwen35, qwen35_wide, qwen35moe, qwen3next, qwen3next_old,
            mamba2, granitehybrid, granitehybrid_moe, falcon_h1, nemotron_h, nemotron_h_moe, nemotron_h_latent,
            kimi_linear, bailingmoe3, jamba, mamba, falcon_mamba, plamo2,
            exaone, chatglm, deepseek2_ocr, hunyuan_vl, paddleocr, plm, plamo3, jais2, arctic, openelm, olmo, deci, bitnet, grok,
            command_r_plus, stablelm_12b;
            gpt_oss_thirds, mistral3_tied, minimax_m2_single, qwen3vl_eighths, qwen3vlmoe_thirds, granitemoe_single,
            ernie4_5_single, ernie4_5_moe_sevenths, hunyuan_dense_thirds, hunyuan_moe_sevenths, step35_single,
            mimo2_sevenths, gemma_single, phi2_fused,
            llama_thirds, qwen2_sevenths, qwen3_halves, granite_thirds, smollm3_single, olmo2_fifths, phi3_single,
            phi3_thirds, gemma2_wide, gemma3_wide, gemma3_global, gemma3n_wide, gpt2_single, starcoder2_ninths,
            minicpm3_thirds, seed_oss_fifths, minicpm_eighths, muse_glimmer_single, cohere2_twelfths, internlm2_sixths,
            nemotron_thirds, arcee_fifths, apertus_eighths, maincoder_single, pangu_embedded_eighths, deci_ninths,
            exaone_quarters, chatglm_halves, hunyuan_vl_eighths, paddleocr_eighths, plm_thirds, plamo3_quarters,
            jais2_single, openelm_wide, olmo_single, bitnet_single, qwen2moe_sevenths, qwen3moe_eighths, mistral4_thirds,
            bailingmoe_quarters, bailingmoe2_single, hy_v3_quarters, olmoe_single, deepseek_halves, dots1_wide,
            phimoe_quarters, deepseek2_ocr_single, arctic_sevenths, grok_sixths, laguna_eighths, lfm2_thirds, lfm2moe_quarters, qwen35moe_eighths,
            mamba2_wide, falcon_h1_thirds, nemotron_h_fifths,
            nemotron_h_moe_halves, granitehybrid_thirds,
            kimi_linear_wide, bailingmoe3_vision, jamba_fifths, mamba_wide, plamo2_quarters
        }
    };
}

/// `for_each_variant!(check)` defines tests `check::q4_k_m` and so on, which call `check("Q4_K_M")` for every variant
/// of forge-mini with golden results. Those of formats like another one have the attributes that are given.
macro_rules! for_each_variant {
    (@all $attributes:tt $check:ident: $($name:ident $variant:literal),+; $($like:ident $like_variant:literal),+) => {
        mod $check {
            $($crate::common::cases::for_each_variant! { @one () $check $name $variant })+
            $($crate::common::cases::for_each_variant! { @one $attributes $check $like $like_variant })+

            #[test]
            fn covers_every_variant() {
                let golden = $crate::common::golden();
                let variants = golden["variants"].as_object().unwrap();
                assert_eq!([$($variant,)+ $($like_variant),+].len(), variants.len());
            }
        }
    };
    (@one ($(#[$attribute:meta])*) $check:ident $name:ident $variant:literal) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            super::$check($variant);
        }
    };
    ($(#[$attribute:meta])* $check:ident) => {
        $crate::common::cases::for_each_variant! {
            @all ($(#[$attribute])*) $check: f16 "F16", mxfp4 "MXFP4", q4_k_m "Q4_K_M", q8_0 "Q8_0";
            bf16 "BF16", q2_k "Q2_K", q3_k_m "Q3_K_M", q4_0 "Q4_0", q4_1 "Q4_1", q5_0 "Q5_0", q5_1 "Q5_1",
            q5_k_m "Q5_K_M", q6_k "Q6_K"
        }
    };
}

pub(crate) use {for_each_family, for_each_model, for_each_variant, test_cases};
