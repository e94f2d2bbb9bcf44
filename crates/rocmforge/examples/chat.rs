//! Streams an answer: `cargo run --release -p rocmforge --example chat -- model.gguf "Why is the sky blue?"`
use std::io::Write as _;

use rocmforge::{Device, Model};

fn main() -> Result<(), rocmforge::Error> {
    let mut args = std::env::args().skip(1);
    let model = Model::open(args.next().expect("usage: chat MODEL MESSAGE [DEVICE]"))?;
    let message = args
        .next()
        .unwrap_or_else(|| "Tell me a story.".to_string());
    let device = args
        .next()
        .map_or(Device::Auto, |name| name.parse().expect("a device"));
    let session = model.device(device).start()?;
    for piece in session.chat()?.max_tokens(100).send(message)? {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
