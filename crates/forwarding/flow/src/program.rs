//! Actions as they run: a list of operations without nesting, compiled when a flow is installed.
//!
//! Operations on a copy of the packet stand behind a [`Op::Save`]: the packet is set aside, and once the copy
//! has come to its [`Op::End`], the packet goes on at the place that the save names. Places always lie ahead,
//! so each program ends. Length, nesting and bytes of a program are bounded, and so is the cost of one
//! packet. Where no later operation needs the packet, no copy is made.

use crate::VLAN_PRESENT;
use crate::action::{Action, Userspace};
use crate::edit::{Edit, Encapsulation, SetField};
use crate::{ControllerId, DropReason, FieldId, FlowKey, FlowMask, Layer, PortId, Stage, is_mpls, is_vlan};
use std::fmt;

/// Most levels of lists within lists.
pub const MAX_NESTING: usize = 8;

/// Most operations of a program. The longest program that a switch of ours needs floods to all ports, to each
/// in a form of its own.
pub const MAX_OPS: usize = 4 * ControllerId::PORTS as usize;

/// Most bytes for the controller in a program: as many as a flow's actions may have in the kernel.
pub const MAX_BYTES: usize = 32 * 1024;

/// An operation. Places are indices into [`Program::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Send the packet to a port.
    Output {
        /// The port.
        port: PortId,
        /// No later operation needs the packet: the packet itself is sent, and its program ends.
        last: bool,
    },
    /// Hand a copy to the controller, with the data at that place of [`Program::userspace`].
    Userspace(u32),
    /// Change the packet.
    Edit(Edit),
    /// Set the packet aside; the operations that follow are on a copy. When the copy ends, the packet goes on
    /// at `resume`.
    Save {
        /// Where.
        resume: u32,
    },
    /// Go on with the next operation with that probability, else at `otherwise`.
    Sample {
        /// See [`Action::Sample`].
        probability: u32,
        /// Where.
        otherwise: u32,
    },
    /// Go on with the next operation if the packet is longer than `len`, else at `otherwise`.
    CheckPktLen {
        /// See [`Action::CheckPktLen`].
        len: u16,
        /// Where.
        otherwise: u32,
    },
    /// See [`Action::Truncate`].
    Truncate(u32),
    /// See [`Action::Hash`].
    Hash {
        /// Makes hashes differ.
        basis: u32,
    },
    /// See [`Action::Meter`].
    Meter(u32),
    /// Note the packet for the rule that has this log. A rule's own program has none: compositions do.
    Log {
        /// Number of the log.
        log: u32,
        /// The stage in which the rule was found.
        stage: Stage,
    },
    /// Look up again; the flow that is found takes the place of the rest.
    Recirc(u32),
    /// Look up in the next stage; the flow that is found takes the place of the rest.
    Continue,
    /// Drop the packet or copy, and end.
    Drop(DropReason),
    /// The packet or copy is done.
    End,
}

/// Why actions were refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadActions {
    /// Nested deeper than [`MAX_NESTING`].
    TooDeep,
    /// More than [`MAX_OPS`] operations.
    TooLong,
    /// More than [`MAX_BYTES`] for the controller.
    TooManyBytes,
    /// A field that cannot be set, or bits outside of it.
    NotSettable(FieldId),
    /// A tag protocol identifier other than 0x8100 and 0x88a8.
    BadTpid(u16),
    /// An Ethernet type other than 0x8847 and 0x8848 for a packet with a label.
    BadMplsType(u16),
    /// There is no such stage; or [`Action::Continue`] where no stage follows, or [`Action::Recirc`] outside
    /// the forward stage.
    WrongStage(Stage),
}

impl fmt::Display for BadActions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadActions::TooDeep => write!(f, "actions are nested more than {MAX_NESTING} deep"),
            BadActions::TooLong => write!(f, "actions have more than {MAX_OPS} steps"),
            BadActions::TooManyBytes => write!(f, "actions hold more than {MAX_BYTES} bytes of data"),
            BadActions::NotSettable(field) => {
                write!(f, "{} cannot be set, or not to this value", field.field().name)
            }
            BadActions::BadTpid(tpid) => write!(f, "{tpid:#06x} is no VLAN tag's protocol identifier"),
            BadActions::BadMplsType(eth_type) => write!(f, "{eth_type:#06x} is no Ethernet type of MPLS"),
            BadActions::WrongStage(stage) => write!(f, "an action of these has no meaning in stage {stage}"),
        }
    }
}

