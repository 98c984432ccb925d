//! The reader against well-formed, damaged and hostile files.

use std::io::Write;

use proptest::prelude::*;

use super::fixture::{TinyLlama, tiny_llama};
use super::*;
use crate::tensor_type::TensorType;

/// Opens bytes as a file.
fn open(bytes: &[u8]) -> Result<GgufFile, GgufError> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("room for a small file");
    GgufFile::open(file.path())
}

fn refusal(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => error.to_string(),
    }
}

/// A header with the given counts and whatever follows.
fn header(num_tensors: u64, num_metadata: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(num_tensors.to_le_bytes());
    bytes.extend(num_metadata.to_le_bytes());
    rest.iter().for_each(|part| bytes.extend(*part));
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A metadata entry of any type number.
fn entry(key: &str, value_type: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &value_type.to_le_bytes()[..], value].concat()
}

/// A tensor list entry of any content.
fn tensor(name: &str, dimensions: &[u64], number: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
    bytes.extend(number.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

/// Reads everything that an open file offers.
fn read_all(file: &GgufFile) -> usize {
    let metadata = file.metadata();
    let mut seen = 0;
    for key in metadata.keys() {
        let value = metadata.value(key).expect("a listed key has a value");
        seen += value.describe().len();
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len(), "{key}");
        }
    }
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name).expect("a listed name is found").range, tensor.range);
        seen += file.bytes(tensor.range).len();
    }
    seen
}

#[test]
fn what_is_written_is_read_back() {
    let values: Vec<f32> = (0..512).map(|index| index as f32 / 512.0 - 0.5).collect();
    let mut writer = Writer::new();
    writer
        .set("a.u32", 7)
        .set("a.f32", 1.5f32)
        .set("a.bool", true)
        .set("a.string", "Grüße")
        .set("a.strings", vec!["x".to_owned(), String::new()])
        .set("a.integers", vec![-1, 2])
        .set("a.u32", 8);
    for format in TensorType::ALL {
        writer.tensor(format.name(), &[256, 2], format, &values);
    }
    let file = open(&writer.to_bytes()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.require::<u32>("a.u32").unwrap(), 8);
    assert_eq!(metadata.require::<f32>("a.f32").unwrap(), 1.5);
    assert!(metadata.require::<bool>("a.bool").unwrap());
    assert_eq!(metadata.require::<&str>("a.string").unwrap(), "Grüße");
    assert_eq!(metadata.require::<Vec<&str>>("a.strings").unwrap(), ["x", ""]);
    assert_eq!(metadata.require::<Vec<i32>>("a.integers").unwrap(), [-1, 2]);
    assert_eq!(metadata.get::<u32>("a.other").unwrap(), None);
    for format in TensorType::ALL {
        let tensor = file.tensor(format.name()).unwrap();
        assert_eq!((tensor.dimensions, tensor.format.supported()), (&[256, 2][..], Some(format)));
        assert_eq!(file.bytes(tensor.range), format.quantize(&values));
    }
    assert!(file.tensor("other").is_none());
    assert_eq!((file.version(), file.tensors().len()), (3, TensorType::ALL.len()));
}

#[test]
fn getters_name_the_key_what_was_found_and_what_was_wanted() {
    let mut writer = Writer::new();
    writer.set("a.string", "seven").set("a.negative", vec![-1]).set("a.number", 7);
    let file = open(&writer.to_bytes()).unwrap();
    let metadata = file.metadata();
    let error = metadata.require::<u32>("a.string").unwrap_err().to_string();
    assert_eq!(error, "metadata `a.string` is \"seven\" (string); wanted an integer from 0 to 4294967295");
    let error = metadata.require::<u32>("a.none").unwrap_err().to_string();
    assert_eq!(error, "metadata `a.none` is missing; wanted an integer from 0 to 4294967295");
    let error = metadata.require::<Vec<u32>>("a.negative").unwrap_err().to_string();
    assert!(error.contains("an array of 1 i32 values"), "{error}");
    let error = metadata.get::<&str>("a.number").unwrap_err().to_string();
    assert!(error.contains("7 (u32)") && error.contains("string"), "{error}");
}

