//! Protobuf's binary format. Only fields that the tables below name are taken; the rest is skipped, but must
//! be well formed.

use super::{DEPTH, Field, Message};
use crate::error::{Read, wrong};

/// What a field holds.
#[derive(Clone, Copy)]
enum Kind {
    Number,
    Text,
    /// An enum: words by number.
    Words(&'static [&'static str]),
    Message(&'static [(u64, &'static str, Kind)]),
}

use Kind::{Message as M, Number as N, Text as T, Words as W};

type Schema = &'static [(u64, &'static str, Kind)];

// Field numbers from `p4/config/v1/p4info.proto`, P4Runtime 1.4.
const PREAMBLE: Schema = &[(1, "id", N), (2, "name", T), (3, "alias", T)];
const MATCHES: &[&str] = &["UNSPECIFIED", "", "EXACT", "LPM", "TERNARY", "RANGE", "OPTIONAL"];
const MATCH: Schema = &[
    (1, "id", N),
    (2, "name", T),
    (4, "bitwidth", N),
    (5, "match_type", W(MATCHES)),
    (8, "type_name", M(&[])),
];
const SCOPES: &[&str] = &["TABLE_AND_DEFAULT", "TABLE_ONLY", "DEFAULT_ONLY"];
const ACTION_REF: Schema = &[(1, "id", N), (3, "scope", W(SCOPES))];
const TABLE: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "match_fields", M(MATCH)),
    (3, "action_refs", M(ACTION_REF)),
    (8, "size", N),
];
const PARAM: Schema = &[
    (1, "id", N),
    (2, "name", T),
    (4, "bitwidth", N),
    (6, "type_name", M(&[])),
];
const ACTION: Schema = &[(1, "preamble", M(PREAMBLE)), (2, "params", M(PARAM))];
const PROFILE: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (4, "size", N),
    (5, "max_group_size", N),
];
const COUNTER_SPEC: Schema = &[(1, "unit", W(&["UNSPECIFIED", "BYTES", "PACKETS", "BOTH"]))];
const METER_SPEC: Schema = &[(1, "unit", W(&["UNSPECIFIED", "BYTES", "PACKETS"]))];
const COUNTER: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "spec", M(COUNTER_SPEC)),
    (3, "size", N),
];
const DIRECT_COUNTER: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "spec", M(COUNTER_SPEC)),
    (3, "direct_table_id", N),
];
const METER: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "spec", M(METER_SPEC)),
    (3, "size", N),
];
const DIRECT_METER: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "spec", M(METER_SPEC)),
    (3, "direct_table_id", N),
];
const REGISTER: Schema = &[(1, "preamble", M(PREAMBLE)), (3, "size", N)];
const DIGEST: Schema = &[(1, "preamble", M(PREAMBLE))];
const VALUE_SET: Schema = &[
    (1, "preamble", M(PREAMBLE)),
    (2, "match", M(MATCH)),
    (3, "size", N),
];
const METADATA: Schema = &[
    (1, "id", N),
    (2, "name", T),
    (3, "annotations", T),
    (4, "bitwidth", N),
    (5, "type_name", M(&[])),
];
const PACKET: Schema = &[(1, "preamble", M(PREAMBLE)), (2, "metadata", M(METADATA))];
const P4INFO: Schema = &[
    (2, "tables", M(TABLE)),
    (3, "actions", M(ACTION)),
    (4, "action_profiles", M(PROFILE)),
    (5, "counters", M(COUNTER)),
    (6, "direct_counters", M(DIRECT_COUNTER)),
    (7, "meters", M(METER)),
    (8, "direct_meters", M(DIRECT_METER)),
    (9, "controller_packet_metadata", M(PACKET)),
    (10, "value_sets", M(VALUE_SET)),
    (11, "registers", M(REGISTER)),
    (12, "digests", M(DIGEST)),
];

/// Reads `P4Info`.
pub(super) fn parse(bytes: &[u8]) -> Read<Message> {
    message(bytes, P4INFO, 0)
}

/// A field that is a number on the wire, unless it should be something else.
fn number(kind: &Kind, value: u64) -> Option<Field> {
    match kind {
        Kind::Number => Some(Field::Number(value)),
        Kind::Words(words) => {
            let word = usize::try_from(value).ok().and_then(|value| words.get(value));
            Some(Field::Word(word.copied().unwrap_or("").to_owned()))
        }
        Kind::Text | Kind::Message(_) => None,
    }
}

