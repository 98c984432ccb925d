//! A strict reader of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.
//!
//! It is a judge, so it is stricter than a scraper has to be: metadata before samples, families in one piece,
//! no label set twice, histograms cumulative and complete, no `NaN`. [`Scrape::parse`] fails with the line that
//! breaks a rule.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`.
    Text004,
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

/// An exemplar behind a bucket or counter sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Exemplar {
    /// Its labels: `trace_id`, `span_id`.
    pub labels: Labels,
    /// Its value.
    pub value: f64,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name with its suffix.
    pub name: String,
    /// Labels.
    pub labels: Labels,
    /// Value.
    pub value: f64,
    /// Exemplar, OpenMetrics only.
    pub exemplar: Option<Exemplar>,
}

/// One family: everything between a `# TYPE` and the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name as exposed on samples of counters and gauges: a counter's ends in `_total` in both formats.
    pub name: String,
    /// `counter`, `gauge`, `histogram`, `info`.
    pub kind: String,
    /// The help text.
    pub help: String,
    /// The samples, in order.
    pub samples: Vec<Sample>,
}

/// A whole scrape.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// Families by name.
    pub families: BTreeMap<String, Family>,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.reason)
    }
}

/// A histogram's series for one label set (`le` taken off).
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// `le` as spelled, with the cumulative count.
    pub buckets: Vec<(String, f64)>,
    /// `_sum`.
    pub sum: f64,
    /// `_count`.
    pub count: f64,
}

impl Scrape {
    /// Reads a body.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn parse(body: &str, format: Format) -> Result<Scrape, Broken> {
        let broken = |line: usize, reason: String| Broken { line: line + 1, reason };
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current: Option<(String, Family)> = None;
        let mut help: Option<(String, String)> = None;
        let mut series = HashSet::new();
        let mut ended = false;
        if !body.ends_with('\n') {
            return Err(broken(body.lines().count(), "the body does not end with a newline".into()));
        }
        for (index, line) in body.strip_suffix('\n').unwrap_or(body).split('\n').enumerate() {
            let fail = |reason: String| broken(index, format!("{reason}: {line:?}"));
            if ended {
                return Err(fail("text behind # EOF".into()));
            }
            if line == "# EOF" && format == Format::OpenMetrics {
                ended = true;
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').ok_or_else(|| fail("no help text".into()))?;
                help = Some((name.to_owned(), text.to_owned()));
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                finish(&mut families, current.take()).map_err(&fail)?;
                let (name, kind) = rest.split_once(' ').ok_or_else(|| fail("no type".into()))?;
                if !["counter", "gauge", "histogram", "info", "summary"].contains(&kind) {
                    return Err(fail(format!("type {kind:?}")));
                }
                let (described, help) = help.take().ok_or_else(|| fail("no # HELP before # TYPE".into()))?;
                if described != name {
                    return Err(fail(format!("# HELP of {described}")));
                }
                let exposed = match (format, kind) {
                    (Format::OpenMetrics, "counter") if name.ends_with("_total") => {
                        return Err(fail("a counter family's name ends in _total".into()));
                    }
                    (Format::OpenMetrics, "counter") => format!("{name}_total"),
                    _ => name.to_owned(),
                };
                if !valid_name(name) || families.contains_key(&exposed) {
                    return Err(fail("the family's name is invalid or was used before".into()));
                }
                let family = Family { name: exposed, kind: kind.to_owned(), help, samples: Vec::new() };
                current = Some((name.to_owned(), family));
            } else if let Some(rest) = line.strip_prefix("# UNIT ").filter(|_| format == Format::OpenMetrics)
            {
                let (name, unit) = rest.split_once(' ').ok_or_else(|| fail("no unit".into()))?;
                if !name.ends_with(unit) {
                    return Err(fail("a unit that the name does not end with".into()));
                }
            } else if line.starts_with('#') {
                return Err(fail("an unknown comment".into()));
            } else {
                let sample = parse_sample(line, format).map_err(&fail)?;
                let (name, family) = current.as_mut().ok_or_else(|| fail("no # TYPE".into()))?;
                if !belongs(name, &family.kind, &sample.name, format) {
                    return Err(fail(format!("not a sample of {} {name}", family.kind)));
                }
                if !series.insert((sample.name.clone(), sample.labels.clone())) {
                    return Err(fail("the series comes twice".into()));
                }
                if sample.value.is_nan() {
                    return Err(fail("not a number".into()));
                }
                family.samples.push(sample);
            }
        }
        let lines = body.lines().count();
        finish(&mut families, current).map_err(|reason| broken(lines, reason))?;
        if format == Format::OpenMetrics && !ended {
            return Err(broken(lines, "no # EOF".into()));
        }
        Ok(Scrape { families })
    }

    /// A family.
    ///
    /// # Panics
    /// If it is absent.
    #[track_caller]
    pub fn family(&self, name: &str) -> &Family {
        match self.families.get(name) {
            Some(family) => family,
            None => panic!("no family {name} among {:?}", self.families.keys().collect::<Vec<_>>()),
        }
    }

    /// The sum over a family's samples whose labels include `with`.
    ///
    /// # Panics
    /// If the family is absent or none of its samples matches.
    #[track_caller]
    pub fn value(&self, family: &str, with: &[(&str, &str)]) -> f64 {
        let values = self
            .family(family)
            .samples
            .iter()
            .filter(|sample| {
                with.iter().all(|(name, value)| sample.labels.get(*name).map(String::as_str) == Some(value))
            })
            .map(|sample| sample.value);
        values
            .reduce(|sum, value| sum + value)
            .unwrap_or_else(|| panic!("no sample of {family} with {with:?}"))
    }

    /// A histogram family's series by label set, `le` taken off.
    ///
    /// # Panics
    /// If the family is absent.
    #[track_caller]
    pub fn histograms(&self, name: &str) -> BTreeMap<Labels, Histogram> {
        histograms(self.family(name)).expect("checked when it was parsed")
    }

    /// The only series of a histogram family.
    ///
    /// # Panics
    /// If there is not exactly one.
    #[track_caller]
    pub fn histogram(&self, name: &str) -> Histogram {
        let mut series = self.histograms(name);
        assert_eq!(series.len(), 1, "series of {name}: {series:?}");
        series.pop_first().unwrap().1
    }

    /// Every (name, labels) pair.
    pub fn series(&self) -> HashSet<(String, Labels)> {
        let samples = self.families.values().flat_map(|family| &family.samples);
        samples.map(|sample| (sample.name.clone(), sample.labels.clone())).collect()
    }
}

