//! Counts of queues, in the kernel's answers about them.
//!
//! ovs-vswitchd has the kernel make a class of a queueing discipline for each queue of a port, and reads the
//! queue's statistics from there (`netdev_linux_get_queue_stats`, `netdev_linux_dump_queue_stats`). But no
//! packet of ours is told apart there. So the counts in messages about classes of our ports' devices are
//! replaced by the glue's, in their places; messages about other devices and classes, and all that the glue
//! does not know, stay as they are.
//!
//! A message of this kind is an answer to a user who asks for statistics, or the notice of a change: nothing
//! that is often.

use crate::glue;
use libc::iovec;
use ovs_frame::{REQUEST, first_message};
use rustix::fd::OwnedFd;
use std::ops::Range;

const NEW_CLASS: u16 = libc::RTM_NEWTCLASS;
/// `struct nlmsghdr`, and with `struct tcmsg`.
const HEADER: usize = 16;
const CLASS_LEN: usize = 36;
/// Attributes: `TCA_STATS2`, and in it `TCA_STATS_BASIC`, `TCA_STATS_QUEUE` and `TCA_STATS_PKT64`
/// (`linux/gen_stats.h`).
const STATS2: u16 = 7;
const BASIC: u16 = 1;
const QUEUE: u16 = 3;
const PACKETS64: u16 = 8;
/// Classes of ovs-vswitchd's have this major number, and the queue's number and 1 as minor one; the last
/// minor is that of all queues (`htb_setup_class__`).
const MAJOR: u32 = 1;
const MAX_MINOR: u32 = 0xf000;

/// What the glue has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    packets: u64,
    bytes: u64,
    dropped: u64,
}

/// Looks at what was received from rtnetlink, and replaces counts of our queues in it.
///
/// # Safety
/// `parts` must point to `count` elements that describe writable memory, of which `received` bytes were
/// filled in.
pub unsafe fn replace(parts: *const iovec, count: usize, received: usize) {
    // SAFETY: the caller promised the elements, and that as many bytes were filled in.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let Some(first) = parts
        .first()
        .filter(|first| first.iov_len.min(received) >= CLASS_LEN)
    else {
        return;
    };
    // SAFETY: so many bytes of the first part were filled in.
    let head = unsafe { std::slice::from_raw_parts(first.iov_base.cast::<u8>(), HEADER) };
    if kind(head) != Some(NEW_CLASS) {
        return;
    }
    let mut datagram = Vec::with_capacity(received);
    for part in parts {
        let length = part.iov_len.min(received - datagram.len());
        // SAFETY: the caller promised that these bytes were filled in.
        datagram.extend(unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), length) });
    }
    let mut glue = None;
    replace_in(&mut datagram, |index, queue| ask(&mut glue, index, queue));
    let mut rest = &datagram[..];
    for part in parts {
        let (these, others) = rest.split_at(part.iov_len.min(rest.len()));
        // SAFETY: the caller promised that the part can be written to; the source is a local variable.
        unsafe { std::ptr::copy_nonoverlapping(these.as_ptr(), part.iov_base.cast(), these.len()) };
        rest = others;
    }
}

fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*message.get(4..)?.first_chunk()?))
}

/// Replaces the counts of queues of which something is known.
fn replace_in(datagram: &mut [u8], mut counts: impl FnMut(u32, u32) -> Option<Counts>) {
    let mut at = 0;
    while let Some((message, taken)) = first_message(&datagram[at..]) {
        let range = at..at + message.len();
        let message = &mut datagram[range];
        if let Some((index, queue)) = class(message)
            && let Some(counts) = counts(index, queue)
        {
            fill_in(message, counts);
        }
        at += taken;
    }
}

/// Interface index and queue of the class that a message is about.
fn class(message: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
    let (index, handle) = (word(HEADER + 4)?, word(HEADER + 8)?);
    let (major, minor) = (handle >> 16, handle & 0xffff);
    let is_queue = kind(message)? == NEW_CLASS && major == MAJOR && (1..=MAX_MINOR).contains(&minor);
    is_queue.then(|| (index, minor - 1))
}

/// Writes counts into a message. Fields that are not there are left out.
fn fill_in(message: &mut [u8], counts: Counts) {
    let length = message.len();
    let Some(stats) = attribute(message, CLASS_LEN..length, STATS2) else {
        return;
    };
    let mut put = |wanted, at: usize, value: &[u8]| {
        let place = attribute(message, stats.clone(), wanted).and_then(|range| message.get_mut(range));
        if let Some(place) = place.and_then(|place| place.get_mut(at..at + value.len())) {
            place.copy_from_slice(value);
        }
    };
    // `struct gnet_stats_basic`: bytes, packets. `struct gnet_stats_queue`: length, backlog, drops.
    put(BASIC, 0, &counts.bytes.to_ne_bytes());
    put(BASIC, 8, &(counts.packets as u32).to_ne_bytes());
    put(PACKETS64, 0, &counts.packets.to_ne_bytes());
    put(QUEUE, 8, &(counts.dropped as u32).to_ne_bytes());
}