#[test]
fn integers_are_read_whatever_their_width_if_they_fit() {
    let entries = [
        entry("u8", 0, &[200]),
        entry("i64", 11, &5i64.to_le_bytes()),
        entry("u64", 10, &(1u64 << 32).to_le_bytes()),
        entry("i32", 5, &(-1i32).to_le_bytes()),
    ];
    let file = open(&header(0, 4, &[&entries.concat()])).unwrap();
    assert_eq!(file.metadata().require::<u32>("u8").unwrap(), 200);
    assert_eq!(file.metadata().require::<u32>("i64").unwrap(), 5);
    for key in ["u64", "i32"] {
        assert!(file.metadata().get::<u32>(key).is_err(), "{key}");
    }
}

#[test]
fn files_that_are_no_gguf_are_refused_with_the_reason() {
    assert!(refusal(b"").contains("GGUF"));
    assert!(
        refusal(b"PK\x03\x04 a zip file").contains("PK\\\\x03\\\\x04"),
        "{}",
        refusal(b"PK\x03\x04 a zip file")
    );
    let version = |version: u32| refusal(&[b"GGUF", &version.to_le_bytes()[..], &[0; 16]].concat());
    assert!(version(1).contains("version 1 ") && version(1).contains("2 and 3"));
    assert!(version(4).contains("version 4 "));
    assert!(version(3u32.swap_bytes()).contains("big-endian"));
    assert!(open(&[b"GGUF\x02\0\0\0", &[0; 16][..]].concat()).is_ok(), "version 2");
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(GgufFile::open(directory.path()), Err(GgufError::NotAFile)));
    assert!(matches!(GgufFile::open(&directory.path().join("none")), Err(GgufError::Io { .. })));
}

#[test]
fn forged_counts_are_refused_before_memory_is_asked_for() {
    assert!(refusal(&header(0, 500_000_000, &[])).contains("500000000 metadata keys"));
    assert!(refusal(&header(u64::MAX, 0, &[])).contains("tensors"));
    let forged_array = [&9u32.to_le_bytes()[..], &[0, 0, 0, 0], &u64::MAX.to_le_bytes()].concat();
    let error = refusal(&header(0, 1, &[&entry("k", 9, &forged_array[4..])]));
    assert!(error.contains("`k`") && error.contains("array elements"), "{error}");
    let forged_string = entry("k", 8, &u64::MAX.to_le_bytes());
    assert!(refusal(&header(0, 1, &[&forged_string])).contains("`k`"));
    assert!(
        refusal(&header(0, 1, &[&u64::MAX.to_le_bytes(), &[0; 32]])).contains("needs 18446744073709551615")
    );
}

#[test]
fn unknown_value_types_are_named() {
    for number in [13, u32::MAX] {
        let error = refusal(&header(0, 1, &[&entry("k", number, &[0; 16])]));
        assert!(error.contains("`k`") && error.contains(&number.to_string()), "{error}");
        let array = [&number.to_le_bytes()[..], &1u64.to_le_bytes(), &[0; 16]].concat();
        let error = refusal(&header(0, 1, &[&entry("k", 9, &array)]));
        assert!(error.contains("`k`") && error.contains(&number.to_string()), "{error}");
    }
}

