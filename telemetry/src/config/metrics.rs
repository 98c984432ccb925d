//! Which metrics there are: dialects, switches, buckets, hidden names.

use std::time::Duration;

use super::{ConfigError, DetailedTraces};
use crate::catalogue::buckets::VLLM_FAMILIES;
use crate::catalogue::{Condition, HIDDEN, Hidden, Kind, Row};

/// A naming of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsDialect {
    /// vLLM's names.
    Vllm,
    /// The semantic conventions' names.
    GenAi,
    /// What neither has.
    Limpid,
    /// SGLang's names.
    Sglang,
}

impl MetricsDialect {
    /// The folder's name, which rows of the catalogue carry.
    pub fn as_str(self) -> &'static str {
        match self {
            MetricsDialect::Vllm => "vllm",
            MetricsDialect::GenAi => "genai",
            MetricsDialect::Limpid => "limpid",
            MetricsDialect::Sglang => "sglang",
        }
    }
}

/// Settings of the metrics as flags give them.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsSettings {
    /// `--metrics-dialects`.
    pub dialects: Vec<MetricsDialect>,
    /// `--custom-histogram-buckets`: bounds by vLLM's name of the bucket family, in seconds or tokens.
    pub custom_histogram_buckets: Vec<(String, Vec<f64>)>,
    /// `--show-hidden-metrics-for-version`: a version of vLLM, `0.11`.
    pub show_hidden_metrics_for_version: Option<String>,
    /// `--disable-log-stats`: no metrics of engines and requests, and no log line.
    pub disable_log_stats: bool,
    /// `--kv-cache-metrics`.
    pub kv_cache_metrics: bool,
    /// `--enable-mfu-metrics`.
    pub enable_mfu_metrics: bool,
    /// `--slo-inter-token-ms`: longest time between two tokens that is still good.
    pub slo_inter_token: Option<Duration>,
}

impl Default for MetricsSettings {
    fn default() -> MetricsSettings {
        MetricsSettings {
            dialects: vec![MetricsDialect::Vllm, MetricsDialect::GenAi, MetricsDialect::Limpid],
            custom_histogram_buckets: Vec::new(),
            show_hidden_metrics_for_version: None,
            disable_log_stats: false,
            kv_cache_metrics: false,
            enable_mfu_metrics: false,
            slo_inter_token: None,
        }
    }
}

/// Settings of the metrics that were checked.
#[derive(Clone, Debug)]
pub(crate) struct MetricsConfig {
    dialects: Vec<MetricsDialect>,
    custom_buckets: Vec<(usize, Vec<f64>)>,
    hidden_version: Option<(u32, u32)>,
    pub(crate) log_stats: bool,
    kv_cache_metrics: bool,
    mfu_metrics: bool,
    measure: Measure,
    pub(crate) slo_inter_token: Option<Duration>,
}

/// Which of the detailed times are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measure {
    /// `time_in_model_forward`.
    pub(crate) forward: bool,
    /// `time_in_model_execute`.
    pub(crate) execute: bool,
}

impl Measure {
    pub(super) fn new(asked: &[DetailedTraces]) -> Measure {
        let asks = |wanted| asked.iter().any(|&asked| asked == wanted || asked == DetailedTraces::All);
        Measure { forward: asks(DetailedTraces::Model), execute: asks(DetailedTraces::Worker) }
    }
}

impl MetricsConfig {
    pub(super) fn resolve(
        settings: &MetricsSettings,
        measure: Measure,
    ) -> Result<MetricsConfig, ConfigError> {
        if settings.slo_inter_token.is_some_and(|slo| slo.is_zero()) {
            return Err(ConfigError::new("--slo-inter-token-ms", "0", "a time longer than 0"));
        }
        Ok(MetricsConfig {
            dialects: settings.dialects.clone(),
            custom_buckets: settings
                .custom_histogram_buckets
                .iter()
                .map(|(family, bounds)| custom_buckets(family, bounds))
                .collect::<Result<_, _>>()?,
            hidden_version: settings.show_hidden_metrics_for_version.as_deref().map(version).transpose()?,
            log_stats: !settings.disable_log_stats,
            kv_cache_metrics: settings.kv_cache_metrics,
            mfu_metrics: settings.enable_mfu_metrics,
            measure,
            slo_inter_token: settings.slo_inter_token,
        })
    }

    /// Whether the dialect is asked for.
    pub(crate) fn speaks(&self, dialect: MetricsDialect) -> bool {
        self.dialects.contains(&dialect)
    }

    /// Whether the row's dialect is asked for and what switches the row on is on.
    pub(crate) fn enabled(&self, row: &Row) -> bool {
        let on = match row.condition {
            Condition::Always => true,
            Condition::DetailedModel => self.measure.forward,
            Condition::DetailedWorker => self.measure.execute,
            Condition::KvCacheMetrics => self.kv_cache_metrics,
            Condition::MfuMetrics => self.mfu_metrics,
            Condition::Slo => self.slo_inter_token.is_some(),
            Condition::Linux => cfg!(target_os = "linux"),
        };
        on && self.dialects.iter().any(|dialect| dialect.as_str() == row.dialect)
    }

