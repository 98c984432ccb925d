//! limpid's own part of the catalogue, in OpenTelemetry's style.

use crate::catalogue::{Condition, Kind, Label, Row, Status, Values};
use crate::semconv::key;

const fn row(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    labels: &'static [Label],
    description: &'static str,
) -> Row {
    Row {
        dialect: "limpid",
        instrument: name,
        renamed: None,
        kind,
        unit,
        description,
        labels,
        group: "",
        status: Status::Current,
        condition: Condition::Always,
    }
}

pub(super) const SPANS: Row = row(
    "limpid.otlp.exporter.spans",
    Kind::Counter,
    "{span}",
    &[Label { name: key::RESULT, values: Values::Closed(&["exported", "failed", "dropped"]) }],
    "Ended spans that were accepted by the collector, given up, or dropped because the queue was full.",
);
pub(super) const DATA_POINTS: Row = row(
    "limpid.otlp.exporter.data_points",
    Kind::Counter,
    "{data_point}",
    &[Label { name: key::RESULT, values: Values::Closed(&["exported", "failed"]) }],
    "Metric data points that were accepted by the collector or given up.",
);
pub(super) const LOG_RECORDS: Row = row(
    "limpid.otlp.exporter.log_records",
    Kind::Counter,
    "{log_record}",
    &[Label { name: key::RESULT, values: Values::Closed(&["exported", "failed", "dropped"]) }],
    "Log records that were accepted by the collector, given up, or dropped because the queue was full.",
);
pub(super) const REQUESTS: Row = row(
    "limpid.otlp.exporter.requests",
    Kind::Counter,
    "{request}",
    &[
        Label { name: key::SIGNAL, values: Values::Closed(&["traces", "metrics", "logs"]) },
        Label { name: key::RESULT, values: Values::Closed(&["ok", "failed"]) },
    ],
    "Export requests to the collector, retries included, by how they ended.",
);
pub(super) const SPAN_QUEUE_LENGTH: Row = row(
    "limpid.otlp.exporter.span_queue.length",
    Kind::Gauge,
    "{span}",
    &[],
    "Ended spans that wait for export or are being exported.",
);

pub(crate) const ROWS: &[Row] = &[SPANS, DATA_POINTS, LOG_RECORDS, REQUESTS, SPAN_QUEUE_LENGTH];