/// Where the contents of the first attribute of this type are.
fn attribute(bytes: &[u8], mut range: Range<usize>, wanted: u16) -> Option<Range<usize>> {
    while !range.is_empty() {
        let rest = bytes.get(range.clone())?;
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        rest.get(4..length)?;
        if kind == wanted {
            return Some(range.start + 4..range.start + length);
        }
        range.start += length.next_multiple_of(4);
    }
    None
}

/// Asks the glue, over a connection that serves for all of a datagram.
fn ask(glue: &mut Option<OwnedFd>, index: u32, queue: u32) -> Option<Counts> {
    let connection = match glue {
        Some(connection) => connection,
        None => glue.insert(glue::open_for(ovs_frame::QUEUES)?),
    };
    let mut request = [0; HEADER + 8];
    request[..4].copy_from_slice(&(HEADER as u32 + 8).to_ne_bytes());
    // The first type that is none of netlink's own.
    request[4..6].copy_from_slice(&0x10_u16.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[HEADER..][..4].copy_from_slice(&index.to_ne_bytes());
    request[HEADER + 4..].copy_from_slice(&queue.to_ne_bytes());
    let mut answer = [0; HEADER + 24];
    let length = glue::call(connection, REQUEST, &request, &mut answer)?;
    if length < answer.len() || kind(&answer) == Some(libc::NLMSG_ERROR as u16) {
        return None;
    }
    let count = |number: usize| {
        answer[HEADER + 8 * number..]
            .first_chunk()
            .map(|bytes| u64::from_ne_bytes(*bytes))
    };
    Some(Counts {
        packets: count(0)?,
        bytes: count(1)?,
        dropped: count(2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Counts = Counts {
        packets: 0x1_0000_0007,
        bytes: 0x2_0000_0009,
        dropped: 11,
    };

    fn with(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// As the kernel sends it.
    fn told(kind: u16, index: u32, handle: u32) -> Vec<u8> {
        let stats = [
            with(BASIC, &[1; 16]),
            with(PACKETS64, &[2; 8]),
            with(QUEUE, &[3; 20]),
        ]
        .concat();
        let attributes = [with(1, b"htb\0"), with(2, &[4; 12]), with(STATS2, &stats)].concat();
        let mut message = vec![0; CLASS_LEN];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[20..24].copy_from_slice(&index.to_ne_bytes());
        message[24..28].copy_from_slice(&handle.to_ne_bytes());
        message.extend(attributes);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    #[test]
    fn counts_of_queues_are_replaced_and_nothing_else() {
        let classes = [
            told(NEW_CLASS, 7, 0x1_0001),
            told(NEW_CLASS, 7, 0x1_0006),
            // All queues, another discipline, another device, another message.
            told(NEW_CLASS, 7, 0x1_fffe),
            told(NEW_CLASS, 7, 0x2_0001),
            told(NEW_CLASS, 8, 0x1_0001),
            told(libc::RTM_NEWQDISC, 7, 0x1_0001),
        ];
        let mut datagram = classes.concat();
        let mut asked = Vec::new();
        replace_in(&mut datagram, |index, queue| {
            asked.push((index, queue));
            (index == 7).then_some(OURS)
        });
        assert_eq!(asked, [(7, 0), (7, 5), (8, 0)]);
        let length = classes[0].len();
        for (number, (class, now)) in classes.iter().zip(datagram.chunks(length)).enumerate() {
            let changed = class.iter().zip(now).filter(|(old, new)| old != new).count();
            assert_eq!(changed > 0, number < 2, "{number}");
            assert!(changed <= 24, "{number}: {changed} bytes");
        }
        let stats = attribute(&datagram[..length], CLASS_LEN..length, STATS2).unwrap();
        let value = |kind| &datagram[attribute(&datagram, stats.clone(), kind).unwrap()];
        assert_eq!(
            value(BASIC)[..12],
            [&OURS.bytes.to_ne_bytes()[..], &7_u32.to_ne_bytes()].concat()
        );
        assert_eq!(value(PACKETS64), OURS.packets.to_ne_bytes());
        assert_eq!(value(QUEUE)[8..12], 11_u32.to_ne_bytes());
    }

    #[test]
    fn cut_and_changed_messages_do_no_harm() {
        let whole = told(NEW_CLASS, 7, 0x1_0001);
        for length in 0..whole.len() {
            replace_in(&mut whole[..length].to_vec(), |_, _| Some(OURS));
            for byte in [0, 1, 0xff] {
                let mut changed = whole.clone();
                changed[length] = byte;
                replace_in(&mut changed, |_, _| Some(OURS));
            }
        }
    }
}
