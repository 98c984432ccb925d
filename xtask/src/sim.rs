//! `cargo xtask sim`: runs the simulation test for chosen seeds.

use std::process::Command;

use anyhow::{Context, ensure};

#[derive(clap::Args)]
pub(crate) struct Sim {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds, one after the other.
    #[arg(long, default_value_t = 1)]
    count: u64,
}

impl Sim {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["test", "--quiet", "--package", "limpid-tests", "--test", "simulation", "--"])
            .args(["--ignored", "--exact", "seeds_from_the_environment", "--nocapture"])
            .env("LIMPID_SIM_SEED", self.seed.to_string())
            .env("LIMPID_SIM_COUNT", self.count.to_string())
            .status()
            .context("cargo could not be started")?;
        ensure!(status.success(), "a world failed; its seed is above");
        Ok(())
    }
}
