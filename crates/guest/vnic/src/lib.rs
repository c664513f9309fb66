//! A guest interface: the vhost-user session, the transmit side, the receive side, the offloads.
//!
//! Workers share a [`Vnic`]. A worker claims `transmit`, fetches a burst of [`Packet`]s, decides about
//! them (in crate `datapath`), and enqueues them at other interfaces; the worker that claims `receive` there
//! copies them into that guest's buffers. [`Session`] is the other user of an interface: one thread per
//! connected VMM (behind a [`gate`]) that runs the vhost-user protocol and starts and stops the rings.
//!
//! | module | contents |
//! |---|---|
//! | `vnic` | the interface, as workers and the session share it |
//! | `gate` | the thread between a VMM's socket and the session; [`gate`] |
//! | `session` | one connection of a VMM: the vhost-user protocol, and the rings |
//! | `features`, `shortfall` | feature bits; what a VMM wants and its port does not have |
//! | `quirk`, `descriptor` | messages that the `vhost` crate refuses; kinds of descriptors from outside |
//! | `transmit`, `packet` | from the guest's ring to packet slots; a packet on its way |
//! | `arrivals` | packets that come by a queue of a device, beside a forwarder's ring |
//! | `front` | the beginning of a frame, written anew |
//! | `receive`, `backlog` | from the internal receive queue into the guest's buffers; packets that wait for buffers |
//! | `call`, `call_cost`, `call_thread` | calls, what they cost, and the thread that makes costly ones |
//! | `turn`, `pause` | bounds of a turn at a ring, and of costly work |
//! | `counters`, `lender` | a port's counters while packets flow; what receivers know of a sender |
//!
//! A guest can be wrong in two ways. A bad chain costs that packet. A bad ring, or memory that vanished,
//! stops the interface until the guest sets it up again. Neither is visible to other interfaces.

#![forbid(unsafe_code)]

mod arrivals;
mod backlog;
mod call;
mod call_cost;
mod call_thread;
mod counters;
mod descriptor;
pub mod features;
mod front;
pub mod gate;
mod lender;
mod packet;
mod pause;
mod quirk;
mod receive;
mod session;
mod shortfall;
#[cfg(test)]
mod testing;
mod transmit;
mod turn;
mod vnic;

pub use arrivals::{ArrivalCounts, ArrivalQueue};
pub use call::Call;
pub use call_thread::start as call_apart;
pub use counters::{Counters, Mark};
pub use packet::{CopyForm, MAX_FRAME, Packet};
pub use receive::{Copied, Observer, QueueCounts, ReceiveSide, STALL_TIMEOUT_MS, Wait, WhySlow};
pub use session::{DeviceConfig, Host, Session, SessionError};
pub use transmit::{Fetched, TransmitSide};
pub use turn::{BURST, Turn};
pub use virtqueue::QueueError;
pub use virtqueue::net::{RECEIVE_QUEUE, TRANSMIT_QUEUE};
pub use vnic::{Refused, Vnic};
