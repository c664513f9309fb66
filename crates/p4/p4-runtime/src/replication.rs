//! Multicast groups and clone sessions: from the form of P4Runtime to that of programs, and back.

use crate::bytestring;
use crate::failure::{Done, Failure};
use crate::proto::{CloneSessionEntry, MulticastGroupEntry, PortKind, Replica};
use p4_ir::setup::{Copy, Group, Session};
use std::collections::HashSet;

/// Most copies of a group or a session.
const MAX_COPIES: usize = 512;

/// Bits of a multicast group's and of a clone session's number in v1model.
const GROUP_BITS: u32 = 16;
const SESSION_BITS: u32 = 16;

/// Ports are numbers of 9 bits, the highest of which means "drop".
const PORT_BITS: u16 = 9;
const DROP: u64 = 511;

/// Reads a multicast group.
///
/// # Errors
/// A number is out of range, or two copies are the same.
pub fn read_group(given: &MulticastGroupEntry) -> Done<Group> {
    Ok(Group {
        number: number(given.multicast_group_id, GROUP_BITS)?,
        copies: read_copies(&given.replicas)?,
    })
}

/// Reads a clone session.
///
/// # Errors
/// A number is out of range, two copies are the same, or a class of service is asked for.
pub fn read_session(given: &CloneSessionEntry) -> Done<Session> {
    if given.class_of_service != 0 {
        return Err(Failure::invalid("there are no classes of service"));
    }
    let length = u32::try_from(given.packet_length_bytes);
    let length = length.map_err(|_| Failure::invalid("packet_length_bytes is negative"))?;
    Ok(Session {
        number: number(given.session_id, SESSION_BITS)?,
        copies: read_copies(&given.replicas)?,
        group: None,
        max_length: (length > 0).then_some(length),
    })
}

/// Checks the number of a group or a session.
///
/// # Errors
/// The number is 0, or too large.
fn number(id: u32, bits: u32) -> Done<u64> {
    match id {
        0 => Err(Failure::invalid("the number must be above 0")),
        id if id >> bits == 0 => Ok(id.into()),
        _ => Err(Failure::invalid(format_args!(
            "the number needs more than {bits} bits"
        ))),
    }
}

fn read_copies(replicas: &[Replica]) -> Done<Vec<Copy>> {
    if replicas.len() > MAX_COPIES {
        return Err(Failure::exhausted(format_args!(
            "more than {MAX_COPIES} replicas"
        )));
    }
    let mut seen = HashSet::new();
    let copy = |replica: &Replica| {
        if !replica.backup_replicas.is_empty() {
            return Err(Failure::unimplemented("there are no backup replicas"));
        }
        let port = match &replica.port_kind {
            Some(PortKind::Port(port)) => bytestring::read_number(port, PORT_BITS)?,
            Some(PortKind::EgressPort(port)) => u64::from(*port),
            None => return Err(Failure::invalid("a replica has no port")),
        };
        if port >= DROP {
            return Err(Failure::invalid(format_args!("there is no port {port}")));
        }
        let rid = u16::try_from(replica.instance);
        let rid = rid.map_err(|_| Failure::invalid("an instance needs more than 16 bits"))?;
        if !seen.insert((port, rid)) {
            return Err(Failure::invalid(format_args!(
                "port {port} with instance {rid} is there twice"
            )));
        }
        let port = u32::try_from(port).map_err(Failure::invalid)?;
        Ok(Copy { port, rid })
    };
    replicas.iter().map(copy).collect()
}

/// Writes a multicast group.
#[must_use]
pub fn write_group(group: &Group, metadata: Vec<u8>) -> MulticastGroupEntry {
    MulticastGroupEntry {
        multicast_group_id: u32::try_from(group.number).unwrap_or(u32::MAX),
        replicas: write_copies(&group.copies),
        metadata,
    }
}

/// Writes a clone session.
#[must_use]
pub fn write_session(session: &Session) -> CloneSessionEntry {
    let length = session.max_length.unwrap_or(0);
    CloneSessionEntry {
        session_id: u32::try_from(session.number).unwrap_or(u32::MAX),
        replicas: write_copies(&session.copies),
        class_of_service: 0,
        packet_length_bytes: i32::try_from(length).unwrap_or(i32::MAX),
    }
}

/// Ports are written as numbers: clients of version 1.3 do not read byte strings there, others read both.
fn write_copies(copies: &[Copy]) -> Vec<Replica> {
    let replica = |copy: &Copy| Replica {
        port_kind: Some(PortKind::EgressPort(copy.port)),
        instance: u32::from(copy.rid),
        backup_replicas: Vec::new(),
    };
    copies.iter().map(replica).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(port: u32, instance: u32) -> Replica {
        let port_kind = Some(PortKind::EgressPort(port));
        Replica {
            port_kind,
            instance,
            ..Replica::default()
        }
    }

    fn group(multicast_group_id: u32, replicas: &[Replica]) -> MulticastGroupEntry {
        MulticastGroupEntry {
            multicast_group_id,
            replicas: replicas.to_vec(),
            metadata: Vec::new(),
        }
    }

    #[test]
    fn groups_and_sessions_come_back_as_they_were_given() {
        let given = group(7, &[replica(1, 0), replica(1, 1), replica(510, 0)]);
        assert_eq!(write_group(&read_group(&given).unwrap(), Vec::new()), given);
        let given = CloneSessionEntry {
            session_id: 100,
            replicas: vec![replica(3, 9)],
            class_of_service: 0,
            packet_length_bytes: 64,
        };
        assert_eq!(write_session(&read_session(&given).unwrap()), given);
        let mut bytes = replica(3, 0);
        bytes.port_kind = Some(PortKind::Port(vec![0, 3]));
        let read = read_group(&group(7, &[bytes])).unwrap();
        assert_eq!(read.copies, [Copy { port: 3, rid: 0 }]);
    }

    #[test]
    fn wrong_groups_are_refused() {
        let without_port = Replica {
            port_kind: None,
            ..replica(1, 0)
        };
        let with_backup = Replica {
            backup_replicas: vec![Default::default()],
            ..replica(1, 0)
        };
        let many: Vec<_> = (0..600).map(|rid| replica(1, rid)).collect();
        let wrong = [
            group(0, &[replica(1, 0)]),
            group(1 << 16, &[replica(1, 0)]),
            group(1, &[replica(511, 0)]),
            group(1, &[replica(1, 1 << 16)]),
            group(1, &[replica(1, 1), replica(1, 1)]),
            group(1, &[without_port]),
            group(1, &[with_backup]),
            group(1, &many),
        ];
        for wrong in wrong {
            read_group(&wrong).unwrap_err();
        }
        let with_class = CloneSessionEntry {
            session_id: 1,
            class_of_service: 1,
            ..Default::default()
        };
        read_session(&with_class).unwrap_err();
    }
}
