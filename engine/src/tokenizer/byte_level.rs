//! The byte-level alphabet of GPT-2: every byte has a printable character, so that a vocabulary of text can
//! stand for arbitrary bytes.
//!
//! Printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 onwards in order: a space is `Ġ`,
//! a newline `Ċ`.

/// The character after the last one that stands for a byte.
const END: usize = 256 + 68;

const NO_BYTE: u16 = u16::MAX;

const TO_CHAR: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0, 256);
    while byte < 256 {
        let code = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as u32,
            _ => {
                next += 1;
                next - 1
            }
        };
        table[byte] = match char::from_u32(code) {
            Some(character) => character,
            None => unreachable!(),
        };
        byte += 1;
    }
    table
};

const TO_BYTE: [u16; END] = {
    let mut table = [NO_BYTE; END];
    let mut byte = 0;
    while byte < 256 {
        table[TO_CHAR[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

/// The character that stands for a byte.
pub(crate) fn byte_to_char(byte: u8) -> char {
    TO_CHAR[usize::from(byte)]
}

/// The byte that a character stands for, if it is of the alphabet.
pub(crate) fn char_to_byte(character: char) -> Option<u8> {
    let byte = *TO_BYTE.get(character as usize)?;
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!((byte_to_char(b'a'), byte_to_char(b' '), byte_to_char(b'\n')), ('a', 'Ġ', 'Ċ'));
        assert_eq!((byte_to_char(0), byte_to_char(0xad)), ('\u{100}', '\u{143}'));
    }

    #[test]
    fn characters_outside_the_alphabet_stand_for_no_byte() {
        for character in [' ', '\n', '\u{ad}', '\u{144}', '漢'] {
            assert_eq!(char_to_byte(character), None, "{character:?}");
        }
    }
}
