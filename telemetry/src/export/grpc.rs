//! One attempt over gRPC.

use std::error::Error as _;

use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use super::deliver::Failure;
use super::signal::Signal;
use crate::config::{ConfigError, Push, Tls};

/// A lazily connected channel: building it reaches nobody.
#[derive(Clone, Debug)]
pub(super) struct GrpcClient {
    channel: Channel,
    metadata: MetadataMap,
    gzip: bool,
}

impl GrpcClient {
    /// Must be called inside the runtime that will drive it.
    pub(super) fn new(push: &Push) -> Result<GrpcClient, ConfigError> {
        let refused = |error: tonic::transport::Error| {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            ConfigError::new(
                push.setting.as_str(),
                format!("{} ({cause})", push.shown_endpoint()),
                "a gRPC endpoint that a channel can be built for",
            )
        };
        let mut endpoint = Endpoint::from(push.endpoint.clone())
            .connect_timeout(push.timeout)
            .user_agent(concat!("limpid/", env!("CARGO_PKG_VERSION")))
            .map_err(refused)?;
        if push.endpoint.scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(tls(&push.tls)).map_err(refused)?;
        }
        let headers = push.headers.iter().cloned().collect();
        Ok(GrpcClient {
            channel: endpoint.connect_lazy(),
            metadata: MetadataMap::from_headers(headers),
            gzip: push.gzip,
        })
    }

    pub(super) async fn send<S: Signal>(&self, message: S::Request) -> Result<S::Response, Failure> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        match S::call(self.channel.clone(), self.gzip, request).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(failure(&status)),
        }
    }
}

fn tls(given: &Tls) -> ClientTlsConfig {
    let config = ClientTlsConfig::new();
    let config = match &given.authorities {
        Some(authorities) => config.ca_certificate(Certificate::from_pem(authorities)),
        None => config.with_native_roots(),
    };
    match &given.identity {
        Some(identity) => config.identity(Identity::from_pem(&identity.certificate, &identity.key)),
        None => config,
    }
}

/// Sorts by OTLP's table of retryable codes. The collector's own text is not passed on: it may echo a secret.
fn failure(status: &Status) -> Failure {
    let retryable = matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    );
    let mut message = format!("gRPC code {:?}", status.code());
    let mut cause = status.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    let kind = if status.source().is_some() { "connection" } else { "refused" };
    Failure { kind, message, retryable, retry_after: None }
}
