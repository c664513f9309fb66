//! Accelerators: frames that go between a device of the host and the data plane without a forwarder.
//!
//! An accelerator has two halves, as in "Accelerated Xen networking" (Euro-Par 2007, 2.2): a [`Queue`] in the
//! data plane, by which frames come and go, and an [`Accelerator`] in the driver domain's broker, which says
//! to which queue the device gives which frames. Guests have unmodified drivers, so the queue is in the data
//! plane and not in the guest.
//!
//! **Filters steer, they do not decide.** A frame for a queue has passed the same decision as one for the
//! forwarder, and a frame from a queue is looked up as one from the forwarder's ring. So a wrong filter costs
//! time, and never isolation. The way through the forwarder, the *slow path*, is always there, and takes what
//! a queue cannot.
//!
//! | module | contents |
//! |---|---|
//! | `interface` | the two halves of an accelerator |
//! | `way` | when frames of a flow change between slow path and queue, so that none is lost or overtaken |
//! | `learning` | which flows are worth a filter, from rates that are known anyway |
//! | `packet_queue`, `packet_arrivals` | the queue of any device, for each direction: a packet socket |
//!
//! Nothing here waits, or reads a clock: callers say what time it is.

#![forbid(unsafe_code)]

mod interface;
mod learning;
mod packet_arrivals;
mod packet_queue;
mod way;

pub use interface::{
    Accelerator, Arrivals, Arrived, Declined, Filter, FilterId, Full, Match, MatchKinds, Queue, Room, Sent,
};
pub use learning::{Change, Learner, Limits};
pub use packet_arrivals::PacketArrivals;
pub use packet_queue::PacketQueue;
pub use way::{BOUND_US, State, Way, WayCounts};
