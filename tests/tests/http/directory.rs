//! A Hugging Face directory is served like the GGUF file with the same weights.

use std::path::{Path, PathBuf};

use limpid_engine::gguf::GgufFile;
use limpid_engine::hugging_face::fixture::{Layout, write_directory};
use limpid_engine::tensor_type::TensorType;
use limpid_tests::server::{Options, tiny_model};
use serde_json::Value;
use tempfile::TempDir;

use crate::{CHAT, chat};

/// The tiny model in three files, under a name with a dot in it.
fn tiny_directory(folder: &Path) -> PathBuf {
    let directory = folder.join("Tiny-0.1B");
    std::fs::create_dir(&directory).expect("an empty folder");
    let gguf = GgufFile::open(&tiny_model()).expect("a valid file");
    write_directory(&gguf, &directory, Layout { format: TensorType::F32, files: 3 })
        .expect("room for small files");
    directory
}

async fn answer(options: Options) -> String {
    let server = options.start().await;
    let answer: Value = server.client().post(CHAT, &chat(24)).await.json();
    answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_directory_answers_as_the_file_with_its_weights_does() {
    let folder = TempDir::new().expect("a temporary folder");
    let directory = tiny_directory(folder.path());
    let expected = answer(Options::new(&tiny_model())).await;
    assert_eq!(answer(Options::new(&directory)).await, expected);
    let server = Options::new(&directory).without("--served-model-name").start().await;
    let models = server.client().get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "Tiny-0.1B");
}

#[tokio::test]
async fn a_directory_is_quantised_while_it_is_loaded_and_inspected_like_a_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let directory = tiny_directory(folder.path());
    let quantised = answer(Options::new(&directory).arg("--quantization", "q8_0")).await;
    assert!(!quantised.is_empty());
    for (quantization, weights) in [("q8_0", "Q8_0      15 tensors"), ("q4_0", "Q4_0      14 tensors")] {
        let inspect = Options::command("inspect").plain(&directory.display().to_string());
        let ended = inspect.arg("--quantization", quantization).run().await;
        assert!(ended.status.success() && ended.log.contains(weights), "{}", ended.log);
        assert!(
            ended.log.contains("Tiny-0.1B") && ended.log.contains("pre-tokeniser smollm"),
            "{}",
            ended.log
        );
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_directory_ends_the_process_with_file_and_key() {
    let folder = TempDir::new().expect("a temporary folder");
    let directory = tiny_directory(folder.path());
    let config = std::fs::read_to_string(directory.join("config.json")).expect("it was written");
    std::fs::write(directory.join("config.json"), config.replace("\"llama\"", "\"gpt_neox\"")).expect("room");
    let ended = Options::new(&directory).run().await;
    assert!(!ended.status.success() && ended.log.contains("`model_type` in `config.json`"), "{}", ended.log);
    let ended = Options::new(&tiny_model()).arg("--quantization", "q8_0").run().await;
    assert!(!ended.status.success() && ended.log.contains("`--quantization` is q8_0"), "{}", ended.log);
}