impl std::error::Error for BadActions {}

/// Compiled actions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    ops: Box<[Op]>,
    userspace: Box<[Userspace]>,
    looks_up: bool,
}

impl Program {
    /// Compiles the actions of a flow of that stage.
    ///
    /// # Errors
    ///
    /// Actions exceed a bound, or mean nothing.
    pub fn compile(actions: &[Action], stage: Stage) -> Result<Program, BadActions> {
        if !stage.is_valid() {
            return Err(BadActions::WrongStage(stage));
        }
        let mut compiler = Compiler {
            stage,
            out: Builder::default(),
            bytes: 0,
        };
        compiler.list(actions, 0)?;
        Ok(compiler.out.finish())
    }

    /// The operations, each of which is followed by another one or ends what it is done to.
    #[inline]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let data: usize = self.userspace.iter().map(|userspace| userspace.data.len()).sum();
        size_of_val(&*self.ops) + size_of_val(&*self.userspace) + data
    }

    /// What goes to the controller.
    #[inline]
    pub fn userspace(&self, place: u32) -> Option<&Userspace> {
        self.userspace.get(place as usize)
    }

    /// The meter that is asked before anything else is done to packets, if there is one.
    pub fn first_meter(&self) -> Option<u32> {
        match *self.ops {
            [Op::Meter(meter), ..] => Some(meter),
            _ => None,
        }
    }

    /// What is done to packets that the [first meter](Self::first_meter) lets pass.
    fn behind_meter(&self) -> &[Op] {
        &self.ops[usize::from(self.first_meter().is_some())..]
    }

    /// The port to which the program sends packets as they are, if it does nothing else but ask a first
    /// meter.
    pub fn plain(&self) -> Option<PortId> {
        match *self.behind_meter() {
            [Op::Output { port, last: true }] => Some(port),
            _ => None,
        }
    }

    /// The changes of packets and the port that they are sent to, if the program does nothing else but ask a
    /// first meter, and packets have an Ethernet header all the time. Marks for later passes are left out, as
    /// no pass follows.
    pub fn edited(&self) -> Option<(Box<[Edit]>, PortId)> {
        let [edits @ .., Op::Output { port, last: true }] = self.behind_meter() else {
            return None;
        };
        let mut made = Vec::with_capacity(edits.len());
        for op in edits {
            match op {
                Op::Edit(Edit::Set(set)) if set.field == FieldId::SkbMark => {}
                Op::Edit(
                    edit @ (Edit::Set(_)
                    | Edit::PushVlan { .. }
                    | Edit::PopVlan
                    | Edit::PushMpls { .. }
                    | Edit::PopMpls(_)
                    | Edit::Class(_)),
                ) => made.push(*edit),
                Op::Edit(Edit::Encapsulate(_))
                | Op::Output { .. }
                | Op::Userspace(_)
                | Op::Save { .. }
                | Op::Sample { .. }
                | Op::CheckPktLen { .. }
                | Op::Truncate(_)
                | Op::Hash { .. }
                | Op::Meter(_)
                | Op::Log { .. }
                | Op::Recirc(_)
                | Op::Continue
                | Op::Drop(_)
                | Op::End => return None,
            }
        }
        Some((made.into(), *port))
    }

    /// Whether the program looks flows up, apart from look-ups for egress filters.
    #[inline]
    pub fn looks_up(&self) -> bool {
        self.looks_up
    }

    /// Ports to which the program may send packets.
    pub fn outputs(&self) -> impl Iterator<Item = PortId> + '_ {
        self.ops.iter().filter_map(|op| match op {
            Op::Output { port, .. } => Some(*port),
            Op::Userspace(_)
            | Op::Edit(_)
            | Op::Save { .. }
            | Op::Sample { .. }
            | Op::CheckPktLen { .. }
            | Op::Truncate(_)
            | Op::Hash { .. }
            | Op::Meter(_)
            | Op::Log { .. }
            | Op::Recirc(_)
            | Op::Continue
            | Op::Drop(_)
            | Op::End => None,
        })
    }

    /// The fields of packets that the program reads and on which a later look-up depends: those that a hash
    /// is computed of, those that move with a tag, and those that tell whether a packet has a field that is
    /// set, without which it is dropped before. Where no look-up follows, they do not matter.
    pub fn looks_at(&self) -> FlowMask {
        let mut mask = FlowMask::ANY;
        for op in &self.ops {
            match op {
                Op::Edit(Edit::Set(set)) => look_at_layer_of(set, &mut mask.0),
                // Whether there are tags, which ones become the outer and the inner one, and whether a third
                // comes up.
                Op::Edit(Edit::PushVlan { .. } | Edit::PopVlan) => {
                    mask.0.set_vlan_tpid(u16::MAX);
                    mask.0.set_vlan_tci(u16::MAX);
                    mask.0.set_inner_tpid(u16::MAX);
                    mask.0.set_inner_tci(u16::MAX);
                    mask.0.set_eth_type(u16::MAX);
                }
                Op::Edit(Edit::PopMpls(_)) => mask.0.set_eth_type(u16::MAX),
                Op::Hash { .. } => {
                    mask.0.set_eth_type(u16::MAX);
                    mask.0.set_ip_src(u128::MAX);
                    mask.0.set_ip_dst(u128::MAX);
                    mask.0.set_ip_proto(u8::MAX);
                    mask.0.set_ip_frag(u8::MAX);
                    mask.0.set_tp_src(u16::MAX);
                    mask.0.set_tp_dst(u16::MAX);
                }
                // No look-up is composed behind the first two, nor on either side of the next two. The others
                // read nothing of the packet.
                Op::Edit(Edit::PushMpls { .. } | Edit::Encapsulate(_))
                | Op::Sample { .. }
                | Op::CheckPktLen { .. }
                | Op::Edit(Edit::Class(_))
                | Op::Output { .. }
                | Op::Userspace(_)
                | Op::Save { .. }
                | Op::Truncate(_)
                | Op::Meter(_)
                | Op::Log { .. }
                | Op::Recirc(_)
                | Op::Continue
                | Op::Drop(_)
                | Op::End => {}
            }
        }
        mask
    }
}

