// The weight formats that kernels compute with. The build of the GPU kernels includes this file.

/// `computed_formats!(then)` expands to `then! { F32 f32, F16 f16, ... }`: the variant of each format that kernels
/// compute with, and its name as an identifier in lower case.
#[macro_export]
macro_rules! computed_formats {
    ($then:ident $($arguments:tt)*) => {
        $then! {
            $($arguments)*
            F32 f32, F16 f16, BF16 bf16, Q4_0 q4_0, Q4_1 q4_1, Q5_0 q5_0, Q5_1 q5_1, Q8_0 q8_0, Q2_K q2_k, Q3_K q3_k,
            Q4_K q4_k, Q5_K q5_k, Q6_K q6_k, IQ4_NL iq4_nl, IQ4_XS iq4_xs, MXFP4 mxfp4, Q1_0 q1_0,
            Q2_0 q2_0, TQ1_0 tq1_0, TQ2_0 tq2_0, NVFP4 nvfp4, IQ1_S iq1_s, IQ1_M iq1_m, IQ2_XXS iq2_xxs,
            IQ2_XS iq2_xs, IQ2_S iq2_s, IQ3_XXS iq3_xxs, IQ3_S iq3_s
        }
    };
}
