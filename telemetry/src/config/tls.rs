//! Certificates of an exporter: whom it trusts, and who it is.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::ConfigError;
use super::endpoint::Signal;
use super::env::Env;

/// PEM texts that were parsed once, so that the clients cannot stumble over them. They matter for `https` only.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The authorities to trust instead of the system's.
    pub(crate) authorities: Option<Vec<u8>>,
    pub(crate) identity: Option<ClientIdentity>,
}

/// What the exporter shows to a collector that asks who it is.
#[derive(Clone)]
pub(crate) struct ClientIdentity {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    /// Reads the files that the signal's variables name.
    pub(super) fn resolve(env: &Env<'_>, signal: Signal) -> Result<Tls, ConfigError> {
        let authorities = env.otlp(signal, "CERTIFICATE").map(|file| certificates(&file)).transpose()?;
        let certificate = env.otlp(signal, "CLIENT_CERTIFICATE");
        let identity = match (certificate, env.otlp(signal, "CLIENT_KEY")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                Some(ClientIdentity { certificate: certificates(&certificate)?, key: private_key(&key)? })
            }
            (Some((name, _)), None) => return Err(alone(name, "CLIENT_KEY")),
            (None, Some((name, _))) => return Err(alone(name, "CLIENT_CERTIFICATE")),
        };
        Ok(Tls { authorities, identity })
    }
}

fn alone(name: String, missing: &str) -> ConfigError {
    ConfigError::new(name, "set alone", format!("together with OTEL_EXPORTER_OTLP_{missing}"))
}

fn read(file: &(String, String)) -> Result<Vec<u8>, ConfigError> {
    let (name, path) = file;
    std::fs::read(path)
        .map_err(|error| ConfigError::new(name, format!("{path} ({error})"), "a PEM file that can be read"))
}

fn certificates(file: &(String, String)) -> Result<Vec<u8>, ConfigError> {
    let pem = read(file)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        _ => Err(ConfigError::new(&file.0, &file.1, "a PEM file with at least one certificate")),
    }
}

fn private_key(file: &(String, String)) -> Result<Vec<u8>, ConfigError> {
    let pem = read(file)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(_) => Ok(pem),
        // The parser's own words might repeat part of the key.
        Err(_) => Err(ConfigError::new(&file.0, &file.1, "a PEM file with one private key, not encrypted")),
    }
}
