//! A library preloaded into an unmodified ovs-vswitchd, which joins it to our data plane in place of the
//! kernel's.
//!
//! Sockets of `NETLINK_GENERIC` (datapath) and `NETLINK_NETFILTER` (connections) become Unix sockets to the
//! glue process; `ovs-frame` has the protocol. On rtnetlink sockets one message is changed (`probe.rs`),
//! and counts of queues in answers are replaced (`queues.rs`). In what ovsdb-server says over a Unix
//! socket, names of port types are (`database.rs`). All other sockets and files are left alone; what they
//! pay is one load per call.
//!
//! What the kernel promises for such sockets, and this library keeps (`lib/netlink-socket.c` relies on each):
//!
//! * A request is carried out before "nothing to read" is said, and a dump is never said to be empty before
//!   its end.
//! * `getsockname` names the port id by which upcalls find the socket. Overflow is told as `ENOBUFS`.
//! * A datapath is there, or will be: `socket` waits for the glue, as ovs-vswitchd looks only once.
//!
//! When the glue dies, the process aborts: its ports' ids would be unknown to the next glue, and ovs-vswitchd
//! would spin on errors. The service manager starts it again.
//!
//! When the glue hangs, the process aborts as well, after half a minute in which an answer was due and
//! nothing came.
//!
//! ovs-vswitchd duplicates no netlink socket (`lib/netlink-socket.c`), so `dup` and its like are not
//! followed: a copy would be an ordinary Unix socket. A number that `dup2` gives to another file is noticed
//! by its inode.
//!
//! The functions may be called from any thread, and after `fork`: the only locks are those of upcalls
//! (`upcalls.rs`) and of a connection to the database. A redirected socket that two processes share after
//! `fork` must be used by one of them only; it does not survive `exec`. Only opening sockets, joining
//! groups and a socket's first upcalls, answers about queues, and what the database says, allocate.

#[cfg_attr(test, allow(dead_code))]
mod calls;
mod database;
mod glue;
mod probe;
mod queues;
mod table;
mod upcalls;
