//! What ports have counted, as the data plane sends it: bytes that are made and read at once.
//!
//! A port is a head, its numbers that are not zero, and its counters by reason, all little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the port |
//! | 2 | the core, plus 1; 0 for none |
//! | 4 | a bit for each of the [numbers](PortCounters::numbers) and lists that follow |
//! | 8 each | numbers |
//! | 1 + 9 each | lists of drops, discards and drops as a receiver: how many reasons, each with its count |

use flow::{DropCounts, DropReason, PortCounters, PortId};
use serde::{Deserialize, Serialize};

/// Bytes of a head.
const HEAD: usize = 10;

const NUMBERS: usize = PortCounters::NUMBERS;

/// Counters by reason, of which each is a list.
const LISTS: usize = 3;

/// What a port has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCount {
    /// Number of the port.
    pub port: PortId,
    /// The core whose worker receives the port's kicks; `None` before the first driver, and where each port
    /// has a thread of its own.
    pub core: Option<u16>,
    /// Since the port was created.
    pub counters: PortCounters,
}

/// Bytes are not what ports have counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed counters")]
pub struct Malformed;

/// What several ports have counted, as they are sent: 10 bytes for a port that is idle, where a [`PortCount`]
/// takes 1,200. So those of all ports wait to be sent in little memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounts(#[serde(with = "serde_bytes")] Vec<u8>);

impl PortCounts {
    /// Adds a port.
    pub fn push(&mut self, count: &PortCount) {
        let counters = &count.counters;
        let lists = [&counters.dropped, &counters.discarded, &counters.egress_dropped];
        let bits = lists.map(|list| u32::from(!list.is_empty()));
        let lists_bits = (0..).zip(bits).fold(0, |all, (place, bit)| all | bit << place);
        self.push_head(count.port, count.core, &counters.numbers(), lists_bits);
        for list in lists.into_iter().filter(|list| !list.is_empty()) {
            // There are fewer reasons than 256.
            self.0.push(list.iter().count() as u8);
            for (reason, packets) in list.iter() {
                self.0.push(reason as u8);
                self.0.extend_from_slice(&packets.to_le_bytes());
            }
        }
    }

    /// Adds a port without drops.
    pub fn push_numbers(&mut self, port: PortId, core: Option<u16>, numbers: &[u64; NUMBERS]) {
        self.push_head(port, core, numbers, 0);
    }

