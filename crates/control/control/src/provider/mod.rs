//! Providers decide about packets, and a switch has a chain of them, by stage.
//!
//! A [`Provider`] fills one stage ([`flow::Stage`]) of a switch with flows. The learning switch is the
//! provider of the forward stage; others are filters of the packets that come from ports, or go to them. A
//! provider is pure logic: no I/O, and the clock is an argument. The data plane knows flows and no providers.
//!
//! # How a packet is decided about
//!
//! A packet that no flow of a stage matches comes up with the name of that stage. The [`Chain`] asks the
//! stage's provider, and if the packet passes, the provider of the next stage, with the key as changed so
//! far. The packet goes back once, with the actions of all these providers, and goes on behind the last of
//! these stages. Where only the data plane can tell how a packet looks behind a change, the packet goes back
//! with that change, and comes up again if the next stage has no flow for it.
//!
//! # What a filter looks at
//!
//! A filter reads a packet's key through a [`Look`], which notes the bits that were read. The flow that is
//! made of the verdict compares these bits, widened so that each port has few different masks ([`MaskSet`]):
//! neither a filter nor a guest can make look-ups slower without bound.
//!
//! # Whose a flow is
//!
//! The identifier of a flow names its provider ([`FlowId::provider`]). The chain passes on a provider's
//! changes of its own flows in its own stage, and no others. After the death of the data plane or of this
//! process, each provider gets the flows that carry its name, and compares them with what it would decide
//! now. Flows without a provider in the chain are removed.
//!
//! # Safe direction of error
//!
//! A packet whose stage has no provider any more passes: the configuration names no filter there. A verdict
//! without a flow costs time and nothing else: the next such packet is asked about again. A flow that
//! compares more bits than its verdict needs is right for all packets that it matches; so a flow is kept only
//! if its mask has all bits that its provider reads now.

mod chain;
mod filter;
mod look;
mod mask_set;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;

pub use chain::{Chain, Outcome, Side, Unfit};
pub use filter::{Decide, Filter};
pub use look::Look;
pub use mask_set::{MAX_MASKS, MaskSet};

use flow::{
    Action, DropReason, Flow, FlowId, FlowKey, FlowMask, FlowStats, PortId, ProviderId, Stage, SwitchId,
};

/// A flow without packets for this long is removed.
pub const FLOW_IDLE_MS: u64 = 20_000;

/// A miss of a flow that was installed this long ago means that the data plane has lost it. Before that, the
/// packet was merely under way when the flow was put in.
pub const REINSTALL_MS: u64 = 500;

/// The actions of a packet in a stage, or why it is dropped there. A filter lets a packet pass by
/// [`Action::Continue`] as last action.
pub type Verdict = Result<Vec<Action>, DropReason>;

/// The verdict of a filter that lets a packet pass as it is.
pub fn pass() -> Verdict {
    Ok(vec![Action::Continue])
}

/// The actions of a flow that carries out a verdict.
pub fn actions_of(verdict: &Verdict) -> Vec<Action> {
    match verdict {
        Ok(actions) => actions.clone(),
        Err(reason) => vec![Action::Drop(*reason)],
    }
}

/// A packet about which a provider is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The provider's stage.
    pub stage: Stage,
    /// The packet's key, as it is in that stage.
    pub key: FlowKey,
    /// The data plane found no flow in this stage. Otherwise the packet came up from an earlier one.
    pub lacks_flow: bool,
}

impl Asked {
    /// The port whose filters or flows the packet meets in this stage.
    pub fn port(&self) -> PortId {
        port_of(self.stage, &self.key)
    }
}

/// The port to which flows of a stage belong: the receiver for egress filters, else the sender.
fn port_of(stage: Stage, key: &FlowKey) -> PortId {
    match stage {
        Stage::Egress(port, _) => port,
        Stage::Ingress(_) | Stage::Forward => PortId(key.in_port()),
    }
}

