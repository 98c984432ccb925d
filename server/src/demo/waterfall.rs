//! A request's span tree as text: one bar per span on a common time axis, then the latencies.
//!
//! Pure: spans in, text out. Invariant: no line is wider than asked for, and nothing in a span can move the
//! cursor or change colours.

use std::time::{Duration, SystemTime};

use console::Style;
use opentelemetry::trace::{SpanId, Status};
use opentelemetry::{Array, Value};
use opentelemetry_sdk::trace::SpanData;

/// How to draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    /// Columns.
    pub(super) width: usize,
    /// ANSI colours.
    pub(super) color: bool,
}

/// Least columns of a drawing, however narrow the terminal.
const MIN_WIDTH: usize = 60;

/// Columns for a duration: `104.2 ms`.
const DURATION_WIDTH: usize = 8;

/// Levels drawn; what is deeper is left out.
const MAX_DEPTH: usize = 16;

const LATENCY_PREFIX: &str = "gen_ai.latency.";

/// Draws a trace. Spans come in any order; the root is the one whose parent is not among them.
pub(super) fn render(trace: &[SpanData], canvas: Canvas) -> String {
    let width = canvas.width.max(MIN_WIDTH);
    let rows = tree(trace);
    let Some(root) = rows.first() else { return String::new() };
    let title = Style::new().bold().force_styling(canvas.color);
    let faint = Style::new().dim().force_styling(canvas.color);
    let mut text = format!("{}\n", title.apply_to(cut(&headline(trace, root.span), width)));

    let longest = rows.iter().map(|row| console::measure_text_width(&row.label)).max().unwrap_or(0);
    let label_width = longest.min(width * 2 / 5);
    let bar_width = width - label_width - DURATION_WIDTH - 2;
    let axis = Axis { start: root.span.start_time, length: duration(root.span), columns: bar_width };
    for row in &rows {
        let label =
            console::pad_str(&cut(&row.label, label_width), label_width, console::Alignment::Left, None)
                .into_owned();
        let bar = bar_style(row.span).force_styling(canvas.color).apply_to(axis.bar(row.span));
        let took = spell(duration(row.span));
        text.push_str(&format!("{label} {bar} {took:>DURATION_WIDTH$}\n"));
    }
    for line in latencies(trace, width) {
        text.push_str(&format!("{}\n", faint.apply_to(line)));
    }
    text
}

/// A span with its place in the tree drawn in front of its name.
struct Row<'a> {
    label: String,
    span: &'a SpanData,
}

fn tree(trace: &[SpanData]) -> Vec<Row<'_>> {
    let known = |id: SpanId| trace.iter().any(|span| span.span_context.span_id() == id);
    let Some(root) = trace.iter().find(|span| !known(span.parent_span_id)) else { return Vec::new() };
    let mut rows = vec![Row { label: clean(&root.name), span: root }];
    grow(trace, root, "", 1, &mut rows);
    rows
}

fn grow<'a>(trace: &'a [SpanData], parent: &SpanData, indent: &str, depth: usize, rows: &mut Vec<Row<'a>>) {
    if depth > MAX_DEPTH {
        return;
    }
    let id = parent.span_context.span_id();
    let mut children: Vec<&SpanData> = trace.iter().filter(|span| span.parent_span_id == id).collect();
    children.sort_by_key(|span| (span.start_time, span.end_time));
    for (index, child) in children.iter().enumerate() {
        let is_last = index + 1 == children.len();
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        rows.push(Row { label: format!("{indent}{branch}{}", clean(&child.name)), span: child });
        grow(trace, child, &format!("{indent}{below}"), depth + 1, rows);
    }
}

/// From times to columns.
struct Axis {
    start: SystemTime,
    length: Duration,
    columns: usize,
}

