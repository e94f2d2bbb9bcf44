//! `gpu-proof`: the program that `cargo xtask gpu-proof pack` puts into its folder.

use anyhow::Result;
use clap::Parser;
use xtask::gpu_proof::Command;

#[derive(Parser)]
#[command(about = "Proves the GPU path of ROCmForge on this machine")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

fn main() -> Result<()> {
    Args::parse().command.run()
}
