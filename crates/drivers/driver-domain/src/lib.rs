//! The driver domain: joins network interfaces to the data plane.
//!
//! To the data plane an interface is one more guest: a *forwarder* is a vhost-user *front end*, with memory
//! and virtqueues of its own, and the driver of a virtio network device whose other side happens to be a TAP
//! or a packet socket. So the data plane needs no code for devices, and a crash here is a guest that
//! disconnects.
//!
//! | module | process | can | cannot |
//! |---|---|---|---|
//! | `broker` | one | open, configure and watch interfaces | see a frame that comes or goes |
//! | `forwarder` | one for all TAPs, one per device | forward between descriptors that it is given | open anything |
//!
//! Nothing that happens to one interface reaches another, and nothing ends the processes except the
//! supervisor. Without its controller, and without the broker, forwarding goes on.

#![forbid(unsafe_code)]

mod broker;
mod forwarder;

pub use broker::{DriverError, run};
pub use forwarder::forward;
pub use nic_packet::{FanOut, Owner, VethMeans, load_hiding_program};
pub use nic_xdp::Steering;
