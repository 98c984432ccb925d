//! `http.server.*` of the semantic conventions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::KeyValue;

use super::rows;
use crate::http_metrics::{HttpFinished, METHODS, RouteMethod, method_index};
use crate::instruments::{Histogram, Instruments};
use crate::semconv::key;

/// `error.type` of a request whose client went away before the answer's head.
const CLIENT_GONE: &str = "client_disconnected";

type SeriesKey = (&'static str, Option<&'static str>, Option<u16>, Option<&'static str>);

/// Durations have a series for each method, route, status and error kind that occurred.
pub(crate) struct GenAiHttp {
    instruments: Instruments,
    scheme: &'static str,
    durations: Mutex<HashMap<SeriesKey, Histogram>>,
    active: Arc<[Active; METHODS.len()]>,
}

/// Requests under way with one method.
#[derive(Default)]
struct Active {
    requests: AtomicI64,
    seen: AtomicBool,
}

impl GenAiHttp {
    /// With the series that good requests to these routes will need, at 0.
    pub(crate) fn new(instruments: &Instruments, scheme: &'static str, routes: &[RouteMethod]) -> GenAiHttp {
        let active: Arc<[Active; METHODS.len()]> = Arc::default();
        for (method, _) in routes {
            active[method_index(method)].seen.store(true, Ordering::Relaxed);
        }
        let series: Vec<[KeyValue; 2]> = METHODS
            .iter()
            .map(|method| {
                [KeyValue::new(key::HTTP_REQUEST_METHOD, *method), KeyValue::new(key::URL_SCHEME, scheme)]
            })
            .collect();
        let read = Arc::clone(&active);
        instruments.observe_up_down(&rows::HTTP_ACTIVE_REQUESTS, move |observe| {
            for (active, attributes) in read.iter().zip(&series) {
                if active.seen.load(Ordering::Relaxed) {
                    observe(active.requests.load(Ordering::Relaxed), attributes);
                }
            }
        });
        let http =
            GenAiHttp { instruments: instruments.clone(), scheme, durations: Mutex::default(), active };
        for &(method, route) in routes {
            http.duration((method, Some(route), Some(200), None));
        }
        http
    }

    pub(crate) fn started(&self, method: &'static str) {
        let active = &self.active[method_index(method)];
        active.seen.store(true, Ordering::Relaxed);
        active.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn finished(&self, request: &HttpFinished) {
        self.active[method_index(request.method)].requests.fetch_sub(1, Ordering::Relaxed);
        let error_type = match request.status {
            None => Some(CLIENT_GONE),
            Some(status) if status >= 500 => Some(request.error_type.unwrap_or("_OTHER")),
            Some(_) => None,
        };
        self.duration((request.method, request.route, request.status, error_type))
            .record(request.duration.as_secs_f64(), request.link);
    }

    fn duration(&self, series: SeriesKey) -> Histogram {
        let (method, route, status, error_type) = series;
        let make = || {
            let mut attributes = vec![
                KeyValue::new(key::HTTP_REQUEST_METHOD, method),
                KeyValue::new(key::URL_SCHEME, self.scheme),
            ];
            attributes.extend(route.map(|route| KeyValue::new(key::HTTP_ROUTE, route)));
            attributes.extend(
                status.map(|status| KeyValue::new(key::HTTP_RESPONSE_STATUS_CODE, i64::from(status))),
            );
            attributes.extend(error_type.map(|error_type| KeyValue::new(key::ERROR_TYPE, error_type)));
            self.instruments.histogram(&rows::HTTP_REQUEST_DURATION, 0, attributes)
        };
        let mut durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
        durations.entry(series).or_insert_with(make).clone()
    }
}
