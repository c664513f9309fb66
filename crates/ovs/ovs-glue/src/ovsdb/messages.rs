//! The database's messages in the stream of its bytes: JSON objects, one behind the other.
//!
//! A message is parsed once all of it is there. Brackets and quotes alone say where it ends, and each byte is
//! looked at once for that, however small the pieces are in which it comes.

use super::DatabaseError;
use serde_json::Value;

/// Longest message that is taken in: twice that of ten thousand interfaces.
const MAX_MESSAGE: usize = 8 << 20;

/// The stream so far: what is left of it, and where the search for the message's end stopped.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// What was received and is no part of a message that was taken.
    bytes: Vec<u8>,
    /// Number of `bytes` that were looked at.
    scanned: usize,
    /// Brackets that are open behind those.
    depth: usize,
    /// The next byte belongs to a string, and is behind a backslash.
    in_string: bool,
    is_escaped: bool,
}

impl Messages {
    /// Takes bytes in, and each message that they complete, in their order.
    ///
    /// # Errors
    ///
    /// A message is none, or too long. What was complete before was taken.
    pub fn receive(&mut self, bytes: &[u8], mut take: impl FnMut(&Value)) -> Result<(), DatabaseError> {
        self.bytes.extend_from_slice(bytes);
        let mut begin = 0;
        while let Some(end) = self.find_end() {
            take(&serde_json::from_slice(&self.bytes[begin..end])?);
            begin = end;
        }
        self.bytes.drain(..begin);
        self.scanned -= begin;
        if self.bytes.len() > MAX_MESSAGE {
            return Err(DatabaseError::TooLong);
        }
        // Anything but an object begins no message, and would never end.
        let is_message = self.depth > 0 || self.bytes.iter().all(u8::is_ascii_whitespace);
        if is_message {
            Ok(())
        } else {
            Err(DatabaseError::NoObject)
        }
    }

    /// Goes on to the end of a message, if it is there.
    fn find_end(&mut self) -> Option<usize> {
        while let Some(&byte) = self.bytes.get(self.scanned) {
            self.scanned += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    // What closes nothing is the parser's to refuse.
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.scanned);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// What is taken of these bytes in pieces of that length, and whether there was an error.
    fn taken(bytes: &[u8], piece: usize) -> (Vec<Value>, bool) {
        let (mut messages, mut taken) = (Messages::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            if messages
                .receive(piece, |message| taken.push(message.clone()))
                .is_err()
            {
                return (taken, true);
            }
        }
        (taken, false)
    }

    fn text() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            proptest::sample::select(vec!["{", "}", "[", "]", "\"", "\\", "a", "ä"]),
            0..8,
        )
        .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn messages_are_found_in_pieces_of_any_length(
            texts in proptest::collection::vec((text(), text()), 1..6),
            piece in 1..40usize,
            pretty in any::<bool>(),
        ) {
            let sent: Vec<_> = texts.iter().map(|(key, value)| json!({key: [value, {"a": key}]})).collect();
            let written: Vec<_> = sent
                .iter()
                .map(|message| if pretty { format!("{message:#}\n ") } else { message.to_string() })
                .collect();
            prop_assert_eq!(taken(written.concat().as_bytes(), piece), (sent, false));
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bytes in ["}", "]", "x", "1", "\"a\"", "{]", "{}x", "[}", "{\"a\" 1}"] {
            assert!(taken(bytes.as_bytes(), 100).1, "{bytes}");
        }
        assert_eq!(
            taken(b"{} \n{\"a\":1} ", 100),
            (vec![json!({}), json!({"a": 1})], false)
        );
    }

    #[test]
    fn each_byte_is_looked_at_once() {
        let mut messages = Messages::default();
        let none = |_: &Value| panic!("it has not ended");
        messages.receive(b"{\"a\": [", none).unwrap();
        let mut before = messages.scanned;
        for _ in 0..1000 {
            messages.receive(b"\"]\", ", none).unwrap();
            assert_eq!(messages.scanned, before + 5, "what came, and nothing before");
            assert_eq!(messages.scanned, messages.bytes.len());
            before = messages.scanned;
        }
        let mut count = 0;
        messages.receive(b"0]}{", |_| count += 1).unwrap();
        assert_eq!((count, messages.scanned, messages.bytes.len()), (1, 1, 1));
    }

    #[test]
    fn messages_are_bounded() {
        let mut messages = Messages::default();
        messages.receive(b"{\"a\": \"", |_| ()).unwrap();
        let part = vec![b'x'; 1 << 20];
        let end = (0..100).find(|_| messages.receive(&part, |_| ()).is_err());
        assert_eq!(end, Some((MAX_MESSAGE >> 20) - 1));
    }
}
