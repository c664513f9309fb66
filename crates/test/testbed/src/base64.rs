//! Base64 (RFC 4648, section 4), for carrying commands and their output over a guest's console unharmed.

use anyhow::{Result, bail};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = 0u32;
        for index in 0..3 {
            word = word << 8 | u32::from(group.get(index).copied().unwrap_or(0));
        }
        for index in 0..4 {
            if index <= group.len() {
                let digit = (word >> (18 - 6 * index)) & 63;
                text.push(char::from(ALPHABET[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Decodes; fails on any character outside the alphabet other than padding at the end.
pub fn decode(text: &str) -> Result<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut word, mut bits) = (0u32, 0u32);
    for character in digits.bytes() {
        let Some(digit) = ALPHABET.iter().position(|&known| known == character) else {
            bail!("not base64: {:?} in {text:?}", char::from(character));
        };
        word = word << 6 | u32::try_from(digit).expect("64 digits");
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits & 0xff) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).expect("valid"), plain.as_bytes());
        }
        assert!(decode("Zm9v\u{1b}").is_err());
    }

    #[test]
    fn all_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for length in 0..all.len() {
            assert_eq!(decode(&encode(&all[..length])).expect("valid"), &all[..length]);
        }
    }
}
