//! Protobuf's text format, as much of it as P4Info uses: fields with numbers, words, strings, messages in
//! braces (or angle brackets), lists in square brackets, comments.

use super::{DEPTH, Field, Message};
use crate::error::{At, Read, wrong};

/// Reads a message.
pub(super) fn parse(text: &[u8]) -> Read<Message> {
    let mut reader = Reader { text, at: 0 };
    reader.message(None, 0).map_err(|problem| {
        let line = 1 + text[..reader.at.min(text.len())]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        At {
            path: format!("line {line}"),
            ..problem
        }
    })
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next byte that is neither blank nor comment.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.get(self.at)? {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                }
                byte => return Some(*byte),
            }
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self) -> Read<String> {
        let _ = self.peek();
        let from = self.at;
        while self
            .text
            .get(self.at)
            .is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-' | b'+'))
        {
            self.at += 1;
        }
        if from == self.at {
            return wrong("neither a name nor a number");
        }
        Ok(String::from_utf8_lossy(&self.text[from..self.at]).into_owned())
    }

    /// The fields up to the closing bracket, or to the end.
    fn message(&mut self, end: Option<u8>, depth: usize) -> Read<Message> {
        if depth > DEPTH {
            return wrong("nested too deep");
        }
        let mut message = Message::default();
        loop {
            match (self.peek(), end) {
                (None, None) => return Ok(message),
                (None, Some(_)) => return wrong("the text ends too early"),
                (Some(byte), Some(end)) if byte == end => {
                    self.at += 1;
                    return Ok(message);
                }
                _ => {}
            }
            let name = self.name()?;
            self.take(b':');
            if self.take(b'[') {
                while !self.take(b']') {
                    let value = self.value(depth)?;
                    message.fields.push((name.clone(), value));
                    if !self.take(b',') && self.peek() != Some(b']') {
                        return wrong("neither a comma nor the end of a list");
                    }
                }
            } else {
                let value = self.value(depth)?;
                message.fields.push((name, value));
            }
            let _ = self.take(b',') || self.take(b';');
        }
    }

    /// The name of a field; one of an extension stands in brackets.
    fn name(&mut self) -> Read<String> {
        if !self.take(b'[') {
            return self.word();
        }
        let from = self.at;
        while self.text.get(self.at).is_some_and(|byte| *byte != b']') {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.text[from..self.at]).into_owned();
        if self.take(b']') {
            Ok(name)
        } else {
            wrong("the text ends too early")
        }
    }

    fn value(&mut self, depth: usize) -> Read<Field> {
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                self.message(Some(b'}'), depth + 1).map(Field::Message)
            }
            Some(b'<') => {
                self.at += 1;
                self.message(Some(b'>'), depth + 1).map(Field::Message)
            }
            Some(b'"' | b'\'') => {
                let mut text = String::new();
                // Strings one behind the other are one.
                while let Some(quote @ (b'"' | b'\'')) = self.peek() {
                    self.string(quote, &mut text)?;
                }
                Ok(Field::Text(text))
            }
            Some(_) => {
                let word = self.word()?;
                let number = match word.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16).ok(),
                    None => word
                        .parse::<u64>()
                        .ok()
                        .or_else(|| word.parse::<i64>().ok().map(|number| number as u64)),
                };
                Ok(number.map_or(Field::Word(word), Field::Number))
            }
            None => wrong("the text ends too early"),
        }
    }

    fn string(&mut self, quote: u8, text: &mut String) -> Read<()> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let Some(&byte) = self.text.get(self.at) else {
                return wrong("a text without an end");
            };
            self.at += 1;
            match byte {
                b'\n' => return wrong("a text without an end"),
                b'\\' => {
                    let Some(&escaped) = self.text.get(self.at) else {
                        return wrong("a text without an end");
                    };
                    self.at += 1;
                    bytes.push(match escaped {
                        b'n' => b'\n',
                        b't' => b'\t',
                        b'r' => b'\r',
                        b'0'..=b'7' => self.octal(escaped),
                        other => other,
                    });
                }
                _ if byte == quote => {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                    return Ok(());
                }
                _ => bytes.push(byte),
            }
        }
    }

    /// Up to three octal digits.
    fn octal(&mut self, first: u8) -> u8 {
        let mut value = u32::from(first - b'0');
        for _ in 0..2 {
            match self.text.get(self.at) {
                Some(digit @ b'0'..=b'7') => {
                    value = value * 8 + u32::from(digit - b'0');
                    self.at += 1;
                }
                _ => break,
            }
        }
        value as u8
    }
}
