//! The official OpenAI client for Python, running the program in `examples/openai-client`.

use std::path::Path;
use std::process::Stdio;

use limpid_tests::environment::python_with;

use crate::serve_tiny;

#[tokio::test]
async fn the_openai_client_example_runs_against_the_server() {
    let Some(python) = python_with("openai") else { return };
    let server = serve_tiny().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/openai-client/ask.py");
    let output = tokio::process::Command::new(python)
        .arg(script)
        .arg("hello world")
        .env("OPENAI_BASE_URL", format!("http://{}/v1", server.address()))
        .env("OPENAI_API_KEY", "none")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    assert!(out.contains("tokens in") && out.contains("tokens out"), "{out}");
}
