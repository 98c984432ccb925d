//! The tensor types that ggml defines, supported by us or not: enough to check a tensor's size and to name
//! its format in a message.

use crate::tensor_type::TensorType;

/// A tensor type of ggml.
#[derive(Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// The number in the file.
    pub number: u32,
    /// ggml's name.
    pub name: &'static str,
    /// Values in one block.
    pub block_elements: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
}

impl GgmlType {
    /// The type with this number.
    pub fn from_number(number: u32) -> Option<&'static GgmlType> {
        GGML_TYPES.iter().find(|known| known.number == number)
    }

    /// The same as a format that the engine computes with, if it is one.
    pub fn supported(&self) -> Option<TensorType> {
        TensorType::from_ggml(self.number)
    }
}

const fn row(number: u32, name: &'static str, block_elements: usize, block_bytes: usize) -> GgmlType {
    GgmlType { number, name, block_elements, block_bytes }
}

static GGML_TYPES: [GgmlType; 32] = [
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 40),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_formats_have_the_same_name_and_block_in_both_tables() {
        for format in TensorType::ALL {
            let known = GgmlType::from_number(format.ggml_number()).expect("listed");
            assert_eq!(known.name, format.name());
            assert_eq!(known.block_elements, format.block_elements());
            assert_eq!(known.block_bytes, format.block_bytes());
            assert_eq!(known.supported(), Some(format));
        }
    }
}
