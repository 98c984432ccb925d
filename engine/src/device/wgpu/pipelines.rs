//! The driver's compiled pipelines, kept in a file from one start to the next.
//!
//! Many drivers keep such a file themselves, in the user's home directory. A container's home directory is new at each
//! start, while the directory that is used here may be on the volume that the models are on. What is in the file is
//! between wgpu and the driver, who refuse what other drivers and devices wrote.
//!
//! Invariant: a cache makes a start faster or changes nothing. Whatever is wrong with its file or directory, pipelines
//! are built as without it, and the file is replaced if it can be. It appears under its name whole or not at all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};
use wgpu::{Features, PipelineCache};

use super::gpu::Gpu;

/// Most bytes of a cache. What models and versions no longer in use have left in it stays there; a cache that has grown
/// over this is begun anew.
const MAX_BYTES: u64 = 64 << 20;

/// The sum that comes before the data in a file.
type Sum = [u8; 32];

/// A cache and its file.
pub(super) struct PipelineFile {
    path: PathBuf,
    cache: PipelineCache,
    /// Of the data that was read; `None` if there was none that could be used.
    sum: Option<Sum>,
}

impl PipelineFile {
    /// The adapter's file in a directory; `None` where the adapter has no caches.
    pub(super) fn open(gpu: &Gpu, info: &wgpu::AdapterInfo, directory: &Path) -> Option<PipelineFile> {
        if !gpu.device.features().contains(Features::PIPELINE_CACHE) {
            return None;
        }
        let path = directory.join(wgpu::util::pipeline_cache_key(info)?);
        let (cache, sum) = match restore(gpu, &path) {
            Ok((cache, sum)) => (cache, Some(sum)),
            Err(error) => {
                tracing::debug!("no compiled pipelines from {}: {error}", path.display());
                (create(gpu, None)?, None)
            }
        };
        Some(PipelineFile { path, cache, sum })
    }

    /// For the pipelines that are built.
    pub(super) fn cache(&self) -> &PipelineCache {
        &self.cache
    }

    /// Writes the file if anything was added to what it has.
    pub(super) fn save(&self) {
        let Some(data) = self.cache.get_data() else { return };
        let sum: Sum = Sha256::digest(&data).into();
        if self.sum == Some(sum) {
            return;
        }
        let saved = match data.len() as u64 > MAX_BYTES {
            true => fs::remove_file(&self.path),
            false => replace(&self.path, &[&sum, &data]),
        };
        if let Err(error) = saved {
            tracing::debug!("compiled pipelines are not kept in {}: {error}", self.path.display());
        }
    }
}

/// The cache of a file.
fn restore(gpu: &Gpu, path: &Path) -> io::Result<(PipelineCache, Sum)> {
    let mut stored = Vec::new();
    File::open(path)?.take(MAX_BYTES + size_of::<Sum>() as u64 + 1).read_to_end(&mut stored)?;
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let (sum, data) = stored.split_first_chunk().ok_or_else(|| invalid("it is too short"))?;
    if data.len() as u64 > MAX_BYTES {
        return Err(invalid("it is too large"));
    }
    if *sum != Sum::from(Sha256::digest(data)) {
        return Err(invalid("it is damaged"));
    }
    let cache = create(gpu, Some(data)).ok_or_else(|| invalid("it is of another device"))?;
    Ok((cache, *sum))
}

/// A cache with this in it, or with nothing; `None` if the device refuses.
fn create(gpu: &Gpu, data: Option<&[u8]>) -> Option<PipelineCache> {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data, fallback: true };
    // SAFETY: the data is what `get_data` gave: it comes from limpid's own directory, where only limpid writes, and its
    // sum says that it is whole. wgpu and the driver look in its headers whether it is theirs.
    let cache = unsafe { gpu.device.create_pipeline_cache(&descriptor) };
    gpu.check().ok().map(|()| cache)
}

