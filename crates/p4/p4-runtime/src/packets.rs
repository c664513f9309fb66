//! Packets of clients and for clients, as a program describes them: its header `packet_out` or `packet_in`
//! lies in front of the packet, and clients have its fields as metadata.
//!
//! | what a client sends | answer on its stream |
//! |---|---|
//! | a field that is missing, unknown, given twice or too large; a packet too short or long | `INVALID_ARGUMENT` |
//! | without being primary, or for a role that may not | `PERMISSION_DENIED` |
//! | more than the data plane takes | `RESOURCE_EXHAUSTED` |
//! | while there is no connection to the data plane | `UNAVAILABLE` |

use crate::bytestring;
use crate::failure::{Done, Failure};
use crate::proto::{PacketIn, PacketMetadata, PacketOut};
use p4_ir::{Bits, ControllerField, ControllerHeader, Program};
use tonic::Code;

/// Bytes of a packet with its header that the data plane takes.
const FRAME: std::ops::RangeInclusive<usize> = 14..=65_553;

/// Fields of a header of that name; none if the program has no such header.
fn fields<'a>(program: &'a Program, name: &str) -> &'a [ControllerField] {
    let is_it = |header: &&ControllerHeader| header.identity.alias == name;
    let header = program.controller_headers.iter().find(is_it);
    header.map_or(&[], |header| &header.fields)
}

/// Whether clients have the field as metadata, or it is there to fill a byte.
fn is_padding(field: &ControllerField) -> bool {
    field.id == 0
}

/// Bytes of a header.
fn length(fields: &[ControllerField]) -> Done<usize> {
    if let Some(field) = fields.iter().find(|field| field.width == 0) {
        let text = format!("field {} has a type of the controller's own", field.name);
        return Err(Failure::unimplemented(text));
    }
    let bits: usize = fields.iter().map(|field| usize::from(field.width)).sum();
    match bits % 8 {
        0 => Ok(bits / 8),
        _ => Err(Failure::unimplemented("the header is no whole number of bytes")),
    }
}

/// A packet as it comes to the program.
///
/// # Errors
/// Metadata are not those of the program, or the packet is too short or too long.
pub fn encode(program: &Program, packet: &PacketOut) -> Done<Vec<u8>> {
    let fields = fields(program, "packet_out");
    let mut bytes = vec![0; length(fields)?];
    let known = |id: u32| fields.iter().any(|field| field.id == id && !is_padding(field));
    if let Some(other) = packet.metadata.iter().find(|own| !known(own.metadata_id)) {
        let id = other.metadata_id;
        return Err(Failure::invalid(format_args!("packets have no metadata {id}")));
    }
    let mut at = 0;
    for field in fields {
        let end = at + usize::from(field.width);
        if !is_padding(field) {
            let mut own = packet.metadata.iter().filter(|own| own.metadata_id == field.id);
            let (Some(value), None) = (own.next(), own.next()) else {
                let text = format!("metadata {} ({}) must be given once", field.id, field.name);
                return Err(Failure::invalid(text));
            };
            let value = bytestring::read(&value.value, field.width);
            put(
                &mut bytes,
                at,
                &value.map_err(|failure| failure.within(&field.name))?,
            );
        }
        at = end;
    }
    bytes.extend_from_slice(&packet.payload);
    if !FRAME.contains(&bytes.len()) {
        let text = format!("the packet has {} bytes with its header", bytes.len());
        return Err(Failure::invalid(text));
    }
    Ok(bytes)
}

/// A packet as clients get it. `None` if it is shorter than the header that it should have.
#[must_use]
pub fn decode(program: &Program, frame: &[u8]) -> Option<PacketIn> {
    let fields = fields(program, "packet_in");
    let (header, payload) = frame.split_at_checked(length(fields).ok()?)?;
    let (mut at, mut metadata) = (0, Vec::with_capacity(fields.len()));
    for field in fields {
        if !is_padding(field) {
            metadata.push(PacketMetadata {
                metadata_id: field.id,
                value: bytestring::write(&get(header, at, field.width)),
            });
        }
        at += usize::from(field.width);
    }
    Some(PacketIn {
        payload: payload.to_vec(),
        metadata,
    })
}

fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1)
}

/// Writes a number from a bit on, where zeros are.
fn put(bytes: &mut [u8], at: usize, value: &Bits) {
    let width = usize::from(value.width());
    let spare = value.bytes().len() * 8 - width;
    for place in 0..width {
        if let Some(byte) = bytes.get_mut((at + place) / 8) {
            *byte |= bit(value.bytes(), spare + place) << (7 - (at + place) % 8);
        }
    }
}

