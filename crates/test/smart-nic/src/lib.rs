//! A network card in software, as "Accelerated Xen networking" (Euro-Par 2007, 3.1) describes one: guests
//! that nobody trusts drive it themselves. It is there to be attacked, and to be a device behind the traits
//! of crate `accelerator`.
//!
//! A *virtual interface* (VI) has two descriptor rings and an event queue in its owner's memory, and a page
//! of registers. Descriptors name buffers by number; the *buffer table* says which page of whose memory a
//! number is. Filters give frames that come to a VI, and all others to the *slow path*.
//!
//! | guarantee of 2.3 | how it is kept |
//! |---|---|
//! | Data moves by memory that the guest owns. | A number is looked up for the VI that names it, when the descriptor is fetched and when bytes move. |
//! | Packets reach their addressee alone. | Only the control driver sets filters; groups, unknown tags and VIs that do not work take the slow path. |
//! | A guest sends with its own address. | What a guest's VI sends must be from its addresses, and for nobody on this host. |
//! | One guest's flood is its own. | Rings per VI, one frame of each VI in a round, and no transfer without room for its event. |
//!
//! A guest that breaks the rules of an index loses its VI until the control driver opens it again; a
//! descriptor that cannot be is refused by an event, as that harms nobody.
//!
//! Transfers take two steps, so that tests can put anything between them: [`Device::receive`] and
//! [`Device::start_sends`] fetch descriptors, [`Device::finish`] moves bytes.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | descriptors, events and registers, as both sides see them |
//! | `memory` | memory that device and driver share |
//! | `buffers` | the buffer table |
//! | `filters` | which frames come to which VI, and who may send what |
//! | `interface` | a VI, as the device sees it: rings and events in memory that lies |
//! | `device` | the card |
//! | `fault` | what the card can do wrong, for tests of its tests |
//! | `control` | the control driver, an `Accelerator` |
//! | `driver` | a driver that keeps to the rules: `Queue` and `Arrivals` |

#![forbid(unsafe_code)]

mod buffers;
mod control;
mod device;
mod driver;
mod fault;
mod filters;
mod interface;
mod layout;
mod memory;

pub use control::Control;
pub use device::{Counts, Device};
pub use driver::Driver;
pub use fault::Fault;
pub use filters::{Sources, address_of};
pub use interface::Why;
pub use layout::{
    BUFFER, Descriptor, EVENTS, Event, EventKind, LONGEST, MOST_PARTS, PAGE, Page, RING, Register,
};
pub use memory::{Memory, make};