    fn push_head(&mut self, port: PortId, core: Option<u16>, numbers: &[u64; NUMBERS], lists: u32) {
        let numbers_bits = (0..)
            .zip(numbers)
            .fold(0, |bits, (place, number)| bits | u32::from(*number != 0) << place);
        let core = core.map_or(0, |core| core.saturating_add(1));
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&port.0.to_le_bytes());
        head[4..6].copy_from_slice(&core.to_le_bytes());
        head[6..].copy_from_slice(&(numbers_bits | lists << NUMBERS).to_le_bytes());
        self.0.extend_from_slice(&head);
        if numbers_bits != 0 {
            for number in numbers.iter().filter(|number| **number != 0) {
                self.0.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    /// Has room for so many ports that are idle.
    pub fn reserve(&mut self, ports: usize) {
        self.0.reserve(ports * HEAD);
    }

    /// Adds those that follow.
    pub fn append(&mut self, more: &PortCounts) {
        self.0.extend_from_slice(&more.0);
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Most ports that there can be.
    pub fn most(&self) -> usize {
        self.0.len().div_ceil(HEAD)
    }

    /// The ports.
    ///
    /// # Errors
    /// The sender has made bytes that are none, or more ports than can be.
    pub fn ports(&self) -> Result<Vec<PortCount>, Malformed> {
        let (mut ports, mut rest) = (Vec::new(), self.0.as_slice());
        while !rest.is_empty() {
            if ports.len() >= PortId::LIMIT as usize {
                return Err(Malformed);
            }
            ports.push(take_port(&mut rest)?);
        }
        Ok(ports)
    }
}

impl<'a> FromIterator<&'a PortCount> for PortCounts {
    fn from_iter<I: IntoIterator<Item = &'a PortCount>>(ports: I) -> Self {
        let mut counts = PortCounts::default();
        ports.into_iter().for_each(|port| counts.push(port));
        counts
    }
}

/// The first bytes, which are taken off.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, after) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = after;
    Ok(*first)
}

fn take_port(rest: &mut &[u8]) -> Result<PortCount, Malformed> {
    let port = PortId(u32::from_le_bytes(take(rest)?));
    let core = u16::from_le_bytes(take(rest)?).checked_sub(1);
    let bits = u32::from_le_bytes(take(rest)?);
    if bits >> (NUMBERS + LISTS) != 0 {
        return Err(Malformed);
    }
    let mut numbers = [0; NUMBERS];
    for (place, number) in numbers.iter_mut().enumerate() {
        if bits & 1 << place != 0 {
            *number = u64::from_le_bytes(take(rest)?);
        }
    }
    let mut counters = PortCounters::of_numbers(numbers);
    let lists = [
        &mut counters.dropped,
        &mut counters.discarded,
        &mut counters.egress_dropped,
    ];
    for (place, list) in lists.into_iter().enumerate() {
        if bits & 1 << (NUMBERS + place) != 0 {
            *list = take_list(rest)?;
        }
    }
    Ok(PortCount { port, core, counters })
}

fn take_list(rest: &mut &[u8]) -> Result<DropCounts, Malformed> {
    let [reasons] = take(rest)?;
    let mut counts = DropCounts::default();
    for _ in 0..reasons {
        let [reason] = take(rest)?;
        let reason = *DropReason::ALL.get(usize::from(reason)).ok_or(Malformed)?;
        let packets = u64::from_le_bytes(take(rest)?);
        // A reason that comes twice would overflow.
        if counts.get(reason) != 0 {
            return Err(Malformed);
        }
        counts.add(reason, packets);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(port: u32) -> PortCount {
        PortCount {
            port: PortId(port),
            core: None,
            counters: PortCounters::default(),
        }
    }

    fn count(number: u32) -> PortCount {
        let mut numbers = [0; NUMBERS];
        for (place, counter) in numbers.iter_mut().enumerate() {
            *counter = match place as u32 % 3 == number % 3 {
                true => u64::MAX >> place,
                false => 0,
            };
        }
        let mut counters = PortCounters::of_numbers(numbers);
        counters.egress_dropped.add(DropReason::PortDown, number.into());
        counters
            .discarded
            .add(DropReason::ALL[0], u64::from(number) << 40);
        for reason in DropReason::ALL.iter().filter(|_| number == 4) {
            counters.dropped.add(*reason, u64::MAX);
        }
        PortCount {
            counters,
            core: (number > 1).then_some(7),
            ..idle(number)
        }
    }

    #[test]
    fn counts_of_ports_arrive_as_they_were() {
        let all: Vec<PortCount> = (0..5).map(count).collect();
        let mut counts: PortCounts = all[..3].iter().collect();
        counts.append(&all[3..].iter().collect());
        assert_eq!(counts.ports().unwrap(), all);
        assert!(counts.most() >= all.len());
        let mut without_drops = PortCounts::default();
        let numbers = all[4].counters.numbers();
        without_drops.push_numbers(PortId(4), Some(0), &numbers);
        let read = without_drops.ports().unwrap();
        let counters = PortCounters::of_numbers(numbers);
        let (port, core) = (PortId(4), Some(0));
        assert_eq!(read, [PortCount { port, core, counters }]);
    }

    #[test]
    fn an_idle_port_takes_few_bytes() {
        let counts: PortCounts = [idle(0)].iter().collect();
        assert_eq!(counts.bytes(), HEAD);
    }

    /// Other bytes are an error, or fewer ports than may be.
    #[test]
    fn bytes_that_are_no_counts_are_refused() {
        let all: Vec<PortCount> = (0..5).map(count).collect();
        let counts: PortCounts = all.iter().collect();
        for cut in 0..counts.bytes() {
            let part = PortCounts(counts.0[..cut].to_vec());
            assert!(part.ports().is_err() || part.ports().unwrap().len() <= part.most());
        }
        assert!(PortCounts(vec![0xff; 100]).ports().is_err());
        let mut head = [0; HEAD];
        head[8] = 1 << (NUMBERS - 16);
        let list = |reasons: &[(u8, u64)]| {
            let mut bytes = [&head[..], &[reasons.len() as u8]].concat();
            for (reason, packets) in reasons {
                bytes.push(*reason);
                bytes.extend(packets.to_le_bytes());
            }
            PortCounts(bytes).ports()
        };
        assert!(list(&[(1, 5), (2, 6)]).is_ok());
        assert!(list(&[(1, u64::MAX), (1, u64::MAX)]).is_err());
        assert!(list(&[(DropReason::ALL.len() as u8, 1)]).is_err());
        let one: PortCounts = [idle(0)].iter().collect();
        let many = PortCounts(one.0.repeat(PortId::LIMIT as usize + 1));
        assert!(many.ports().is_err());
    }
}
