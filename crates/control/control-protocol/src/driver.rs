//! Messages between a controller, such as the control process, and a driver domain.
//!
//! There may be several controllers, each with a channel of its own. Each names interfaces by its own ports
//! of the data plane, and gets reports about these only.
//!
//! The driver domain is a vhost-user *front end*: for each interface it gets one end of a connected Unix
//! stream whose other end the data plane serves as a port, just as it serves a VM's VMM.

use flow::PortId;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Control process to driver domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDriver {
    /// Open (or create) the interface and connect it. One descriptor: the vhost-user stream; of
    /// [`InterfaceKind::Given`] the TAP's as a second one, unless the driver domain has it already. Sent
    /// again for the same port with the same spec when the data plane was restarted: only the stream is
    /// replaced.
    Attach {
        /// The data plane's port.
        port: PortId,
        /// The interface.
        spec: InterfaceSpec,
    },
    /// Change it while it is attached, and keep its connection. A device that is still the one
    /// ([`InterfaceSpec::is_same_device`]) changes in place.
    Change {
        /// As in `Attach`.
        port: PortId,
        /// The interface as it is to be.
        spec: InterfaceSpec,
    },
    /// Close it; a TAP or veth pair made by us disappears.
    Detach {
        /// As in `Attach`.
        port: PortId,
    },
    /// Ask for `FromDriver::Interfaces`.
    List,
    /// Ask for `FromDriver::Devices`.
    Devices,
    /// Ask for `FromDriver::Queue`. Filters of the port's device are removed.
    Queue {
        /// Port of an uplink or device.
        port: PortId,
    },
    /// Have untagged frames of a port's device that are for an address come by its queue, or no longer.
    Steer {
        /// Port of an uplink or device.
        port: PortId,
        /// The address, which is no group's.
        mac: [u8; 6],
        /// A number with which the forwarder marks its ring when it has taken all frames that came before;
        /// `None`: no longer.
        mark: Option<u16>,
    },
}

/// Driver domain to control process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDriver {
    /// An interface changed state.
    State {
        /// Port of the interface.
        port: PortId,
        /// The state.
        state: InterfaceState,
    },
    /// An interface was opened, or its addresses changed. After a list, all are told again.
    Addresses {
        /// Port of the interface.
        port: PortId,
        /// As the kernel has them.
        addresses: InterfaceAddresses,
    },
    /// The devices of the host that are open as uplinks or ports, as they are now; answer to `Devices`.
    Devices(Vec<(PortId, DeviceState)>),
    /// Packet sockets that are bound to the port's device, or why there are none, for users. One descriptor
    /// of a socket that sends and receives nothing, and one that receives what filters steer to it, if that
    /// is possible. Answer to `Queue`.
    Queue {
        /// Port of the interface.
        port: PortId,
        /// The sockets.
        result: Result<QueueSockets, String>,
    },
    /// Answer to `Steer`, with why it was not done, for users.
    Steered {
        /// Port of the interface.
        port: PortId,
        /// As in `Steer`.
        mac: [u8; 6],
        /// Whether there is to be a filter.
        is_on: bool,
        /// The outcome.
        result: Result<(), String>,
    },
    /// All interfaces, answer to `List`.
    Interfaces(Vec<(PortId, InterfaceSpec, InterfaceState)>),
}

/// The sockets of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSockets {
    /// Bytes of the virtio-net header in front of each frame that is sent, 10 or 12.
    pub header_len: u8,
    /// As much in front of each frame that comes as a message; or why none comes by the queue, for users.
    pub receives: Result<u8, String>,
}

/// Name of the driver domain's thread that serves a port's interface.
pub fn thread_name(port: PortId) -> String {
    format!("port-{port}")
}

/// The interface to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceSpec {
    /// Kind of interface.
    pub kind: InterfaceKind,
    /// Interface name, at most 15 bytes (`IFNAMSIZ` - 1).
    pub name: String,
    /// Largest IP packet in bytes, 68 to 65,535; for an uplink `None` leaves it alone.
    pub mtu: Option<u16>,
}

