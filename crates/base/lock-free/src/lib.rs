//! The structures by which threads hand packets, rings and work to each other. Unsafe code lives here.
//!
//! * [`Claim`]: exclusive access to a ring, taken without waiting, that never loses work: a thread that
//!   fails to get it leaves a mark, and the holder finds the mark when it releases the claim. A holder that
//!   goes on in a moment keeps it meanwhile.
//! * [`Queue`]: a bounded queue with many producers and one consumer, a port's internal receive queue.
//! * [`PoolOwner`]: fixed slots that one thread fills and any thread releases; a port's packets.
//! * [`Mailbox`]: messages for a thread that sleeps when there are none, such as a worker.
//! * [`Assignment`]: the thread that empties a queue, to which other threads leave it; for example the worker
//!   that copies to a port.
//! * [`SharedBucket`]: a bound on a rate, such as that of packets to the clients of a P4 program.
//!
//! None of them allocates after construction, none takes a lock, none makes a system call (but for
//! [`Claim::claim_blocking`], which yields). All atomics and cells go through `sync`, so that the
//! same code runs under loom: `RUSTFLAGS="--cfg loom" cargo test -p lock-free --release`.

mod assignment;
mod claim;
mod mailbox;
mod pool;
mod queue;
mod rate;
mod sync;

pub use assignment::Assignment;
pub use claim::{Claim, Guard, Keeper};
pub use mailbox::{Activity, Mailbox};
pub use pool::{PoolOwner, Shared, Unique};
pub use queue::{Queue, Receiver};
pub use rate::SharedBucket;
