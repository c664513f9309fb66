//! Unsafe code lives here: the three structures by which threads hand packets and rings to each other.
//!
//! * [`Claim`]: exclusive access to a ring, taken without waiting, that never loses work: whoever fails to
//!   get it leaves a mark, and the holder finds the mark when it lets go.
//! * [`Queue`]: a bounded queue with many producers and one consumer, a port's internal receive queue.
//! * [`PoolOwner`]: fixed slots that one thread fills and any thread releases; a port's packets.
//!
//! None of them allocates after construction, none takes a lock, none makes a system call (but for
//! [`Claim::claim_blocking`], which yields). All atomics and cells go through `sync`, so that the
//! same code runs under loom: `RUSTFLAGS="--cfg loom" cargo test -p ring --release`.

mod claim;
mod pool;
mod queue;
mod sync;

pub use claim::{Claim, Guard};
pub use pool::{PoolOwner, Shared, Unique};
pub use queue::{Queue, Receiver};
