//! Dumps, which are made piece by piece as the client reads. Each piece continues where the one before ended.
//!
//! An element that comes or goes meanwhile may be in a dump or not; each one that stays is in it once, as in
//! the kernel.

use super::flow;
use super::{Outcome, Switch};
use crate::datapath::{Answer, Datapath, DatapathId, Errno, Flow, PortNo, Question};
use crate::placeholder::Placeholders;
use ovs_netlink::Reply;
use ovs_netlink::attribute::Writer;
use ovs_netlink::datapath::Command;
use ovs_netlink::flow::Omit;
use ovs_netlink::message::{Flags, Header, Message, Status};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Wanted length of a piece: ovs-vswitchd's buffer (`NL_DUMP_BUFSIZE`); longer ones make it allocate another.
const PIECE: usize = 4096;

/// A dump that has begun.
pub struct Dump {
    header: Header,
    rest: Rest,
    /// An element that did not fit into the piece before.
    left: Vec<u8>,
    /// Why it ends early.
    error: Option<Errno>,
}

/// The part of a dump that is still to be sent.
enum Rest {
    Nothing,
    Datapaths(Option<DatapathId>),
    Ports(DatapathId, Option<PortNo>),
    Flows(DatapathId, Omit, Page),
}

/// Flows that the data plane has told, and the place after which there are more.
struct Page {
    flows: VecDeque<Flow>,
    more_after: Option<u64>,
}

/// What comes next.
pub(super) enum Piece {
    /// A datagram, and whether it is the last.
    Ready(Vec<u8>, bool),
    /// Nothing before the data plane has answered this.
    Ask(DatapathId, Question),
}

enum Element {
    Reply(Reply<'static>),
    Ask(DatapathId, Question),
    End,
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
        let page = Page {
            flows: VecDeque::new(),
            more_after: Some(0),
        };
        begin(header, Rest::Flows(datapath, omit, page))
    }

    /// Takes the data plane's answer.
    pub(super) fn take(&mut self, answer: Result<Answer, Errno>) {
        let Rest::Flows(_, _, page) = &mut self.rest else {
            return;
        };
        page.more_after = None;
        match answer {
            Ok(Answer::Flows { flows, more_after }) => {
                page.flows = flows.into_iter().map(|(_, flow)| flow).collect();
                page.more_after = more_after;
            }
            Ok(_) => self.error = Some(Errno::EIO),
            Err(errno) => self.error = Some(errno),
        }
    }

    fn end(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let request = Message {
            header: self.header,
            payload: &[],
        };
        Status::Done(self.error).write(&request, &mut writer);
        writer.finish().unwrap_or_default()
    }
}

fn begin(header: Header, rest: Rest) -> Outcome {
    Outcome {
        dump: Some(Dump {
            header,
            rest,
            left: Vec::new(),
            error: None,
        }),
        ..Outcome::default()
    }
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    /// The next piece.
    pub(super) fn continue_dump(&self, dump: &mut Dump) -> Piece {
        let header = Header {
            flags: Flags::MULTI,
            ..dump.header
        };
        let mut piece = std::mem::take(&mut dump.left);
        loop {
            match self.element(&mut dump.rest) {
                Element::Reply(reply) => {
                    let mut writer = Writer::new();
                    reply.write(header, &mut writer);
                    // No element is too long for a message: its parts were taken from messages.
                    let element = writer.finish().unwrap_or_default();
                    if !piece.is_empty() && piece.len() + element.len() > PIECE {
                        dump.left = element;
                        return Piece::Ready(piece, false);
                    }
                    piece.extend(element);
                }
                Element::Ask(datapath, question) if piece.is_empty() => {
                    return Piece::Ask(datapath, question);
                }
                // First what there is.
                Element::Ask(..) => return Piece::Ready(piece, false),
                Element::End => {
                    piece.extend(dump.end());
                    return Piece::Ready(piece, true);
                }
            }
        }
    }

    /// The next element. A bridge that has gone meanwhile ends the dump.
    fn element(&self, rest: &mut Rest) -> Element {
        let found = match rest {
            Rest::Nothing => None,
            Rest::Datapaths(after) => next(&self.bridges, *after).and_then(|id| {
                *after = Some(id);
                Some(Reply::Datapath(self.tell_dp(id, Command::New).ok()?))
            }),
            Rest::Ports(id, after) => self.bridges.get(id).and_then(|bridge| {
                let number = next(&bridge.ports, *after)?;
                *after = Some(number);
                Some(Reply::Vport(self.tell_vport(*id, number, Command::New).ok()?))
            }),
            Rest::Flows(id, omit, page) => match (page.flows.pop_front(), page.more_after.take()) {
                (Some(flow), more) => {
                    page.more_after = more;
                    Some(flow::tell(*id, flow, Command::New, *omit))
                }
                (None, Some(after)) => {
                    // Until the answer is there, nobody asks again.
                    page.more_after = Some(after);
                    return Element::Ask(*id, Question::FlowsAfter(after, flow::detail(*omit)));
                }
                (None, None) => None,
            },
        };
        found.map_or(Element::End, Element::Reply)
    }
}

/// The first key after this one.
fn next<K: Ord + Copy, V>(map: &BTreeMap<K, V>, after: Option<K>) -> Option<K> {
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    map.range((after, Bound::Unbounded)).next().map(|(key, _)| *key)
}
