//! File types (recipes for whole files), with llama.cpp's names, numbers and aliases (`llama_ftype`).

use rocmforge_gguf::GgmlType;

/// Declares [`FileType`] from one table of variant, number, type of most tensors and description.
macro_rules! file_types {
    ($($name:ident = $id:literal: $ty:ident, $about:literal;)*) => {
        /// A file type: the type of most tensors, and how the others differ.
        #[expect(non_camel_case_types, reason = "GGML's names, as users and file names spell them")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FileType {
            $(#[doc = $about] $name,)*
            /// Keeps the type of every tensor.
            COPY,
        }

        impl FileType {
            /// Every file type.
            pub const ALL: &[FileType] = &[$(FileType::$name,)* FileType::COPY];

            pub fn name(self) -> &'static str {
                match self {
                    $(FileType::$name => stringify!($name),)*
                    FileType::COPY => "COPY",
                }
            }

            /// A description of a few words.
            pub fn about(self) -> &'static str {
                match self {
                    $(FileType::$name => $about,)*
                    FileType::COPY => "every tensor as it is; joins a split model",
                }
            }

            /// The value of `general.file_type`; `None` for a copy, which keeps the old value.
            pub fn id(self) -> Option<u32> {
                match self {
                    $(FileType::$name => Some($id),)*
                    FileType::COPY => None,
                }
            }

            /// The type of a tensor unless the mix chooses another; `None` for a copy.
            pub fn tensor_type(self) -> Option<GgmlType> {
                match self {
                    $(FileType::$name => Some(GgmlType::$ty),)*
                    FileType::COPY => None,
                }
            }
        }
    };
}

file_types! {
    Q1_0 = 40: Q1_0, "1.1 bits: signs, and a scale for 128";
    IQ1_S = 24: IQ1_S, "1.6 bits, points of a grid; needs an importance matrix";
    TQ1_0 = 36: TQ1_0, "1.7 bits: -1, 0 and 1, for models trained so";
    IQ1_M = 31: IQ1_M, "1.75 bits, points of a grid; needs an importance matrix";
    TQ2_0 = 37: TQ2_0, "2.1 bits: -1, 0 and 1, for models trained so";
    IQ2_XXS = 19: IQ2_XXS, "2.1 bits, points of a grid; needs an importance matrix";
    Q2_0 = 41: Q2_0, "2.25 bits in groups of 64";
    IQ2_XS = 20: IQ2_XS, "2.3 bits, points of a grid; needs an importance matrix";
    IQ2_S = 28: IQ2_XS, "2.3 bits, points of a grid; some tensors in 3 bits; needs an importance matrix";
    IQ2_M = 29: IQ2_S, "2.6 bits, points of a grid; some tensors in 3 bits; needs an importance matrix";
    Q2_K = 10: Q2_K, "2.6 bits in groups of 16; some tensors in 3 and 4 bits";
    Q2_K_S = 21: Q2_K, "2.6 bits in groups of 16; needs an importance matrix";
    IQ3_XXS = 23: IQ3_XXS, "3.1 bits, points of a grid; needs an importance matrix";
    IQ3_XS = 22: IQ3_S, "3.3 bits, points of grids; needs an importance matrix";
    Q3_K_S = 11: Q3_K, "3.4 bits in groups of 16";
    IQ3_S = 26: IQ3_S, "3.4 bits, points of a grid";
    IQ3_M = 27: IQ3_S, "3.4 bits, points of a grid; some tensors in 4 bits";
    Q3_K_M = 12: Q3_K, "3.4 bits in groups of 16; some tensors in 4 and 5 bits";
    Q3_K_L = 13: Q3_K, "3.4 bits in groups of 16; some tensors in 5 bits";
    IQ4_XS = 30: IQ4_XS, "4.25 bits, non-linear";
    IQ4_NL = 25: IQ4_NL, "4.5 bits, non-linear";
    MXFP4_MOE = 38: MXFP4, "experts in 4.25-bit floats (OCP MXFP4), the rest in 8 bits";
    Q4_0 = 2: Q4_0, "4.5 bits in groups of 32";
    Q4_1 = 3: Q4_1, "5 bits in groups of 32, with a minimum";
    Q4_K_S = 14: Q4_K, "4.5 bits in groups of 32";
    Q4_K_M = 15: Q4_K, "4.5 bits in groups of 32; half of attn_v and ffn_down in 6 bits";
    Q5_0 = 8: Q5_0, "5.5 bits in groups of 32";
    Q5_1 = 9: Q5_1, "6 bits in groups of 32, with a minimum";
    Q5_K_S = 16: Q5_K, "5.5 bits in groups of 32";
    Q5_K_M = 17: Q5_K, "5.5 bits in groups of 32; half of attn_v and ffn_down in 6 bits";
    Q6_K = 18: Q6_K, "6.6 bits in groups of 16";
    Q8_0 = 7: Q8_0, "8.5 bits in groups of 32";
    F16 = 1: F16, "16-bit floats";
    BF16 = 32: BF16, "16-bit floats with the range of 32-bit ones";
    F32 = 0: F32, "32-bit floats";
}

impl FileType {
    /// Returns the file type with this name, in any case; `Q3_K`, `Q4_K` and `Q5_K` mean the `_M` mixes.
    pub fn from_name(name: &str) -> Option<FileType> {
        let upper = name.to_ascii_uppercase();
        let wanted = match upper.as_str() {
            "Q3_K" => "Q3_K_M",
            "Q4_K" => "Q4_K_M",
            "Q5_K" => "Q5_K_M",
            other => other,
        };
        FileType::ALL
            .iter()
            .copied()
            .find(|file_type| file_type.name() == wanted)
    }
}
