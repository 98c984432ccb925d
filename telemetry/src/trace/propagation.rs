//! The caller's context: W3C `traceparent` and `tracestate`, read strictly. Whatever is not exactly right is
//! ignored, as the standard asks; baggage is not read at all.

use http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The caller's span, if the headers name one.
pub(super) fn extract(headers: &HeaderMap) -> Option<SpanContext> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next()?;
    if parents.next().is_some() {
        return None;
    }
    let (trace_id, span_id, flags) = parse_traceparent(parent.as_bytes())?;
    Some(SpanContext::new(trace_id, span_id, flags, true, parse_tracestate(headers)))
}

/// `version "-" trace-id "-" parent-id "-" trace-flags`, lower-case hex. A version above 00 may go on after
/// another dash; ff is forbidden; all-zero ids are.
fn parse_traceparent(value: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (head, rest) = value.split_at_checked(55)?;
    let version = hex(&head[..2])? as u8;
    let end_ok = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    if !end_ok || head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
        return None;
    }
    let trace_id = TraceId::from(hex(&head[3..35])?);
    let span_id = SpanId::from(hex(&head[36..52])? as u64);
    let flags = TraceFlags::new(hex(&head[53..55])? as u8) & TraceFlags::SAMPLED;
    (trace_id != TraceId::INVALID && span_id != SpanId::INVALID).then_some((trace_id, span_id, flags))
}

fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0u128, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// Several headers are one list. A list that breaks the rules is dropped; the parent stays.
fn parse_tracestate(headers: &HeaderMap) -> TraceState {
    let mut list = String::new();
    for value in headers.get_all("tracestate") {
        let Ok(value) = value.to_str() else { return TraceState::NONE };
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(value);
    }
    list.parse().unwrap_or(TraceState::NONE)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use proptest::prelude::*;

    use super::extract;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_parent_keeps_its_ids_its_flag_and_its_state() {
        let context = extract(&headers(&[
            ("traceparent", GOOD),
            ("tracestate", "rojo=00f067aa0ba902b7"),
            ("tracestate", "congo=t61rcWkgMzE"),
        ]))
        .unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(context.trace_state().header(), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    }

    #[test]
    fn a_later_version_may_carry_more_and_unknown_flags_are_not_passed_on() {
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0b-what-follows";
        let context = extract(&headers(&[("traceparent", later)])).unwrap();
        assert_eq!(context.trace_flags().to_u8(), 1);
    }

    #[test]
    fn a_malformed_parent_is_ignored() {
        for bad in [
            "",
            "00",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert!(extract(&headers(&[("traceparent", bad)])).is_none(), "{bad}");
        }
        assert!(extract(&headers(&[("traceparent", GOOD), ("traceparent", GOOD)])).is_none(), "two parents");
    }

    #[test]
    fn a_malformed_state_costs_the_state_and_not_the_parent() {
        let context = extract(&headers(&[("traceparent", GOOD), ("tracestate", "not a list")])).unwrap();
        assert_eq!(context.trace_state().header(), "");
    }

    proptest! {
        #[test]
        fn no_header_value_panics(parent in prop::collection::vec(any::<u8>(), 0..80),
                                  state in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&parent) { headers.append("traceparent", value); }
            if let Ok(value) = HeaderValue::from_bytes(&state) { headers.append("tracestate", value); }
            extract(&headers);
        }
    }
}
