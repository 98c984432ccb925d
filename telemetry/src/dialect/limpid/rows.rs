//! limpid's own part of the catalogue, in OpenTelemetry's style.

use crate::catalogue::{Condition, Kind, Label, Row, Status, Values, buckets};
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

const MODEL_NAME: Label = Label { name: key::MODEL_NAME, values: Values::ModelName };
const ENGINE: Label = Label { name: key::ENGINE, values: Values::Engine };
const MODEL: &[Label] = &[MODEL_NAME, ENGINE];

pub(super) const PREEMPTED_DURATION: Row = row(
    "limpid.request.preempted.duration",
    Kind::Histogram(buckets::VLLM_REQUEST),
    "s",
    MODEL,
    "Time without blocks, each PREEMPTED to the next SCHEDULED, of a finished request that was preempted.",
);
pub(super) const SATURATION: Row = row(
    "limpid.engine.saturation",
    Kind::Gauge,
    "1",
    MODEL,
    "0: more load is more throughput. 1: more load is only more latency.",
);
pub(super) const MAX_RUNNING_REQUESTS_UNDER_SLO: Row = Row {
    condition: Condition::Slo,
    ..row(
        "limpid.engine.max_running_requests_under_slo",
        Kind::Gauge,
        "{request}",
        MODEL,
        "Largest running batch whose time between tokens keeps the SLO, as measured so far.",
    )
};
pub(super) const STEP_DURATION: Row = row(
    "limpid.engine.step.duration",
    Kind::Histogram(buckets::STEP_PARTS),
    "s",
    &[MODEL_NAME, ENGINE, Label { name: key::PART, values: Values::Closed(&["plan", "execute", "apply"]) }],
    "Time of an engine step by part: choosing the batch, computing it, taking the results in.",
);
pub(super) const DEVICE_INFO: Row = row(
    "limpid.device.info",
    Kind::Gauge,
    "",
    &[
        MODEL_NAME,
        ENGINE,
        Label { name: "kind", values: Values::Setting },
        Label { name: "name", values: Values::Setting },
        Label { name: "type", values: Values::Setting },
        Label { name: "backend", values: Values::Setting },
        Label { name: "driver", values: Values::Setting },
    ],
    "The device that computes, as labels; always 1.",
);

pub(crate) const ROWS: &[Row] = &[
    SPANS,
    DATA_POINTS,
    LOG_RECORDS,
    REQUESTS,
    SPAN_QUEUE_LENGTH,
    PREEMPTED_DURATION,
    SATURATION,
    MAX_RUNNING_REQUESTS_UNDER_SLO,
    STEP_DURATION,
    DEVICE_INFO,
];
