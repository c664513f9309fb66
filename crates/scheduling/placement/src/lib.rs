//! The placement policy: it chooses the core that does a piece of work.
//!
//! Switching belongs to the sender's side and copying to the receiver's; concurrency comes from cores that
//! are idle at the moment (Hyper-Switch, Ram et al., USENIX ATC 2013, sections 3.2 to 3.5 and 5.2.3). This
//! crate decides and never acts: [`Policy`] is a pure function of the [`Config`]uration, the machine's
//! [`Topology`], the [`Costs`] of waking and copying, and the state that its caller shows it through a
//! [`View`]. The data plane asks it about real cores, the placement simulator about modelled ones; both get
//! the same answers.
//!
//! Every decision is total, allocates nothing and makes no system call; it may be made on any thread. The
//! state in a view may be stale by the time the answer is used, so no answer is a right: a thread that acts
//! on one claims rings as always. The safe direction of error is the caller's own core: work is sent away
//! only to cores known to be idle or to be doing such work already, and with a caller that knows no states
//! the switch works like one without placement.
//!
//! Only `Topology::of_machine` and `Topology::read` read anything outside of the process: files of sysfs.

#![forbid(unsafe_code)]

mod costs;
mod policy;
mod sysfs;
mod topology;
mod view;

pub use costs::Costs;
pub use placement_config::{Config, Mode, Priority};
pub use policy::{
    Backlog, Copier, CopyPlan, Duty, Kicks, Notify, Policy, Rank, WORTH_SENDING, Work, WorkerId,
};
pub use topology::{Cpu, Location, Reach, Shape, Topology};
pub use view::{CoreState, VcpuState, View, VnicId};
