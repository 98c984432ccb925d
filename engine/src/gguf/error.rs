//! Why a file is not read.

/// Why a GGUF file could not be opened, or a value in it not be used. Every message names the thing in the
/// file, what was found and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("cannot {action} the file: {source}")]
    Io {
        /// `open`, `inspect`, `map` or `write`.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// A directory, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// The first four bytes are not `GGUF`.
    #[error("it is not a GGUF file: it begins with {found:?}, a GGUF file with \"GGUF\"")]
    Magic {
        /// The first bytes, unprintable ones escaped.
        found: String,
    },
    /// A version this reader does not know.
    #[error("GGUF version {found} is not supported{hint}; supported are 2 and 3")]
    Version {
        /// The version field.
        found: u32,
        /// A guess at the reason, or nothing.
        hint: &'static str,
    },
    /// The file ends inside something.
    #[error("the file ends inside {what}: at byte {offset} it needs {needed} more bytes, {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where reading began.
        offset: usize,
        /// Bytes needed from there.
        needed: u64,
        /// Bytes there are.
        left: usize,
    },
    /// A count that cannot be true for a file of this size.
    #[error(
        "the file claims {count} {what}, each at least {each} bytes, but only {left} bytes are left after byte \
         {offset}"
    )]
    Count {
        /// `metadata keys`, `tensors`, `array elements`.
        what: &'static str,
        /// The claim.
        count: u64,
        /// The least bytes one of them takes.
        each: usize,
        /// Where they would begin.
        offset: usize,
        /// Bytes there are.
        left: usize,
    },
    /// A value type number that does not exist.
    #[error("value type {number} does not exist; types are 0 to 12")]
    ValueType {
        /// The number found.
        number: u32,
    },
    /// Arrays in arrays in arrays.
    #[error("arrays are nested more than {limit} deep")]
    ArrayDepth {
        /// Levels allowed.
        limit: usize,
    },
    /// A problem inside one metadata entry.
    #[error("metadata `{key}`: {problem}")]
    InMetadata {
        /// The entry.
        key: String,
        /// What is wrong with it.
        #[source]
        problem: Box<GgufError>,
    },
    /// A key or a tensor name that is not UTF-8.
    #[error("the name of {what} {number} is not UTF-8")]
    NameNotUtf8 {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// Which one, counted from 0.
        number: u64,
    },
    /// A key or a tensor name that occurs twice.
    #[error("{what} `{name}` occurs more than once")]
    Duplicate {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// `general.alignment` is unusable.
    #[error("`general.alignment` is {found}; it must be a power of two from 1 to 1048576, stored as u32")]
    Alignment {
        /// The value, or its type if that is wrong.
        found: String,
    },
    /// A tensor with too few or too many dimensions.
    #[error("tensor `{tensor}` has {found} dimensions; 1 to 4 are allowed")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Dimensions claimed.
        found: u32,
    },
    /// A tensor type number that ggml does not define.
    #[error("tensor `{tensor}` has type number {number}, which is no known ggml type")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The number found.
        number: u32,
    },
    /// A tensor whose rows do not divide into blocks.
    #[error("tensor `{tensor}` has rows of {columns} values; {format} stores them in blocks of {block}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its first dimension.
        columns: u64,
        /// Its format.
        format: &'static str,
        /// Values per block.
        block: usize,
    },
    /// A tensor whose size does not fit in 64 bits.
    #[error("tensor `{tensor}` of dimensions {dimensions:?} is too large to address")]
    TensorSize {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dimensions: Vec<u64>,
    },
    /// A tensor that does not begin where the alignment asks.
    #[error("tensor `{tensor}` begins at offset {offset}, which is no multiple of the alignment {alignment}")]
    TensorOffset {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u32,
    },
    /// A tensor that reaches past the end of the file, as after a download that was cut off.
    #[error(
        "tensor `{tensor}` ends at byte {end}, but the file has {file_size} bytes: it is incomplete or damaged"
    )]
    TensorOutside {
        /// The tensor.
        tensor: String,
        /// Where its data ends (saturated).
        end: u64,
        /// Bytes in the file.
        file_size: u64,
    },
    /// A key that must be there is not.
    #[error("metadata `{key}` is missing; wanted {wanted}")]
    MissingKey {
        /// The key.
        key: String,
        /// The type it should have.
        wanted: String,
    },
    /// A value of another type than needed, or out of the type's range.
    #[error("metadata `{key}` is {found}; wanted {wanted}")]
    WrongType {
        /// The key.
        key: String,
        /// What is there.
        found: String,
        /// What is needed.
        wanted: String,
    },
}
