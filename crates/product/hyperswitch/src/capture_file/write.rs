//! Writing pcapng (draft-ietf-opsawg-pcapng).

use super::{ETHERNET, block};
use control_protocol::data_plane::{CaptureDirection, CapturedPacket};
use std::io::{self, Write};

/// Option codes; those below 4 are specific to the block.
mod option {
    pub const COMMENT: u16 = 1;
    pub const SECTION_APPLICATION: u16 = 4;
    pub const INTERFACE_NAME: u16 = 2;
    pub const INTERFACE_RESOLUTION: u16 = 9;
    pub const PACKET_FLAGS: u16 = 2;
    pub const PACKET_DROP_COUNT: u16 = 4;
}

/// A capture of one port. Directions are the switch port's, as its counters are: inbound is what the guest
/// sent.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Writes the file's header.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    pub fn new(mut to: W, port: &str, snap_length: u32) -> io::Result<Self> {
        let mut section = Block::new(block::SECTION);
        section.u32(block::BYTE_ORDER);
        section.u16(1); // version 1.0
        section.u16(0);
        section.bytes(&u64::MAX.to_le_bytes()); // the section's length is not known
        section.option(
            option::SECTION_APPLICATION,
            concat!("hyperswitch ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        section.end(&mut to)?;
        let mut interface = Block::new(block::INTERFACE);
        interface.u16(ETHERNET);
        interface.u16(0);
        interface.u32(snap_length);
        interface.option(option::INTERFACE_NAME, port.as_bytes());
        interface.option(option::INTERFACE_RESOLUTION, &[9]); // 10^-9 s
        interface.end(&mut to)?;
        Ok(Writer { to })
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    pub fn packet(&mut self, packet: &CapturedPacket) -> io::Result<()> {
        let mut enhanced = Block::new(block::ENHANCED_PACKET);
        enhanced.u32(0); // the only interface
        enhanced.bytes(&time(packet.time_ns));
        enhanced.u32(u32::try_from(packet.frame.len()).map_err(io::Error::other)?);
        enhanced.u32(packet.length);
        enhanced.bytes(&packet.frame);
        enhanced.pad();
        if let Some(reason) = packet.dropped {
            let comment = format!("dropped: {} ({})", reason.name(), reason.description());
            enhanced.option(option::COMMENT, comment.as_bytes());
        }
        let direction: u32 = match packet.direction {
            CaptureDirection::FromGuest => 1,
            CaptureDirection::ToGuest => 2,
        };
        enhanced.option(option::PACKET_FLAGS, &direction.to_le_bytes());
        if packet.lost > 0 {
            enhanced.option(option::PACKET_DROP_COUNT, &packet.lost.to_le_bytes());
        }
        enhanced.end(&mut self.to)
    }

    /// Flushes buffered bytes to the file.
    ///
    /// # Errors
    /// As [`Write::flush`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// A time stamp is two words, the high one first whatever the byte order.
fn time(ns: u64) -> [u8; 8] {
    let [high, low] = [ns >> 32, ns & 0xffff_ffff].map(|word| u32::try_from(word).unwrap_or(0).to_le_bytes());
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&high);
    bytes[4..].copy_from_slice(&low);
    bytes
}

/// A block being put together, little endian. Its length stands at both ends.
struct Block {
    bytes: Vec<u8>,
    options: bool,
}

impl Block {
    fn new(kind: u32) -> Self {
        let mut block = Block {
            bytes: Vec::with_capacity(256),
            options: false,
        };
        block.u32(kind);
        block.u32(0);
        block
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// A value that does not fit a length of 16 bits is left out; names and comments here are short.
    fn option(&mut self, code: u16, value: &[u8]) {
        if let Ok(length) = u16::try_from(value.len()) {
            self.u16(code);
            self.u16(length);
            self.bytes(value);
            self.pad();
            self.options = true;
        }
    }

    fn end(mut self, to: &mut impl Write) -> io::Result<()> {
        if self.options {
            self.u32(0); // opt_endofopt
        }
        let length = u32::try_from(self.bytes.len() + 4)
            .map_err(io::Error::other)?
            .to_le_bytes();
        self.bytes[4..8].copy_from_slice(&length);
        self.bytes(&length);
        to.write_all(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::DropReason;

    fn packet(frame: &[u8]) -> CapturedPacket {
        CapturedPacket {
            time_ns: 1_234_567_890_123_456_789,
            direction: CaptureDirection::FromGuest,
            dropped: None,
            length: u32::try_from(frame.len()).unwrap(),
            lost: 0,
            vnet_header: [0; 12],
            frame: frame.to_vec(),
        }
    }

    fn file(packets: &[CapturedPacket]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "vm1", 65_553).unwrap();
        packets.iter().for_each(|packet| writer.packet(packet).unwrap());
        writer.to
    }

    #[test]
    fn blocks_are_framed_and_carry_their_options() {
        let mut dropped = packet(b"\x52\x54\x00\x00\x00\x01\x52\x54\x00\x00\x00\x02\x88\xb5x");
        dropped.dropped = Some(DropReason::PortDown);
        dropped.direction = CaptureDirection::ToGuest;
        dropped.lost = 3;
        dropped.length = 9000;
        let bytes = file(&[dropped]);
        let mut kinds = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let length = word(4) as usize;
            assert_eq!((length % 4, word(length - 4) as usize), (0, length));
            kinds.push(word(0));
            if word(0) == block::ENHANCED_PACKET {
                assert_eq!(
                    u64::from(word(12)) << 32 | u64::from(word(16)),
                    1_234_567_890_123_456_789
                );
                assert_eq!((word(20), word(24)), (15, 9000));
                let options = &rest[28 + 16..length - 4];
                let comment = b"dropped: port-down (";
                assert_eq!(&options[4..4 + comment.len()], comment);
                let tail = [
                    2, 0, 4, 0, 2, 0, 0, 0, 4, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ];
                assert!(options.ends_with(&tail), "{options:?}");
            }
            rest = &rest[length..];
        }
        assert_eq!(kinds, [block::SECTION, block::INTERFACE, block::ENHANCED_PACKET]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let frames: Vec<Vec<u8>> = (14..30u8).map(|length| (0..length).collect()).collect();
        let bytes = file(&frames.iter().map(|frame| packet(frame)).collect::<Vec<_>>());
        for (index, frame) in (1..).zip(&frames) {
            assert_eq!(&super::super::packet(&bytes, index).unwrap(), frame);
        }
        assert!(super::super::packet(&bytes, 17).is_err());
    }

    /// Users read captures with Wireshark. Skipped with a message where it is not installed.
    #[test]
    fn wireshark_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pcapng");
        let mut dropped = packet(&[0xff; 60]);
        dropped.dropped = Some(DropReason::VlanFiltered);
        dropped.lost = 2;
        std::fs::write(&path, file(&[packet(&[0x52; 60]), dropped])).unwrap();
        let fields = [
            "frame.interface_name",
            "frame.packet_flags_direction",
            "frame.comment",
            "frame.time_epoch",
        ];
        let mut tshark = std::process::Command::new("tshark");
        tshark.arg("-r").arg(&path).args(["-T", "fields"]);
        for field in fields {
            tshark.args(["-e", field]);
        }
        let Ok(output) = tshark.output() else {
            eprintln!("skipped: tshark is not installed");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines.len(),
            2,
            "{text} {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            lines[0].starts_with("vm1\t") && lines[0].contains("1234567890.123456789"),
            "{text}"
        );
        assert!(lines[1].contains("dropped: vlan-filtered ("), "{text}");
    }
}
