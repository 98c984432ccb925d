//! The Grafana dashboards of `otel-collector/grafana/dashboards`, made from code so that no metric's name in
//! them can drift from the catalogue.
//!
//! [`boards`] says what is on them, [`panel`] how that looks as JSON. A query that names a metric nobody knows is
//! refused here; whether queries return data is the pipeline suite's business.

mod boards;
mod panel;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::programs::root;
use crate::promql;

/// A dashboard and the queries in it.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its `uid`, and its file's name.
    pub uid: &'static str,
    /// Every PromQL expression on it, with the title of its panel.
    pub queries: Vec<(String, String)>,
    /// What Grafana reads.
    pub json: Value,
}

/// Every dashboard.
///
/// # Errors
/// If a query names a metric that nobody knows.
pub fn all() -> Result<Vec<Dashboard>> {
    let dashboards = boards::all();
    for dashboard in &dashboards {
        for (title, query) in &dashboard.queries {
            promql::lacking(query)
                .map_err(|name| anyhow!("{}, {title}: nobody knows {name}", dashboard.uid))?;
        }
    }
    Ok(dashboards)
}

fn path(dashboard: &Dashboard) -> PathBuf {
    root().join("otel-collector/grafana/dashboards").join(format!("{}.json", dashboard.uid))
}

fn text(dashboard: &Dashboard) -> Result<String> {
    Ok(serde_json::to_string_pretty(&dashboard.json)? + "\n")
}

/// Writes every dashboard's file.
///
/// # Errors
/// If a query is wrong or a file cannot be written.
pub fn write() -> Result<()> {
    for dashboard in all()? {
        let path = path(&dashboard);
        fs::create_dir_all(path.parent().expect("a file in a folder"))?;
        fs::write(&path, text(&dashboard)?).with_context(|| format!("{path:?} could not be written"))?;
    }
    Ok(())
}

/// Compares every dashboard's file with what [`write`] would write.
///
/// # Errors
/// Naming the first file that differs.
pub fn check() -> Result<()> {
    for dashboard in all()? {
        let path = path(&dashboard);
        let found = fs::read_to_string(&path).unwrap_or_default();
        ensure!(found == text(&dashboard)?, "{path:?} is out of date; run `cargo xtask dashboards`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_files_are_what_the_generator_writes() {
        check().unwrap();
    }

    #[test]
    fn panels_have_ids_of_their_own_and_do_not_overlap() {
        for dashboard in all().unwrap() {
            let mut ids = BTreeSet::new();
            let mut cells = BTreeSet::new();
            for panel in dashboard.json["panels"].as_array().unwrap() {
                assert!(ids.insert(panel["id"].as_u64()), "{}: {}", dashboard.uid, panel["title"]);
                let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
                assert!(place("x") + place("w") <= 24, "{}: {}", dashboard.uid, panel["title"]);
                for x in place("x")..place("x") + place("w") {
                    for y in place("y")..place("y") + place("h") {
                        assert!(
                            cells.insert((x, y)),
                            "{}: {} lies on another",
                            dashboard.uid,
                            panel["title"]
                        );
                    }
                }
            }
            assert!(!dashboard.queries.is_empty(), "{}", dashboard.uid);
        }
    }
}
