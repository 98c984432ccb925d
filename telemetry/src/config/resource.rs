//! Who is speaking: the resource that goes with every payload.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use super::env::{Env, parse_pairs};
use super::{ConfigError, TelemetrySettings};

const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// `OTEL_SERVICE_NAME` wins over `OTEL_RESOURCE_ATTRIBUTES`, that over the program's own values. A given
/// `service.instance.id` is kept; otherwise the process draws one and keeps it, so that two servers on one
/// host never share an identity.
pub(super) fn resolve(env: &Env<'_>, settings: &TelemetrySettings) -> Result<Resource, ConfigError> {
    let mut attributes: Vec<(String, String)> = vec![
        ("service.name".to_owned(), "limpid".to_owned()),
        ("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string()),
        ("telemetry.sdk.name".to_owned(), "opentelemetry".to_owned()),
        ("telemetry.sdk.language".to_owned(), "rust".to_owned()),
        ("telemetry.sdk.version".to_owned(), "0.33.1".to_owned()),
    ];
    if !settings.service_version.is_empty() {
        attributes.push(("service.version".to_owned(), settings.service_version.to_owned()));
    }
    attributes.extend(settings.resource.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    if let Some(list) = env.get(ATTRIBUTES) {
        attributes.extend(parse_pairs(&list).map_err(|problem| {
            ConfigError::new(ATTRIBUTES, problem, "key=value,key=value with percent-encoded values")
        })?);
    }
    if let Some(name) = env.get("OTEL_SERVICE_NAME") {
        attributes.push(("service.name".to_owned(), name));
    }
    // Later entries replace earlier ones of the same key.
    Ok(Resource::builder_empty()
        .with_attributes(attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)))
        .build())
}