impl Axis {
    fn bar(&self, span: &SpanData) -> String {
        let column = |time: SystemTime| {
            let offset = time.duration_since(self.start).unwrap_or_default().as_secs_f64();
            let share = offset / self.length.as_secs_f64().max(f64::MIN_POSITIVE);
            share.clamp(0.0, 1.0) * self.columns as f64
        };
        let (first, last) = (column(span.start_time), column(span.end_time));
        let begin = (first.floor() as usize).min(self.columns - 1);
        let end = (last.round() as usize).clamp(begin, self.columns);
        let mark = match end - begin {
            0 => "▏".to_owned(),
            length => "█".repeat(length),
        };
        let used = begin + mark.chars().count();
        format!("{}{mark}{}", " ".repeat(begin), " ".repeat(self.columns - used))
    }
}

fn bar_style(span: &SpanData) -> Style {
    let style = Style::new();
    if matches!(span.status, Status::Error { .. }) {
        return style.red();
    }
    match span.name.as_ref() {
        "queue" => style.yellow(),
        "prefill" => style.blue(),
        "decode" => style.green(),
        "preempted" => style.magenta(),
        _ => style.cyan(),
    }
}

/// What the request was and how it ended, in one line.
fn headline(trace: &[SpanData], root: &SpanData) -> String {
    let find = |key: &str| {
        let all = trace.iter().flat_map(|span| &span.attributes);
        all.filter(|attribute| attribute.key.as_str() == key).map(|attribute| &attribute.value).next()
    };
    let mut parts = Vec::new();
    if let Some(status) = find("http.response.status_code") {
        parts.push(status.as_str().into_owned());
    }
    if let Some(Value::Array(Array::String(reasons))) = find("gen_ai.response.finish_reasons") {
        parts.push(reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join(","));
    }
    if let Some(error) = find("error.type") {
        parts.push(format!("error {}", error.as_str()));
    }
    if let Some(tokens) = find("gen_ai.usage.input_tokens") {
        parts.push(format!("{} tokens in", tokens.as_str()));
    }
    if let Some(tokens) = find("gen_ai.usage.output_tokens") {
        parts.push(format!("{} tokens out", tokens.as_str()));
    }
    parts.push(format!("trace {}", root.span_context.trace_id()));
    clean(&parts.join(" · "))
}

/// `gen_ai.latency.*` of all spans, in as many columns as fit.
fn latencies(trace: &[SpanData], width: usize) -> Vec<String> {
    let mut values = Vec::new();
    for attribute in trace.iter().flat_map(|span| &span.attributes) {
        if let (true, Value::F64(seconds)) =
            (attribute.key.as_str().starts_with(LATENCY_PREFIX), &attribute.value)
        {
            values.push((clean(attribute.key.as_str()), *seconds));
        }
    }
    let name_width = values.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let cells: Vec<String> =
        values.iter().map(|(name, seconds)| format!("  {name:name_width$} {seconds:>10.6} s")).collect();
    let columns = (width / (name_width + 15)).max(1);
    let rows = cells.len().div_ceil(columns);
    // Down first, then across, so that the order reads as on the span.
    let line = |row: usize| cells.iter().skip(row).step_by(rows).map(String::as_str).collect::<String>();
    (0..rows).map(|row| cut(&line(row), width)).collect()
}

fn duration(span: &SpanData) -> Duration {
    span.end_time.duration_since(span.start_time).unwrap_or_default()
}

/// A duration in at most [`DURATION_WIDTH`] columns.
fn spell(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0..0.001 => format!("{:.0} µs", seconds * 1e6),
        0.001..0.9999 => format!("{:.1} ms", seconds * 1e3),
        0.9999..999.9 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    }
}

fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '�' } else { char }).collect()
}

