//! End-to-end tests: the product as users run it, with guests of other projects.
//!
//! One test runs at a time (see [`testbed::Lab`]); each starts an instance of its own and ends with
//! [`rig::finish`], which checks that every packet is accounted for and that nothing is left behind. Needs
//! root, and what `scripts/setup` installs; `make test` runs them.

mod attack;
mod bonds;
mod driver_vm;
mod endpoints;
mod failures;
mod interfaces;
mod kills;
mod life;
mod p4;
mod p4_clients;
mod p4runtime;
mod policies;
mod polling;
mod readme;
mod rig;
mod rogues;
mod traffic;
mod uplinks;
mod vlans;
mod vm_state;
