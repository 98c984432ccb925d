use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, TraceId};
use proptest::prelude::*;

use super::super::Format;
use super::super::family::{Family, FamilyKind, Series, SeriesValue};
use super::{float, label_text, write};
use crate::exemplar::{Exemplar, SpanLink};

fn counter() -> Family {
    Family {
        name: "vllm:prompt_tokens_total".to_owned(),
        kind: FamilyKind::Counter,
        help: "Says \"so\".".to_owned(),
        series: vec![Series {
            labels: label_text([("engine", "0"), ("model_name", "m")].into_iter()),
            value: SeriesValue::Number(3.0),
        }],
    }
}

fn histogram() -> Family {
    let exemplar = Exemplar {
        value: 0.25,
        link: SpanLink { trace_id: TraceId::from(0xabcu128), span_id: SpanId::from(0xdefu64) },
        time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_500),
    };
    Family {
        name: "h_seconds".to_owned(),
        kind: FamilyKind::Histogram,
        help: "H".to_owned(),
        series: vec![Series {
            labels: String::new(),
            value: SeriesValue::Histogram {
                bounds: vec![0.1, 1.0],
                counts: vec![2, 1, 4],
                count: 7,
                sum: 12.5,
                exemplars: vec![None, Some(exemplar), None],
            },
        }],
    }
}

#[test]
fn text_0_0_4_names_the_counter_with_its_suffix() {
    assert_eq!(
        write(&[counter()], Format::Text),
        "# HELP vllm:prompt_tokens_total Says \"so\".\n\
         # TYPE vllm:prompt_tokens_total counter\n\
         vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 3.0\n"
    );
}

#[test]
fn open_metrics_names_the_counters_family_without_it_and_ends_with_eof() {
    assert_eq!(
        write(&[counter()], Format::OpenMetrics),
        "# HELP vllm:prompt_tokens Says \\\"so\\\".\n\
         # TYPE vllm:prompt_tokens counter\n\
         vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 3.0\n\
         # EOF\n"
    );
}

#[test]
fn buckets_are_cumulative_end_in_inf_and_carry_their_exemplars() {
    assert_eq!(
        write(&[histogram()], Format::OpenMetrics),
        "# HELP h_seconds H\n\
         # TYPE h_seconds histogram\n\
         h_seconds_bucket{le=\"0.1\"} 2.0\n\
         h_seconds_bucket{le=\"1.0\"} 3.0 # {trace_id=\"00000000000000000000000000000abc\",\
         span_id=\"0000000000000def\"} 0.25 1.500\n\
         h_seconds_bucket{le=\"+Inf\"} 7.0\n\
         h_seconds_sum 12.5\n\
         h_seconds_count 7.0\n\
         # EOF\n"
    );
}

/// Reads one sample line back: name, labels, value. Panics where the format is broken.
#[test]
fn a_summary_has_its_count_without_buckets() {
    let value = SeriesValue::Histogram {
        bounds: Vec::new(),
        counts: Vec::new(),
        count: 3,
        sum: 6.0,
        exemplars: Vec::new(),
    };
    let family = Family {
        name: "s_bytes".to_owned(),
        kind: FamilyKind::Summary,
        help: "S".to_owned(),
        series: vec![Series { labels: String::new(), value }],
    };
    let expected = "# HELP s_bytes S\n# TYPE s_bytes summary\ns_bytes_sum 6.0\ns_bytes_count 3.0\n";
    assert_eq!(write(&[family], Format::Text), expected);
}

#[test]
fn numbers_are_spelled_as_go_and_python_clients_spell_them() {
    for (number, expected) in [
        (0.0, "0.0"),
        (1.0, "1.0"),
        (-2.5, "-2.5"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (123_456.0, "123456.0"),
        (1_000_000.0, "1e+06"),
        (1_048_576.0, "1.048576e+06"),
        (-2.5e-12, "-2.5e-12"),
        (1e100, "1e+100"),
    ] {
        let mut out = String::new();
        float(&mut out, number);
        assert_eq!(out, expected);
    }
}

fn parse(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (name, rest) = match line.split_once('{') {
        Some((name, rest)) => (name, rest),
        None => {
            let (name, value) = line.split_once(' ').expect("a value");
            return (name.to_owned(), Vec::new(), value.parse().expect("a number"));
        }
    };
    let mut chars = rest.chars();
    let mut labels = Vec::new();
    loop {
        let label: String = chars.by_ref().take_while(|&c| c != '=').collect();
        assert_eq!(chars.next(), Some('"'));
        let mut value = String::new();
        loop {
            match chars.next().expect("a closing quote") {
                '"' => break,
                '\\' => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    other => panic!("escape {other:?}"),
                }),
                c => value.push(c),
            }
        }
        labels.push((label, value));
        match chars.next() {
            Some(',') => {}
            Some('}') => break,
            other => panic!("after a label: {other:?}"),
        }
    }
    let value = chars.as_str().strip_prefix(' ').expect("a blank").parse().expect("a number");
    (name.to_owned(), labels, value)
}

proptest! {
    /// Whatever a label value or HELP holds, every line parses and the value comes back.
    #[test]
    fn hostile_text_neither_breaks_a_line_nor_changes(
        value in any::<String>(),
        help in any::<String>(),
        number in any::<f64>().prop_filter("comparable", |number| !number.is_nan()),
    ) {
        let family = Family {
            name: "m".to_owned(),
            kind: FamilyKind::Gauge,
            help,
            series: vec![Series {
                labels: label_text([("a", value.as_str()), ("b", "x")].into_iter()),
                value: SeriesValue::Number(number),
            }],
        };
        for format in [Format::Text, Format::OpenMetrics] {
            let text = write(std::slice::from_ref(&family), format);
            let lines: Vec<&str> = text.split('\n').collect();
            prop_assert!(lines[0].starts_with("# HELP m ") && lines[1] == "# TYPE m gauge");
            let (name, labels, read) = parse(lines[2]);
            prop_assert_eq!(name, "m");
            prop_assert_eq!(&labels[0].1, &value);
            prop_assert_eq!(read, number);
        }
    }

    #[test]
    fn floats_read_back_exactly_and_always_show_that_they_are_floats(number in any::<f64>()) {
        let mut text = String::new();
        float(&mut text, number);
        prop_assert!(text.contains(['.', 'e', 'N', 'I']), "{}", text);
        if !number.is_nan() {
            prop_assert_eq!(text.parse::<f64>().unwrap(), number);
        }
    }
}
