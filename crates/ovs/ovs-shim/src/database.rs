//! Port types of Neutron, in what the database says to ovs-vswitchd.
//!
//! Neutron and os-vif plug a virtual machine as an interface of type `dpdkvhostuser` (the switch listens)
//! or `dpdkvhostuserclient` (the VMM does). ovs-vswitchd has these types only with DPDK, and on its own
//! datapath only: here it would refuse the port. So ovs-vswitchd is told `internal` in their place, as all
//! of our virtual machines' ports are, and the process `ovs` reads the real type from the database, which
//! stays as it is. With [`CLAIM`] in the environment, bridges with `datapath_type=netdev` are told to be
//! `system` as well, since Neutron makes ports of these types on such bridges alone.
//!
//! ovsdb-server writes JSON without spaces between tokens (`json_to_string`), and JSON allows any number of
//! them: what replaces a name has its length. Quotes inside of strings are behind a backslash, so no string
//! that a user chose looks like a column and its value.
//!
//! A value may come in pieces. Its beginning is held until it is known whether it is replaced. ovs-vswitchd
//! reads again only when its socket is readable, so no byte that ends a message may be held: what is held
//! lies inside of a string, and more of its message is still to come.
//!
//! A connection whose first byte is not `{` is none to a database, and is let alone from then on.

use libc::ssize_t;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Variable of the environment: its value `claim` makes bridges of ovs-vswitchd's own datapath ours.
const CLAIM: &str = "HYPERSWITCH_OVS_NETDEV";

/// A column with the beginning of its value, and values up to their closing quotes with what replaces them.
struct Rule {
    column: &'static [u8],
    values: &'static [(&'static [u8], &'static [u8])],
}

const TYPES: Rule = Rule {
    column: b"\"type\":\"",
    values: &[
        (b"dpdkvhostuser\"", b"internal\"     "),
        (b"dpdkvhostuserclient\"", b"internal\"           "),
    ],
};
const DATAPATHS: Rule = Rule {
    column: b"\"datapath_type\":\"",
    values: &[(b"netdev\"", b"system\"")],
};
/// Length of the longest [`Rule::column`].
const MAX_COLUMN: usize = DATAPATHS.column.len();

/// Whether what a socket says is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Unknown,
    Database,
}

/// A connection to the database.
pub struct Stream {
    peer: Peer,
    /// The last bytes of what was read, without `held`.
    last: [u8; MAX_COLUMN],
    /// The rule whose column came last, while its value may be one that is replaced.
    rule: Option<&'static Rule>,
    /// The value as it has come so far.
    held: Vec<u8>,
    /// What is to be handed out.
    ready: Vec<u8>,
}

impl Stream {
    pub const fn new() -> Stream {
        Stream {
            peer: Peer::Unknown,
            last: [0; MAX_COLUMN],
            rule: None,
            held: Vec::new(),
            ready: Vec::new(),
        }
    }

    fn take(&mut self, byte: u8, rules: &'static [Rule]) {
        let Some(rule) = self.rule else {
            return self.pass(byte, rules);
        };
        self.held.push(byte);
        let mut possible = rule
            .values
            .iter()
            .filter(|(value, _)| value.starts_with(&self.held));
        match possible.next() {
            Some((value, instead)) if value.len() == self.held.len() => {
                self.ready.extend_from_slice(instead);
                self.held.clear();
                self.rule = None;
            }
            Some(_) => {}
            None => {
                self.rule = None;
                for byte in std::mem::take(&mut self.held) {
                    self.pass(byte, rules);
                }
            }
        }
    }

    fn pass(&mut self, byte: u8, rules: &'static [Rule]) {
        self.ready.push(byte);
        self.last.rotate_left(1);
        self.last[MAX_COLUMN - 1] = byte;
        self.rule = rules.iter().find(|rule| self.last.ends_with(rule.column));
    }

    /// Fills `room` by `read`, which returns what `recv` does, and returns that as well.
    fn receive(
        &mut self,
        room: &mut [u8],
        rules: &'static [Rule],
        mut read: impl FnMut(&mut [u8]) -> ssize_t,
    ) -> ssize_t {
        loop {
            if !self.ready.is_empty() {
                let length = room.len().min(self.ready.len());
                room[..length].copy_from_slice(&self.ready[..length]);
                self.ready.drain(..length);
                return length.cast_signed();
            }
            // What was held fits as well, unless there is hardly any room: then one byte decides.
            let length = room.len().saturating_sub(self.held.len()).max(1).min(room.len());
            let received = read(&mut room[..length]);
            let Ok(length) = usize::try_from(received) else {
                return received;
            };
            match length {
                0 if self.held.is_empty() || room.is_empty() => return 0,
                // The end, in the middle of a message.
                0 => self.ready.append(&mut self.held),
                _ => (0..length).for_each(|at| self.take(room[at], rules)),
            }
        }
    }
}

