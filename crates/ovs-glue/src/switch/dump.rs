//! Dumps: made piece by piece as the client reads, from where the piece before ended.
//!
//! What comes or goes meanwhile may be in a dump or not; all that stays is in it once, as in the kernel.

use super::flow;
use super::{Outcome, Switch};
use crate::datapath::{Datapath, DatapathId, PortNo};
use crate::placeholder::Placeholders;
use ovs_netlink::Reply;
use ovs_netlink::attribute::Writer;
use ovs_netlink::datapath::Command;
use ovs_netlink::flow::Omit;
use ovs_netlink::message::{Flags, Header, Message, Status};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Wanted length of a piece: ovs-vswitchd's buffer (`NL_DUMP_BUFSIZE`); longer ones make it allocate another.
const PIECE: usize = 4096;

/// A dump that has begun.
pub struct Dump {
    header: Header,
    rest: Rest,
}

/// What is still to be told.
#[derive(Clone, Copy)]
enum Rest {
    Nothing,
    Datapaths(Option<DatapathId>),
    Ports(DatapathId, Option<PortNo>),
    Flows(DatapathId, u64, Omit),
}

impl Dump {
    pub(super) fn nothing(header: Header) -> Outcome {
        begin(header, Rest::Nothing)
    }

    pub(super) fn datapaths(header: Header) -> Outcome {
        begin(header, Rest::Datapaths(None))
    }

    pub(super) fn ports(header: Header, datapath: DatapathId) -> Outcome {
        begin(header, Rest::Ports(datapath, None))
    }

    pub(super) fn flows(header: Header, datapath: DatapathId, omit: Omit) -> Outcome {
        begin(header, Rest::Flows(datapath, 0, omit))
    }
}

fn begin(header: Header, rest: Rest) -> Outcome {
    Outcome {
        dump: Some(Dump { header, rest }),
        ..Outcome::default()
    }
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// The next piece, and whether it was the last.
    pub(super) fn continue_dump(&self, dump: &mut Dump) -> (Vec<u8>, bool) {
        let header = Header {
            flags: Flags::MULTI,
            ..dump.header
        };
        let mut piece = Vec::new();
        while let Some((rest, reply)) = self.element(dump.rest) {
            let mut writer = Writer::new();
            reply.write(header, &mut writer);
            // No element is too long for a message: its parts were taken from messages.
            let element = writer.finish().unwrap_or_default();
            if !piece.is_empty() && piece.len() + element.len() > PIECE {
                // It is made again for the next piece.
                return (piece, false);
            }
            piece.extend(element);
            dump.rest = rest;
        }
        let mut writer = Writer::new();
        let request = Message { header, payload: &[] };
        Status::Done(None).write(&request, &mut writer);
        piece.extend(writer.finish().unwrap_or_default());
        (piece, true)
    }

    /// The next element, and what follows it.
    fn element(&self, rest: Rest) -> Option<(Rest, Reply<'static>)> {
        match rest {
            Rest::Nothing => None,
            Rest::Datapaths(after) => {
                let id = next(&self.bridges, after)?;
                let told = self.tell_dp(id, Command::New).ok()?;
                Some((Rest::Datapaths(Some(id)), Reply::Datapath(told)))
            }
            Rest::Ports(id, after) => {
                let number = next(&self.bridges.get(&id)?.ports, after)?;
                let told = self.tell_vport(id, number, Command::New).ok()?;
                Some((Rest::Ports(id, Some(number)), Reply::Vport(told)))
            }
            Rest::Flows(id, after, omit) => {
                let (place, flow) = self.datapath.flow_after(id, after)?;
                let told = flow::tell(id, flow, Command::New, omit);
                Some((Rest::Flows(id, place, omit), told))
            }
        }
    }
}

/// The first key after this one.
fn next<K: Ord + Copy, V>(map: &BTreeMap<K, V>, after: Option<K>) -> Option<K> {
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    map.range((after, Bound::Unbounded)).next().map(|(key, _)| *key)
}
