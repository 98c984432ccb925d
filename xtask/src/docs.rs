//! `cargo xtask docs`: writes the pages that are made from code, or checks that they are up to date.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use clap::Args;

/// The metrics' reference page.
const METRICS: &str = "docs/reference/metrics.md";

#[derive(Args)]
pub(crate) struct Docs {
    /// Write nothing; fail if a page is not what the code says
    #[arg(long)]
    check: bool,
}

impl Docs {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
        let path = root.join(METRICS);
        let text = limpid_telemetry::catalogue::reference_page();
        if self.check {
            let found = fs::read_to_string(&path).unwrap_or_default();
            ensure!(found == text, "{METRICS} is not what the code says; run `cargo xtask docs`");
        } else {
            fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        Ok(())
    }
}
