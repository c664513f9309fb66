//! Digests of a program, gathered in lists for clients (specification, "DigestEntry").
//!
//! A client says for each digest how many a list has at most and how long one may wait. A digest that is in a
//! list which no client has acknowledged is not sent again, until the time for that is over.
//!
//! | behaviour | bound |
//! |---|---|
//! | digests without end, all different | [`MAX_KNOWN`] of a digest wait or are not acknowledged; further ones are lost |
//! | a client that wants endless lists | [`MAX_LIST`] in a list |
//! | a client that acknowledges nothing | its lists are forgotten after their time, or when there is no room |
//! | a digest that no client has asked for | it is dropped |

use crate::bytestring;
use crate::packets;
use crate::proto::{DigestConfig, DigestList, P4Data, P4StructLike};
use p4_ir::{Program, Type};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Digests of a kind that wait or are not acknowledged, at most.
pub const MAX_KNOWN: usize = 4096;

/// Bytes of all of them, of a device.
const MAX_BYTES: usize = 4 << 20;

/// Longest list.
pub const MAX_LIST: usize = 512;

/// See the module's description.
#[derive(Debug, Default)]
pub struct Digests {
    /// Number of the latest list.
    last_list: u64,
    kinds: BTreeMap<u32, Kind>,
    /// Of all that are known.
    bytes: usize,
    /// Digests for which there was no room.
    pub lost: u64,
}

/// Digests of one kind.
#[derive(Debug, Default)]
struct Kind {
    waiting: Vec<Vec<u8>>,
    /// When the first of those that wait came.
    since: Option<Instant>,
    sent: VecDeque<Sent>,
    /// Digests that wait, and digests that are not acknowledged.
    known: HashSet<Vec<u8>>,
}

/// A list that was sent.
#[derive(Debug)]
struct Sent {
    list: u64,
    at: Instant,
    values: Vec<Vec<u8>>,
}

/// Nanoseconds since 1970, as messages have them.
#[must_use]
pub fn timestamp() -> i64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn nanoseconds(count: i64) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(0))
}

/// The longest list that a client wants.
fn longest(config: &DigestConfig) -> usize {
    match usize::try_from(config.max_list_size) {
        Ok(size @ 1..) => size.min(MAX_LIST),
        _ => MAX_LIST,
    }
}

impl Kind {
    /// When the list that is being gathered has to leave.
    fn due(&self, config: &DigestConfig) -> Option<Instant> {
        Some(self.since? + nanoseconds(config.max_timeout_ns))
    }

    /// Forgets lists whose acknowledgement is overdue, and returns their bytes.
    fn expire(&mut self, config: &DigestConfig, now: Instant) -> usize {
        let (timeout, mut bytes) = (nanoseconds(config.ack_timeout_ns), 0);
        while let Some(sent) = self.sent.pop_front_if(|sent| now - sent.at >= timeout) {
            bytes += self.forget(&sent);
        }
        bytes
    }

    fn forget(&mut self, sent: &Sent) -> usize {
        for values in &sent.values {
            self.known.remove(values);
        }
        sent.values.iter().map(Vec::len).sum()
    }
}

impl Digests {
    /// Takes a digest; whether a list is to be sent now.
    pub fn add(&mut self, id: u32, config: &DigestConfig, values: Vec<u8>, now: Instant) -> bool {
        let kind = self.kinds.entry(id).or_default();
        self.bytes -= kind.expire(config, now);
        if kind.known.contains(&values) {
            return false;
        }
        if kind.known.len() >= MAX_KNOWN || self.bytes + values.len() > MAX_BYTES {
            self.lost += 1;
            return false;
        }
        self.bytes += values.len();
        kind.known.insert(values.clone());
        kind.waiting.push(values);
        kind.since.get_or_insert(now);
        kind.waiting.len() >= longest(config) || kind.due(config).is_some_and(|due| due <= now)
    }

    /// The digests that wait, as a list that is sent now.
    pub fn take(&mut self, id: u32, program: &Program, now: Instant) -> Option<DigestList> {
        let Some(widths) = widths(program, id) else {
            self.retain(|kind| kind != id);
            return None;
        };
        let kind = self.kinds.get_mut(&id)?;
        kind.since = None;
        let values = std::mem::take(&mut kind.waiting);
        self.last_list += 1;
        let list = self.last_list;
        let data = values.iter().map(|values| decode(&widths, values)).collect();
        kind.sent.push_back(Sent {
            list,
            at: now,
            values,
        });
        Some(DigestList {
            digest_id: id,
            list_id: list,
            data,
            timestamp: timestamp(),
        })
    }

    /// The digests of which a list is due, with the time when it is.
    pub fn due<'a>(
        &'a self,
        configs: &'a BTreeMap<u32, DigestConfig>,
    ) -> impl Iterator<Item = (u32, Instant)> + 'a {
        let due = |(id, kind): (&u32, &Kind)| Some((*id, kind.due(configs.get(id)?)?));
        self.kinds.iter().filter_map(due)
    }

    /// A client has acknowledged a list. One that is forgotten is no error: it may have come too late.
    pub fn acknowledge(&mut self, id: u32, list: u64) {
        let Some(kind) = self.kinds.get_mut(&id) else {
            return;
        };
        let place = kind.sent.iter().position(|sent| sent.list == list);
        if let Some(sent) = place.and_then(|place| kind.sent.remove(place)) {
            self.bytes -= kind.forget(&sent);
        }
    }

    /// Forgets digests of kinds that no client wants any more.
    pub fn retain(&mut self, is_wanted: impl Fn(u32) -> bool) {
        self.kinds.retain(|id, _| is_wanted(*id));
        let known = self.kinds.values().flat_map(|kind| &kind.known);
        self.bytes = known.map(Vec::len).sum();
    }
}

