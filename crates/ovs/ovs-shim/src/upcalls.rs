//! Upcalls that came in one datagram, which are handed out one by one.
//!
//! The first one stays where the caller wanted it; the others wait here, with no system call for each. The
//! socket stays readable meanwhile, as the glue sends something after them (`ovs-frame`).

use libc::iovec;
use ovs_frame::{MAX_UPCALLS, first_message};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Upcalls of a socket that were not handed out yet. The lock is held while they are copied, and never waited
/// for in a socket that one thread reads, as ovs-vswitchd's are.
#[derive(Default)]
pub struct Upcalls(Mutex<Option<Box<Waiting>>>);

/// Made when first needed, and then kept.
struct Waiting {
    bytes: [u8; MAX_UPCALLS],
    begin: usize,
    end: usize,
}

/// What was received is no list of messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Garbage;

impl Upcalls {
    /// Without any.
    pub const fn new() -> Upcalls {
        Upcalls(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Waiting>>> {
        // Nothing that is done under the lock panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets them.
    pub fn clear(&self) {
        if let Some(waiting) = &mut *self.lock() {
            waiting.begin = waiting.end;
        }
    }

    /// Copies the next one to where the caller wants it. Returns its length, of which no more was copied than
    /// there was room for.
    ///
    /// # Safety
    /// `parts` must describe writable memory.
    pub unsafe fn next(&self, parts: &[iovec]) -> Option<usize> {
        let mut waiting = self.lock();
        let waiting = waiting.as_mut()?;
        // They were looked at when they came.
        let (message, taken) = first_message(&waiting.bytes[waiting.begin..waiting.end])?;
        let mut rest = message;
        for part in parts {
            let (now, later) = rest.split_at(rest.len().min(part.iov_len));
            // SAFETY: the caller promised so many writable bytes, which are none of this process's own list.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), part.iov_base.cast(), now.len()) };
            rest = later;
        }
        let length = message.len();
        waiting.begin += taken;
        Some(length)
    }

    /// Takes over all but the first of the messages, of `length` bytes together, that were received into
    /// these parts, which have room for them. Returns the length of the first one.
    ///
    /// # Safety
    /// `parts` must describe readable memory.
    pub unsafe fn put(&self, parts: &[iovec], length: usize) -> Result<usize, Garbage> {
        let mut waiting = self.lock();
        let waiting = waiting.get_or_insert_with(|| Box::new(Waiting::NONE));
        waiting.begin = waiting.end;
        let mut rest = waiting.bytes.get_mut(..length).ok_or(Garbage)?;
        for part in parts {
            let (now, later) = rest.split_at_mut(rest.len().min(part.iov_len));
            // SAFETY: the caller promised so many readable bytes, which are none of this process's own list.
            unsafe { std::ptr::copy_nonoverlapping(part.iov_base.cast(), now.as_mut_ptr(), now.len()) };
            rest = later;
        }
        let bytes = &waiting.bytes[..length];
        let (first, begin) = first_message(bytes).ok_or(Garbage)?;
        let mut at = begin;
        while at < length {
            at += first_message(&bytes[at..]).ok_or(Garbage)?.1;
        }
        (waiting.begin, waiting.end) = (begin, length);
        Ok(first.len())
    }
}

impl Waiting {
    const NONE: Waiting = Waiting {
        bytes: [0; MAX_UPCALLS],
        begin: 0,
        end: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8, length: usize) -> Vec<u8> {
        let mut message = u32::try_from(length).unwrap().to_ne_bytes().to_vec();
        message.resize(length, number);
        message
    }

    fn joined(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut joined = Vec::new();
        for message in messages {
            joined.extend(message);
            joined.resize(joined.len().next_multiple_of(4), 0);
        }
        joined
    }

    /// Memory cut into parts of these lengths.
    fn parts(memory: &mut [u8], lengths: &[usize]) -> Vec<iovec> {
        let mut rest = memory;
        let mut parts = Vec::new();
        for length in lengths {
            let (part, later) = rest.split_at_mut(*length);
            parts.push(iovec {
                iov_base: part.as_mut_ptr().cast(),
                iov_len: part.len(),
            });
            rest = later;
        }
        parts
    }

    fn put(upcalls: &Upcalls, datagram: &[u8]) -> Result<usize, Garbage> {
        let mut received = datagram.to_vec();
        let cut = received.len() / 3;
        let lengths = [cut, 0, received.len() - cut];
        // SAFETY: the parts are those of a vector that lives.
        unsafe { upcalls.put(&parts(&mut received, &lengths), datagram.len()) }
    }

    fn next(upcalls: &Upcalls, lengths: &[usize]) -> Option<(usize, Vec<u8>)> {
        let mut memory = vec![0xee; lengths.iter().sum()];
        // SAFETY: the parts are those of a vector that lives.
        let length = unsafe { upcalls.next(&parts(&mut memory, lengths)) }?;
        Some((length, memory))
    }

    #[test]
    fn messages_come_one_by_one_in_their_order() {
        let upcalls = Upcalls::new();
        assert_eq!(next(&upcalls, &[64]), None);
        for _ in 0..2 {
            let messages: Vec<_> = (1..30)
                .map(|number| message(number, 16 + usize::from(number)))
                .collect();
            assert_eq!(put(&upcalls, &joined(&messages)), Ok(17));
            for wanted in &messages[1..] {
                let (length, memory) = next(&upcalls, &[3, 0, 20, 41]).unwrap();
                assert_eq!(&memory[..length], wanted);
                assert!(
                    memory[length..].iter().all(|byte| *byte == 0xee),
                    "nothing else is written"
                );
            }
            assert_eq!(next(&upcalls, &[64]), None);
        }
    }

    #[test]
    fn one_for_which_there_is_no_room_is_cut() {
        let upcalls = Upcalls::new();
        let messages = [message(1, 16), message(2, 40), message(3, 16)];
        put(&upcalls, &joined(&messages)).unwrap();
        let (length, memory) = next(&upcalls, &[1]).unwrap();
        assert_eq!((length, memory), (40, messages[1][..1].to_vec()));
        assert_eq!(next(&upcalls, &[16]).unwrap().1, messages[2]);
    }

    #[test]
    fn forgotten_ones_do_not_come() {
        let upcalls = Upcalls::new();
        upcalls.clear();
        put(&upcalls, &joined(&[message(1, 16), message(2, 16)])).unwrap();
        upcalls.clear();
        assert_eq!(next(&upcalls, &[64]), None);
    }

    #[test]
    fn a_list_that_is_cut_or_lies_is_refused_as_a_whole() {
        let upcalls = Upcalls::new();
        let messages = [message(1, 20), message(2, 30), message(3, 17)];
        let list = joined(&messages);
        for length in 0..list.len() - 3 {
            let ends = [20, 50, 51, 52].contains(&length);
            assert_eq!(put(&upcalls, &list[..length]).is_ok(), ends, "{length} bytes");
            upcalls.clear();
        }
        for (at, lie) in [(0, 0), (20, 15), (20, 33), (20, 53), (52, 21), (52, u32::MAX)] {
            let mut list = list.clone();
            list[at..at + 4].copy_from_slice(&lie.to_ne_bytes());
            assert_eq!(put(&upcalls, &list), Err(Garbage), "{lie} at {at}");
            assert_eq!(next(&upcalls, &[64]), None, "none of it is handed out");
        }
        assert_eq!(
            put(&upcalls, &joined(&vec![message(1, 16); MAX_UPCALLS / 16])),
            Ok(16)
        );
        assert_eq!(put(&upcalls, &vec![16; MAX_UPCALLS + 4]), Err(Garbage));
        assert_eq!(next(&upcalls, &[64]), None);
    }
}
