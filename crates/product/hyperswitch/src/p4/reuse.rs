//! How often a program's verdict could be found again: the share of packets whose deciding bits another
//! packet had before.
//!
//! The bits are those of the static analysis, without those that only a verified checksum looks at: a
//! checksum is checked for each packet and needs no place in a key. The packets are those of a capture
//! file, or of a model: 64 TCP flows with 32 segments each, whose identifications, lengths, sequence
//! numbers and checksums differ from packet to packet.

use p4_interpreter::observe::{Observer, View};
use p4_interpreter::{Collected, Context, Engine, Packet, State, StateLimits};
use p4_ir::{Analysis, Checked, HeaderId, Role};
use std::collections::HashSet;
use wire::Sum;

/// Flows of the model, and packets of each.
const FLOWS: u32 = 64;
const PACKETS: u32 = 32;
/// Most packets of a capture that are looked at: each may leave a key.
const MOST: usize = 1 << 20;

/// Packets that were looked at, and keys that they had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Packets.
    pub packets: usize,
    /// Packets whose key an earlier one had.
    pub found: usize,
}

impl Reuse {
    /// The share that would find a verdict, in percent, rounded down.
    pub fn percent(self) -> usize {
        (self.found * 100).checked_div(self.packets).unwrap_or(0)
    }
}

/// Counts keys among packets, given with the ports by which they enter.
///
/// # Errors
/// When the engine refuses the program.
pub fn measure<'a>(
    program: &Checked,
    analysis: &Analysis,
    packets: impl Iterator<Item = (u32, &'a [u8])>,
) -> Result<Reuse, p4_interpreter::Error> {
    let engine = Engine::new(program.clone())?;
    let state = State::new(&engine, StateLimits::default())?;
    let mut context = Context::new(&engine, 1);
    let mut keys = HashSet::new();
    let mut reuse = Reuse { packets: 0, found: 0 };
    for (number, (port, bytes)) in packets.take(MOST).enumerate() {
        let mut keying = Keying {
            analysis,
            headers: program.headers.len() as u16,
            packet: bytes,
            key: Vec::new(),
            parsed: false,
        };
        if analysis.given.contains(&Role::IngressPort) {
            keying.key.extend(port.to_be_bytes());
        }
        let packet = Packet::whole(port, bytes);
        let now = number as u64 * 1000;
        let mut sink = Collected::default();
        engine.run(&state.read(), &mut context, &packet, now, &mut sink, &mut keying);
        reuse.packets += 1;
        if !keys.insert(keying.key) {
            reuse.found += 1;
        }
    }
    Ok(reuse)
}

/// Collects the key of a packet when its first parser ends.
struct Keying<'a> {
    analysis: &'a Analysis,
    headers: u16,
    packet: &'a [u8],
    key: Vec<u8>,
    parsed: bool,
}

impl Observer for Keying<'_> {
    fn parsed(&mut self, view: &View<'_>, error: Option<u32>) {
        if std::mem::replace(&mut self.parsed, true) {
            return;
        }
        self.key.extend(error.unwrap_or(0).to_be_bytes());
        let valid = (0..self.headers).map(|header| u8::from(view.is_valid(HeaderId(header))));
        self.key.extend(valid);
        // Where the program looks ahead of its headers, these bytes are the nearest to what it saw.
        let ahead = self.packet.iter().skip(view.at);
        self.key
            .extend(ahead.take(self.analysis.ahead.div_ceil(8) as usize));
        for (field, mask) in &self.analysis.looked_at {
            let value = view.field(*field);
            self.key.extend(
                value
                    .bytes()
                    .iter()
                    .zip(mask.bytes())
                    .map(|(value, mask)| value & mask),
            );
        }
    }
}

/// The packets of the model, all by port 1, one packet of each flow in turn.
pub fn model() -> Vec<Vec<u8>> {
    let all = (0..PACKETS).flat_map(|number| (0..FLOWS).map(move |flow| segment(flow, number)));
    all.collect()
}

/// A TCP segment over IPv4 and Ethernet.
fn segment(flow: u32, number: u32) -> Vec<u8> {
    let data = 6 + (number * 397 + flow * 61) % 1400;
    let total = (40 + data) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend(((number * 7919 + flow * 104_729) as u16).to_be_bytes());
    ip.extend([0x40, 0, 64, 6, 0, 0]);
    ip.extend((0x0A00_0000 + flow % 8).to_be_bytes());
    ip.extend((0x0A01_0000 + flow / 8).to_be_bytes());
    let checksum = Sum::of(&ip).complement();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut tcp = Vec::new();
    tcp.extend((40_000 + flow as u16).to_be_bytes());
    tcp.extend(443u16.to_be_bytes());
    tcp.extend((number * 1_000_003).to_be_bytes());
    tcp.extend((number * 99_991).to_be_bytes());
    tcp.extend([0x50, 0x10, 0xFF, 0xFF]);
    tcp.extend(((number * 31 + flow) as u16).to_be_bytes());
    tcp.extend([0, 0]);
    let mut frame = vec![
        2,
        0,
        0,
        0,
        0,
        1 + (flow / 8) as u8,
        2,
        0,
        0,
        0,
        1,
        (flow % 8) as u8,
        8,
        0,
    ];
    frame.extend(ip);
    frame.extend(tcp);
    frame.resize(14 + usize::from(total), number as u8);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_flow_differ_in_what_they_carry_alone() {
        let packets = model();
        assert_eq!(packets.len(), (FLOWS * PACKETS) as usize);
        assert_eq!(packets.iter().collect::<HashSet<_>>().len(), packets.len());
        let addresses = packets.iter().map(|frame| (&frame[..14], &frame[26..38]));
        assert_eq!(addresses.collect::<HashSet<_>>().len(), FLOWS as usize);
        // The checksum is right: with it, the sum of the header is 0.
        assert!(
            packets
                .iter()
                .all(|frame| Sum::of(&frame[14..34]).complement() == 0)
        );
    }
}