/// Widths of a digest's members.
#[must_use]
pub fn widths(program: &Program, id: u32) -> Option<Vec<u16>> {
    let mut digests = program.digests.iter();
    let digest = digests.find(|digest| digest.identity.id == Some(id))?;
    let width = |item: &p4_ir::DigestItem| match program.exprs.get(item.value.index())?.ty {
        Type::Bits(width) => Some(width),
        _ => None,
    };
    digest.items.iter().map(width).collect()
}

/// A digest as clients get it.
fn decode(widths: &[u16], values: &[u8]) -> P4Data {
    let mut at = 0;
    let member = |width: &u16| {
        let bits = packets::get(values, at, *width);
        at += usize::from(*width);
        P4Data {
            bitstring: Some(bytestring::write(&bits)),
            r#struct: None,
        }
    };
    let members = widths.iter().map(member).collect();
    P4Data {
        bitstring: None,
        r#struct: Some(P4StructLike { members }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: DigestConfig = DigestConfig {
        max_timeout_ns: 1_000_000,
        max_list_size: 2,
        ack_timeout_ns: 5_000_000,
    };

    fn after(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    /// The switch's program, and the number of its digest.
    fn program() -> (Program, u32) {
        let (_, program) = crate::testing::program("l2_switch");
        let id = program.digests[0].identity.id.unwrap();
        (program, id)
    }

    /// A station's address, and a port of 9 bits, which fill all but 7 bits of eight bytes.
    fn seen(station: u8, port: u8) -> Vec<u8> {
        vec![2, 0, 0, 0, 0, station, port >> 1, port << 7]
    }

    #[test]
    fn lists_are_full_or_due_and_members_have_their_widths() {
        let ((program, id), begin) = (program(), Instant::now());
        let configs = BTreeMap::from([(id, CONFIG)]);
        let mut digests = Digests::default();
        assert!(!digests.add(id, &CONFIG, seen(1, 3), begin));
        assert_eq!(digests.due(&configs).collect::<Vec<_>>(), [(id, after(begin, 1))]);
        assert!(digests.add(id, &CONFIG, seen(2, 5), begin), "full");
        let list = digests.take(id, &program, begin).unwrap();
        assert_eq!((list.digest_id, list.list_id, list.data.len()), (id, 1, 2));
        let members = &list.data[1].r#struct.as_ref().unwrap().members;
        let values = members.iter().map(|member| member.bitstring.clone().unwrap());
        assert_eq!(values.collect::<Vec<_>>(), [vec![2, 0, 0, 0, 0, 2], vec![5]]);
        assert_eq!(digests.due(&configs).count(), 0);
        let at_once = DigestConfig {
            max_timeout_ns: 0,
            ..CONFIG
        };
        assert!(digests.add(id, &at_once, seen(3, 1), begin));
    }

    #[test]
    fn what_is_not_acknowledged_is_not_sent_again_for_a_while() {
        let ((program, id), begin) = (program(), Instant::now());
        let mut digests = Digests::default();
        digests.add(id, &CONFIG, seen(1, 1), begin);
        let first = digests.take(id, &program, begin).unwrap();
        assert!(!digests.add(id, &CONFIG, seen(1, 1), after(begin, 4)));
        assert!(digests.kinds[&id].waiting.is_empty());
        digests.acknowledge(id, first.list_id);
        digests.acknowledge(id, 99);
        digests.add(id, &CONFIG, seen(1, 1), after(begin, 4));
        let second = digests.take(id, &program, after(begin, 4)).unwrap();
        assert_eq!((second.list_id, second.data.len()), (2, 1));
        digests.add(id, &CONFIG, seen(1, 1), after(begin, 9));
        assert_eq!(digests.kinds[&id].waiting.len(), 1, "5 ms are over");
    }

    #[test]
    fn digests_without_end_are_lost_and_not_kept() {
        let ((program, id), begin) = (program(), Instant::now());
        let endless = DigestConfig {
            max_list_size: 0,
            ack_timeout_ns: i64::MAX,
            max_timeout_ns: i64::MAX,
        };
        let (mut digests, mut lists) = (Digests::default(), 0);
        for number in 0..10_000u32 {
            let values = [&[0; 4][..], &number.to_be_bytes()].concat();
            if digests.add(id, &endless, values, begin) {
                let list = digests.take(id, &program, begin).unwrap();
                assert_eq!(list.data.len(), MAX_LIST);
                lists += 1;
            }
        }
        let kind = &digests.kinds[&id];
        assert_eq!((kind.known.len(), lists), (MAX_KNOWN, MAX_KNOWN / MAX_LIST));
        assert_eq!(digests.lost, 10_000 - MAX_KNOWN as u64);
        assert_eq!(digests.bytes, MAX_KNOWN * 8);
        digests.retain(|_| false);
        assert!(digests.kinds.is_empty() && digests.bytes == 0);
        // Large ones are fewer.
        let large = |number: u32| [&[0; 60_000][..], &number.to_be_bytes()].concat();
        let full = (0..100).any(|number| digests.add(id, &endless, large(number), begin));
        assert!(!full);
        assert!(digests.kinds[&id].known.len() < 70);
    }
}
