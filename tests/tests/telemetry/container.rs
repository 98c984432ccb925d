//! A container with nothing in it but the binary, the libraries it is linked to, and a model.

use std::path::{Path, PathBuf};
use std::process::Command;

use limpid_tests::environment::skip;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{CHROOT, Options, binary, tiny_model};

use crate::{CHAT, SOON, chat, protocol, quick};

#[tokio::test]
async fn a_container_with_the_binary_alone_sends_traces_and_metrics() {
    let root = tempfile::tempdir().unwrap();
    std::fs::copy(binary(), root.path().join("limpid")).unwrap();
    std::fs::copy(tiny_model(), root.path().join("model.gguf")).unwrap();
    for library in libraries(&binary()) {
        let place = root.path().join(library.strip_prefix("/").unwrap());
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::copy(&library, place).unwrap();
    }
    let version = Command::new(CHROOT).arg(root.path()).args(["/limpid", "--version"]).output();
    if !version.as_ref().is_ok_and(|output| output.status.success()) {
        return skip("the right to chroot", "LIMPID_REQUIRE_TOOLS", &format!("{version:?}"));
    }
    for transport in [Transport::Grpc, Transport::Http] {
        let receiver = OtlpReceiver::start().await;
        let server = quick(Options::new(Path::new("/model.gguf")))
            .inside(root.path())
            // Which finds no driver.
            .arg("--device", "auto")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint(transport))
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport))
            .start()
            .await;
        assert_eq!(server.client().post(CHAT, &chat(4)).await.status, 200);
        receiver.wait_for("spans", SOON, |received| received.traces.first().map(|_| ())).await;
        receiver.wait_for("metrics", SOON, |received| received.metrics.first().map(|_| ())).await;
        server.stop().await;
    }
}

/// Files that the loader brings in, itself included.
fn libraries(binary: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(binary).output().expect("ldd runs");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}
