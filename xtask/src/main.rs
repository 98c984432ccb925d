//! Chores that CI and people share: `cargo xtask <chore>`.

mod docs_spans;
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
    /// Write the reference page of all spans from their declarations
    DocsSpans(docs_spans::DocsSpans),
    /// Run the scheduler and KV cache in worlds drawn from seeds; a failure names its seed.
    Sim(sim::Sim),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::DocsSpans(docs) => docs.run(),
        Chore::Sim(sim) => sim.run(),
    }
}
