//! Reading packets out of a pcap or pcapng file, of either byte order.

use super::{ETHERNET, block};
use anyhow::{Result, anyhow, bail, ensure};

/// The packet with this number, counted from 1 as Wireshark does.
///
/// # Errors
/// When the file is something else, is cut off before that packet, holds fewer packets, or the packet is not
/// an Ethernet frame.
pub fn packet(file: &[u8], number: u64) -> Result<Vec<u8>> {
    let mut current = 0;
    let mut found = None;
    each(file, |packet| {
        current += 1;
        if current == number {
            found = Some(packet()?.frame.to_vec());
        }
        Ok(current < number)
    })?;
    found.ok_or_else(|| anyhow!("the file has only {current} packets"))
}

/// All packets that are whole, in the order of the file; and the error of a file that is cut off behind them.
///
/// # Errors
/// When the file is something else, is cut off in its header, or a packet is not an Ethernet frame.
pub fn packets(file: &[u8]) -> Result<(Vec<Packet<'_>>, Option<CutOff>)> {
    let mut packets = Vec::new();
    let read = each(file, |packet| {
        packets.push(packet()?);
        Ok(true)
    });
    match read {
        Ok(()) => Ok((packets, None)),
        Err(error) if error.is::<CutOff>() && file.len() >= FILE_HEADER => Ok((packets, Some(CutOff))),
        Err(error) => Err(error),
    }
}

/// Bytes of a file's header, in the shorter of the two formats.
const FILE_HEADER: usize = 24;

/// The file ends in the middle of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff;

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the file is cut off")
    }
}

impl std::error::Error for CutOff {}

/// A packet of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970; 0 if the file does not say.
    pub time_ns: u64,
    /// The captured part of it.
    pub frame: &'a [u8],
}

/// Shows each packet until the answer is false.
fn each<'a>(file: &'a [u8], show: impl FnMut(&dyn Fn() -> Result<Packet<'a>>) -> Result<bool>) -> Result<()> {
    let Some(magic) = file.first_chunk::<4>() else {
        bail!("not a pcap or pcapng file")
    };
    let (big, unit) = match u32::from_le_bytes(*magic) {
        block::SECTION => return pcapng(file, show),
        0xa1b2_c3d4 => (false, 1000),
        0xa1b2_3c4d => (false, 1),
        0xd4c3_b2a1 => (true, 1000),
        0x4d3c_b2a1 => (true, 1),
        _ => bail!("not a pcap or pcapng file"),
    };
    pcap(Bytes { bytes: file, big }, unit, show)
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
            None => bail!(CutOff),
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

/// File header of 24 bytes, then records: time (8 bytes: seconds, and parts of `unit` nanoseconds), captured
/// and original length, packet.
fn pcap<'a>(
    mut file: Bytes<'a>,
    unit: u64,
    mut show: impl FnMut(&dyn Fn() -> Result<Packet<'a>>) -> Result<bool>,
) -> Result<()> {
    file.take(20)?;
    let link_type = file.u32()? & 0xffff;
    ensure!(
        link_type == u32::from(ETHERNET),
        "the file's packets are not Ethernet frames"
    );
    while !file.bytes.is_empty() {
        let seconds = u64::from(file.u32()?);
        let time_ns = seconds * 1_000_000_000 + u64::from(file.u32()?) * unit;
        let captured = file.length()?;
        file.take(4)?;
        let frame = file.take(captured)?;
        if !show(&|| Ok(Packet { time_ns, frame }))? {
            return Ok(());
        }
    }
    Ok(())
}

/// The contents of a block that describes an interface.
fn interface(mut contents: Bytes<'_>) -> Result<Interface> {
    let link_type = contents.u16()?;
    contents.take(2)?;
    Ok(Interface {
        link_type,
        limit: contents.u32()?,
        unit: resolution(contents),
    })
}

/// Blocks: type, length, contents, length again. A section header sets the byte order and forgets interfaces.
fn pcapng<'a>(
    file: &'a [u8],
    mut show: impl FnMut(&dyn Fn() -> Result<Packet<'a>>) -> Result<bool>,
) -> Result<()> {
    let mut file = Bytes {
        bytes: file,
        big: false,
    };
    let mut link_types: Vec<Interface> = Vec::new();
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
        let contents = Bytes {
            bytes: file.take(length - 12)?,
            big: file.big,
        };
        file.take(4)?;
        match kind {
            block::INTERFACE => link_types.push(interface(contents)?),
            block::ENHANCED_PACKET | block::SIMPLE_PACKET
                if !show(&|| pcapng_packet(contents, kind, &link_types))? =>
            {
                return Ok(());
            }
            _ => {}
        }
    }
    Ok(())
}

/// An interface of a pcapng section.
struct Interface {
    link_type: u16,
    /// Bytes captured of a packet at most, 0 for no limit.
    limit: u32,
    /// Nanoseconds of a unit of time, rounded; of finer ones, 1.
    unit: u64,
}

/// The unit of time in an interface's options (`if_tsresol`): microseconds if there is none. Malformed
/// options are ignored.
fn resolution(mut options: Bytes<'_>) -> u64 {
    const RESOLUTION: u16 = 9;
    while let (Ok(code), Ok(length)) = (options.u16(), options.u16()) {
        let Ok(value) = options.take(usize::from(length).next_multiple_of(4)) else {
            break;
        };
        match (code, value.first()) {
            (RESOLUTION, Some(&exponent @ 0..=9)) => return 10_u64.pow(9 - u32::from(exponent)),
            (RESOLUTION, Some(_)) => return 1,
            (0, _) => break,
            _ => {}
        }
    }
    1000
}

fn pcapng_packet<'a>(mut contents: Bytes<'a>, kind: u32, interfaces: &[Interface]) -> Result<Packet<'a>> {
    let (number, time, captured) = if kind == block::SIMPLE_PACKET {
        // Only the original length is given; the captured one is cut by the interface's limit.
        let limit = interfaces.first().map_or(0, |interface| interface.limit);
        let original = contents.u32()?;
        (0, 0, if limit == 0 { original } else { original.min(limit) })
    } else {
        let number = contents.length()?;
        let time = (u64::from(contents.u32()?) << 32) | u64::from(contents.u32()?);
        let captured = contents.u32()?;
        contents.take(4)?;
        (number, time, captured)
    };
    match interfaces.get(number) {
        Some(interface) if interface.link_type == ETHERNET => Ok(Packet {
            time_ns: time.saturating_mul(interface.unit),
            frame: contents.take(usize::try_from(captured)?)?,
        }),
        _ => bail!("the packet is not an Ethernet frame"),
    }
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
            let (all, cut) = packets(&file).unwrap();
            assert_eq!(cut, None);
            assert_eq!(all.len(), 2);
            assert_eq!((all[1].time_ns, all[1].frame), (1_000_002_000, &[2; 20][..]));
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