#[test]
fn deeply_nested_arrays_are_refused_and_do_not_overflow_the_stack() {
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let error = refusal(&header(0, 1, &[&entry("deep", 9, &level.repeat(100_000))]));
    assert!(error.contains("`deep`") && error.contains("nested"), "{error}");

    let two = [&level[..], &0u32.to_le_bytes(), &2u64.to_le_bytes(), &[5, 6]].concat();
    let file = open(&header(0, 1, &[&entry("k", 9, &two)])).unwrap();
    let inner = file.metadata().require::<Array<'_>>("k").unwrap().iter().next();
    let Some(Value::Array(inner)) = inner else { panic!("{inner:?}") };
    assert_eq!(inner.iter().filter_map(|value| value.integer()).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn names_that_occur_twice_are_refused() {
    let twice = [entry("same", 0, &[1]), entry("other", 0, &[1]), entry("same", 0, &[2])].concat();
    assert!(refusal(&header(0, 3, &[&twice])).contains("metadata key `same`"));
    let twice = [tensor("t", &[0], 0, 0), tensor("t", &[0], 0, 0)].concat();
    assert!(refusal(&header(2, 0, &[&twice, &[0; 64]])).contains("tensor `t`"));
}

#[test]
fn names_that_are_not_utf8_are_refused_and_such_values_only_when_asked_for() {
    let name = [&1u64.to_le_bytes()[..], &[0xff], &0u32.to_le_bytes(), &[0; 8]].concat();
    assert!(refusal(&header(0, 1, &[&name])).contains("metadata key 0"));
    let file = open(&header(0, 1, &[&entry("k", 8, &[&1u64.to_le_bytes()[..], &[0xff]].concat())])).unwrap();
    assert!(file.metadata().get::<&str>("k").unwrap_err().to_string().contains("not UTF-8"));
}

#[test]
fn alignments_other_than_small_powers_of_two_are_refused() {
    for alignment in [0u32, 3, 1 << 21, 1 << 30] {
        let error = refusal(&header(0, 1, &[&entry(ALIGNMENT_KEY, 4, &alignment.to_le_bytes())]));
        assert!(error.contains(ALIGNMENT_KEY) && error.contains(&alignment.to_string()), "{error}");
    }
    let error = refusal(&header(0, 1, &[&entry(ALIGNMENT_KEY, 8, &string("32"))]));
    assert!(error.contains(ALIGNMENT_KEY) && error.contains("string"), "{error}");
    let error = refusal(&header(0, 1, &[&entry(ALIGNMENT_KEY, 10, &32u64.to_le_bytes())]));
    assert!(error.contains(ALIGNMENT_KEY) && error.contains("u64"), "{error}");
    for alignment in [1, 8, 64, 1 << 20] {
        let mut writer = Writer::new();
        writer.set(ALIGNMENT_KEY, alignment);
        for name in ["a", "b"] {
            writer.tensor(name, &[3], TensorType::F32, &[1.0, 2.0, 3.0]);
        }
        let file = open(&writer.to_bytes()).unwrap();
        let tensor = file.tensor("b").unwrap();
        assert_eq!(tensor.range.start % alignment as usize, 0);
        assert_eq!(file.bytes(tensor.range), TensorType::F32.quantize(&[1.0, 2.0, 3.0]));
    }
}

#[test]
fn tensors_of_impossible_shapes_are_refused_by_name() {
    let refused = |dimensions: &[u64], number, offset| {
        refusal(&header(1, 0, &[&tensor("forged", dimensions, number, offset), &[0; 256]]))
    };
    for dimensions in [&[][..], &[1, 1, 1, 1, 1]] {
        let error = refused(dimensions, 0, 0);
        assert!(error.contains("`forged`") && error.contains("dimensions"), "{error}");
    }
    let mut many = tensor("forged", &[], 0, 0);
    many[14..18].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refusal(&header(1, 0, &[&many, &[0; 256]])).contains("4294967295 dimensions"));
    for dimensions in [&[1 << 63, 2, 1, 1][..], &[u64::MAX], &[1 << 32, 1 << 32], &[1 << 62, 1 << 62, 0]] {
        let error = refused(dimensions, 0, 0);
        assert!(error.contains("`forged`") && error.contains("too large"), "{error}");
    }
    // Fits in 64 bits, but not in the file.
    let error = refused(&[1152, (1 << 42) + 1], 0, 0);
    assert!(error.contains("`forged`") && error.contains("the file has"), "{error}");
    assert!(refused(&[1], 0, u64::MAX - 31).contains("`forged`"));
    assert!(refused(&[1], 0, 16).contains("alignment 32"));
    assert!(refused(&[33], 8, 0).contains("rows of 33 values; Q8_0"));
}

#[test]
fn unknown_tensor_types_are_named_and_known_ones_are_measured() {
    for number in [4, 255, u32::MAX] {
        let error = refusal(&header(1, 0, &[&tensor("t", &[32], number, 0), &[0; 256]]));
        assert!(error.contains("`t`") && error.contains(&format!("number {number}")), "{error}");
    }
    let mut writer = Writer::new();
    writer.raw_tensor("t", &[256], 12, vec![0; 144]);
    let file = open(&writer.to_bytes()).unwrap();
    assert_eq!((file.tensor("t").unwrap().format.name, file.tensor("t").unwrap().range.len()), ("Q4_K", 144));
}

#[test]
fn a_cut_off_file_names_the_tensor_its_end_and_the_size() {
    let mut writer = Writer::new();
    writer.tensor("first", &[32], TensorType::F32, &[1.0; 32]).tensor(
        "last",
        &[32],
        TensorType::F32,
        &[2.0; 32],
    );
    let bytes = writer.to_bytes();
    let error = refusal(&bytes[..bytes.len() - 1]);
    let (end, size) = (format!("byte {}", bytes.len()), format!("{} bytes", bytes.len() - 1));
    assert!(error.contains("`last`") && error.contains(&end) && error.contains(&size), "{error}");
}

/// Every byte of this file matters: it ends with the last tensor.
#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let mut writer = Writer::new();
    writer
        .set("general.alignment", 8)
        .set("general.name", "cut")
        .set("tokens", vec!["a".to_owned(), "bc".to_owned()])
        .tensor("a", &[32], TensorType::Q4_0, &[0.5; 32])
        .tensor("b", &[2, 2], TensorType::F16, &[0.5; 4]);
    let bytes = writer.to_bytes();
    assert!(Contents::read(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(Contents::read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
}

#[test]
fn a_vocabulary_of_a_large_model_is_opened_without_copying_it() {
    let tokens: Vec<String> = (0..163_840).map(|id| format!("token-{id}")).collect();
    let merges: Vec<String> = (0..500_000).map(|id| format!("left-{id} right-{id}")).collect();
    let mut writer = Writer::new();
    writer.set("tokens", tokens).set("merges", merges);
    let file = open(&writer.to_bytes()).unwrap();
    let held = file.contents.metadata.capacity() * size_of::<MetadataEntry>();
    assert!(held < 1024, "{held} bytes");
    let tokens: Vec<&str> = file.metadata().require("tokens").unwrap();
    assert_eq!((tokens.len(), tokens[163_839]), (163_840, "token-163839"));
    let merges: Array<'_> = file.metadata().require("merges").unwrap();
    assert_eq!((merges.len(), merges.element_type()), (500_000, ValueType::String));
}

fn small_model() -> Vec<u8> {
    let model =
        TinyLlama { layers: 1, width: 32, heads: 2, kv_heads: 1, feed_forward: 32, ..Default::default() };
    tiny_llama(&model).to_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..Default::default() })]

    /// Most of the bytes that can go wrong are in the metadata and the tensor list.
    #[test]
    fn damaged_files_are_refused_or_stay_consistent(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = small_model();
        let structure = bytes.len() - open(&bytes).unwrap().tensors().map(|tensor| tensor.range.len()).sum::<usize>();
        for (at, byte) in damage {
            bytes[at.index(structure)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(file) = open(&bytes) {
            prop_assert!(read_all(&file) > 0);
        }
    }

    #[test]
    fn arbitrary_bytes_after_a_header_never_panic(
        num_tensors in 0u64..4,
        num_metadata in 0u64..4,
        rest in prop::collection::vec(prop_oneof![Just(0u8), 0u8..13, any::<u8>()], 0..200),
    ) {
        let _ = Contents::read(&header(num_tensors, num_metadata, &[&rest]));
    }
}
