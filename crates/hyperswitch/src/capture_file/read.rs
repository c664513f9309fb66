//! Reading one packet out of a pcap or pcapng file, of either byte order.

use super::{ETHERNET, block};
use anyhow::{Result, bail, ensure};

/// The packet with this number, counted from 1 as Wireshark does.
///
/// # Errors
/// When the file is something else, is cut off before that packet, holds fewer packets, or the packet is not an
/// Ethernet frame.
pub fn packet(file: &[u8], number: u64) -> Result<Vec<u8>> {
    let Some(magic) = file.first_chunk::<4>() else {
        bail!("not a pcap or pcapng file")
    };
    match u32::from_le_bytes(*magic) {
        block::SECTION => pcapng(file, number),
        0xa1b2_c3d4 | 0xa1b2_3c4d => pcap(
            Bytes {
                bytes: file,
                big: false,
            },
            number,
        ),
        0xd4c3_b2a1 | 0x4d3c_b2a1 => pcap(
            Bytes {
                bytes: file,
                big: true,
            },
            number,
        ),
        _ => bail!("not a pcap or pcapng file"),
    }
}

/// Bytes with a byte order, taken from the front.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    bytes: &'a [u8],
    big: bool,
}

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(length) {
            Some((front, rest)) => {
                self.bytes = rest;
                Ok(front)
            }
            None => bail!("the file is cut off"),
        }
    }

    fn u16(&mut self) -> Result<u16> {
        let bytes = self.take(2)?.try_into()?;
        Ok(if self.big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?.try_into()?;
        Ok(if self.big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    fn length(&mut self) -> Result<usize> {
        Ok(usize::try_from(self.u32()?)?)
    }
}

/// File header of 24 bytes, then records: time (8 bytes), captured and original length, packet.
fn pcap(mut file: Bytes<'_>, number: u64) -> Result<Vec<u8>> {
    file.take(20)?;
    let link_type = file.u32()? & 0xffff;
    ensure!(
        link_type == u32::from(ETHERNET),
        "the file's packets are not Ethernet frames"
    );
    for current in 1.. {
        ensure!(
            !file.bytes.is_empty(),
            "the file has only {} packets",
            current - 1
        );
        file.take(8)?;
        let captured = file.length()?;
        file.take(4)?;
        let frame = file.take(captured)?;
        if current == number {
            return Ok(frame.to_vec());
        }
    }
    unreachable!("the loop ends with the file")
}

/// Blocks: type, length, contents, length again. A section header sets the byte order and forgets interfaces.
fn pcapng(file: &[u8], number: u64) -> Result<Vec<u8>> {
    let mut file = Bytes {
        bytes: file,
        big: false,
    };
    let mut link_types: Vec<(u16, u32)> = Vec::new();
    let mut current = 0;
    while !file.bytes.is_empty() {
        if file.bytes.starts_with(&block::SECTION.to_le_bytes()) {
            let mut ahead = Bytes {
                bytes: file.bytes,
                big: true,
            };
            ahead.take(8)?;
            file.big = ahead.u32()? == block::BYTE_ORDER;
            link_types.clear();
        }
        let kind = file.u32()?;
        let length = file.length()?;
        ensure!(length >= 12 && length % 4 == 0, "a block of {length} bytes");
        let mut contents = Bytes {
            bytes: file.take(length - 12)?,
            big: file.big,
        };
        file.take(4)?;
        match kind {
            block::INTERFACE => {
                let link_type = contents.u16()?;
                contents.take(2)?;
                link_types.push((link_type, contents.u32()?));
            }
            block::ENHANCED_PACKET | block::SIMPLE_PACKET => {
                current += 1;
                if current == number {
                    return pcapng_packet(contents, kind, &link_types);
                }
            }
            _ => {}
        }
    }
    bail!("the file has only {current} packets")
}

fn pcapng_packet(mut contents: Bytes<'_>, kind: u32, link_types: &[(u16, u32)]) -> Result<Vec<u8>> {
    let (interface, captured) = if kind == block::SIMPLE_PACKET {
        // Only the original length is given; the captured one is cut by the interface's limit.
        let limit = link_types.first().map_or(0, |(_, limit)| *limit);
        let original = contents.u32()?;
        (0, if limit == 0 { original } else { original.min(limit) })
    } else {
        let interface = contents.length()?;
        contents.take(8)?;
        let captured = contents.u32()?;
        contents.take(4)?;
        (interface, captured)
    };
    let link_type = link_types.get(interface).map(|(link_type, _)| *link_type);
    ensure!(link_type == Some(ETHERNET), "the packet is not an Ethernet frame");
    Ok(contents.take(usize::try_from(captured)?)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classic(big: bool, link_type: u32) -> Vec<u8> {
        let word = |value: u32| {
            if big {
                value.to_be_bytes()
            } else {
                value.to_le_bytes()
            }
        };
        let mut file = Vec::new();
        for value in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, link_type] {
            file.extend(word(value));
        }
        for frame in [&[1u8; 14][..], &[2; 20]] {
            for value in [1, 2, frame.len() as u32, 1500] {
                file.extend(word(value));
            }
            file.extend(frame);
        }
        file
    }

    #[test]
    fn classic_files_of_both_byte_orders() {
        for big in [false, true] {
            let file = classic(big, 1);
            assert_eq!(packet(&file, 1).unwrap(), [1; 14]);
            assert_eq!(packet(&file, 2).unwrap(), [2; 20]);
            assert_eq!(
                packet(&file, 3).unwrap_err().to_string(),
                "the file has only 2 packets"
            );
            assert!(packet(&classic(big, 113), 1).is_err(), "another link type");
        }
    }

    #[test]
    fn big_endian_pcapng_with_simple_packets() {
        let mut file = Vec::new();
        let mut block = |kind: u32, contents: &[u8]| {
            let length = (contents.len() as u32 + 12).to_be_bytes();
            [&kind.to_be_bytes()[..], &length, contents, &length]
                .iter()
                .for_each(|part| file.extend(*part));
        };
        block(
            block::SECTION,
            &[
                0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
            ],
        );
        block(block::INTERFACE, &[0, 1, 0, 0, 0, 0, 0, 16]);
        block(5, &[0; 12]);
        block(
            block::SIMPLE_PACKET,
            &[[0, 0, 5, 220].as_slice(), &[7; 16]].concat(),
        );
        assert_eq!(packet(&file, 1).unwrap(), [7; 16]);
        assert!(packet(&file, 2).is_err());
    }

    #[test]
    fn cut_off_files_are_errors() {
        let mut ng = Vec::new();
        let packet_block = [[0u8; 12].as_slice(), &[14, 0, 0, 0, 14, 0, 0, 0], &[9; 16]].concat();
        for (kind, contents) in [
            (
                block::SECTION,
                vec![
                    0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
                ],
            ),
            (block::INTERFACE, vec![1, 0, 0, 0, 0, 0, 0, 0]),
            (block::ENHANCED_PACKET, packet_block),
        ] {
            let length = (contents.len() as u32 + 12).to_le_bytes();
            [&kind.to_le_bytes()[..], &length, &contents, &length]
                .iter()
                .for_each(|part| ng.extend(*part));
        }
        assert_eq!(packet(&ng, 1).unwrap(), [9; 14]);
        for file in [classic(false, 1), ng] {
            let last = if file.starts_with(&[0x0a]) { 1 } else { 2 };
            for length in 0..file.len() {
                assert!(packet(&file[..length], last).is_err(), "{length} bytes");
            }
        }
    }

    proptest::proptest! {
        /// Files are found on the internet.
        #[test]
        fn any_bytes_are_a_packet_or_an_error(
            magic in proptest::sample::select(vec![
                vec![0xd4, 0xc3, 0xb2, 0xa1],
                vec![0xa1, 0xb2, 0xc3, 0xd4],
                [block::SECTION.to_le_bytes(), [28, 0, 0, 0], block::BYTE_ORDER.to_le_bytes()].concat(),
            ]),
            // Small words make lengths and types that lead on.
            words in proptest::collection::vec(0u32..64, 0..64),
            number in 1u64..4,
        ) {
            let rest = words.iter().flat_map(|word| word.to_le_bytes());
            let file: Vec<u8> = magic.into_iter().chain(rest).collect();
            if let Ok(packet) = packet(&file, number) {
                proptest::prop_assert!(packet.len() <= file.len());
            }
        }
    }
}
