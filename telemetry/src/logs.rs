//! The third signal: `tracing` events as OTLP log records.
//!
//! [`OtlpLogLayer`] is put into the process's subscriber before anything is known about telemetry. What it sees
//! until [`Telemetry::start`](crate::Telemetry::start) is kept, up to a bound, and then sent or forgotten.
//! Which events there are is the subscriber's filter's business; where records go is [`crate::export`]'s.
//!
//! Invariant: nothing that exporting does makes a record. Events of the transport's crates and of the exporters
//! themselves are left out, whatever the filter lets through.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::export::LogQueue;

/// Records kept for a telemetry that has not started.
const MAX_EARLY: usize = 512;

/// Beginnings of targets whose events come from delivering telemetry, or from the libraries that do.
const TRANSPORT: &[&str] = &[
    "limpid_telemetry::export",
    "h2",
    "hyper",
    "tonic",
    "tower",
    "reqwest",
    "rustls",
    "want",
    "mio",
    "opentelemetry",
];

/// A record and the target of its event, which becomes its scope.
pub(crate) struct Record {
    pub(crate) target: String,
    pub(crate) log: LogRecord,
}

/// Where records go. One for the process, as the subscriber is.
static SINK: RwLock<Sink> = RwLock::new(Sink::Early(Vec::new()));

enum Sink {
    Early(Vec<Record>),
    On(LogQueue),
    Off,
}

/// From now on records go to this queue; those kept so far go first. Without a queue they are forgotten, but a
/// queue of another telemetry in this process stays.
pub(crate) fn attach(queue: Option<LogQueue>) {
    let mut sink = SINK.write().unwrap_or_else(PoisonError::into_inner);
    match (&mut *sink, queue) {
        (Sink::Early(kept), Some(queue)) => {
            std::mem::take(kept).into_iter().for_each(|record| queue.push(record));
            *sink = Sink::On(queue);
        }
        (_, Some(queue)) => *sink = Sink::On(queue),
        (Sink::Early(_), None) => *sink = Sink::Off,
        (_, None) => {}
    }
}

/// Ends what [`attach`] began with this queue.
pub(crate) fn detach(queue: &LogQueue) {
    let mut sink = SINK.write().unwrap_or_else(PoisonError::into_inner);
    if matches!(&*sink, Sink::On(current) if current.is(queue)) {
        *sink = Sink::Off;
    }
}

/// The layer of a `tracing` subscriber that turns events into OTLP log records.
///
/// Fields named `trace_id` and `span_id` become the record's own ids; give them for sampled spans only.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtlpLogLayer;

impl<S: Subscriber> Layer<S> for OtlpLogLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if is_transport(event.metadata().target()) {
            return;
        }
        if let Sink::Off = *SINK.read().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        let record = record(event);
        // Events that came from the `log` crate say only now where from.
        if is_transport(&record.target) {
            return;
        }
        if let Sink::On(queue) = &*SINK.read().unwrap_or_else(PoisonError::into_inner) {
            queue.push(record);
            return;
        }
        let mut sink = SINK.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *sink {
            Sink::Early(kept) if kept.len() < MAX_EARLY => kept.push(record),
            // Telemetry started in between.
            Sink::On(queue) => queue.push(record),
            Sink::Early(_) | Sink::Off => {}
        }
    }
}

/// Whether a target is one of [`TRANSPORT`] or a module or crate of that family: `hyper_util::client`.
fn is_transport(target: &str) -> bool {
    TRANSPORT.iter().any(|known| {
        target.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '_', '-']))
    })
}

fn record(event: &Event<'_>) -> Record {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let metadata = event.metadata();
    let mut fields = Fields::default();
    event.record(&mut fields);
    let log = LogRecord {
        time_unix_nano: now,
        observed_time_unix_nano: now,
        severity_number: severity(*metadata.level()) as i32,
        severity_text: metadata.level().as_str().to_owned(),
        body: fields.message.map(|message| AnyValue { value: Some(Value::StringValue(message)) }),
        attributes: fields.attributes,
        // W3C's flag for sampled: only ids of sampled spans come this way.
        flags: u32::from(fields.trace_id.is_some()),
        trace_id: fields.trace_id.unwrap_or_default(),
        span_id: fields.span_id.unwrap_or_default(),
        ..LogRecord::default()
    };
    Record { target: fields.log_target.unwrap_or_else(|| metadata.target().to_owned()), log }
}

