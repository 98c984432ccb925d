//! Fetching from the Hugging Face hub, with its own client crate.
//!
//! The crate keeps its cache layout inside the store's working directory, so a broken download is resumed by
//! the next one. Large files carry their SHA-256 as entity tag, which is handed on for the checksum.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiBuilder;

use super::error::FetchError;
use super::progress::Progress;

/// How to reach the hub.
#[derive(Clone, Debug, Default)]
pub(super) struct Hub {
    /// Other than the hub itself or `HF_ENDPOINT`.
    pub(super) endpoint: Option<String>,
}

/// A file in the working directory.
#[derive(Debug)]
pub(super) struct Fetched {
    /// Where it lies.
    pub(super) path: PathBuf,
    /// Its SHA-256 as the source claims.
    pub(super) sha256: Option<String>,
}

impl Hub {
    /// Fetches a file of a repository into `work`.
    pub(super) fn fetch(
        &self,
        repo: &str,
        file: &str,
        work: &Path,
        progress: &Progress,
    ) -> Result<Fetched, FetchError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| FetchError::Io { action, path, source }
        };
        let failed = |url: &str, error: &dyn std::fmt::Display| FetchError::Hub {
            url: url.to_owned(),
            reason: error.to_string(),
        };
        // The token is taken from the user's own cache before the cache is moved to the working directory.
        let mut builder = ApiBuilder::from_env()
            .with_cache_dir(work.to_owned())
            .with_progress(false)
            .with_retries(2)
            .with_user_agent("limpid", env!("CARGO_PKG_VERSION"));
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|error| failed(repo, &error))?.model(repo.to_owned());
        let url = api.url(file);
        let link = api.download_with_progress(file, progress).map_err(|error| failed(&url, &error))?;

        // The cache links to a blob that is named by the entity tag, which the server chose.
        let work = work.canonicalize().map_err(io("find", work))?;
        let path = link.canonicalize().map_err(io("find", &link))?;
        if !path.starts_with(&work) {
            return Err(failed(&url, &format!("the answer points outside {}", work.display())));
        }
        let tag = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_sum = tag.len() == 64 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sha256 = is_sum.then(|| tag.to_ascii_lowercase());
        Ok(Fetched { path, sha256 })
    }
}
