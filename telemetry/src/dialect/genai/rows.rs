//! `gen_ai.server.*` (v1.41, unchanged in the GenAI repository's v0.1.0) and `http.server.*` of the semantic
//! conventions.

use crate::catalogue::{Condition, Kind, Label, Row, Status, Values, buckets};
use crate::semconv::{self, key};

const OPERATION: Label =
    Label { name: key::OPERATION_NAME, values: Values::Closed(&["chat", "text_completion"]) };
const PROVIDER: Label = Label { name: key::PROVIDER_NAME, values: Values::Closed(&[semconv::PROVIDER]) };
const REQUEST_MODEL: Label = Label { name: key::REQUEST_MODEL, values: Values::ModelName };
const RESPONSE_MODEL: Label = Label { name: key::RESPONSE_MODEL, values: Values::ModelName };
const ERROR_TYPE: Label = Label { name: key::ERROR_TYPE, values: Values::ErrorKind };

const fn row(name: &'static str, buckets: buckets::Buckets, description: &'static str) -> Row {
    Row {
        dialect: "genai",
        instrument: name,
        renamed: None,
        kind: Kind::Histogram(buckets),
        unit: "s",
        description,
        labels: &[OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL],
        group: "",
        status: Status::Current,
        condition: Condition::Always,
    }
}

pub(super) const REQUEST_DURATION: Row = Row {
    labels: &[OPERATION, PROVIDER, REQUEST_MODEL, RESPONSE_MODEL, ERROR_TYPE],
    ..row(
        "gen_ai.server.request.duration",
        buckets::GENAI_REQUEST,
        "Duration of a request, from its arrival at the server to its last token or its end.",
    )
};
pub(super) const TIME_PER_OUTPUT_TOKEN: Row = row(
    "gen_ai.server.time_per_output_token",
    buckets::GENAI_OUTPUT_TOKEN,
    "Time per output token after the first, for successful requests.",
);
pub(super) const TIME_TO_FIRST_TOKEN: Row = row(
    "gen_ai.server.time_to_first_token",
    buckets::GENAI_FIRST_TOKEN,
    "Time to the first token, queue and prefill included, for successful requests.",
);

const METHOD: Label = Label { name: key::HTTP_REQUEST_METHOD, values: Values::Method };
const SCHEME: Label = Label { name: key::URL_SCHEME, values: Values::Closed(&["http"]) };

pub(super) const HTTP_REQUEST_DURATION: Row = Row {
    labels: &[
        METHOD,
        SCHEME,
        Label { name: key::HTTP_ROUTE, values: Values::Route },
        Label { name: key::HTTP_RESPONSE_STATUS_CODE, values: Values::StatusCode },
        ERROR_TYPE,
    ],
    ..row(
        "http.server.request.duration",
        buckets::HTTP_SERVER,
        "From a request's head to its response's last byte; probes and scrapes are left out.",
    )
};
pub(super) const HTTP_ACTIVE_REQUESTS: Row = Row {
    kind: Kind::UpDownCounter,
    unit: "{request}",
    labels: &[METHOD, SCHEME],
    ..row(
        "http.server.active_requests",
        buckets::HTTP_SERVER,
        "HTTP requests whose response's last byte is not out yet.",
    )
};

pub(crate) const ROWS: &[Row] = &[
    REQUEST_DURATION,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    HTTP_REQUEST_DURATION,
    HTTP_ACTIVE_REQUESTS,
];
