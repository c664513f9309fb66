//! Writing pcap, for packets of one port without comments or directions.

use super::ETHERNET;
use std::io::{self, Write};

/// Greatest length that readers must expect.
const SNAP_LENGTH: u32 = 262_144;

/// A pcap file, little endian, with nanoseconds.
#[derive(Debug)]
pub struct ClassicWriter<W> {
    to: W,
}

impl<W: Write> ClassicWriter<W> {
    /// Writes the file's header.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    pub fn new(mut to: W) -> io::Result<Self> {
        for word in [0xa1b2_3c4d, 0x0004_0002, 0, 0, SNAP_LENGTH, u32::from(ETHERNET)] {
            to.write_all(&word.to_le_bytes())?;
        }
        Ok(ClassicWriter { to })
    }

    /// Writes a packet that was seen that many nanoseconds after 1970.
    ///
    /// # Errors
    /// As [`Write::write_all`].
    pub fn packet(&mut self, time_ns: u64, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        let seconds = u32::try_from(time_ns / 1_000_000_000).map_err(io::Error::other)?;
        let parts = (time_ns % 1_000_000_000) as u32;
        for word in [seconds, parts, length, length] {
            self.to.write_all(&word.to_le_bytes())?;
        }
        self.to.write_all(frame)
    }

    /// Flushes buffered bytes to the file.
    ///
    /// # Errors
    /// As [`Write::flush`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        let mut writer = ClassicWriter::new(&mut file).unwrap();
        writer.packet(1_500_000_003, &[7; 60]).unwrap();
        writer.packet(2_000_000_000, &[8; 14]).unwrap();
        writer.flush().unwrap();
        let (packets, cut) = super::super::packets(&file).unwrap();
        assert_eq!(cut, None);
        let found: Vec<_> = packets
            .iter()
            .map(|packet| (packet.time_ns, packet.frame))
            .collect();
        assert_eq!(found, [(1_500_000_003, &[7; 60][..]), (2_000_000_000, &[8; 14])]);
    }
}
