//! Lines with fields for the journal, in its own protocol: a datagram of `NAME=value` lines
//! (systemd.journal-fields(7), "Native Journal Protocol").
//!
//! Without that socket, lines go to standard error, without fields.

use crate::fields::Fields;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

/// Where the journal takes datagrams.
const SOCKET: &str = "/run/systemd/journal/socket";

static JOURNAL: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// Sends a line that begins with its priority in angle brackets; false if there is no journal.
pub fn send(line: &str, role: &str, fields: &Fields) -> bool {
    let connect = || {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        Some(socket)
    };
    let Some(journal) = JOURNAL.get_or_init(connect) else {
        return false;
    };
    journal.send(datagram(line, role, fields).as_bytes()).is_ok()
}

fn datagram(line: &str, role: &str, fields: &Fields) -> String {
    let line = line.trim_end_matches('\n');
    let stripped = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    let (priority, message) = stripped.unwrap_or(("6", line));
    let mut text = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=hyperswitch\nROLE={role}\n");
    for (name, value) in fields.iter() {
        text += &format!("{name}={value}\n");
    }
    text + &format!("MESSAGE={message}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_datagram_of_fields() {
        let (fields, _) = Fields::split("\u{1f}PORT=vm1\u{1f}SWITCH=s\u{1f}x");
        assert_eq!(
            datagram("<4>control: port vm1: it is gone\n", "control", &fields),
            "PRIORITY=4\nSYSLOG_IDENTIFIER=hyperswitch\nROLE=control\nPORT=vm1\nSWITCH=s\n\
             MESSAGE=control: port vm1: it is gone\n"
        );
    }
}
