//! One attempt over HTTP/protobuf.

use std::error::Error as _;
use std::io::Write as _;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use prost::Message as _;
use reqwest::{Certificate, Client, ClientBuilder, Identity, Url};

use super::deliver::Failure;
use super::signal::Signal;
use crate::config::{ConfigError, Push, Tls};

/// Largest answer that is read; OTLP's answers are tiny.
const MAX_ANSWER: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct HttpClient {
    client: Client,
    url: Url,
    headers: HeaderMap,
    gzip: bool,
}

impl HttpClient {
    pub(super) fn new(push: &Push) -> Result<HttpClient, ConfigError> {
        let refused = |error: &dyn std::error::Error| {
            let mut found = format!("{} ({error}", push.shown_endpoint());
            if let Some(cause) = error.source() {
                found.push_str(&format!(": {cause}"));
            }
            found.push(')');
            ConfigError::new(push.setting.as_str(), found, "an endpoint that an HTTP client can be built for")
        };
        let url: Url = push.endpoint.to_string().parse().map_err(|error| refused(&error))?;
        let mut builder = Client::builder()
            .user_agent(concat!("limpid/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none());
        if push.endpoint.scheme_str() == Some("http") {
            // Plain text needs no certificates, and a container may have none to load.
            builder = builder.tls_backend_preconfigured(no_roots().map_err(|error| refused(&error))?);
        } else {
            // The client takes the process's provider. One that is there already is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            builder = with_tls(builder, &push.tls).map_err(|error| refused(&error))?;
        }
        if is_loopback(push.endpoint.host().unwrap_or_default()) {
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| refused(&error))?;
        let mut headers: HeaderMap = push.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/x-protobuf"));
        if push.gzip {
            headers.insert(CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        }
        Ok(HttpClient { client, url, headers, gzip: push.gzip })
    }

    pub(super) async fn send<S: Signal>(&self, message: &S::Request) -> Result<S::Response, Failure> {
        let mut body = message.encode_to_vec();
        if self.gzip {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            body = encoder.write_all(&body).and_then(|()| encoder.finish()).map_err(|error| Failure {
                kind: "compression",
                message: error.to_string(),
                retryable: false,
                retry_after: None,
            })?;
        }
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let mut response = request.send().await.map_err(connection)?;
        let status = response.status();
        if status != StatusCode::OK {
            let retryable = matches!(status.as_u16(), 429 | 502 | 503 | 504);
            let retry_after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let message = format!("HTTP status {status}");
            return Err(Failure { kind: "refused", message, retryable, retry_after });
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(connection)? {
            if answer.len() + chunk.len() > MAX_ANSWER {
                break;
            }
            answer.extend_from_slice(&chunk);
        }
        // It was accepted; an answer that cannot be read only hides a partial success.
        Ok(S::Response::decode(answer.as_slice()).unwrap_or_default())
    }
}

fn with_tls(mut builder: ClientBuilder, tls: &Tls) -> reqwest::Result<ClientBuilder> {
    if let Some(authorities) = &tls.authorities {
        builder = builder.tls_certs_only(Certificate::from_pem_bundle(authorities)?);
    }
    if let Some(identity) = &tls.identity {
        let pem = [&identity.certificate[..], b"\n", &identity.key].concat();
        builder = builder.identity(Identity::from_pem(&pem)?);
    }
    Ok(builder)
}

fn connection(error: reqwest::Error) -> Failure {
    // The URL may hold a password.
    let error = error.without_url();
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    Failure { kind: "connection", message, retryable: true, retry_after: None }
}

fn no_roots() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}

/// A collector beside the server is never reached through a proxy.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
