//! The built-in model: forge-mini, 11 million parameters, used when no model is given.

use rocmforge_gguf::{Error, Gguf};

/// Bytes aligned for tensors; `include_bytes!` alone does not align.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static FORGE_MINI: &Aligned<[u8]> =
    &Aligned(*include_bytes!("../../../models/forge-mini-Q4_K_M.gguf"));

/// Shown in place of a file name.
pub const NAME: &str = "forge-mini-Q4_K_M (embedded)";

/// Parses the built-in model in place.
pub fn open() -> Result<Gguf, Error> {
    Gguf::from_static(&FORGE_MINI.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_model_is_aligned() {
        assert_eq!(FORGE_MINI.0.as_ptr().addr() % 64, 0);
    }
}
