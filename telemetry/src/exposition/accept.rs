//! Which text format a scraper gets, by its `Accept` header.

/// The formats we write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus text, version 0.0.4.
    Text,
    /// OpenMetrics text, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The one with the highest quality; at equal quality the one that was named, then OpenMetrics. Without a
    /// header, or if it names nothing we have, the older format with its own header: a scraper can read that.
    pub(crate) fn negotiate(accept: Option<&str>) -> Format {
        let mut best: Option<((u16, bool), Format)> = None;
        for range in accept.unwrap_or_default().split(',') {
            let Some((format, quality, named)) = parse(range) else { continue };
            let rank = (quality, named);
            let better = best.is_none_or(|(known, known_format)| {
                rank > known || (rank == known && named && known_format == Format::Text)
            });
            if quality > 0 && better {
                best = Some((rank, format));
            }
        }
        best.map_or(Format::Text, |(_, format)| format)
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Format, quality in thousandths, and whether the range named it.
fn parse(range: &str) -> Option<(Format, u16, bool)> {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next()?.to_ascii_lowercase();
    let mut quality = 1000;
    let mut version = None;
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => {
                let parsed = value.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q))?;
                quality = (parsed * 1000.0).round() as u16;
            }
            "version" => version = Some(value),
            _ => {}
        }
    }
    match (media_type.as_str(), version) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Some((Format::OpenMetrics, quality, true)),
        ("text/plain", None | Some("0.0.4")) => Some((Format::Text, quality, true)),
        ("*/*" | "text/*", _) => Some((Format::Text, quality, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Format;

    #[test]
    fn the_best_quality_wins_and_a_named_format_beats_a_wildcard() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (None, Format::Text),
            (Some("*/*"), Format::Text),
            (Some(""), Format::Text),
            (Some("text/html, application/xhtml+xml, */*;q=0.8"), Format::Text),
            (Some(prometheus), Format::OpenMetrics),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (Some("application/openmetrics-text; version=1.0.0; charset=utf-8"), Format::OpenMetrics),
            (Some("Application/OpenMetrics-Text;version=\"1.0.0\""), Format::OpenMetrics),
            (Some("application/openmetrics-text;q=0.1, text/plain;q=0.9"), Format::Text),
            (Some("text/plain, application/openmetrics-text"), Format::OpenMetrics),
            (Some("application/openmetrics-text, */*"), Format::OpenMetrics),
            (Some("*/*, application/openmetrics-text"), Format::OpenMetrics),
            (Some("application/openmetrics-text;q=0, */*"), Format::Text),
            (Some("application/openmetrics-text;version=0.0.1"), Format::Text),
            (Some("application/openmetrics-text;version=2.0.0, text/plain;q=0.1"), Format::Text),
            (Some("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily"), Format::Text),
        ] {
            assert_eq!(Format::negotiate(accept), format, "{accept:?}");
        }
    }

    proptest! {
        #[test]
        fn any_header_gets_an_answer(accept in ".{0,200}") {
            Format::negotiate(Some(&accept));
        }
    }
}
