//! Messages between the broker and the forwarders of the driver domain.
//!
//! The broker opens interfaces and sees no frame; forwarders forward and can open nothing. A forwarder gets
//! the device of each of its ports as a descriptor, and the stream to the data plane; it negotiates with the
//! data plane itself. Each stream has a number that grows with each new one of its port, so that what is said
//! about an earlier one is recognised.

use crate::driver::{InterfaceSpec, InterfaceState};
use crate::supervisor::ForwarderId;
use flow::PortId;
use serde::{Deserialize, Serialize};

/// Broker to forwarder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToForwarder {
    /// Forward between this port's device and this stream from now on. Descriptors: stream, and those of the
    /// device.
    Attach {
        /// The data plane's port.
        port: PortId,
        /// Number of the stream.
        stream: u32,
        /// The device.
        device: Device,
    },
    /// The device of a port is this one from now on (its descriptors), or there is none. The stream stays.
    Device {
        /// As in `Attach`.
        port: PortId,
        /// The device; `None` while the interface cannot be used.
        device: Option<Device>,
    },
    /// Mark the ring of a port, with this number, once all frames that have come are in it.
    Mark {
        /// As in `Attach`.
        port: PortId,
        /// The number.
        mark: u16,
    },
    /// Forget the port.
    Detach {
        /// As in `Attach`.
        port: PortId,
    },
}

/// Forwarder to broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromForwarder {
    /// All ports, with the number of the stream of each and its state. First on each channel.
    Ports(Vec<(PortId, u32, InterfaceState)>),
    /// The connection to the data plane changed state. [`InterfaceState::Failed`]: the data plane broke a
    /// rule.
    State {
        /// The port.
        port: PortId,
        /// The stream that this is about.
        stream: u32,
        /// The state.
        state: InterfaceState,
    },
    /// The device of a port does not work any more; the text is for users.
    Broken {
        /// The port.
        port: PortId,
        /// Why.
        reason: String,
    },
}

/// A device that is open, as a forwarder has to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// A TAP.
    Tap,
    /// A packet socket.
    Packet {
        /// Bytes of the virtio-net header in front of each frame: 12, or 10 on kernels before 6.4.
        header_len: u8,
        /// Whether frames arrive in a ring.
        has_ring: bool,
    },
    /// AF_XDP sockets. Descriptors: one for each queue, and memory of frames.
    Xdp(XdpFrames),
}

/// How the frames of a device lie in the memory of its AF_XDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XdpFrames {
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Whether a frame may lie over several chunks.
    pub in_parts: bool,
    /// Queues of the device, each with a socket; at most [`Self::MAX_QUEUES`].
    pub queues: u32,
}

impl XdpFrames {
    /// Queues of a device at most.
    pub const MAX_QUEUES: u32 = 16;

    /// Sockets of the device.
    pub fn sockets(self) -> usize {
        self.queues.min(Self::MAX_QUEUES) as usize
    }
}

impl Device {
    /// Descriptors of such a device.
    pub fn descriptors(&self) -> usize {
        match self {
            Device::Tap | Device::Packet { .. } => 1,
            Device::Xdp(frames) => frames.sockets() + 1,
        }
    }
}

/// An interface that is open, or only hidden, as the next broker has to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenInterface {
    /// The data plane's port.
    pub port: PortId,
    /// The interface as it is configured.
    pub spec: InterfaceSpec,
    /// The forwarder that serves it.
    pub forwarder: ForwarderId,
    /// How it was opened; `None`: it is not open, and the program that hides it is still at its device.
    pub opened: Option<Opened>,
}

/// How an interface was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Opened {
    /// A TAP.
    Tap {
        /// Whether we have made it, so that it disappears when it is detached.
        is_ours: bool,
        /// Device and inode of the network namespace by whose name it was opened.
        namespace: Option<(u64, u64)>,
        /// Why it is no veth pair, if that was wanted.
        no_veth: Option<String>,
    },
    /// A veth pair behind a TAP. Descriptors: the TAP, and the links of the programs at the pair's end and at
    /// the TAP.
    Veth {
        /// As in `Tap`.
        namespace: Option<(u64, u64)>,
    },
    /// A packet socket.
    Packet {
        /// As in [`Device::Packet`].
        header_len: u8,
        /// Why frames do not arrive in a ring, if they do not.
        ring_refused: Option<String>,
        /// What keeps its frames from the host's stack.
        hiding: Hiding,
        /// Why it is not an AF_XDP socket, if that was wanted.
        no_xdp: Option<String>,
    },
    /// AF_XDP sockets. Descriptors: a packet socket that receives nothing, a socket for each queue, memory of
    /// frames, and the link of the program that hands frames to the sockets.
    Xdp {
        /// As in [`Device::Xdp`].
        frames: XdpFrames,
        /// Why the program runs behind the driver and not in it, if it does.
        generic: Option<String>,
        /// Whether the device itself reads and writes the memory of frames.
        is_zero_copy: bool,
        /// As in `Packet`.
        hiding: Hiding,
    },
}

impl Opened {
    /// Descriptors of such a device.
    pub fn descriptors(&self) -> usize {
        match self {
            Opened::Tap { .. } | Opened::Packet { .. } => 1,
            Opened::Veth { .. } => 3,
            Opened::Xdp { frames, .. } => frames.sockets() + 3,
        }
    }

    /// What keeps its frames from the host's stack; `None` for a TAP, whose frames come from a stack.
    pub fn hiding(&self) -> Option<&Hiding> {
        match self {
            Opened::Tap { .. } | Opened::Veth { .. } => None,
            Opened::Packet { hiding, .. } | Opened::Xdp { hiding, .. } => Some(hiding),
        }
    }
}

/// What keeps the frames of a device from the host's stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hiding {
    /// An eBPF program, whose link goes with the device as the last descriptor.
    Program,
    /// A bridge that is down, for this reason.
    Bridge(String),
    /// Nothing, for this reason.
    Nothing(String),
}