    /// A histogram's bounds; those of vLLM's rows can be replaced.
    pub(crate) fn bounds(&self, row: &Row, max_model_len: usize) -> Vec<f64> {
        let buckets = match row.kind {
            Kind::Histogram(buckets) => buckets,
            // One bucket without an upper bound: only sum and count.
            _ => return Vec::new(),
        };
        let custom = self.custom_buckets.iter().find(|(family, _)| VLLM_FAMILIES[*family].1 == buckets);
        match custom {
            Some((_, bounds)) if row.dialect == MetricsDialect::Vllm.as_str() => bounds.clone(),
            _ => buckets.bounds(max_model_len),
        }
    }

    /// The hidden name of this instrument, if it is to be shown.
    pub(crate) fn shown_again(&self, instrument: &str) -> Option<&'static Hidden> {
        let version = self.hidden_version?;
        HIDDEN.iter().find(|hidden| hidden.instrument == instrument && hidden.shown_for(version))
    }
}

/// Index of the family, and its bounds checked as vLLM checks them.
fn custom_buckets(family: &str, bounds: &[f64]) -> Result<(usize, Vec<f64>), ConfigError> {
    let setting = || format!("--custom-histogram-buckets {family}");
    let Some(index) = VLLM_FAMILIES.iter().position(|(name, _)| *name == family) else {
        let known: Vec<&str> = VLLM_FAMILIES.iter().map(|(name, _)| *name).collect();
        return Err(ConfigError::new(
            setting(),
            "not a family of buckets",
            format!("the families {}", known.join(", ")),
        ));
    };
    if bounds.is_empty() {
        return Err(ConfigError::new(setting(), "an empty list", "at least one bound"));
    }
    if let Some(bound) = bounds.iter().find(|bound| !(bound.is_finite() && **bound > 0.0)) {
        return Err(ConfigError::new(setting(), bound.to_string(), "finite bounds above 0"));
    }
    if let Some(pair) = bounds.windows(2).find(|pair| pair[0] >= pair[1]) {
        let found = format!("{} before {}", pair[0], pair[1]);
        return Err(ConfigError::new(setting(), found, "bounds that rise from one to the next"));
    }
    Ok((index, bounds.to_vec()))
}

/// Major and minor of `0.11` or `0.11.2`.
fn version(text: &str) -> Result<(u32, u32), ConfigError> {
    let refused = || {
        ConfigError::new(
            "--show-hidden-metrics-for-version",
            format!("{text:?}"),
            "a version of vLLM, such as 0.11",
        )
    };
    let numbers: Vec<u32> =
        text.split('.').map(|part| part.parse().map_err(|_| refused())).collect::<Result<_, _>>()?;
    match numbers[..] {
        [major, minor] | [major, minor, _] => Ok((major, minor)),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    fn resolve(settings: MetricsSettings) -> Result<MetricsConfig, ConfigError> {
        MetricsConfig::resolve(&settings, Measure::default())
    }

    fn buckets(family: &str, bounds: &[f64]) -> Result<MetricsConfig, ConfigError> {
        resolve(MetricsSettings {
            custom_histogram_buckets: vec![(family.to_owned(), bounds.to_vec())],
            ..MetricsSettings::default()
        })
    }

    #[test]
    fn custom_buckets_replace_those_of_their_family_in_vllms_dialect_only() {
        let config = buckets("request_latency", &[0.01, 0.05, 0.1]).unwrap();
        let bounds = |instrument| config.bounds(catalogue::row_of_instrument(instrument).unwrap(), 100);
        for instrument in ["vllm.e2e_request_latency_seconds", "vllm.request_queue_time_seconds"] {
            assert_eq!(bounds(instrument), [0.01, 0.05, 0.1], "{instrument}");
        }
        assert_eq!(bounds("vllm.inter_token_latency_seconds").len(), 19);
        assert_eq!(bounds("gen_ai.server.request.duration").len(), 14);
    }

    #[test]
    fn wrong_buckets_are_refused_with_the_familys_name() {
        for (family, bounds, found) in [
            ("request_latency", vec![0.1, 0.05], "0.1 before 0.05"),
            ("request_latency", vec![0.1, 0.1], "0.1 before 0.1"),
            ("request_tokens", vec![], "an empty list"),
            ("request_tokens", vec![0.0], "0"),
            ("request_tokens", vec![f64::INFINITY], "inf"),
            ("nonsense", vec![1.0], "not a family"),
        ] {
            let message = buckets(family, &bounds).unwrap_err().to_string();
            assert!(message.contains(family) && message.contains(found), "{message}");
        }
    }

    #[test]
    fn a_version_has_two_or_three_numbers() {
        assert_eq!(version("0.11"), Ok((0, 11)));
        assert_eq!(version("0.11.2"), Ok((0, 11)));
        for wrong in ["", "0", "0.x", "0.1.2.3", "-1.2", "latest"] {
            assert!(version(wrong).unwrap_err().to_string().contains("--show-hidden-metrics"), "{wrong}");
        }
    }

    #[test]
    fn a_dialect_that_is_not_asked_for_has_no_rows() {
        let settings =
            MetricsSettings { dialects: vec![MetricsDialect::Sglang], ..MetricsSettings::default() };
        let config = resolve(settings).unwrap();
        assert!(catalogue::rows().filter(|row| config.enabled(row)).all(|row| row.dialect == "sglang"));
        assert!(!config.speaks(MetricsDialect::Vllm) && config.speaks(MetricsDialect::Sglang));
    }
}
