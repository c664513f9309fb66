//! What each controller does towards data plane and driver domain.
//!
//! A *controller* is a process that decides about packets: the control process, or `ovs`. All of them send
//! requests and have to know again what an answer is for, get lists in parts, end each packet exactly once,
//! and agree with the other side again after either has died. And none may trust what it is told, since a
//! guest may have taken over data plane or driver domain. All of that is done here, once; what a controller
//! wants, and what it does with the answers, is its own.
//!
//! Nothing here waits, reads a clock or decides: the caller polls descriptors, passes the time, and tells the
//! supervisor what [`Client::complaint`] and [`DriverClient::complaint`] say.
//!
//! | part | module |
//! |---|---|
//! | the data plane: requests and their purposes, packets, agreement | `client` |
//! | requests that are not answered, and lists that are not complete | `asked` |
//! | packets that wait, and how they end | `upcalls` |
//! | the driver domain: interfaces of ports | `driver` |
//! | when a port is connected again | `retry` |
//! | a channel, and messages that wait to be sent | `link`, `outbox` |
//! | what the supervisor is told about a peer, and why; text of such a peer | `distrust`, `clean` |

#![forbid(unsafe_code)]

mod asked;
mod clean;
mod client;
mod distrust;
mod driver;
mod link;
mod outbox;
mod retry;
mod upcalls;

pub use asked::MAX_LISTS;
pub use client::{Answered, Client, Event, ROOM, Welcome};
pub use distrust::{ABSENCE_MS, SYNC_MS};
pub use driver::{DeviceQueue, DriverClient, DriverEvent, Interfaces, QueueEnds};
pub use link::{Link, Lost};
pub use retry::Retry;