fn cut(text: &str, width: usize) -> String {
    console::truncate_str(text, width, "…").into_owned()
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanKind;
    use opentelemetry::{KeyValue, StringValue};

    use super::*;
    use crate::demo::fixtures::{SpanSpec, span};

    const PLAIN: Canvas = Canvas { width: 80, color: false };

    fn request() -> Vec<SpanData> {
        let reasons = Value::Array(Array::String(vec![StringValue::from("stop")]));
        let server = SpanSpec {
            id: 1,
            name: "POST /v1/chat/completions",
            kind: SpanKind::Server,
            end: 1_000_000,
            attributes: vec![KeyValue::new("http.response.status_code", 200)],
            ..SpanSpec::default()
        };
        let model = SpanSpec {
            id: 2,
            parent: 1,
            name: "chat smol",
            start: 2_000,
            end: 999_000,
            attributes: vec![
                KeyValue::new("gen_ai.response.finish_reasons", reasons),
                KeyValue::new("gen_ai.usage.input_tokens", 18),
                KeyValue::new("gen_ai.usage.output_tokens", 42),
                KeyValue::new("gen_ai.latency.time_in_queue", 0.000_3),
                KeyValue::new("gen_ai.latency.e2e", 0.997),
            ],
            ..SpanSpec::default()
        };
        let child =
            |id, name, start, end| span(SpanSpec { id, parent: 2, name, start, end, ..SpanSpec::default() });
        vec![
            child(5, "decode", 252_300, 999_000),
            child(4, "prefill", 2_300, 252_300),
            child(3, "queue", 2_000, 2_300),
            span(model),
            span(server),
        ]
    }

    #[test]
    fn a_request_is_drawn_as_a_waterfall() {
        let expected = "\
200 · stop · 18 tokens in · 42 tokens out · trace 00000000000000000000000000000…
POST /v1/chat/completions █████████████████████████████████████████████   1.00 s
└─ chat smol              █████████████████████████████████████████████ 997.0 ms
   ├─ queue               ▏                                               300 µs
   ├─ prefill             ███████████                                   250.0 ms
   └─ decode                         ██████████████████████████████████ 746.7 ms
  gen_ai.latency.time_in_queue   0.000300 s
  gen_ai.latency.e2e             0.997000 s
";
        assert_eq!(render(&request(), PLAIN), expected);
    }

    #[test]
    fn latencies_take_two_columns_where_they_fit() {
        let text = render(&request(), Canvas { width: 100, color: false });
        assert!(text.ends_with(
            "  gen_ai.latency.time_in_queue   0.000300 s  gen_ai.latency.e2e             0.997000 s\n"
        ));
    }

    #[test]
    fn no_line_is_wider_than_the_canvas_and_colours_do_not_count() {
        for width in [60, 61, 79, 100, 137] {
            let plain = render(&request(), Canvas { width, color: false });
            assert!(plain.lines().all(|line| console::measure_text_width(line) <= width), "{plain}");
            let colored = render(&request(), Canvas { width, color: true });
            assert_ne!(plain, colored);
            assert_eq!(plain, console::strip_ansi_codes(&colored));
        }
        assert_eq!(
            render(&request(), Canvas { width: 1, color: false }),
            render(&request(), Canvas { width: MIN_WIDTH, color: false })
        );
    }

    #[test]
    fn what_a_span_says_cannot_move_the_cursor() {
        let hostile = SpanSpec {
            name: "GET \u{1b}[2J\r\n",
            end: 10,
            attributes: vec![KeyValue::new("error.type", "\u{1b}]0;x\u{7}")],
            ..SpanSpec::default()
        };
        let text = render(&[span(hostile)], PLAIN);
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
    }

    #[test]
    fn spans_outside_their_root_or_without_length_are_drawn_inside_the_canvas() {
        let child =
            |id, start, end| span(SpanSpec { id, parent: 1, name: "x", start, end, ..SpanSpec::default() });
        let root = span(SpanSpec { name: "root", start: 100, end: 100, ..SpanSpec::default() });
        let text = render(&[root, child(2, 0, 50), child(3, 200, 300), child(4, 100, 90)], PLAIN);
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().all(|line| console::measure_text_width(line) <= 80), "{text}");
    }

    #[test]
    fn spans_that_are_their_own_ancestors_end() {
        let a = span(SpanSpec { id: 1, parent: 2, ..SpanSpec::default() });
        let b = span(SpanSpec { id: 2, parent: 1, ..SpanSpec::default() });
        assert_eq!(render(&[a, b], PLAIN), "");
        assert_eq!(render(&[], PLAIN), "");
    }

    #[test]
    fn durations_fit_their_column() {
        for micros in [0, 1, 999, 1_000, 999_949, 999_999, 1_000_000, 999_999_999, 86_400_000_000] {
            let text = spell(Duration::from_micros(micros));
            assert!(console::measure_text_width(&text) <= DURATION_WIDTH, "{text}");
        }
    }
}
