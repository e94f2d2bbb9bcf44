//! One safe function for each kernel: checks shapes, picks the grid, launches.

mod elementwise;
mod formats;
mod rows;
mod tile;

pub use elementwise::add;
pub use rows::{dequantize, dequantize_f16, get_rows, packed_bytes, repack};
pub use tile::{Tile, multiply_tiles};