fn finish(families: &mut BTreeMap<String, Family>, done: Option<(String, Family)>) -> Result<(), String> {
    let Some((_, family)) = done else { return Ok(()) };
    match family.kind.as_str() {
        "histogram" => {
            histograms(&family)?;
        }
        "counter" => {
            if let Some(sample) = family.samples.iter().find(|sample| sample.value < 0.0) {
                return Err(format!("a counter below zero: {sample:?}"));
            }
            if !family.name.ends_with("_total") {
                return Err(format!("counter {} does not end in _total", family.name));
            }
        }
        _ => {}
    }
    families.insert(family.name.clone(), family);
    Ok(())
}

/// A histogram's series while it is read.
#[derive(Default)]
struct Parts {
    buckets: Vec<(String, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

fn histograms(family: &Family) -> Result<BTreeMap<Labels, Histogram>, String> {
    let mut series: BTreeMap<Labels, Parts> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let le = labels.remove("le");
        let parts = series.entry(labels).or_default();
        match (le, sample.name.strip_prefix(&family.name)) {
            (Some(le), Some("_bucket")) => parts.buckets.push((le, sample.value)),
            (None, Some("_sum")) => parts.sum = Some(sample.value),
            (None, Some("_count")) => parts.count = Some(sample.value),
            _ => return Err(format!("{sample:?} is no part of a histogram")),
        }
    }
    let whole = series.into_iter().map(|(labels, Parts { buckets, sum, count })| {
        let name = format!("{}{labels:?}", family.name);
        let sum = sum.ok_or_else(|| format!("{name} has no _sum"))?;
        let count = count.ok_or_else(|| format!("{name} has no _count"))?;
        let bounds: Vec<f64> = buckets
            .iter()
            .map(|(le, _)| le.parse())
            .collect::<Result<_, _>>()
            .map_err(|_| format!("le of {name}"))?;
        if !bounds.is_sorted_by(|a, b| a < b) || !buckets.is_sorted_by(|a, b| a.1 <= b.1) {
            return Err(format!("{name}'s buckets do not rise: {buckets:?}"));
        }
        match buckets.last() {
            Some((le, last)) if le == "+Inf" && *last == count => {
                Ok((labels, Histogram { buckets, sum, count }))
            }
            last => Err(format!("{name}'s last bucket is {last:?}, its count {count}")),
        }
    });
    whole.collect()
}

fn belongs(family: &str, kind: &str, sample: &str, format: Format) -> bool {
    let Some(suffix) = sample.strip_prefix(family) else { return false };
    match (kind, format) {
        ("histogram", _) => ["_bucket", "_sum", "_count"].contains(&suffix),
        ("counter", Format::OpenMetrics) => suffix == "_total",
        ("info", _) => suffix == "_info",
        // None of ours has quantiles.
        ("summary", _) => ["_sum", "_count"].contains(&suffix),
        _ => suffix.is_empty(),
    }
}

fn valid_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_' || first == ':')
        && chars.all(|next| next.is_ascii_alphanumeric() || next == '_' || next == ':')
}

