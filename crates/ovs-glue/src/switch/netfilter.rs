//! Requests about connections (`linux/netfilter/nfnetlink.h`, `nfnetlink_conntrack.h`).
//!
//! They must never reach the kernel of the host, whose connections are not ours. The data plane has none of its own yet: so a
//! dump is empty, to remove all succeeds, one that is named is not there, and what would make something is refused.

use super::{Outcome, Result, refused};
use ovs_netlink::Errno;
use ovs_netlink::attribute::attributes;
use ovs_netlink::message::{Flags, Message};

/// `NFNL_SUBSYS_CTNETLINK`, and the messages `IPCTNL_MSG_CT_GET` and `_DELETE`.
const CONNECTIONS: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `struct nfgenmsg`.
const HEADER: usize = 4;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`.
const TUPLES: [u16; 2] = [1, 2];

pub(super) fn carry_out(message: &Message<'_>) -> Result<Outcome> {
    let rest = message.payload.get(HEADER..).ok_or(Errno::EINVAL)?;
    let dump = message.header.flags.contains(Flags::DUMP);
    match (message.header.kind >> 8, message.header.kind & 0xff) {
        (CONNECTIONS, GET) if dump => Ok(Outcome {
            dump: Some(super::Dump::nothing(message.header)),
            ..Outcome::default()
        }),
        (CONNECTIONS, DELETE) => {
            for attribute in attributes(rest) {
                if TUPLES.contains(&attribute?.kind) {
                    return refused(Errno::ENOENT);
                }
            }
            Ok(Outcome::default())
        }
        (CONNECTIONS, GET) => refused(Errno::ENOENT),
        (CONNECTIONS, _) => refused(Errno::EOPNOTSUPP),
        // A subsystem that is not there.
        _ => refused(Errno::EINVAL),
    }
}
