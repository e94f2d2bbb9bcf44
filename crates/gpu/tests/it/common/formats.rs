//! One test for each weight format, so that formats run at the same time and a failure names its format.

/// `for_each_format!(check)` makes tests `check::q4_k` and so on in a module, which call `check(GgmlType::Q4_K)`.
macro_rules! for_each_format {
    (@all $attributes:tt $check:ident $($format:ident $name:ident),*) => {
        mod $check {
            use rocmforge_gguf::GgmlType;

            $($crate::common::formats::for_each_format! { @one $attributes $check $name $format })*
        }
    };
    (@one ($(#[$attribute:meta])*) $check:ident $name:ident $format:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            super::$check(GgmlType::$format);
        }
    };
    ($(#[$attribute:meta])* $check:ident) => {
        rocmforge_gguf::computed_formats!(for_each_format @all ($(#[$attribute])*) $check);
    };
}
pub(crate) use for_each_format;
