//! Chores that CI and people share: `cargo xtask <chore>`.

mod sim;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores that CI and people share")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run the scheduler and KV cache in worlds drawn from seeds; a failure names its seed.
    Sim(sim::Sim),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Sim(sim) => sim.run(),
    }
}
