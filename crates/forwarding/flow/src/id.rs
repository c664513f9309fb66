//! Identifiers that cross process boundaries.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A port of the data plane, unique in the process whatever its switch and controller. Chosen by its
    /// controller among the numbers that are its own ([`ControllerId::port`]), below [`PortId::LIMIT`], so
    /// that the data plane can index a table with it.
    PortId(u32)
}

impl PortId {
    /// Port numbers are below this.
    pub const LIMIT: u32 = ControllerId::LIMIT as u32 * ControllerId::PORTS;

    /// The controller to which the number belongs. For numbers below [`LIMIT`](Self::LIMIT) it is a valid
    /// one.
    #[inline]
    pub const fn controller(self) -> ControllerId {
        let number = self.0 / ControllerId::PORTS;
        ControllerId(if number < u8::MAX as u32 {
            number as u8
        } else {
            u8::MAX
        })
    }
}

id! {
    /// A process that decides for some of the data plane's ports: the built-in control process, or another
    /// one beside it. Each has numbers of its own for ports, switches and flows.
    ControllerId(u8)
}

impl ControllerId {
    /// Controllers are numbered below this.
    pub const LIMIT: u8 = 4;

    /// Most ports of a controller.
    pub const PORTS: u32 = 4096;

    /// Bits of a controller's number of a rule list, behind those of the controller.
    pub const LIST_BITS: u32 = 24;

    /// The control process that users talk to. Its ports' numbers begin at 0.
    pub const BUILT_IN: ControllerId = ControllerId(0);

    /// Open vSwitch's control plane.
    pub const OVS: ControllerId = ControllerId(1);

    /// The controller's port of that number, below [`PORTS`](Self::PORTS); `None` for numbers that are not.
    pub const fn port(self, number: u32) -> Option<PortId> {
        if number < ControllerId::PORTS {
            Some(PortId(self.0 as u32 * ControllerId::PORTS + number))
        } else {
            None
        }
    }

    /// The controller's rule list of that number, of [`LIST_BITS`](Self::LIST_BITS) bits; `None` for longer
    /// numbers. Those of the built-in controller are the numbers themselves.
    pub const fn list(self, number: u32) -> Option<ListId> {
        if number >> ControllerId::LIST_BITS == 0 {
            Some(ListId((self.0 as u32) << ControllerId::LIST_BITS | number))
        } else {
            None
        }
    }

    /// Whether the port number belongs to this controller.
    pub const fn owns(self, port: PortId) -> bool {
        port.0 < PortId::LIMIT && port.controller().0 == self.0
    }
}

id! {
    /// A switch: a set of ports and one flow table. Packets never cross from one to another. Each controller
    /// has numbers of its own.
    SwitchId(u32)
}

id! {
    /// A rule list. Chosen by the controller that makes the list, among the numbers that are its own
    /// ([`ControllerId::list`]). Filters of any controller's ports may name it.
    ListId(u32)
}

impl ListId {
    /// The controller to which the number belongs, which need not be a valid one.
    pub const fn controller(self) -> ControllerId {
        ControllerId((self.0 >> ControllerId::LIST_BITS) as u8)
    }
}

id! {
    /// A P4 switch: a P4 program in use, which forwards the packets of the ports that are bound to it. Each
    /// controller has numbers of its own.
    P4Id(u32)
}

id! {
    /// Unique flow identifier (OVS: UFID), 128 bits. Each switch has its own.
    FlowId(u128)
}

id! {
    /// A part of a controller that makes flows of its own, for one stage of a switch. A controller with
    /// several providers names them in the flows' identifiers ([`FlowId::of`]), so that none touches
    /// another's flows. A controller whose flows come from one place may use all 128 bits.
    ProviderId(u8)
}

impl ProviderId {
    /// The learning switch.
    pub const LEARNING_SWITCH: ProviderId = ProviderId(1);
}

impl FlowId {
    /// Bits of an identifier behind its provider's 8.
    pub const NUMBER_BITS: u32 = 120;

    /// A provider's flow of that number, of which the lower [`NUMBER_BITS`](Self::NUMBER_BITS) count.
    pub const fn of(provider: ProviderId, number: u128) -> FlowId {
        let number = number & (u128::MAX >> (u128::BITS - FlowId::NUMBER_BITS));
        FlowId((provider.0 as u128) << FlowId::NUMBER_BITS | number)
    }

    /// Whose flow it is.
    pub const fn provider(self) -> ProviderId {
        ProviderId((self.0 >> FlowId::NUMBER_BITS) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_does_not_reach_into_the_provider() {
        let id = FlowId::of(ProviderId(7), u128::MAX);
        assert_eq!(id.provider(), ProviderId(7));
        assert_ne!(id, FlowId::of(ProviderId(7), 0));
        assert_eq!(FlowId::of(ProviderId(255), 1).provider(), ProviderId(255));
    }

    #[test]
    fn controllers_share_the_numbers_of_lists() {
        for controller in [0, 1, u8::MAX].map(ControllerId) {
            for number in [0, 1, (1 << ControllerId::LIST_BITS) - 1] {
                assert_eq!(controller.list(number).unwrap().controller(), controller);
            }
            assert_eq!(controller.list(1 << ControllerId::LIST_BITS), None);
        }
        assert_eq!(ControllerId::BUILT_IN.list(7), Some(ListId(7)));
        assert_ne!(ControllerId::OVS.list(7), ControllerId::BUILT_IN.list(7));
    }

    #[test]
    fn controllers_share_the_numbers_of_ports() {
        let mut next = 0;
        for controller in (0..ControllerId::LIMIT).map(ControllerId) {
            for number in [0, 1, ControllerId::PORTS - 1] {
                let port = controller.port(number).unwrap();
                assert_eq!(port.0, next + number);
                assert!(controller.owns(port) && port.controller() == controller);
                assert!(!ControllerId(controller.0 + 1).owns(port));
            }
            assert_eq!(controller.port(ControllerId::PORTS), None);
            next += ControllerId::PORTS;
        }
        assert_eq!(next, PortId::LIMIT);
        for nobodys in [PortId::LIMIT, u32::MAX] {
            let port = PortId(nobodys);
            assert!(!port.controller().owns(port) && port.controller().0 >= ControllerId::LIMIT);
        }
    }
}
