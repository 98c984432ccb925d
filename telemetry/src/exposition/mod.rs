//! `/metrics`: the SDK's own data as text, in the format the scraper prefers.
//!
//! Everything is read from memory through a shared manual reader; no engine lock, no message. Names, labels
//! and HELP come from the streams as they are pushed, so both ways out agree. What this module adds is only
//! what the text formats ask for: escaping, `_total`, cumulative buckets, floats in the `1.0` spelling that
//! vLLM's dashboards query literally (`le="1.0"`), and exemplars in OpenMetrics. It leaves out scope labels,
//! `target_info` and `_created`.

mod accept;
mod family;
mod text;

use opentelemetry_sdk::metrics::data::ResourceMetrics;

pub(crate) use accept::Format;
pub(crate) use family::prometheus_name;

use crate::exemplar::ExemplarStore;

/// Renders one collection.
pub(crate) fn render(metrics: &ResourceMetrics, exemplars: &ExemplarStore, format: Format) -> String {
    text::write(&family::families(metrics, exemplars, format == Format::OpenMetrics), format)
}