/// What tells whether a packet has a field that is set.
fn look_at_layer_of(set: &SetField, mask: &mut FlowKey) {
    match set.field.field().layer {
        Layer::Link if set.field == FieldId::VlanTci => {
            mask.set_vlan_tpid(u16::MAX);
            mask.set_vlan_tci(VLAN_PRESENT);
            mask.set_inner_tci(VLAN_PRESENT);
        }
        Layer::Network => {}
        Layer::Transport if set.field == FieldId::TpSrc => mask.set_tp_dst(u16::MAX),
        Layer::Transport => mask.set_tp_src(u16::MAX),
        // All packets have the first two. No look-up is composed behind a change of the others.
        Layer::Metadata
        | Layer::Link
        | Layer::NeighbourDiscovery
        | Layer::Mpls
        | Layer::Nsh
        | Layer::Tunnel
        | Layer::Connection => return,
    }
    mask.set_eth_type(u16::MAX);
    mask.set_ip_proto(u8::MAX);
}

/// Makes a program operation by operation.
#[derive(Debug, Default)]
pub struct Builder {
    ops: Vec<Op>,
    userspace: Vec<Userspace>,
    /// The last place that an operation names.
    named: usize,
}

impl Builder {
    /// Appends an operation; returns its place.
    pub fn push(&mut self, op: Op) -> usize {
        self.ops.push(op);
        self.ops.len() - 1
    }

    /// Appends [`Op::Userspace`].
    pub fn userspace(&mut self, to: Userspace) {
        let place = u32::try_from(self.userspace.len()).unwrap_or(u32::MAX);
        self.userspace.push(to);
        self.push(Op::Userspace(place));
    }

