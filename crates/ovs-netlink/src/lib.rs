//! Codec of the generic netlink families by which ovs-vswitchd drives a kernel datapath.
//!
//! Messages are those of `linux/netlink.h`, `linux/genetlink.h` and `linux/openvswitch.h` of Linux 6.1, in the byte order of the
//! machine. Nothing here does I/O. Whatever bytes come, reading ends in a value or in an [`Error`] that knows its error
//! number: unknown attributes, wrong sizes and repetitions are refused where the kernel would ignore some of them, since
//! an attribute that is not understood may change what the others mean.
//!
//! | module | what |
//! |---|---|
//! | [`message`] | netlink messages of a datagram, generic netlink header, acknowledgements, dumps |
//! | [`attribute`] | attributes: tables of what a place may hold, and the writer |
//! | [`action`] | actions of flows |
//! | [`name`] | names |
//! | [`family`] | the families, and what begins their messages |
//! | [`control`], [`datapath`], [`vport`], [`flow`], [`packet`], [`meter`], [`ct_limit`] | requests and replies of each |
//! | [`Request`], [`Reply`] | those of all |
//! | [`layout`] | values of fixed layout |
//! | [`key`] | keys and masks of flows |
//! | [`error`] | what can be wrong, and error numbers |

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