fn parse_sample(line: &str, format: Format) -> Result<Sample, String> {
    let name_end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, rest) = line.split_at(name_end);
    if !valid_name(name) {
        return Err(format!("the name {name:?} is invalid"));
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Labels::new(), rest),
    };
    let rest = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let (value, exemplar) = match rest.split_once(" # ") {
        Some((value, exemplar)) if format == Format::OpenMetrics => (value, Some(parse_exemplar(exemplar)?)),
        Some(_) => return Err("an exemplar in the text format".into()),
        None => (rest, None),
    };
    if exemplar.is_some() && !name.ends_with("_bucket") && !name.ends_with("_total") {
        return Err("an exemplar on neither a bucket nor a counter".into());
    }
    if value.contains(' ') {
        return Err("a timestamp, which limpid never sends".into());
    }
    Ok(Sample { name: name.to_owned(), labels, value: parse_number(value)?, exemplar })
}

fn parse_number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        text if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            text.parse().map_err(|_| format!("{text:?} is no number"))
        }
        _ => Err(format!("{text:?} is no number")),
    }
}

/// Reads labels up to the closing brace and returns what is behind it.
fn parse_labels(mut rest: &str) -> Result<(Labels, &str), String> {
    let mut labels = Labels::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        if !labels.is_empty() {
            rest = rest.strip_prefix(',').ok_or("no comma between labels")?;
        }
        let (name, behind) = rest.split_once("=\"").ok_or("no quoted label value")?;
        if !valid_name(name) || name.contains(':') {
            return Err(format!("the label name {name:?} is invalid"));
        }
        let mut value = String::new();
        let mut chars = behind.char_indices();
        rest = loop {
            match chars.next().ok_or("an open label value")? {
                (end, '"') => break &behind[end + 1..],
                (_, '\\') => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                    other => return Err(format!("an unknown escape {other:?}")),
                },
                (_, plain) => value.push(plain),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("the label {name} comes twice"));
        }
    }
}

fn parse_exemplar(text: &str) -> Result<Exemplar, String> {
    let (labels, rest) = parse_labels(text.strip_prefix('{').ok_or("an exemplar without labels")?)?;
    let rest = rest.strip_prefix(' ').ok_or("an exemplar without a value")?;
    let (value, timestamp) = rest.split_once(' ').map_or((rest, None), |(value, at)| (value, Some(at)));
    if let Some(timestamp) = timestamp {
        parse_number(timestamp)?;
    }
    let length: usize = labels.iter().map(|(name, value)| name.chars().count() + value.chars().count()).sum();
    if length > 128 {
        return Err(format!("an exemplar of {length} characters; 128 are allowed"));
    }
    Ok(Exemplar { labels, value: parse_number(value)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_total Things.\n# TYPE a_total counter\na_total{b=\"c\\\"d\"} 2\n\
        # HELP h Times.\n# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 7.5\nh_count 3\n";

    fn reason(body: &str, format: Format) -> String {
        Scrape::parse(body, format).expect_err("should be refused").to_string()
    }

    #[test]
    fn reads_both_formats_to_the_same_families() {
        let text = Scrape::parse(GOOD, Format::Text004).unwrap();
        let open = GOOD.replace("HELP a_total", "HELP a").replace("TYPE a_total", "TYPE a") + "# EOF\n";
        let open = Scrape::parse(&open, Format::OpenMetrics).unwrap();
        assert_eq!(text.families, open.families);
        assert_eq!(text.value("a_total", &[("b", "c\"d")]), 2.0);
        assert_eq!(text.histogram("h").buckets, [("1.0".to_owned(), 1.0), ("+Inf".to_owned(), 3.0)]);
    }

    #[test]
    fn refuses_what_a_scraper_could_misread() {
        for (change, with, wanted) in [
            ("h_count 3", "h_count 4", "last bucket"),
            ("le=\"1.0\"} 1", "le=\"1.0\"} 4", "do not rise"),
            ("a_total{b=\"c\\\"d\"} 2", "a_total 2\na_total 2", "twice"),
            ("a_total{b=\"c\\\"d\"} 2", "a_total NaN", "not a number"),
            ("a_total{b=\"c\\\"d\"} 2", "b_total 2", "not a sample"),
            ("# HELP h Times.\n", "", "no # HELP"),
            ("h_sum 7.5\n", "", "no _sum"),
            ("h_sum 7.5", "h_sum 7.5 # {trace_id=\"1\"} 1", "exemplar"),
        ] {
            let body = GOOD.replace(change, with);
            assert_ne!(body, GOOD);
            let found = reason(&body, Format::Text004);
            assert!(found.contains(wanted), "{found} should name {wanted}");
        }
        assert!(reason(GOOD.trim_end(), Format::Text004).contains("newline"));
        assert!(reason(GOOD, Format::OpenMetrics).contains("_total"));
    }

    #[test]
    fn reads_exemplars_of_open_metrics() {
        let body = "# HELP a A.\n# TYPE a counter\na_total 1 # {trace_id=\"4bf9\"} 0.5 1.5\n# EOF\n";
        let scrape = Scrape::parse(body, Format::OpenMetrics).unwrap();
        let exemplar = scrape.family("a_total").samples[0].exemplar.clone().unwrap();
        assert_eq!((exemplar.labels["trace_id"].as_str(), exemplar.value), ("4bf9", 0.5));
    }
}
