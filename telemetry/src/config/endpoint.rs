//! Where a signal is pushed to, and how.

use std::fmt;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

use super::env::{Env, parse_flag, parse_milliseconds, parse_pairs};
use super::{ConfigError, Tls};

/// A kind of telemetry that can be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
            Signal::Logs => "logs",
        }
    }

    pub(super) fn variable(self) -> &'static str {
        match self {
            Signal::Traces => "TRACES",
            Signal::Metrics => "METRICS",
            Signal::Logs => "LOGS",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Signal::Traces => "/v1/traces",
            Signal::Metrics => "/v1/metrics",
            Signal::Logs => "/v1/logs",
        }
    }
}

/// OTLP's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    HttpProtobuf,
}

impl Protocol {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::HttpProtobuf => "http/protobuf",
        }
    }
}

/// A checked destination.
#[derive(Clone)]
pub(crate) struct Push {
    pub(crate) protocol: Protocol,
    /// Absolute, `http` or `https`.
    pub(crate) endpoint: Uri,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Of one attempt.
    pub(crate) timeout: Duration,
    pub(crate) gzip: bool,
    pub(crate) tls: Tls,
    /// Where the endpoint came from.
    pub(crate) setting: String,
}

impl fmt::Debug for Push {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Push")
            .field("protocol", &self.protocol)
            .field("endpoint", &self.shown_endpoint())
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("timeout", &self.timeout)
            .field("gzip", &self.gzip)
            .field("setting", &self.setting)
            .finish()
    }
}

/// How an endpoint was given decides whether the signal's path is appended over HTTP.
#[derive(Clone, Copy, PartialEq)]
enum PathRule {
    /// Flag: append if there is no path.
    AppendIfNone,
    /// The signal's own variable: verbatim.
    Verbatim,
    /// The generic variable: append always.
    Append,
}

impl Push {
    pub(super) fn resolve(
        env: &Env<'_>,
        signal: Signal,
        flag: &'static str,
        flag_value: Option<&str>,
    ) -> Result<Option<Push>, ConfigError> {
        let exporter = format!("OTEL_{}_EXPORTER", signal.variable());
        let wanted = match env.get(&exporter) {
            None => None,
            Some(value) if value == "otlp" => Some(true),
            Some(value) if value == "none" => Some(false),
            Some(value) => return Err(ConfigError::new(exporter, value, "otlp, none")),
        };
        let protocol = protocol(env, signal)?;
        let specific = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.variable());
        let generic = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let (setting, found, rule) = if let Some(found) = flag_value {
            (flag.to_owned(), found.trim().to_owned(), PathRule::AppendIfNone)
        } else if wanted == Some(false) {
            return Ok(None);
        } else if let Some(found) = env.get(&specific) {
            (specific, found, PathRule::Verbatim)
        } else if let Some(found) = env.get(generic).filter(|_| signal != Signal::Logs || wanted.is_some()) {
            (generic.to_owned(), found, PathRule::Append)
        } else if wanted == Some(true) {
            let port = if protocol == Protocol::Grpc { 4317 } else { 4318 };
            (exporter, format!("http://localhost:{port}"), PathRule::Append)
        } else {
            return Ok(None);
        };
        let endpoint = match protocol {
            Protocol::Grpc => grpc_endpoint(env, signal, &setting, &found)?,
            Protocol::HttpProtobuf => http_endpoint(signal, &setting, &found, rule)?,
        };
        let timeout = match env.otlp(signal, "TIMEOUT") {
            Some((name, value)) => parse_milliseconds(&name, value)?,
            None => Duration::from_secs(10),
        };
        let gzip = match env.otlp(signal, "COMPRESSION") {
            None => false,
            Some((_, value)) if value == "none" => false,
            Some((_, value)) if value == "gzip" => true,
            Some((name, value)) => return Err(ConfigError::new(name, value, "gzip, none")),
        };
        let headers = headers(env, signal)?;
        let tls = Tls::resolve(env, signal)?;
        Ok(Some(Push { protocol, endpoint, headers, timeout, gzip, tls, setting }))
    }

    /// The endpoint for people: without user name and password.
    pub(crate) fn shown_endpoint(&self) -> String {
        let authority = self.endpoint.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let scheme = self.endpoint.scheme_str().unwrap_or("http");
        let path = if self.protocol == Protocol::Grpc { "" } else { self.endpoint.path() };
        format!("{scheme}://{host}{path}")
    }
}

