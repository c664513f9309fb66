//! Real guests and namespaces for tests, demo and benchmarks.
//!
//! What a switch is worth shows only with endpoints that its authors did not write: the Linux virtio-net
//! driver in a [User Mode Linux](uml) or [QEMU](qemu) guest, the polling driver of [DPDK](testpmd), a
//! kernel's own stack behind a TAP in a [namespace]. This crate boots them, runs commands in them
//! ([`Endpoint`]), measures with [iperf3](iperf) and [ping], and starts the [switch](switch) under test, all
//! from safe Rust and without leaving traces:
//!
//! * names (namespaces, directories, interfaces inside them) carry the process id, so that several test runs
//!   share a machine;
//! * every process started here is the leader of a process group which is killed when its handle is dropped,
//!   and is killed by the kernel when the test process dies without dropping anything ([`process`]);
//! * interfaces live in namespaces of their own; the machine's network is not touched.
//!
//! | module | contents |
//! |---|---|
//! | `lab`, `process`, `build_dir` | one test's claim to the machine; child processes; artefacts that are kept |
//! | `endpoint`, `namespace`, `guest` | things in which commands run: namespaces, guests of any kind |
//! | `uml`, `qemu`, `qmp` | kinds of guests, and QEMU's machine protocol |
//! | `initrd`, `cpio`, `console`, `base64` | guests' root file system; commands over a guest's console |
//! | `switch`, `controlled` | the product, as users run it, and its data plane under a controller played here |
//! | `bridge`, `ovs`, `testpmd` | other switches: the kernel's bridge, Open vSwitch; DPDK's guest driver |
//! | `polling`, `masking` | guests that poll, in this process; hiding feature bits from a guest |
//! | `ping`, `iperf`, `udp_rr` | measuring between endpoints |
//! | `run_time`, `percentile`, `huge_pages` | processor time of tasks; percentiles; pages of 2 MiB |
//!
//! Errors are `anyhow`, written for the reader of a failed test: they name the endpoint and the command, and
//! show the last lines of its console.

#![forbid(unsafe_code)]

pub mod base64;
pub mod bridge;
pub mod build_dir;
pub mod console;
pub mod controlled;
pub mod cpio;
pub mod endpoint;
pub mod guest;
pub mod huge_pages;
pub mod initrd;
pub mod iperf;
pub mod lab;
pub mod masking;
pub mod namespace;
pub mod ovs;
pub mod percentile;
pub mod ping;
pub mod polling;
pub mod process;
pub mod qemu;
pub mod qmp;
pub mod run_time;
pub mod switch;
pub mod testpmd;
pub mod udp_rr;
pub mod uml;

pub use bridge::Bridge;
pub use controlled::Controlled;
pub use endpoint::{Endpoint, Output, Running};
pub use guest::{Guest, GuestOptions, Network};
pub use iperf::{IperfOptions, IperfResult};

pub use lab::Lab;
pub use namespace::Namespace;
pub use ovs::OvsDpdk;
pub use percentile::percentile;
pub use ping::{PingOptions, PingResult};
pub use polling::PollingGuest;
pub use qemu::{QemuGuest, QemuOptions};

pub use switch::Switch;
pub use testpmd::{Testpmd, TestpmdOptions};
pub use uml::UmlGuest;
