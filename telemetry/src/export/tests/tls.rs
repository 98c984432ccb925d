//! The certificate variables against a TLS server that asks its clients who they are.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{PROTOCOLS, SOON, one_request, telemetry};
use crate::config::{TelemetryConfig, TelemetrySettings};
use crate::fixtures::{identity, resolve};

fn path(name: &str) -> String {
    format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path(name)).expect("a certificate")
}

/// Trusts clients of the test authority only.
fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate("authority.pem")).expect("an authority");
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(
            vec![certificate("collector.pem")],
            PrivateKeyDer::from_pem_file(path("collector.key")).expect("a key"),
        )
        .expect("a server");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_given_authority_is_trusted_and_the_given_identity_is_shown() {
    let (authority, client, key) = (path("authority.pem"), path("client.pem"), path("client.key"));
    let trust = ("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.as_str());
    let identity_of_client = [
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", client.as_str()),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", key.as_str()),
        ("OTEL_METRICS_EXPORTER", "none"),
    ];
    for protocol in PROTOCOLS {
        for trusts in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
            let mut variables = identity_of_client.to_vec();
            variables.extend(trusts.then_some(trust));
            let telemetry = telemetry(&endpoint, protocol, &variables);
            one_request(&telemetry, &telemetry.model(identity()));
            let (stream, _) = tokio::time::timeout(SOON, listener.accept()).await.expect("a client").unwrap();
            let accepted = tokio::time::timeout(SOON, acceptor().accept(stream)).await.expect("a handshake");
            assert_eq!(accepted.is_ok(), trusts, "{protocol}: {:?}", accepted.err());
            if let Ok(stream) = accepted {
                let shown = stream.get_ref().1.peer_certificates().expect("who it is");
                assert_eq!(shown[0], certificate("client.pem"), "{protocol}");
            }
        }
    }
}

#[test]
fn a_file_that_is_no_certificate_or_key_is_refused_by_its_variable() {
    let refusal = |variables: &[(&str, &str)]| {
        let mut all = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:4317")];
        all.extend_from_slice(variables);
        let resolved: Result<TelemetryConfig, _> = resolve(TelemetrySettings::default(), &all);
        resolved.expect_err("a wrong file").to_string()
    };
    let (authority, key, missing) = (path("authority.pem"), path("client.key"), path("missing.pem"));
    let (trust, shown, secret) = (
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    );
    for (variables, words) in [
        (vec![(trust, missing.as_str())], ["OTEL_EXPORTER_OTLP_CERTIFICATE is", "can be read"]),
        (vec![(trust, key.as_str())], ["OTEL_EXPORTER_OTLP_CERTIFICATE is", "at least one certificate"]),
        (vec![(shown, authority.as_str())], ["CLIENT_CERTIFICATE is set alone", "CLIENT_KEY"]),
        (vec![(secret, key.as_str())], ["CLIENT_KEY is set alone", "CLIENT_CERTIFICATE"]),
        (
            vec![(shown, authority.as_str()), (secret, authority.as_str())],
            ["OTEL_EXPORTER_OTLP_CLIENT_KEY is", "one private key"],
        ),
    ] {
        let message = refusal(&variables);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}