    /// Makes the operation at this place, which names another, name the next operation.
    pub fn name_next(&mut self, at: usize) {
        let next = u32::try_from(self.ops.len()).unwrap_or(u32::MAX);
        self.named = self.ops.len();
        match self.ops.get_mut(at) {
            Some(
                Op::Save { resume: place }
                | Op::Sample { otherwise: place, .. }
                | Op::CheckPktLen { otherwise: place, .. },
            ) => *place = next,
            _ => debug_assert!(false, "names no place"),
        }
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Ends the packet or copy, if it has not ended.
    pub fn end(&mut self) {
        let ended = matches!(
            self.ops.last(),
            Some(Op::End | Op::Drop(_) | Op::Recirc(_) | Op::Continue | Op::Output { last: true, .. })
        );
        if !ended || self.named == self.ops.len() {
            self.ops.push(Op::End);
        }
    }

    /// The program.
    pub fn finish(mut self) -> Program {
        self.end();
        let looks_up = self
            .ops
            .iter()
            .any(|op| matches!(op, Op::Recirc(_) | Op::Continue));
        Program {
            ops: self.ops.into(),
            userspace: self.userspace.into(),
            looks_up,
        }
    }
}

struct Compiler {
    stage: Stage,
    out: Builder,
    bytes: usize,
}

impl Compiler {
    /// A list and its end.
    fn list(&mut self, actions: &[Action], depth: usize) -> Result<(), BadActions> {
        if depth > MAX_NESTING {
            return Err(BadActions::TooDeep);
        }
        let mut rest = actions.iter();
        while let Some(action) = rest.next() {
            let last = rest.len() == 0;
            if self.action(action, last, depth)? == Ends::Yes {
                return Ok(());
            }
            if self.out.len() > MAX_OPS {
                return Err(BadActions::TooLong);
            }
        }
        self.out.end();
        Ok(())
    }

    fn action(&mut self, action: &Action, last: bool, depth: usize) -> Result<Ends, BadActions> {
        match action {
            Action::Output(port) => {
                self.out.push(Op::Output { port: *port, last });
                return Ok(if last { Ends::Yes } else { Ends::No });
            }
            Action::Edit(edit) => self.edit(edit)?,
            Action::Userspace(to) => return self.userspace(to),
            Action::Truncate(len) => self.out.push(Op::Truncate(*len)),
            Action::Hash { basis } => self.out.push(Op::Hash { basis: *basis }),
            Action::Meter(meter) => self.out.push(Op::Meter(*meter)),
            Action::Drop(reason) => {
                self.out.push(Op::Drop(*reason));
                return Ok(Ends::Yes);
            }
            Action::Recirc(id) if self.stage == Stage::Forward => {
                return Ok(self.look_up(Op::Recirc(*id), last));
            }
            Action::Continue if self.stage != Stage::Forward => return Ok(self.look_up(Op::Continue, last)),
            Action::Recirc(_) | Action::Continue => return Err(BadActions::WrongStage(self.stage)),
            Action::Clone(nested) => return self.copy(last, |this| this.list(&nested.0, depth + 1)),
            Action::Sample { probability, actions } => {
                self.sample(*probability, last, |this| this.list(&actions.0, depth + 1))?;
                return Ok(Ends::No);
            }
            Action::CheckPktLen {
                len,
                greater,
                otherwise,
            } => {
                return self.copy(last, |this| {
                    let check = this.out.push(Op::CheckPktLen {
                        len: *len,
                        otherwise: 0,
                    });
                    this.list(&greater.0, depth + 1)?;
                    this.out.name_next(check);
                    this.list(&otherwise.0, depth + 1)
                });
            }
        };
        Ok(Ends::No)
    }

    fn userspace(&mut self, to: &Userspace) -> Result<Ends, BadActions> {
        self.bytes += to.data.len();
        if self.bytes > MAX_BYTES {
            return Err(BadActions::TooManyBytes);
        }
        self.out.userspace(to.clone());
        Ok(Ends::No)
    }

    fn sample(
        &mut self,
        probability: u32,
        last: bool,
        body: impl FnOnce(&mut Compiler) -> Result<(), BadActions>,
    ) -> Result<(), BadActions> {
        let otherwise = 0;
        let sample = self.out.push(Op::Sample {
            probability,
            otherwise,
        });
        self.copy(last, body)?;
        self.out.name_next(sample);
        Ok(())
    }

