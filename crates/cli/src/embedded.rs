//! The model inside the program: forge-mini, 11 million parameters, used when no file is named.

use rocmforge_gguf::{Error, Gguf};

/// Bytes at an address that any tensor may want; `include_bytes!` alone promises none.
#[repr(align(64))]
struct Aligned<T: ?Sized>(T);

static FORGE_MINI: &Aligned<[u8]> =
    &Aligned(*include_bytes!("../../../models/forge-mini-Q4_K_M.gguf"));

/// How the model is called where a file would be named.
pub const NAME: &str = "forge-mini-Q4_K_M (embedded)";

/// Parses the embedded model, in place.
pub fn open() -> Result<Gguf, Error> {
    Gguf::from_static(&FORGE_MINI.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_is_aligned() {
        assert_eq!(FORGE_MINI.0.as_ptr().addr() % 64, 0);
    }
}