/// Reads a number from a bit on.
pub(crate) fn get(bytes: &[u8], at: usize, width: u16) -> Bits {
    let mut number = vec![0; usize::from(width).div_ceil(8)];
    let spare = number.len() * 8 - usize::from(width);
    for place in spare..number.len() * 8 {
        number[place / 8] |= bit(bytes, at + place - spare) << (7 - place % 8);
    }
    Bits::from_bytes(width, &number)
}

/// The data plane cannot be reached now.
#[must_use]
pub fn apart() -> Failure {
    Failure::new(Code::Unavailable, "the data plane is not connected")
}

#[cfg(test)]
mod tests {
    use super::*;
    use p4_ir::{Architecture, Identity};

    fn program(widths: &[(u32, u16)]) -> Program {
        let field = |&(id, width): &(u32, u16)| ControllerField {
            name: format!("f{id}"),
            id,
            width,
        };
        let header = |name: &str| ControllerHeader {
            identity: Identity {
                alias: name.into(),
                ..Identity::default()
            },
            fields: widths.iter().map(field).collect(),
        };
        let mut program = Program::empty("test".into(), Architecture::V1Model);
        program.controller_headers = ["packet_in", "packet_out"].map(header).into();
        program
    }

    /// The number of a field, and its value.
    type Given<'a> = (u32, &'a [u8]);

    fn metadata(fields: &[Given<'_>]) -> Vec<PacketMetadata> {
        let one = |&(metadata_id, value): &Given<'_>| PacketMetadata {
            metadata_id,
            value: value.to_vec(),
        };
        fields.iter().map(one).collect()
    }

    fn packet(fields: &[Given<'_>]) -> PacketOut {
        PacketOut {
            payload: vec![7; 60],
            metadata: metadata(fields),
        }
    }

    #[test]
    fn fields_lie_in_front_bit_by_bit() {
        let program = program(&[(1, 9), (0, 6), (2, 17)]);
        let sent = packet(&[(2, &[1, 0x02, 0x03]), (1, &[1, 0x55])]);
        let frame = encode(&program, &sent).unwrap();
        assert_eq!(frame[..4], [0xaa, 0x81, 0x02, 0x03]);
        assert_eq!(frame[4..], [7; 60]);
        let back = decode(&program, &frame).unwrap();
        assert_eq!(back.metadata, metadata(&[(1, &[1, 0x55]), (2, &[1, 2, 3])]));
        assert_eq!(back.payload, sent.payload);
        // Values are canonical.
        let zeros = decode(&program, &[0; 20]).unwrap();
        assert_eq!(zeros.metadata, metadata(&[(1, &[0]), (2, &[0])]));
        assert_eq!(decode(&program, &frame[..3]), None);
    }

    #[test]
    fn programs_without_headers_have_packets_without_metadata() {
        let program = program(&[]);
        assert_eq!(encode(&program, &packet(&[])).unwrap(), [7; 60]);
        assert_eq!(decode(&program, &[9; 20]).unwrap().payload, [9; 20]);
    }

    #[test]
    fn wrong_packets_are_refused_with_the_field() {
        let whole = program(&[(1, 9), (2, 7)]);
        let cases: [(&[Given<'_>], &str); 6] = [
            (&[(1, &[1])], "metadata 2"),
            (&[(1, &[1]), (2, &[1]), (3, &[1])], "no metadata 3"),
            (&[(1, &[1]), (1, &[1]), (2, &[1])], "given once"),
            (&[(1, &[2, 0]), (2, &[1])], "f1"),
            (&[(1, &[]), (2, &[1])], "f1"),
            (&[(0, &[1]), (1, &[1]), (2, &[1])], "no metadata 0"),
        ];
        for (fields, text) in cases {
            let failure = encode(&whole, &packet(fields)).unwrap_err();
            assert_eq!(failure.code, Code::InvalidArgument);
            assert!(failure.text.contains(text), "{failure}");
        }
        let mut sent = packet(&[(1, &[1]), (2, &[1])]);
        for length in [11, 65_552] {
            sent.payload = vec![0; length];
            assert_eq!(encode(&whole, &sent).unwrap_err().code, Code::InvalidArgument);
        }
        for odd in [&[(1, 9)][..], &[(1, 0), (2, 8)]] {
            let odd = program(odd);
            assert_eq!(encode(&odd, &packet(&[])).unwrap_err().code, Code::Unimplemented);
            assert_eq!(decode(&odd, &[0; 60]), None);
        }
    }
}
