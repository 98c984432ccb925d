//! vLLM's part of the catalogue that is about the process: HTTP in the shape of its instrumentator, and what
//! Prometheus clients say about a process.

use super::rows::{closed, row};
use crate::catalogue::{Condition, Kind, Label, Row, Values, buckets};

const METHOD: Label = Label { name: "method", values: Values::Method };
const HANDLER: Label = Label { name: "handler", values: Values::Route };

const fn http(
    instrument: &'static str,
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    help: &'static str,
) -> Row {
    row(instrument, name, kind, unit, "other", help)
}

const fn process(
    instrument: &'static str,
    name: &'static str,
    unit: &'static str,
    help: &'static str,
) -> Row {
    Row {
        labels: &[],
        condition: Condition::Linux,
        ..row(instrument, name, Kind::Gauge, unit, "other", help)
    }
}

pub(super) const HTTP_REQUESTS: Row = Row {
    labels: &[METHOD, closed("status", &["1xx", "2xx", "3xx", "4xx", "5xx"]), HANDLER],
    ..http(
        "vllm.http_requests",
        "http_requests_total",
        Kind::Counter,
        "{request}",
        "Answered requests by method, class of status and route; probes and scrapes are left out.",
    )
};
pub(super) const HTTP_REQUEST_SIZE: Row = Row {
    labels: &[HANDLER],
    ..http(
        "vllm.http_request_size",
        "http_request_size_bytes",
        Kind::Summary,
        "By",
        "Content-Length of requests, 0 where there is none.",
    )
};
pub(super) const HTTP_RESPONSE_SIZE: Row = Row {
    labels: &[HANDLER],
    ..http(
        "vllm.http_response_size",
        "http_response_size_bytes",
        Kind::Summary,
        "By",
        "Content-Length of responses, 0 where there is none, as with streams.",
    )
};
pub(super) const HTTP_DURATION_FINE: Row = Row {
    labels: &[],
    ..http(
        "vllm.http_request_duration_highr",
        "http_request_duration_highr_seconds",
        Kind::Histogram(buckets::HTTP_FINE),
        "s",
        "From a request's head to its response's last byte, all routes together.",
    )
};
pub(super) const HTTP_DURATION: Row = Row {
    labels: &[METHOD, HANDLER],
    ..http(
        "vllm.http_request_duration",
        "http_request_duration_seconds",
        Kind::Histogram(buckets::HTTP_COARSE),
        "s",
        "From a request's head to its response's last byte, by method and route.",
    )
};

pub(super) const VIRTUAL_MEMORY: Row = process(
    "vllm.process_virtual_memory",
    "process_virtual_memory_bytes",
    "By",
    "Virtual memory of the process.",
);
pub(super) const RESIDENT_MEMORY: Row = process(
    "vllm.process_resident_memory",
    "process_resident_memory_bytes",
    "By",
    "Resident memory of the process.",
);
pub(super) const START_TIME: Row = process(
    "vllm.process_start_time",
    "process_start_time_seconds",
    "s",
    "Unix time at which the process began.",
);
pub(super) const CPU_SECONDS: Row = Row {
    kind: Kind::Counter,
    ..process(
        "vllm.process_cpu",
        "process_cpu_seconds_total",
        "s",
        "Processor time of the process, user and system.",
    )
};
pub(super) const OPEN_FDS: Row =
    process("vllm.process_open_fds", "process_open_fds", "{file}", "Open file descriptors.");
pub(super) const MAX_FDS: Row =
    process("vllm.process_max_fds", "process_max_fds", "{file}", "Most file descriptors that may be open.");

pub(crate) const ROWS: &[Row] = &[
    HTTP_REQUESTS,
    HTTP_REQUEST_SIZE,
    HTTP_RESPONSE_SIZE,
    HTTP_DURATION_FINE,
    HTTP_DURATION,
    VIRTUAL_MEMORY,
    RESIDENT_MEMORY,
    START_TIME,
    CPU_SECONDS,
    OPEN_FDS,
    MAX_FDS,
];