/// A change to make to the data plane's table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "most changes are of the large kind")]
pub enum FlowChange {
    /// Install it, or replace its actions.
    Put {
        /// Identifier of the flow.
        id: FlowId,
        /// The stage of its provider.
        stage: Stage,
        /// Masked by `mask`.
        key: FlowKey,
        /// The bits that are compared.
        mask: FlowMask,
        /// Actions of the flow.
        actions: Vec<Action>,
    },
    /// Remove it.
    Del(FlowId),
}

impl FlowChange {
    /// The flow of that switch to install.
    ///
    /// # Errors
    ///
    /// The flow with this identifier is to be removed.
    pub fn into_flow(self, switch: SwitchId) -> Result<Flow, FlowId> {
        match self {
            FlowChange::Put {
                id,
                stage,
                key,
                mask,
                actions,
            } => Ok(Flow {
                stage,
                ..Flow::new(id, switch, key, mask, actions)
            }),
            FlowChange::Del(id) => Err(id),
        }
    }
}

/// The provider of a stage of a switch. Times are in milliseconds of any clock that does not go backwards.
pub trait Provider {
    /// Whose flows these are. Constant, and no other provider's of the switch.
    fn id(&self) -> ProviderId;

    /// Decides about a packet. The packet is on its way before the changes are made.
    fn missed(&mut self, asked: &Asked, now_ms: u64) -> (Verdict, Vec<FlowChange>);

    /// The verdict about a packet, for a trace: nothing is learned.
    fn preview(&self, asked: &Asked) -> Verdict;

    /// Takes note of the statistics of the switch's flows, among which are those of other providers, and does
    /// what is due.
    fn used(&mut self, flows: &[(FlowId, FlowStats)], now_ms: u64) -> Vec<FlowChange>;

    /// The data plane has these flows of the provider and no others: those that a provider before this one
    /// had installed, or none. Flows that are still right are left alone.
    fn restored(&mut self, flows: Vec<(Flow, FlowStats)>, now_ms: u64) -> Vec<FlowChange>;

    /// The data plane has not installed this flow.
    fn refused(&mut self, id: FlowId);

    /// Does what is due while nobody tells how flows are used.
    fn due(&mut self, _now_ms: u64) -> Vec<FlowChange> {
        Vec::new()
    }

    /// When [`due`](Self::due) has something to do at the earliest, if nothing else happens.
    fn due_ms(&self) -> Option<u64> {
        None
    }

    /// Re-examines all flows. Called after changes of rules and ports.
    fn refresh(&mut self, now_ms: u64) -> Vec<FlowChange>;

    /// A port is no more. [`refresh`](Self::refresh) follows.
    fn remove_port(&mut self, port: PortId);

    /// Most flows of any one port from now on; flows that exist stay.
    fn limit_flows(&mut self, per_port: usize);

    /// Flows installed.
    fn flow_count(&self) -> usize;

    /// The shortest time without use that means something to the provider, in milliseconds.
    fn idle_ms(&self) -> u64 {
        FLOW_IDLE_MS
    }
}

/// A flow's identifier: the same in each process that makes a flow of this provider for these packets. Two
/// flows of one port have the same one by a chance of 2^-106, or if a guest of that port has looked for such
/// packets: then they replace each other, and each is decided about again.
pub fn flow_id(provider: ProviderId, stage: Stage, key: &FlowKey, mask: &FlowMask) -> FlowId {
    /// The golden ratio's fraction.
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    const PORT_BITS: u32 = PortId::LIMIT.ilog2();
    let place = match stage {
        Stage::Ingress(number) => 1 << 8 | u64::from(number),
        Stage::Forward => 2 << 8,
        Stage::Egress(_, number) => 3 << 8 | u64::from(number),
    };
    let words = key.words.iter().chain(&mask.0.words);
    let digest = words.fold(u128::from(place), |digest, word| {
        (digest ^ u128::from(*word)).wrapping_mul(FACTOR).rotate_left(61)
    });
    let port = u128::from(port_of(stage, key).0 % PortId::LIMIT);
    let digest_bits = FlowId::NUMBER_BITS - PORT_BITS;
    FlowId::of(
        provider,
        port << digest_bits | digest >> (u128::BITS - digest_bits),
    )
}
