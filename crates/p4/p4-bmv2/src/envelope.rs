//! The message in which clients of BMv2's P4Runtime server may send a program: `p4.tmp.P4DeviceConfig` of the
//! repository p4lang/PI, whose field `device_data` has the JSON.
//!
//! The number of that field is 3 in versions of the message that have `reassign`, and 2 in others; so a
//! field is taken whose bytes begin as JSON does. What is no such message is left as it came, and the reader
//! of JSON says what is wrong with it.

/// Bits of a tag behind which is the number of the field; and forms of fields, from the encoding of Protocol
/// Buffers.
const NUMBER: u32 = 3;
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// Fields that a message of this kind may have at most.
const FIELDS: usize = 16;

/// The JSON in such a message; bytes that are none, as they came.
pub fn json_in(bytes: &[u8]) -> &[u8] {
    if begins_as_json(bytes) {
        return bytes;
    }
    find(bytes).unwrap_or(bytes)
}

fn begins_as_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
}

fn find(mut message: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    for _ in 0..FIELDS {
        if message.is_empty() {
            break;
        }
        let tag = varint(&mut message)?;
        match tag & ((1 << NUMBER) - 1) {
            VARINT => drop(varint(&mut message)?),
            BYTES => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let (field, rest) = message.split_at_checked(length)?;
                message = rest;
                found = Some(field).filter(|field| begins_as_json(field)).or(found);
            }
            _ => return None,
        }
    }
    found.filter(|_| message.is_empty())
}

/// Takes a number of at most 64 bits, seven in each byte, the lowest first.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = b"{\"program\": []}";

    fn message(before: &[u8], tag: u8, behind: &[u8]) -> Vec<u8> {
        [before, &[tag, JSON.len() as u8], JSON, behind].concat()
    }

    #[test]
    fn the_json_of_all_forms_of_the_message_is_found() {
        let spaced = [b" \n", JSON].concat();
        assert_eq!(json_in(&spaced), spaced, "plain JSON");
        let reassign = [8, 1];
        let extras = [0x12, 4, 0x0a, 2, 8, 0];
        assert_eq!(json_in(&message(&reassign, 0x1a, &[])), JSON);
        assert_eq!(
            json_in(&message(&[&reassign[..], &extras].concat(), 0x1a, &[])),
            JSON
        );
        assert_eq!(json_in(&message(&[], 0x12, &[])), JSON);
        assert_eq!(json_in(&message(&[], 0x1a, &reassign)), JSON);
    }

    #[test]
    fn what_is_no_message_is_left_as_it_came() {
        let long = [
            &[0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..],
            JSON,
        ]
        .concat();
        let cut = message(&[8, 1], 0x1a, &[0x12]);
        let endless = [0x80; 40];
        let many = [8, 1].repeat(FIELDS + 1);
        for bytes in [&long[..], &cut, &endless, &many, b"\x1d{}{}", b"", b"[]"] {
            assert_eq!(json_in(bytes), bytes);
        }
        for end in 0..message(&[8, 1], 0x1a, &[]).len() {
            let cut = &message(&[8, 1], 0x1a, &[])[..end];
            assert_eq!(json_in(cut), cut, "cut to {end}");
        }
    }
}
