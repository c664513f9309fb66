//! Dumps: made piece by piece as the client reads, from where the piece before ended.
//!
//! What comes or goes meanwhile may be in a dump or not; all that stays is in it once, as in the kernel.

use super::flow::write_flow;
use super::{Outcome, Request, Result, Switch, control, refused, write_message};
use crate::datapath::{Datapath, DatapathId, FlowId, PortNo};
use crate::placeholder::Placeholders;
use crate::uapi::{DATAPATH, FLOW, Family, VPORT, dp, flow, vport};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};
use ovs_netlink::message::{Flags, Header, Message, Status};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Wanted length of a piece: ovs-vswitchd's buffer (`NL_DUMP_BUFSIZE`), which longer ones make it allocate another.
const PIECE: usize = 4096;

/// A dump that has begun.
pub struct Dump {
    header: Header,
    rest: Rest,
}

/// What is still to be told.
enum Rest {
    Families(usize),
    Datapaths(Option<DatapathId>),
    Ports(DatapathId, Option<PortNo>),
    Flows(DatapathId, Option<FlowId>, u32),
}

impl Dump {
    pub(super) fn families(header: Header) -> Self {
        Self {
            header,
            rest: Rest::Families(0),
        }
    }

    /// A dump that is empty.
    pub(super) fn nothing(header: Header) -> Self {
        Self {
            header,
            rest: Rest::Families(usize::MAX),
        }
    }
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn begin_dump(&self, request: &Request<'_>) -> Result<Outcome> {
        let rest = match (request.family.number, request.command) {
            (family, dp::GET) if family == DATAPATH.number => Rest::Datapaths(None),
            (family, vport::GET) if family == VPORT.number => {
                Rest::Ports(self.bridge(request.datapath)?.0, None)
            }
            (family, flow::GET) if family == FLOW.number => {
                let table = Table::read(&flow::ATTRIBUTES, request.attributes)?;
                let omit = table.u32(flow::UFID_FLAGS).unwrap_or(0);
                Rest::Flows(self.bridge(request.datapath)?.0, None, omit)
            }
            _ => return refused(Errno::EOPNOTSUPP),
        };
        let header = request.header;
        Ok(Outcome {
            dump: Some(Dump { header, rest }),
            ..Outcome::default()
        })
    }

    /// The next piece, and whether it was the last.
    pub(super) fn continue_dump(&mut self, dump: &mut Dump) -> (Vec<u8>, bool) {
        let header = Header {
            flags: Flags::MULTI,
            ..dump.header
        };
        let mut piece = Vec::new();
        while let Some((rest, element)) = self.element(&dump.rest, header) {
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
        // It cannot be too long.
        piece.extend(writer.finish().unwrap_or_default());
        (piece, true)
    }

    /// The next element, and what follows it. One that is too long for a message, which none is, would be empty.
    fn element(&self, rest: &Rest, header: Header) -> Option<(Rest, Vec<u8>)> {
        let mut writer = Writer::new();
        let rest = match rest {
            Rest::Families(told) => {
                let family = self.families().nth(*told)?;
                let header = Header {
                    flags: Flags::DUMP,
                    ..header
                };
                control::write_family(&mut writer, header, family);
                Rest::Families(told + 1)
            }
            Rest::Datapaths(after) => {
                let (id, bridge) = next(&self.bridges, *after)?;
                let header = kind(header, &DATAPATH);
                write_message(&mut writer, header, &DATAPATH, dp::NEW, *id, |writer| {
                    self.write_bridge(writer, *id, bridge);
                });
                Rest::Datapaths(Some(*id))
            }
            Rest::Ports(id, after) => {
                let bridge = self.bridges.get(id)?;
                let (number, port) = next(&bridge.ports, *after)?;
                let header = kind(header, &VPORT);
                write_message(&mut writer, header, &VPORT, vport::NEW, *id, |writer| {
                    self.write_vport(writer, *id, port);
                });
                Rest::Ports(*id, Some(*number))
            }
            Rest::Flows(id, after, omit) => {
                self.bridges.get(id)?;
                let flow = self.datapath.flow_after(*id, after.as_ref())?;
                let header = kind(header, &FLOW);
                write_message(&mut writer, header, &FLOW, flow::NEW, *id, |writer| {
                    write_flow(writer, &flow, *omit);
                });
                Rest::Flows(*id, Some(flow.spec.id), *omit)
            }
        };
        Some((rest, writer.finish().unwrap_or_default()))
    }
}

fn kind(header: Header, family: &Family) -> Header {
    Header {
        kind: family.number,
        ..header
    }
}

/// The first element after a key.
fn next<K: Ord + Copy, V>(map: &BTreeMap<K, V>, after: Option<K>) -> Option<(&K, &V)> {
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    map.range((after, Bound::Unbounded)).next()
}