    fn edit(&mut self, edit: &Edit) -> Result<usize, BadActions> {
        match *edit {
            Edit::Set(set) if !set.is_valid() => Err(BadActions::NotSettable(set.field)),
            Edit::PushVlan { tpid, .. } if !is_vlan(tpid) => Err(BadActions::BadTpid(tpid)),
            Edit::PushMpls { eth_type, .. } | Edit::Encapsulate(Encapsulation::AddMpls { eth_type, .. })
                if !is_mpls(eth_type) =>
            {
                Err(BadActions::BadMplsType(eth_type))
            }
            Edit::Set(_)
            | Edit::PushVlan { .. }
            | Edit::PopVlan
            | Edit::PushMpls { .. }
            | Edit::PopMpls(_)
            | Edit::Encapsulate(_)
            | Edit::Class(_) => Ok(self.out.push(Op::Edit(*edit))),
        }
    }

    /// Adds the operations of `body`: on a copy of the packet if the packet is needed afterwards.
    fn copy(
        &mut self,
        last: bool,
        body: impl FnOnce(&mut Compiler) -> Result<(), BadActions>,
    ) -> Result<Ends, BadActions> {
        if last {
            return body(self).map(|()| Ends::Yes);
        }
        let save = self.out.push(Op::Save { resume: 0 });
        body(self)?;
        self.out.name_next(save);
        Ok(Ends::No)
    }

    fn look_up(&mut self, op: Op, last: bool) -> Ends {
        if last {
            self.out.push(op);
            return Ends::Yes;
        }
        let save = self.out.push(Op::Save { resume: 0 });
        self.out.push(op);
        self.out.name_next(save);
        Ends::No
    }
}

/// Whether a list has come to its end with an action, so that no [`Op::End`] is needed.
#[derive(PartialEq, Eq)]
enum Ends {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Nested;

    fn compile(actions: &[Action]) -> Result<Program, BadActions> {
        Program::compile(actions, Stage::Forward)
    }

    fn output(port: u32, last: bool) -> Op {
        Op::Output {
            port: PortId(port),
            last,
        }
    }

    fn nested(depth: usize) -> Action {
        (1..depth).fold(Action::Clone(Nested::default()), |inner, _| {
            Action::Clone(Nested(vec![inner, Action::Edit(Edit::PopVlan)]))
        })
    }

    #[test]
    fn shapes() {
        let to = Action::Output(PortId(7));
        assert_eq!(
            compile(std::slice::from_ref(&to)).unwrap().plain(),
            Some(PortId(7))
        );
        let set = SetField::whole(FieldId::EthSrc, 5);
        let mark = SetField::whole(FieldId::SkbMark, 5);
        let edited = compile(&[
            Action::Edit(Edit::PopVlan),
            Action::Edit(Edit::Set(set)),
            Action::Edit(Edit::Set(mark)),
            to.clone(),
        ])
        .unwrap();
        assert_eq!(edited.plain(), None);
        let edits = [Edit::PopVlan, Edit::Set(set)];
        assert_eq!(edited.edited(), Some((edits.into(), PortId(7))));
        assert_eq!(edited.first_meter(), None);
        let metered = compile(&[Action::Meter(3), Action::Edit(Edit::PopVlan), to.clone()]).unwrap();
        assert_eq!(metered.first_meter(), Some(3));
        assert_eq!(metered.edited(), Some(([Edit::PopVlan].into(), PortId(7))));
        let metered = compile(&[Action::Meter(3), to.clone()]).unwrap();
        assert_eq!(
            (metered.first_meter(), metered.plain()),
            (Some(3), Some(PortId(7)))
        );
        let later = compile(&[Action::Edit(Edit::PopVlan), Action::Meter(3), to.clone()]).unwrap();
        assert_eq!((later.first_meter(), later.edited()), (None, None));
        for other in [
            vec![to.clone(), Action::Edit(Edit::PopVlan)],
            vec![],
            vec![to.clone(), to.clone()],
            vec![Action::Edit(Edit::Encapsulate(Encapsulation::PopEth)), to.clone()],
        ] {
            assert_eq!(compile(&other).unwrap().edited(), None, "{other:?}");
        }
    }