/// Puts a file in the place of another, whole.
fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    /// Engines of one process may write at the same time.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let written = File::create(&temporary)
        .and_then(|mut file| parts.iter().try_for_each(|part| file.write_all(part)))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // There may be none.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::testing::{shared_gpu, skip};
    use super::super::{adapter, find};
    use super::*;
    use crate::device::{Adapter, DeviceLimits};
    use crate::kernels::synthetic::{LlamaShape, SequenceSet, SyntheticModel};

    const LIMITS: DeviceLimits = DeviceLimits {
        num_blocks: 8,
        block_size: 4,
        max_tokens: 8,
        max_sequences: 2,
        max_blocks_per_sequence: 4,
    };

    /// The adapter with this directory, and its file there; `None` is a skip, already said.
    fn adapter_of(directory: &Path) -> Option<(Box<dyn Adapter>, PathBuf)> {
        shared_gpu()?;
        let adapter = adapter::best(false).expect("there is one").remove(0);
        let Some(key) = wgpu::util::pipeline_cache_key(&adapter.get_info())
            .filter(|_| adapter.features().contains(Features::PIPELINE_CACHE))
        else {
            skip("the adapter has no pipeline caches");
            return None;
        };
        let mut adapters = find(false, 1, Some(directory)).expect("there is one");
        Some((adapters.remove(0), directory.join(key)))
    }

    /// Opens a device as a start does, and computes.
    fn start(adapter: &dyn Adapter) {
        let model = SyntheticModel::new(&LlamaShape { num_layers: 1, ..LlamaShape::TINY }, 3);
        let mut device = adapter.open(&model.program, &model, LIMITS).expect("it opens");
        let mut set = SequenceSet::new(1, LIMITS.num_blocks, LIMITS.block_size, 1);
        let mut logits = Vec::new();
        device.execute(&set.batch(&[(0, &[1, 2, 3])]), &mut logits).expect("the batch runs");
        assert_eq!(logits.len(), LlamaShape::TINY.vocabulary);
    }

    /// When the file was written, which has to be whole and alone in its directory.
    fn written(path: &Path) -> SystemTime {
        let stored = fs::read(path).expect("there is a file");
        let (sum, data) = stored.split_first_chunk().expect("it has a sum");
        assert_eq!(*sum, Sum::from(Sha256::digest(data)));
        let directory = path.parent().expect("it is in a directory");
        assert_eq!(fs::read_dir(directory).expect("a directory").count(), 1);
        fs::metadata(path).and_then(|found| found.modified()).expect("a time")
    }

    /// Whether what is in the directory can be used.
    fn is_used(directory: &Path) -> bool {
        let adapter = adapter::best(false).expect("there is one").remove(0);
        let gpu = Gpu::open(&adapter, Some(directory)).expect("it opens");
        gpu.pipeline_file.as_ref().is_some_and(|file| file.sum.is_some())
    }

    #[test]
    fn a_second_start_uses_what_the_first_has_left_and_writes_nothing() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = home.path().join("not yet/there");
        let Some((adapter, path)) = adapter_of(&directory) else { return };
        assert!(!is_used(&directory));
        start(&*adapter);
        let first = written(&path);
        assert!(is_used(&directory));
        start(&*adapter);
        assert_eq!(written(&path), first);
    }

    #[test]
    fn a_file_that_cannot_be_used_is_survived_and_replaced() {
        let home = tempfile::tempdir().expect("a directory");
        let Some((adapter, path)) = adapter_of(home.path()) else { return };
        start(&*adapter);
        let sound = fs::read(&path).expect("there is a file");
        let with_sum = |data: &[u8]| [&Sum::from(Sha256::digest(data))[..], data].concat();
        let mut damaged = sound.clone();
        damaged[size_of::<Sum>() + 40] ^= 1;
        // The adapter's number is in bytes 17 to 31 of wgpu's header.
        let mut foreign = sound[size_of::<Sum>()..].to_vec();
        foreign[22] ^= 1;
        let table: [(&str, Vec<u8>); 6] = [
            ("empty", vec![]),
            ("garbage", b"garbage".repeat(100)),
            ("a sum and no data", with_sum(&[])),
            ("cut short", sound[..sound.len() - 1].to_vec()),
            ("damaged", damaged),
            ("of another device", with_sum(&foreign)),
        ];
        for (what, stored) in table {
            fs::write(&path, &stored).expect("it is written");
            start(&*adapter);
            written(&path);
            assert!(is_used(home.path()) && fs::read(&path).expect("there is a file") != stored, "{what}");
        }
        let file = File::create(&path).expect("it is made");
        file.set_len(MAX_BYTES + size_of::<Sum>() as u64 + 1).expect("it is made larger");
        start(&*adapter);
        written(&path);
        assert!(is_used(home.path()), "a file that is too large");
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_is_no_error() {
        let home = tempfile::tempdir().expect("a directory");
        // Nobody, root included, can make a directory in a file.
        let blocked = home.path().join("file");
        fs::write(&blocked, "").expect("it is written");
        let Some((adapter, path)) = adapter_of(&blocked.join("pipelines")) else { return };
        start(&*adapter);
        assert!(!path.exists());
        let mut permissions = fs::metadata(home.path()).expect("it is there").permissions();
        permissions.set_readonly(true);
        fs::set_permissions(home.path(), permissions.clone()).expect("it is read-only");
        let (adapter, _) = adapter_of(home.path()).expect("there was an adapter");
        start(&*adapter);
        #[allow(clippy::permissions_set_readonly_false, reason = "it is about to be removed")]
        permissions.set_readonly(false);
        fs::set_permissions(home.path(), permissions).expect("it can be removed");
    }
}