fn message(mut bytes: &[u8], schema: Schema, depth: usize) -> Read<Message> {
    if depth > DEPTH {
        return wrong("nested too deep");
    }
    let mut read = Message::default();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = schema.iter().find(|(number, ..)| *number == tag >> 3);
        match (tag & 7, field) {
            (0, field) => {
                let value = varint(&mut bytes)?;
                read.fields.extend(
                    field.and_then(|(_, name, kind)| Some(((*name).to_owned(), number(kind, value)?))),
                );
            }
            (1, _) => drop(take(&mut bytes, 8)?),
            (2, field) => {
                let len = varint(&mut bytes)?;
                let part = take(&mut bytes, len)?;
                match field {
                    Some((_, name, Kind::Text)) => match std::str::from_utf8(part) {
                        Ok(text) => read
                            .fields
                            .push(((*name).to_owned(), Field::Text(text.to_owned()))),
                        Err(_) => return wrong("a text that is not UTF-8"),
                    },
                    Some((_, name, Kind::Message(schema))) => {
                        let inner = message(part, schema, depth + 1)?;
                        read.fields.push(((*name).to_owned(), Field::Message(inner)));
                    }
                    _ => {}
                }
            }
            (5, _) => drop(take(&mut bytes, 4)?),
            _ => return wrong("neither protobuf's text nor its binary format"),
        }
    }
    Ok(read)
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Read<&'a [u8]> {
    match usize::try_from(len)
        .ok()
        .and_then(|len| bytes.split_at_checked(len))
    {
        Some((part, rest)) => {
            *bytes = rest;
            Ok(part)
        }
        None => wrong("the message ends too early"),
    }
}

fn varint(bytes: &mut &[u8]) -> Read<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return wrong("the message ends too early");
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    wrong("a number of more than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::p4info::{P4Info, text};

    /// Writes the fields that the tables name, as a compiler would; after each message, one that no table
    /// names.
    fn encode(message: &Message, schema: Schema) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, field) in &message.fields {
            let Some((number, _, kind)) = schema.iter().find(|(_, other, _)| other == name) else {
                continue;
            };
            let (wire, body) = match (field, kind) {
                (Field::Number(value), _) => (0, varints(*value)),
                (Field::Word(word), Kind::Words(words)) => {
                    let value = words.iter().position(|other| other == word).unwrap();
                    (0, varints(value as u64))
                }
                (Field::Text(text), _) => (
                    2,
                    [varints(text.len() as u64), text.clone().into_bytes()].concat(),
                ),
                (Field::Message(inner), Kind::Message(schema)) => {
                    let inner = encode(inner, schema);
                    (2, [varints(inner.len() as u64), inner].concat())
                }
                other => panic!("{name}: {other:?}", other = other.0),
            };
            bytes.extend(varints(number << 3 | wire));
            bytes.extend(body);
        }
        bytes.extend(varints(99 << 3 | 5));
        bytes.extend([0; 4]);
        bytes
    }

    fn varints(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn kitchen_sink() -> (P4Info, Vec<u8>) {
        let text = include_bytes!("../../programs/kitchen_sink/kitchen_sink.p4info.txtpb");
        let message = text::parse(text).unwrap();
        (P4Info::parse(text).unwrap(), encode(&message, P4INFO))
    }

    #[test]
    fn binary_and_text_say_the_same() {
        let (from_text, binary) = kitchen_sink();
        assert!(from_text.tables.len() >= 8);
        assert_eq!(P4Info::parse(&binary).unwrap(), from_text);
    }

    #[test]
    fn cut_messages_are_refused_or_shorter_and_never_more() {
        let (whole, binary) = kitchen_sink();
        for at in 0..binary.len() {
            if let Ok(part) = P4Info::parse(&binary[..at]) {
                assert!(part.tables.len() <= whole.tables.len());
            }
        }
        // A length beyond the end, a number without end, an unknown type of field.
        for bytes in [
            &[0x12, 0x7f, 1][..],
            &[0x08, 0xff],
            &[0x0b, 1],
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ] {
            assert!(P4Info::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
