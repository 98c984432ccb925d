//! `cargo xtask docs-spans`: writes `docs/reference/spans.md` from the declared spans.

use std::path::Path;

use anyhow::Context;

#[derive(clap::Args)]
pub(crate) struct DocsSpans {
    /// Write nothing, and fail if the page is out of date
    #[arg(long)]
    check: bool,
}

impl DocsSpans {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/spans.md");
        let page = limpid_telemetry::semconv::reference_markdown();
        if self.check {
            let found = std::fs::read_to_string(&path).context("docs/reference/spans.md cannot be read")?;
            anyhow::ensure!(
                found == page,
                "docs/reference/spans.md is out of date; run cargo xtask docs-spans"
            );
            return Ok(());
        }
        std::fs::write(&path, page).context("docs/reference/spans.md cannot be written")
    }
}
