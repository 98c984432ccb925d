//! The programs of others at the far end of OTLP, which the tests start: the collector, Jaeger, Prometheus.
//!
//! They are compiled by Go from fixed versions, or taken from Debian, into a folder outside the tree:
//! `$LIMPID_CACHE/programs`, else `limpid/programs` in the user's cache folder. This module says where a
//! program is and brings it there; starting it is the tests' business.
//!
//! Invariant: a program's folder appears whole, by one rename, or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A program that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// The OpenTelemetry Collector with the components of `otel-collector/builder.yaml`.
    Collector,
    /// Jaeger 2 with its storage in memory.
    Jaeger,
    /// Prometheus and promtool.
    Prometheus,
}

/// How long a build takes is worth knowing before it starts.
const BUILD_NOTICE: &str = "this takes some minutes, once";

impl Program {
    /// Every program.
    pub const ALL: [Program; 3] = [Program::Collector, Program::Jaeger, Program::Prometheus];

    /// What it is called, on the command line and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Program::Collector => "collector",
            Program::Jaeger => "jaeger",
            Program::Prometheus => "prometheus",
        }
    }

    /// The version that the tests know. Jaeger's module stayed at v1 when the program became 2.
    pub fn version(self) -> &'static str {
        match self {
            Program::Collector => "0.161.0",
            Program::Jaeger => "1.76.0",
            Program::Prometheus => "2.42.0",
        }
    }

    fn binaries(self) -> &'static [&'static str] {
        match self {
            Program::Collector => &["collector"],
            Program::Jaeger => &["jaeger"],
            Program::Prometheus => &["prometheus", "promtool"],
        }
    }

    /// Where its binaries are or will be.
    ///
    /// # Errors
    /// If neither `LIMPID_CACHE` nor a home folder is known.
    pub fn folder(self) -> Result<PathBuf> {
        let cache = match std::env::var_os("LIMPID_CACHE").filter(|folder| !folder.is_empty()) {
            Some(folder) => PathBuf::from(folder),
            None => dirs::cache_dir()
                .context("there is no home folder to keep programs in; set LIMPID_CACHE")?
                .join("limpid"),
        };
        Ok(cache.join("programs").join(format!("{}-{}", self.name(), self.version())))
    }

    /// The path of one of its binaries, if it is there and, for the collector, made from today's manifest.
    ///
    /// # Errors
    /// What is missing, and the command that brings it.
    pub fn binary(self, name: &str) -> Result<PathBuf> {
        ensure!(self.binaries().contains(&name), "{} has no binary {name}", self.name());
        let command = format!("cargo xtask programs {}", self.name());
        let path = self.folder()?.join(name);
        ensure!(path.is_file(), "{path:?} does not exist; `{command}` brings it");
        if self == Program::Collector {
            let built_from = fs::read(path.with_file_name("builder.yaml")).unwrap_or_default();
            ensure!(
                built_from == fs::read(manifest())?,
                "{path:?} was built from another otel-collector/builder.yaml; `{command}` renews it"
            );
        }
        Ok(path)
    }

    fn is_there(self) -> bool {
        self.binaries().iter().all(|name| self.binary(name).is_ok())
    }

    /// Builds or fetches it unless it is there, and returns its folder.
    ///
    /// # Errors
    /// If a tool is missing (with what to do about it) or fails.
    pub fn provide(self) -> Result<PathBuf> {
        let folder = self.folder()?;
        if self.is_there() {
            return Ok(folder);
        }
        let parent = folder.parent().expect("the folder has a name");
        fs::create_dir_all(parent).with_context(|| format!("{parent:?} could not be made"))?;
        let work = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(parent)?;
        let done = work.path().join("done");
        fs::create_dir(&done)?;
        match self {
            Program::Collector => self.build_collector(work.path(), &done)?,
            Program::Jaeger => self.build_jaeger(work.path(), &done)?,
            Program::Prometheus => self.unpack_prometheus(work.path(), &done)?,
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::rename(&done, &folder).with_context(|| format!("{folder:?} could not be put in place"))?;
        Ok(folder)
    }

    fn build_collector(self, work: &Path, done: &Path) -> Result<()> {
        self.ensure_go()?;
        let builder = format!("go.opentelemetry.io/collector/cmd/builder@v{}", self.version());
        run(Command::new("go").args(["install", &builder]).env("GOBIN", work).current_dir(work))?;
        let manifest = manifest();
        run(Command::new(work.join("builder")).arg("--config").arg(&manifest).current_dir(work))?;
        fs::copy(work.join("sources/collector"), done.join("collector"))?;
        fs::copy(&manifest, done.join("builder.yaml"))?;
        Ok(())
    }

    fn build_jaeger(self, work: &Path, done: &Path) -> Result<()> {
        self.ensure_go()?;
        let package = "github.com/jaegertracing/jaeger/cmd/jaeger";
        run(Command::new("go").args(["mod", "init", "limpid.invalid/jaeger"]).current_dir(work))?;
        let tool = format!("{package}@v{}", self.version());
        run(Command::new("go").args(["get", "-tool", &tool]).current_dir(work))?;
        let out = done.join("jaeger");
        run(Command::new("go").args(["build", "-o"]).arg(out).arg(package).current_dir(work))
    }

    fn unpack_prometheus(self, work: &Path, done: &Path) -> Result<()> {
        for tool in ["apt-get", "dpkg"] {
            let found = Command::new(tool).arg("--version").output().is_ok();
            ensure!(
                found,
                "Prometheus is taken from Debian's package, and {tool} is missing; put prometheus and promtool \
                 {} into {:?} yourself",
                self.version(),
                self.folder()?
            );
        }
        let package = format!("prometheus={}*", self.version());
        run(Command::new("apt-get").args(["download", &package]).current_dir(work)).with_context(|| {
            format!("Debian 12 has {package}; elsewhere put prometheus and promtool of that version in place")
        })?;
        let file = fs::read_dir(work)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt-get downloaded nothing")?;
        run(Command::new("dpkg").arg("-x").arg(file).arg("unpacked").current_dir(work))?;
        for name in self.binaries() {
            fs::copy(work.join("unpacked/usr/bin").join(name), done.join(name))?;
        }
        Ok(())
    }

    #[allow(clippy::print_stderr)]
    fn ensure_go(self) -> Result<()> {
        let version = Command::new("go").arg("version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            bail!(
                "it is compiled by Go, which is not on the PATH; install Go 1.26 or later from https://go.dev/dl"
            );
        }
        eprintln!("compiling {} {}; {BUILD_NOTICE}", self.name(), self.version());
        Ok(())
    }
}

fn manifest() -> PathBuf {
    root().join("otel-collector/builder.yaml")
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the root")
}

/// Runs a command; its output goes to standard error, so that standard output holds paths only.
fn run(command: &mut Command) -> Result<()> {
    let described = format!("{command:?}");
    let status = command
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("{described} could not be started"))?;
    ensure!(status.success(), "{described} ended with {status}");
    Ok(())
}
