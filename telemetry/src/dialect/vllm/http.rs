//! HTTP metrics in the shape of vLLM's instrumentator.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use opentelemetry::KeyValue;

use super::server_rows;
use crate::catalogue::Row;
use crate::http_metrics::{HttpFinished, RouteMethod};
use crate::instruments::{Counter, Histogram, Instruments};

/// The route of every path that no route matches.
const NO_ROUTE: &str = "none";

/// What a client that went away before an answer counts as, after a widespread convention.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Series are made when they are first needed; routes, methods and classes of status are few, and none of
/// them is a client's invention.
pub(crate) struct VllmHttp {
    instruments: Instruments,
    all: Histogram,
    series: Mutex<Series>,
}

#[derive(Default)]
struct Series {
    requests: HashMap<(&'static str, &'static str, &'static str), Counter>,
    durations: HashMap<(&'static str, &'static str), Histogram>,
    sizes: HashMap<&'static str, (Histogram, Histogram)>,
}

impl VllmHttp {
    /// With the series that ordinary traffic will need, at 0.
    pub(crate) fn new(instruments: &Instruments, routes: &[RouteMethod]) -> VllmHttp {
        let http = VllmHttp {
            instruments: instruments.clone(),
            all: instruments.histogram(&server_rows::HTTP_DURATION_FINE, 0, Vec::new()),
            series: Mutex::default(),
        };
        {
            let mut series = http.series.lock().unwrap_or_else(PoisonError::into_inner);
            for &(method, route) in routes {
                for status in ["2xx", "4xx", "5xx"] {
                    series.request(&http.instruments, method, status, route);
                }
                series.duration(&http.instruments, method, route);
                series.sizes(&http.instruments, route);
            }
            series.sizes(&http.instruments, NO_ROUTE);
        }
        http
    }

    pub(crate) fn finished(&self, request: &HttpFinished) {
        let route = request.route.unwrap_or(NO_ROUTE);
        let seconds = request.duration.as_secs_f64();
        let (counter, duration, (request_size, response_size)) = {
            let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
            let status = class(request.status.unwrap_or(CLIENT_CLOSED_REQUEST));
            (
                series.request(&self.instruments, request.method, status, route),
                series.duration(&self.instruments, request.method, route),
                series.sizes(&self.instruments, route),
            )
        };
        counter.add(1);
        duration.record(seconds, request.link);
        request_size.record(request.request_bytes as f64, None);
        response_size.record(request.response_bytes as f64, None);
        self.all.record(seconds, request.link);
    }
}

impl Series {
    fn request(
        &mut self,
        instruments: &Instruments,
        method: &'static str,
        status: &'static str,
        route: &'static str,
    ) -> Counter {
        let make = || {
            let row = &server_rows::HTTP_REQUESTS;
            instruments.counter(row, labels(row, &[method, status, route]))
        };
        self.requests.entry((method, status, route)).or_insert_with(make).clone()
    }

    fn duration(
        &mut self,
        instruments: &Instruments,
        method: &'static str,
        route: &'static str,
    ) -> Histogram {
        let make = || {
            let row = &server_rows::HTTP_DURATION;
            instruments.histogram(row, 0, labels(row, &[method, route]))
        };
        self.durations.entry((method, route)).or_insert_with(make).clone()
    }

    fn sizes(&mut self, instruments: &Instruments, route: &'static str) -> (Histogram, Histogram) {
        let make = || {
            let size = |row: &Row| instruments.histogram(row, 0, labels(row, &[route]));
            (size(&server_rows::HTTP_REQUEST_SIZE), size(&server_rows::HTTP_RESPONSE_SIZE))
        };
        self.sizes.entry(route).or_insert_with(make).clone()
    }
}

/// The row's labels with these values.
fn labels(row: &Row, values: &[&'static str]) -> Vec<KeyValue> {
    row.labels.iter().zip(values).map(|(label, value)| KeyValue::new(label.name, *value)).collect()
}

fn class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
