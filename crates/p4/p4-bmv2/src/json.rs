//! JSON, as strict as untrusted input requires.
//!
//! The usual libraries silently keep the last of two members with one name; here that is an error, as is
//! nesting beyond [`DEPTH`]. Numbers are kept as integers; BMv2 has no others. Memory is at most about 32
//! times the text, whose length [`crate::limits::TEXT`] bounds.

use std::collections::HashSet;

/// Levels of nesting. Expressions take two per operator.
pub(crate) const DEPTH: usize = 512;

/// Members of one object. They are looked for one after the other.
const MEMBERS: usize = 4096;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(i64),
    /// A number that is no integer of 64 bits; nothing in BMv2's format takes one.
    OtherNumber,
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Why a text is no JSON that we take, and at which line and column (both from 1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct JsonError {
    /// Line.
    pub line: usize,
    /// Column, in bytes.
    pub column: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

/// Reads a text.
pub(crate) fn parse(text: &[u8]) -> Result<Json, JsonError> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0).and_then(|value| {
        reader.blanks();
        if reader.at == text.len() {
            Ok(value)
        } else {
            Err("something follows the end")
        }
    });
    value.map_err(|problem| {
        let before = &text[..reader.at.min(text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|&&byte| byte != b'\n').count();
        JsonError {
            line,
            column,
            problem,
        }
    })
}

type Read<T> = Result<T, &'static str>;

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Read<u8> {
        self.text.get(self.at).copied().ok_or("the text ends too early")
    }

    fn word(&mut self, word: &str, value: Json) -> Read<Json> {
        if self.text[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            return Ok(value);
        }
        Err("no value begins like this")
    }

    fn value(&mut self, depth: usize) -> Read<Json> {
        if depth > DEPTH {
            return Err("nested too deep");
        }
        self.blanks();
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(Json::Text),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err("no value begins like this"),
        }
    }

    /// After an element: is there a further one?
    fn more(&mut self, end: u8) -> Read<bool> {
        self.blanks();
        let byte = self.peek()?;
        if byte != b',' && byte != end {
            return Err("neither a comma nor the end");
        }
        self.at += 1;
        Ok(byte == b',')
    }

    /// After the opening bracket: is it empty?
    fn empty(&mut self, end: u8) -> Read<bool> {
        self.at += 1;
        self.blanks();
        let empty = self.peek()? == end;
        self.at += usize::from(empty);
        Ok(empty)
    }

    fn array(&mut self, depth: usize) -> Read<Json> {
        let mut elements = Vec::new();
        if self.empty(b']')? {
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            if !self.more(b']')? {
                return Ok(Json::Array(elements));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Read<Json> {
        let mut members = Vec::<(String, Json)>::new();
        if self.empty(b'}')? {
            return Ok(Json::Object(members));
        }
        loop {
            self.blanks();
            if self.peek()? != b'"' {
                return Err("a member has no name");
            }
            let name = self.string()?;
            self.blanks();
            if self.peek()? != b':' {
                return Err("a name without a colon");
            }
            self.at += 1;
            if members.len() == MEMBERS {
                return Err("an object with too many members");
            }
            members.push((name, self.value(depth + 1)?));
            if !self.more(b'}')? {
                break;
            }
        }
        let mut names = HashSet::with_capacity(members.len());
        if !members.iter().all(|(name, _)| names.insert(name)) {
            return Err("an object that ends here has two members with one name");
        }
        drop(names);
        members.shrink_to_fit();
        Ok(Json::Object(members))
    }

    fn number(&mut self) -> Read<Json> {
        let from = self.at;
        while matches!(
            self.text.get(self.at),
            Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
        ) {
            self.at += 1;
        }
        let digits = std::str::from_utf8(&self.text[from..self.at]).map_err(|_| "no number")?;
        match (digits.parse::<i64>(), digits.parse::<f64>()) {
            (Ok(number), _) => Ok(Json::Number(number)),
            (Err(_), Ok(_)) => Ok(Json::OtherNumber),
            _ => Err("no number"),
        }
    }

    fn string(&mut self) -> Read<String> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(bytes).map_err(|_| "a text that is not UTF-8"),
                b'\\' => self.escape(&mut bytes)?,
                0..0x20 => return Err("a control character in a text"),
                _ => bytes.push(byte),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Read<()> {
        let byte = self.peek()?;
        self.at += 1;
        bytes.push(match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let high = self.four()?;
                let code = if (0xd800..0xdc00).contains(&high) {
                    if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                        return Err("half of a character");
                    }
                    self.at += 2;
                    let low = self.four()?.wrapping_sub(0xdc00);
                    0x10000 + ((high - 0xd800) << 10) + (low & 0x3ff)
                } else {
                    high
                };
                let character = char::from_u32(code).ok_or("no character")?;
                bytes.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err("an unknown escape"),
        });
        Ok(())
    }

    fn four(&mut self) -> Read<u32> {
        let digits = self
            .text
            .get(self.at..self.at + 4)
            .ok_or("the text ends too early")?;
        self.at += 4;
        let digits = std::str::from_utf8(digits).map_err(|_| "no hexadecimal number")?;
        u32::from_str_radix(digits, 16).map_err(|_| "no hexadecimal number")
    }
}

static NULL: Json = Json::Null;

impl Json {
    /// A member of an object; null if there is none, or if this is no object.
    pub fn get(&self, name: &str) -> &Json {
        match self {
            Json::Object(members) => members
                .iter()
                .find(|(other, _)| other == name)
                .map_or(&NULL, |(_, value)| value),
            _ => &NULL,
        }
    }

    /// The elements of an array.
    pub fn elements(&self) -> Option<&[Json]> {
        if let Json::Array(elements) = self {
            Some(elements)
        } else {
            None
        }
    }

    /// A text.
    pub fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self {
            Some(text)
        } else {
            None
        }
    }

    /// An integer.
    pub fn number(&self) -> Option<i64> {
        if let Json::Number(number) = self {
            Some(*number)
        } else {
            None
        }
    }

    /// True or false.
    pub fn bool(&self) -> Option<bool> {
        if let Json::Bool(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    /// Is it null, or was it not there?
    pub fn is_null(&self) -> bool {
        *self == Json::Null
    }
}