/// What values are replaced.
fn rules() -> &'static [Rule] {
    static IS_CLAIMED: OnceLock<bool> = OnceLock::new();
    let is_claimed = IS_CLAIMED.get_or_init(|| std::env::var_os(CLAIM).is_some_and(|value| value == "claim"));
    match is_claimed {
        true => &[TYPES, DATAPATHS],
        false => &[TYPES],
    }
}

/// Fills `room` from a Unix stream socket by `read`, which returns what `recv` does, and returns that as
/// well. Calls `ignore` if the socket leads to no database.
pub fn receive(
    stream: &Mutex<Stream>,
    room: &mut [u8],
    mut read: impl FnMut(&mut [u8]) -> ssize_t,
    ignore: impl FnOnce(),
) -> ssize_t {
    let stream = || stream.lock().unwrap_or_else(PoisonError::into_inner);
    if stream().peer == Peer::Database {
        return stream().receive(room, rules(), read);
    }
    let received = read(room);
    let first = usize::try_from(received).map(|length| &room[..length]);
    let bytes = first.unwrap_or_default();
    match bytes.first() {
        Some(b'{') => {}
        Some(_) => {
            ignore();
            return received;
        }
        None => return received,
    }
    let mut stream = stream();
    stream.peer = Peer::Database;
    for byte in bytes {
        stream.take(*byte, rules());
    }
    stream.receive(room, rules(), read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Rule] = &[TYPES, DATAPATHS];

    /// What is handed out when the bytes come in pieces of one length into room of another.
    fn handed_out(bytes: &[u8], piece: usize, room: usize, rules: &'static [Rule]) -> Vec<u8> {
        let mut stream = Stream::new();
        let (mut rest, mut out) = (bytes, Vec::new());
        let mut buffer = vec![0; room];
        loop {
            let length = stream.receive(&mut buffer, rules, |part| {
                let length = part.len().min(piece).min(rest.len());
                part[..length].copy_from_slice(&rest[..length]);
                rest = &rest[length..];
                length.cast_signed()
            });
            if length == 0 {
                return out;
            }
            out.extend_from_slice(&buffer[..length.cast_unsigned()]);
        }
    }

    const SAID: &str = r#"{"params":[{"name":"vm1","type":"dpdkvhostuser"},{"type":"dpdkvhostuserclient"},{"type":"dpdk"},{"type":""},
        {"type":"dpdkvhostuserX","datapath_type":"netdev","x":"a\"type\":\"dpdkvhostuser"},{"type":["set",[]]},"\"type\":\"dpdkvhostuser\""]}"#;

    #[test]
    fn types_are_replaced_in_pieces_of_any_length() {
        let wanted = SAID
            .replacen("\"type\":\"dpdkvhostuser\"", "\"type\":\"internal\"     ", 1)
            .replace(
                "\"type\":\"dpdkvhostuserclient\"",
                "\"type\":\"internal\"           ",
            );
        let claimed = wanted.replace("netdev", "system");
        for (piece, room) in (1..70).flat_map(|piece| [1, 2, 7, 13, 14, 64, 4096].map(|room| (piece, room))) {
            let bytes = SAID.as_bytes();
            let text = |rules| String::from_utf8(handed_out(bytes, piece, room, rules)).unwrap();
            assert_eq!(text(&[TYPES]), wanted, "{piece} {room}");
            assert_eq!(text(ALL), claimed, "{piece} {room}");
        }
    }

    #[test]
    fn what_replaces_a_value_is_as_long() {
        for rule in ALL {
            assert!(rule.column.len() <= MAX_COLUMN);
            assert!(
                rule.values
                    .iter()
                    .all(|(value, instead)| value.len() == instead.len())
            );
        }
    }

    /// ovs-vswitchd waits for the socket where its message is not complete, and for nothing else.
    #[test]
    fn the_end_of_a_message_is_never_held() {
        for end in [
            "\"}",
            "{\"type\":\"\"}",
            "{\"type\":\"d\"}",
            "{\"type\":\"dpdkvhostuser\"}",
        ] {
            for room in 1..30 {
                let (mut stream, mut rest) = (Stream::new(), end.as_bytes());
                let mut buffer = vec![0; room];
                while !rest.is_empty() {
                    stream.receive(&mut buffer, ALL, |part| {
                        let length = part.len().min(rest.len());
                        part[..length].copy_from_slice(&rest[..length]);
                        rest = &rest[length..];
                        if length == 0 { -1 } else { length.cast_signed() }
                    });
                }
                assert!(stream.held.is_empty() && stream.ready.is_empty(), "{end} {room}");
            }
        }
    }

    #[test]
    fn errors_and_the_end_are_told() {
        let mut stream = Stream::new();
        assert_eq!(stream.receive(&mut [0; 8], ALL, |_| -1), -1);
        assert_eq!(stream.receive(&mut [0; 8], ALL, |_| 0), 0);
        // In the middle of a value.
        assert_eq!(
            handed_out(b"{\"type\":\"dpdkvh", 100, 100, ALL),
            b"{\"type\":\"dpdkvh"
        );
    }
}
