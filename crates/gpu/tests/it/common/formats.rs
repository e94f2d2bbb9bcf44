//! One test for each weight format, so that formats run at the same time and a failure names its format.

/// `for_each_format!(check)` makes tests `check::q4_k` and so on in a module, which call `check(GgmlType::Q4_K)`.
macro_rules! for_each_format {
    (@one ($(#[$attribute:meta])*) $check:ident $name:ident $format:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            super::$check(GgmlType::$format);
        }
    };
    (@all $attributes:tt $check:ident: $($name:ident $format:ident),*) => {
        mod $check {
            use rocmforge_gguf::GgmlType;

            $($crate::common::formats::for_each_format! { @one $attributes $check $name $format })*

            /// Every format with kernels has a test here.
            const _: () = assert!($crate::common::weights::FORMATS.len() == [$(GgmlType::$format),*].len());
        }
    };
    ($(#[$attribute:meta])* $check:ident) => {
        $crate::common::formats::for_each_format! {
            @all ($(#[$attribute])*) $check:
            f32 F32, f16 F16, bf16 BF16, q4_0 Q4_0, q4_1 Q4_1, q5_0 Q5_0, q5_1 Q5_1, q8_0 Q8_0, q2_k Q2_K, q3_k Q3_K,
            q4_k Q4_K, q5_k Q5_K, q6_k Q6_K, iq4_nl IQ4_NL, iq4_xs IQ4_XS, mxfp4 MXFP4
        }
    };
}
pub(crate) use for_each_format;
