//! Chores that CI and people share: `cargo xtask <chore>`.

mod docs;
mod docs_spans;
mod sim;

use anyhow::Context;
use clap::{Parser, Subcommand};
use xtask::dashboards;
use xtask::programs::Program;

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
    /// Write the reference page of all spans from their declarations
    DocsSpans(docs_spans::DocsSpans),
    /// Run the scheduler and KV cache in worlds drawn from seeds; a failure names its seed.
    Sim(sim::Sim),
    /// Build or fetch the programs that the pipeline's tests start, and print where they are. Nothing is done
    /// for those that are there.
    Programs {
        /// Which; all of them unless named.
        names: Vec<Program>,
    },
    /// Write the Grafana dashboards.
    Dashboards {
        /// Write nothing; fail if a file differs from what would be written.
        #[arg(long)]
        check: bool,
    },
}

#[allow(clippy::print_stdout)]
fn main() -> anyhow::Result<()> {
    match Arguments::parse().chore {
        Chore::Docs(docs) => docs.run(),
        Chore::DocsSpans(docs) => docs.run(),
        Chore::Sim(sim) => sim.run(),
        Chore::Programs { names } => {
            let names = if names.is_empty() { Program::ALL.to_vec() } else { names };
            for program in names {
                let folder = program.provide().with_context(|| format!("no {}", program.name()))?;
                println!("{}", folder.display());
            }
            Ok(())
        }
        Chore::Dashboards { check: true } => dashboards::check(),
        Chore::Dashboards { check: false } => dashboards::write(),
    }
}