fn severity(level: Level) -> SeverityNumber {
    match level {
        Level::TRACE => SeverityNumber::Trace,
        Level::DEBUG => SeverityNumber::Debug,
        Level::INFO => SeverityNumber::Info,
        Level::WARN => SeverityNumber::Warn,
        Level::ERROR => SeverityNumber::Error,
    }
}

#[derive(Default)]
struct Fields {
    message: Option<String>,
    trace_id: Option<Vec<u8>>,
    span_id: Option<Vec<u8>>,
    attributes: Vec<KeyValue>,
    /// Of an event that came from the `log` crate.
    log_target: Option<String>,
}

impl Fields {
    fn text(&mut self, field: &Field, text: String) {
        match field.name() {
            "message" => self.message = Some(text),
            "trace_id" => {
                let id = TraceId::from_hex(&text).ok().filter(|id| *id != TraceId::INVALID);
                self.trace_id = id.map(|id| id.to_bytes().to_vec());
            }
            "span_id" => {
                let id = SpanId::from_hex(&text).ok().filter(|id| *id != SpanId::INVALID);
                self.span_id = id.map(|id| id.to_bytes().to_vec());
            }
            "log.target" => self.log_target = Some(text),
            _ => self.attribute(field, Value::StringValue(text)),
        }
    }

    fn attribute(&mut self, field: &Field, value: Value) {
        // Where in the source an event of the `log` crate was made; ours have no such fields.
        if field.name().starts_with("log.") {
            return;
        }
        self.attributes.push(KeyValue {
            key: field.name().to_owned(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        });
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attribute(field, Value::IntValue(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attribute(field, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.attribute(field, Value::DoubleValue(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attribute(field, Value::BoolValue(value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Keeps what [`record`] makes of events, without the process's sink.
    #[derive(Clone, Default)]
    struct Keep(Arc<Mutex<Vec<Record>>>);

    impl<S: Subscriber> Layer<S> for Keep {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            self.0.lock().unwrap().push(record(event));
        }
    }

    #[test]
    fn fields_become_attributes_and_ids_become_ids() {
        let keep = Keep::default();
        let subscriber = tracing_subscriber::registry().with(keep.clone());
        tracing::subscriber::with_default(subscriber, || {
            let (trace_id, none) = ("0af7651916cd43dd8448eb211c80319c", None::<&str>);
            tracing::warn!(target: "limpid::access", trace_id, span_id = "b7ad6b7169203331", count = 3, absent = none, "hello {}", 1);
            tracing::info!(trace_id = "not an id", "bare");
        });
        let kept = keep.0.lock().unwrap();
        let log = &kept[0].log;
        assert_eq!(kept[0].target, "limpid::access");
        assert_eq!(log.body.as_ref().unwrap().value, Some(Value::StringValue("hello 1".to_owned())));
        assert_eq!((log.severity_number, log.severity_text.as_str()), (SeverityNumber::Warn as i32, "WARN"));
        assert_eq!((log.trace_id.len(), log.span_id.len(), log.flags), (16, 8, 1));
        assert_eq!(log.attributes.len(), 1, "{:?}", log.attributes);
        assert_eq!(log.attributes[0].value.as_ref().unwrap().value, Some(Value::IntValue(3)));
        assert!(kept[1].log.trace_id.is_empty() && kept[1].log.flags == 0);
    }

    #[test]
    fn events_of_the_transport_are_left_out_and_others_are_not() {
        for target in [
            "h2",
            "h2::codec",
            "hyper_util::client",
            "tonic::transport",
            "tower",
            "limpid_telemetry::export::deliver",
        ] {
            assert!(is_transport(target), "{target}");
        }
        for target in ["limpid", "limpid_telemetry::pipeline", "h2o", "towering", "limpid_engine::engine"] {
            assert!(!is_transport(target), "{target}");
        }
    }
}
