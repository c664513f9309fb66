//! Requests about connections and their timeouts (`linux/netfilter/nfnetlink.h`, `nfnetlink_conntrack.h`).
//!
//! Requests of this kind must never reach the kernel of the host, whose connections are not ours. The data
//! plane has none of its own yet: so a dump is empty, removing all succeeds, a connection that is named does
//! not exist, and a request that would make one is refused.

use super::{Outcome, Result, refused};
use ovs_netlink::Errno;
use ovs_netlink::attribute::attributes;
use ovs_netlink::message::{Flags, Message};

/// `NFNL_SUBSYS_CTNETLINK` and `NFNL_SUBSYS_CTNETLINK_TIMEOUT`, and their messages `_GET` and `_DELETE`.
const CONNECTIONS: u16 = 1;
const TIMEOUTS: u16 = 8;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `struct nfgenmsg`.
const HEADER: usize = 4;
/// What names one: `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`; `CTA_TIMEOUT_NAME`.
const TUPLES: [u16; 2] = [1, 2];
const NAME: [u16; 1] = [1];

pub(super) fn carry_out(message: &Message<'_>) -> Result<Outcome> {
    let rest = message.payload.get(HEADER..).ok_or(Errno::EINVAL)?;
    let dump = message.header.flags.contains(Flags::DUMP);
    let names: &[u16] = match message.header.kind >> 8 {
        CONNECTIONS => &TUPLES,
        TIMEOUTS => &NAME,
        // A subsystem that is not there.
        _ => return refused(Errno::EINVAL),
    };
    match message.header.kind & 0xff {
        GET if dump => Ok(super::Dump::nothing(message.header)),
        GET => refused(Errno::ENOENT),
        DELETE => {
            for attribute in attributes(rest) {
                if names.contains(&attribute?.kind) {
                    return refused(Errno::ENOENT);
                }
            }
            Ok(Outcome::default())
        }
        _ => refused(Errno::EOPNOTSUPP),
    }
}
