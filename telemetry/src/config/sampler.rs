//! `OTEL_TRACES_SAMPLER` and its argument, in all the standard's forms that need no second service.

use opentelemetry_sdk::trace::Sampler;

use super::ConfigError;
use super::env::Env;

const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";

pub(super) fn resolve(env: &Env<'_>) -> Result<Sampler, ConfigError> {
    let Some(found) = env.get(SAMPLER) else {
        return Ok(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)));
    };
    Ok(match found.to_ascii_lowercase().as_str() {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio(env)?),
        "parentbased_always_on" => Sampler::ParentBased(Box::new(Sampler::AlwaysOn)),
        "parentbased_always_off" => Sampler::ParentBased(Box::new(Sampler::AlwaysOff)),
        "parentbased_traceidratio" => Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio(env)?))),
        _ => {
            return Err(ConfigError::new(
                SAMPLER,
                found,
                "always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, \
                 parentbased_traceidratio",
            ));
        }
    })
}

fn ratio(env: &Env<'_>) -> Result<f64, ConfigError> {
    let Some(found) = env.get(ARGUMENT) else { return Ok(1.0) };
    found
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio))
        .ok_or_else(|| ConfigError::new(ARGUMENT, found, "a number from 0 to 1"))
}
