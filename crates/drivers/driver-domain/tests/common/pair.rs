//! Two interfaces that reach each other.

use super::backend::{ALL, Backend};
use super::{Driver, Namespace, tap, unique};
use control_protocol::driver::InterfaceSpec;

/// Two interfaces in two namespaces, joined by a back end.
pub struct Pair {
    pub names: [String; 2],
    pub specs: [InterfaceSpec; 2],
    pub backend: Backend,
    pub spaces: [Namespace; 2],
}

/// Of the two, in IPv4 and IPv6.
pub const ADDRESSES: [[&str; 2]; 2] = [
    ["10.77.0.1/24", "fd00:77::1/64"],
    ["10.77.0.2/24", "fd00:77::2/64"],
];

impl Pair {
    /// Two TAPs.
    pub fn attach(driver: &Driver, features: u64) -> Pair {
        Pair::attach_as(driver, features, tap)
    }

    /// Two of that kind.
    pub fn attach_as(
        driver: &Driver,
        features: u64,
        kind: impl Fn(&str, &Namespace, &[&str]) -> InterfaceSpec,
    ) -> Pair {
        let spaces = [Namespace::new(), Namespace::new()];
        let names = [unique(), unique()];
        let specs = [0, 1].map(|side| kind(&names[side], &spaces[side], &ADDRESSES[side]));
        let (backend, streams) = Backend::start(features);
        for (port, (spec, stream)) in specs.iter().zip(streams).enumerate() {
            driver.attach(port as u32, spec, stream);
            driver.expect_up(port as u32);
        }
        Pair {
            names,
            specs,
            backend,
            spaces,
        }
    }

    pub fn reattach(&mut self, driver: &Driver) {
        let (backend, streams) = Backend::start(ALL);
        self.backend = backend;
        for (port, (spec, stream)) in self.specs.iter().zip(streams).enumerate() {
            driver.attach(port as u32, spec, stream);
            driver.expect_up(port as u32);
        }
    }

    pub fn ping(&self) {
        self.spaces[0].ping("10.77.0.2");
        self.spaces[1].ping("fd00:77::1");
    }
}