impl InterfaceSpec {
    /// Whether both are about one device, which may have to change.
    pub fn is_same_device(&self, other: &InterfaceSpec) -> bool {
        let kind = |spec: &InterfaceSpec| std::mem::discriminant(&spec.kind);
        self.name == other.name && kind(self) == kind(other) && self.netns() == other.netns()
    }

    /// The network namespace of a TAP or veth pair's end, if not the driver domain's.
    pub fn netns(&self) -> Option<&str> {
        match &self.kind {
            InterfaceKind::Tap(stack) | InterfaceKind::Veth(stack) => stack.netns.as_deref(),
            InterfaceKind::Uplink { .. } | InterfaceKind::Device | InterfaceKind::Given { .. } => None,
        }
    }

    /// Addresses that are assigned to it, with prefix lengths.
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        match &self.kind {
            InterfaceKind::Tap(stack) | InterfaceKind::Veth(stack) => &stack.addresses,
            InterfaceKind::Uplink { .. } | InterfaceKind::Device | InterfaceKind::Given { .. } => &[],
        }
    }
}

/// Kinds of interface a driver domain knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterfaceKind {
    /// A TAP device of ours, created if need be, with virtio-net headers.
    Tap(StackSettings),
    /// A veth pair of ours, of which a network stack has one end; a TAP where the kernel has no means for the
    /// other end.
    Veth(StackSettings),
    /// An existing network device, opened promiscuously, and by AF_XDP if that is wanted and possible.
    Uplink {
        /// What is wanted.
        back_end: BackEnd,
    },
    /// As `Uplink`, and the host's own stack does not see the packets that it receives while it is attached.
    Device,
    /// A TAP of the controller's, whose descriptor came with the message. It is never opened by name, so that
    /// it may be in any network namespace.
    Given {
        /// Interface index when it was made, for the controller's successor.
        index: u32,
    },
}

/// Where an interface of ours meets a network stack, and what is set on it there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackSettings {
    /// Network namespace to create it in: a name under /run/netns, or a path. `None`: the host's.
    pub netns: Option<String>,
    /// Hardware address to set.
    pub mac: Option<[u8; 6]>,
    /// Hardware address of a device that is made, if none is to be set; `None`: the kernel's choice.
    pub initial_mac: Option<[u8; 6]>,
    /// Addresses (with prefix length) to assign.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// How frames of a device of the host are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackEnd {
    /// A packet socket.
    #[default]
    Packet,
    /// An AF_XDP socket, or a packet socket where that is not possible.
    AfXdp,
}

/// The addresses of an open interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddresses {
    /// Hardware address, if it is one of Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Addresses of wider than link-local scope, with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Other devices that have a device of the host, as `bridge br0`.
    pub users: Vec<String>,
}

/// A device of the host, as the kernel has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Whether the other end of its cable is there.
    pub carrier: bool,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Speed in Mb/s; `None` if the device does not say.
    pub speed: Option<u32>,
    /// What has passed through it.
    pub counters: DeviceCounters,
}

/// What has passed through a device, and what the kernel has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Frames that arrived, as the device counts them.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Frames that left, by whomever sent.
    pub transmitted: u64,
    /// Bytes of these.
    pub transmitted_bytes: u64,
    /// Frames that arrived and that device or kernel dropped before anybody saw them: no buffer, no memory.
    pub receive_drops: u64,
    /// Frames that arrived damaged.
    pub receive_errors: u64,
    /// Frames that were to leave and that device or kernel dropped.
    pub transmit_drops: u64,
    /// Frames that could not be sent because of a fault.
    pub transmit_errors: u64,
    /// Frames that arrived and found no room in the switch's ring or socket, since the broker was started.
    pub ring_full: u64,
}

/// Whether an interface works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterfaceState {
    /// Open and connected to the data plane.
    Up,
    /// The data plane's end went away; waiting for a new stream.
    Disconnected,
    /// Could not be opened, or broke; the text is for users. Retried on the next `Attach`.
    Failed(String),
}