fn protocol(env: &Env<'_>, signal: Signal) -> Result<Protocol, ConfigError> {
    match env.otlp(signal, "PROTOCOL") {
        None => Ok(Protocol::Grpc),
        Some((_, value)) if value == "grpc" => Ok(Protocol::Grpc),
        Some((_, value)) if value == "http/protobuf" => Ok(Protocol::HttpProtobuf),
        Some((name, value)) => Err(ConfigError::new(name, value, "grpc, http/protobuf")),
    }
}

fn headers(env: &Env<'_>, signal: Signal) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let Some((name, list)) = env.otlp(signal, "HEADERS") else { return Ok(Vec::new()) };
    let refused =
        |problem: String| ConfigError::new(&name, problem, "key=value,key=value with percent-encoded values");
    let mut headers = Vec::new();
    for (key, value) in parse_pairs(&list).map_err(refused)? {
        let header = HeaderName::from_bytes(key.as_bytes())
            .map_err(|_| refused(format!("entry {key:?}, which is no header name")))?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| refused(format!("entry {key:?} with a value no header can carry")))?;
        value.set_sensitive(true);
        headers.push((header, value));
    }
    Ok(headers)
}

fn grpc_endpoint(env: &Env<'_>, signal: Signal, setting: &str, found: &str) -> Result<Uri, ConfigError> {
    let insecure = match env.otlp(signal, "INSECURE") {
        Some((name, value)) => parse_flag(&name, value)?,
        None => true,
    };
    let absolute = if let Some(rest) = found.strip_prefix("grpc://") {
        format!("http://{rest}")
    } else if found.contains("://") {
        found.to_owned()
    } else if insecure {
        format!("http://{found}")
    } else {
        format!("https://{found}")
    };
    checked(&absolute).ok_or_else(|| {
        ConfigError::new(setting, shown(found), "for grpc: http://host:port, https://host:port or host:port")
    })
}

fn http_endpoint(signal: Signal, setting: &str, found: &str, rule: PathRule) -> Result<Uri, ConfigError> {
    let refused = || {
        let example = signal.path();
        ConfigError::new(
            setting,
            shown(found),
            format!("for http/protobuf: a URL such as http://host:4318{example}"),
        )
    };
    let endpoint = checked(found).ok_or_else(refused)?;
    let no_path = matches!(endpoint.path(), "" | "/");
    if rule == PathRule::Verbatim || (rule == PathRule::AppendIfNone && !no_path) {
        return Ok(endpoint);
    }
    let path = format!("{}{}", endpoint.path().trim_end_matches('/'), signal.path());
    let mut parts = endpoint.into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| refused())?);
    Uri::from_parts(parts).map_err(|_| refused())
}

/// An absolute `http` or `https` URI with a host and, if any, a real port.
fn checked(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let authority = uri.authority()?;
    let host_and_port = authority.as_str().rsplit('@').next()?;
    let port = match host_and_port.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1.strip_prefix(':'),
        None => host_and_port.split_once(':').map(|(_, port)| port),
    };
    let port_ok = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let scheme_ok = matches!(uri.scheme_str(), Some("http" | "https"));
    (scheme_ok && port_ok && !authority.host().is_empty()).then_some(uri)
}

/// What was found, without anything before an `@`, which may be a password.
fn shown(found: &str) -> String {
    match found.rsplit_once('@') {
        Some((_, rest)) => format!("\"…@{rest}\""),
        None => format!("{found:?}"),
    }
}
