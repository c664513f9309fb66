//! Open vSwitch's unmodified control plane on our data plane: the process that answers ovs-vswitchd in the
//! kernel's place.
//!
//! `ovs-shim`, preloaded into ovs-vswitchd, turns its netlink sockets into connections to this process. From
//! the wire inwards:
//!
//! | module | contents |
//! |---|---|
//! | [`server`], `connection`, `socket` | the Unix socket, connections, netlink port ids, multicast groups, bounded queues |
//! | [`switch`] | datapaths, ports and requests, with the kernel's answers and error numbers |
//! | [`capabilities`] | the keys and actions that are supported, which ovs-vswitchd finds out by probes |
//! | [`datapath`] | the interface to a data plane |
//! | [`plane`], [`translate`] | our own data plane, behind its channel; messages in its terms |
//! | [`placeholder`], [`tap`] | the ports' network devices at the host; real ones |
//! | [`glue`] | all of that in one loop |
//! | [`ask`] | asks such a process what it would do to a packet, and what a port has counted |
//! | [`ovsdb`], [`process`] | which ports are virtual machines; the process of the product |
//!
//! One thread does everything, and no client waits for another: ovs-vswitchd's revalidators send requests
//! while others read a dump. The memory that a client can make the process hold is bounded: connections,
//! bytes that wait for each, datapaths, ports, sockets per port; flows and meters by the data plane. A client
//! that stops reading, goes away or sends garbage costs its own connection.

#![forbid(unsafe_code)]

pub mod ask;
pub mod capabilities;
mod connection;
pub mod datapath;
pub mod glue;
pub mod ovsdb;
pub mod placeholder;
pub mod plane;
pub mod process;
pub mod server;
mod socket;
pub mod switch;
pub mod tap;
pub mod translate;

pub use capabilities::Capabilities;
pub use connection::Delivery;
pub use glue::Glue;
pub use nic_packet::Owner;