    #[test]
    fn copies_are_made_where_the_packet_is_needed_afterwards() {
        let inner = || Nested(vec![Action::Edit(Edit::PopVlan), Action::Output(PortId(1))]);
        let last = compile(&[Action::Clone(inner())]).unwrap();
        assert_eq!(*last.ops, [Op::Edit(Edit::PopVlan), output(1, true)]);
        let first = compile(&[Action::Clone(inner()), Action::Output(PortId(2))]).unwrap();
        let expected = [
            Op::Save { resume: 3 },
            Op::Edit(Edit::PopVlan),
            output(1, true),
            output(2, true),
        ];
        assert_eq!(*first.ops, expected);
    }

    #[test]
    fn branches_name_their_places() {
        let to = |port| Nested(vec![Action::Output(PortId(port))]);
        let check = Action::CheckPktLen {
            len: 100,
            greater: to(1),
            otherwise: to(2),
        };
        let sample = Action::Sample {
            probability: 9,
            actions: to(3),
        };
        let program = compile(&[sample, check]).unwrap();
        let expected = [
            Op::Sample {
                probability: 9,
                otherwise: 3,
            },
            Op::Save { resume: 3 },
            output(3, true),
            Op::CheckPktLen {
                len: 100,
                otherwise: 5,
            },
            output(1, true),
            output(2, true),
        ];
        assert_eq!(*program.ops, expected);
    }

    #[test]
    fn bounds_are_kept() {
        assert!(compile(&[nested(MAX_NESTING)]).is_ok());
        assert_eq!(compile(&[nested(MAX_NESTING + 1)]), Err(BadActions::TooDeep));
        assert_eq!(
            compile(&vec![Action::Edit(Edit::PopVlan); MAX_OPS + 1]),
            Err(BadActions::TooLong)
        );
        let data = Userspace {
            data: vec![0; MAX_BYTES / 2 + 1].into(),
            ..Userspace::default()
        };
        let data = Action::Userspace(data);
        assert!(compile(std::slice::from_ref(&data)).is_ok());
        assert_eq!(compile(&[data.clone(), data]), Err(BadActions::TooManyBytes));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let in_port = SetField::whole(FieldId::InPort, 1);
        assert_eq!(
            compile(&[Action::Edit(Edit::Set(in_port))]),
            Err(BadActions::NotSettable(FieldId::InPort))
        );
        let outside = SetField {
            field: FieldId::IpTtl,
            value: 0x100,
            mask: 0x1ff,
        };
        assert_eq!(
            compile(&[Action::Edit(Edit::Set(outside))]),
            Err(BadActions::NotSettable(FieldId::IpTtl))
        );
        let tag = Action::Edit(Edit::PushVlan { tpid: 0x0800, tci: 1 });
        assert_eq!(compile(&[tag]), Err(BadActions::BadTpid(0x0800)));
        assert_eq!(
            compile(&[Action::Continue]),
            Err(BadActions::WrongStage(Stage::Forward))
        );
        let filter = Stage::Ingress(0);
        assert_eq!(
            Program::compile(&[Action::Recirc(1)], filter),
            Err(BadActions::WrongStage(filter))
        );
        assert!(Program::compile(&[Action::Continue], filter).unwrap().looks_up());
    }

    #[test]
    fn places_lie_ahead() {
        let inner = Nested(vec![nested(3), Action::Recirc(4), Action::Output(PortId(1))]);
        let all = [
            Action::Sample {
                probability: 1,
                actions: inner.clone(),
            },
            Action::Clone(inner),
            Action::Recirc(3),
        ];
        let program = compile(&all).unwrap();
        for (at, op) in program.ops.iter().enumerate() {
            if let Op::Save { resume: place } | Op::Sample { otherwise: place, .. } = *op {
                assert!(
                    at < place as usize && (place as usize) < program.ops.len(),
                    "{program:?}"
                );
            }
        }
    }
}
