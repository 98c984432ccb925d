//! Chores that CI and people share: `cargo xtask <chore>`.

mod docs;
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
    /// Write the pages of docs/ that are made from code, or check them.
    Docs(docs::Docs),
    /// Run the scheduler and KV cache in worlds drawn from seeds; a failure names its seed.
    Sim(sim::Sim),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Docs(docs) => docs.run(),
        Chore::Sim(sim) => sim.run(),
    }
}
