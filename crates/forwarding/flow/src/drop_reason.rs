//! Every way a packet can end undelivered. One list; names, descriptions, counters and documentation are
//! generated from it.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! drop_reasons {
    ($($variant:ident $name:literal $description:literal)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $description] $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// Short name, as used in counters, metrics and captures.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// One sentence for users.
            pub const fn description(self) -> &'static str {
                match self { $(DropReason::$variant => $description,)* }
            }
        }
    };
}

drop_reasons! {
    MalformedChain "malformed-chain" "The sender's descriptor chain is out of range, looping, empty or has the wrong direction."
    ChainTooLong "chain-too-long" "The sender's descriptor chain has more segments than the switch accepts."
    ShortFrame "short-frame" "The chain is shorter than a virtio-net header and an Ethernet header."
    OversizedFrame "oversized-frame" "The frame is longer than 65,553 bytes, the largest IP packet with Ethernet header and one VLAN tag."
    BadOffload "bad-offload" "The virtio-net header's checksum or segmentation fields contradict the frame."
    DeepHeaders "deep-headers" "Flows look at headers of the packet that lie behind its first 128 bytes, and the port has sent more than 20,000 such packets in the last second, or the headers end behind the first 4,096 bytes."
    InvalidSource "invalid-source" "The source MAC address is multicast or zero."
    MissQueueFull "miss-queue-full" "The port has too many packets waiting for a decision of the control process."
    MissRate "miss-rate" "The port has had more packets without a flow in the last second than its `miss-rate`."
    ControlLost "control-lost" "The control process ended, or never answered, while it held the packet."
    NoAction "no-action" "The flow has no actions."
    NoSuchPort "no-such-port" "The output port does not exist in this switch, or no port has the number that the P4 program sends to."
    VlanFiltered "vlan-filtered" "The port does not carry the packet's VLAN."
    NestedVlan "nested-vlan" "The frame would leave with an inner VLAN tag in the place of the outer one, which is removed on the way."
    Isolated "isolated" "Both ports are isolated from each other."
    MacLimit "mac-limit" "The port has learned as many MAC addresses as it may."
    FloodDisabled "flood-disabled" "The destination is unknown and the switch or port does not flood."
    Contested "contested" "The destination address is used on several ports, and the switch has `contested-macs = \"drop\"`."
    NoDestination "no-destination" "No other port could take the packet, or the destination is the port it came from."
    Policy "policy" "A rule of the control plane, a rule list of the sender's or the receiver's port, or the sender's P4 program drops the packet; or a rule rejects it and must not or cannot tell the sender."
    AddressLimit "address-limit" "The port uses its guest's addresses from their first packet on, and has as many as its `address-limit` allows."
    AddressTaken "address-taken" "The port uses its guest's addresses from their first packet on, and this one is another port's."
    Rejected "rejected" "A rule list of the sender's or the receiver's port rejects the packet, and the sender was told by TCP RST or ICMP."
    NoRules "no-rules" "A filter of the sender's or the receiver's port is a rule list that does not exist, or the sender's P4 program does not, so nothing passes."
    BadActions "bad-actions" "The control process sent the packet back with actions that are too long or invalid."
    NoHeader "no-header" "The flow changes a field or header that the packet does not have, or not within its first 128 bytes, or sends it to a port without an Ethernet header."
    Metered "meter" "A meter's rate is exceeded."
    StormBroadcast "storm-broadcast" "The port has sent more broadcasts per second than its `storm-control`, or more bits of them than its `storm-control-bits`."
    StormMulticast "storm-multicast" "The port has sent more multicasts per second than its `storm-control`, or more bits of them than its `storm-control-bits`."
    StormUnknown "storm-unknown" "The port has sent more frames to unknown addresses per second than its `storm-control`, or more bits of them than its `storm-control-bits`."
    TooDeep "too-deep" "The packet passes through more flows, operations, passes or copies than one packet may."
    NotTracked "not-tracked" "The packet's connection would have to be tracked, which the switch cannot."
    PortDown "port-down" "The receiver is not connected or its driver is not ready."
    PortDisabled "port-disabled" "The port that the packet came from, or that it is for, was taken down."
    QueueFull "queue-full" "The receiver's internal receive queue is full, or clients of a P4 switch take no more packets."
    ReceiverStalled "receiver-stalled" "The receiver posted no buffers for too long."
    MaxRate "max-rate" "Packets for the receiver exceed its `max-rate-to`, and as many wait already as may."
    ReceiverSlow "receiver-slow" "The receiver posts buffers too slowly, and the sender serves others as well."
    BufferTooSmall "buffer-too-small" "The receiver's buffers cannot hold the frame: it did not negotiate mergeable buffers, or would need more than 256 of them."
    ExceedsMtu "exceeds-mtu" "The frame, or each of its segments, is longer than the receiver's MTU allows."
    CannotSegment "cannot-segment" "The receiver lacks an offload and the headers are too deep to segment in software."
    ReceiverBroken "receiver-broken" "The receiver's ring is malformed; the port was stopped."
    SenderGone "sender-gone" "The sender's memory vanished before the packet was copied."
    MirrorLost "mirror-lost" "A mirror's copy of the packet was lost: the mirror's port is not connected, has too few buffers, or is not there. The packet itself is another one, and went its way."
    PortRemoved "port-removed" "The port was removed or stopped with the packet queued."
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Packets per drop reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DropCounts([u64; DropReason::ALL.len()]);

impl Default for DropCounts {
    fn default() -> Self {
        DropCounts([0; DropReason::ALL.len()])
    }
}

impl DropCounts {
    /// Packets dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[usize::from(reason as u8)]
    }

    /// Counts `packets` more.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[usize::from(reason as u8)] += packets;
    }

    /// Packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Whether no packet was dropped: what most ports tell, in few instructions.
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, count| all | count) == 0
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|&(_, count)| count != 0)
    }
}

impl fmt::Debug for DropCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(reason, count)| (reason.name(), count)))
            .finish()
    }
}

impl Serialize for DropCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() {
            return serializer.collect_seq([(); 0]);
        }
        self.iter().collect::<Vec<_>>().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DropCounts {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = DropCounts::default();
        for (reason, count) in Vec::<(DropReason, u64)>::deserialize(deserializer)? {
            counts.add(reason, count);
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_numbers_dense() {
        let names: HashSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        for (number, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(usize::from(*reason as u8), number);
        }
    }
}
