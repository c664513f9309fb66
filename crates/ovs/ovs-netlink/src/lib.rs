//! Codec of the generic netlink families by which ovs-vswitchd drives a kernel datapath.
//!
//! Messages are those of `linux/netlink.h`, `linux/genetlink.h` and `linux/openvswitch.h` of Linux 6.1, in
//! the byte order of the machine. Nothing here does I/O. Reading any bytes gives a value or an [`Error`] with
//! its error number. Unknown attributes, wrong sizes and repetitions are refused where the kernel would
//! ignore some of them, since an attribute that is not understood may change the meaning of the others.
//!
//! | module | contents |
//! |---|---|
//! | [`message`] | netlink messages of a datagram, generic netlink header, acknowledgements, dumps |
//! | [`attribute`] | attributes: which ones a place may hold, tables of those that were read, and the writer |
//! | [`action`] | actions of flows |
//! | [`name`] | names |
//! | [`family`] | the families, and the headers of their messages |
//! | [`control`], [`datapath`], [`vport`], [`flow`], [`packet`], [`meter`], [`ct_limit`] | requests and replies of each family |
//! | `request` | requests and replies of all families |
//! | [`layout`], `number` | structs of fixed layout; numbers in the machine's order |
//! | [`key`] | keys and masks of flows |
//! | [`error`] | errors in messages, and error numbers |

#![forbid(unsafe_code)]

pub mod action;
pub mod attribute;
pub mod control;
pub mod ct_limit;
pub mod datapath;
pub mod error;
pub mod family;
pub mod flow;
pub mod key;
pub mod layout;
pub mod message;
pub mod meter;
pub mod name;
mod number;
pub mod packet;
mod request;
pub mod vport;

pub use error::{Errno, Error};
pub use request::{Reply, Request};
