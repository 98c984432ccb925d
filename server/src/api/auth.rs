//! API keys: `Authorization: Bearer KEY` on every route that reads or generates text or changes the engine's state.
//!
//! Probes and scrapes stay open, as in vLLM.

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::error::{ApiError, ErrorKind};

/// The keys that open the server, as digests; none means that it is open to all.
pub(super) struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    pub(super) fn new(keys: &[String]) -> ApiKeys {
        ApiKeys(keys.iter().map(|key| digest(key.as_bytes())).collect())
    }

    /// Lets a request for `path` pass or refuses it.
    pub(super) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_empty() || !is_guarded(path) || bearer(headers).is_some_and(|key| self.contains(key)) {
            return Ok(());
        }
        let message = "the API key is missing or wrong; allowed: a key that this server was started with, as \
                       `Authorization: Bearer KEY`";
        Err(ApiError::new(ErrorKind::Unauthorized, message))
    }

    /// Takes the same time for every wrong key: digests of unknown keys cannot be steered by the client.
    fn contains(&self, key: &[u8]) -> bool {
        let key = digest(key);
        self.0.iter().fold(false, |found, known| found | (*known == key))
    }
}

fn is_guarded(path: &str) -> bool {
    path.starts_with("/v1/")
        || ["/tokenize", "/detokenize", "/reset_prefix_cache", "/sleep", "/wake_up"].contains(&path)
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&str], path: &str, authorization: Option<&str>) -> bool {
        let keys = ApiKeys::new(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, value.parse().expect("a header value"));
        }
        keys.check(path, &headers).is_ok()
    }

    #[test]
    fn a_known_key_opens_and_everything_else_does_not() {
        let keys = ["first", "second"];
        assert!(check(&keys, "/v1/models", Some("Bearer first")));
        assert!(check(&keys, "/v1/models", Some("bearer second")));
        for wrong in [None, Some(""), Some("first"), Some("Basic first"), Some("Bearer"), Some("Bearer firs")]
        {
            assert!(!check(&keys, "/v1/models", wrong), "{wrong:?}");
        }
    }

    #[test]
    fn probes_need_no_key_and_without_keys_nothing_does() {
        for path in ["/health", "/ping", "/metrics", "/version"] {
            assert!(check(&["key"], path, None), "{path}");
        }
        for path in
            ["/v1/chat/completions", "/tokenize", "/detokenize", "/reset_prefix_cache", "/sleep", "/wake_up"]
        {
            assert!(!check(&["key"], path, None), "{path}");
            assert!(check(&[], path, None), "{path}");
        }
    }
}
