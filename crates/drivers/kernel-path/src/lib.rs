//! The kernel path: frames between two veth pairs of the switch that never leave the kernel.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | the table that data plane and program share, and the indices of devices |
//! | `program` | the program at the switch's ends of pairs and at the TAPs behind them |
//! | `table` | the table in the data plane: entries are published and withdrawn |
//!
//! The program looks a frame up by input port and Ethernet addresses. An entry sends the frame into another
//! pair's container; without one the frame goes to the TAP, and so through the data plane, which decides. The
//! data plane alone writes entries, through mapped memory and without bpf(2). Entries name numbers of ports,
//! from which the indices of devices follow; in the namespace of these devices nothing else can be reached.
//!
//! States of an entry:
//!
//! | state | frames go | words change | next |
//! |---|---|---|---|
//! | withdrawn | to the TAP | after a grace period | armed |
//! | armed | to the TAP, and are counted | no | live if none came since the last look; withdrawn |
//! | live | to the container | no | withdrawn |
//!
//! Grace: the program raises a counter of its core before it looks, and another one when it has decided. Who
//! withdraws an entry then waits until no program that may have seen it is under way, some 100 ns. So nobody
//! uses an entry after [`Table::withdraw`], and its counts are final. A data plane that was taken over can
//! make these counters wrong, so its successor has programs count in another set of them.
//!
//! An entry is armed first so that frames do not overtake others that are on their way through the data
//! plane: it becomes live in a gap between frames.
//!
//! Memory order relies on x86: loads are not reordered with each other.
//!
//! Allowed `unsafe`: mapping the table.

mod layout;
mod program;
mod table;

pub use layout::{ENTRIES, PORTS, end_index, port_of, tap_index};
pub use program::program;
pub use table::{Key, Place, State, Table, create, wipe};
