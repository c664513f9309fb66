//! Flows of ports, of which each port has a share.
//!
//! A guest has ovs-vswitchd make flows by packets that no flow matches. ovs-vswitchd has one limit for the
//! flows of all ports, which is 10,000 at first: beyond it, no port gets new ones, and flows end that were
//! idle for 100 ms; beyond twice as many, all flows end. It lowers the limit while its revalidators take
//! long, which they do with many flows. So the flows of a port are bounded before: a port may have another
//! flow while it has fewer than a sixteenth of what ports leave of [`FLOWS`] (Choudhury and Hahne, "Dynamic
//! queue length thresholds for shared-memory packet switches", 1998). One port that makes up flows has 7,710,
//! and ten have 5,041 each. However many do, each port may have [`LEAST`].
//!
//! Devices of the host have no such bound: they carry packets of many hosts.

use crate::datapath::PortNo;
use std::collections::HashMap;

/// Flows of all ports but devices, beyond which a port has the least.
const FLOWS: usize = 128 * 1024;
/// Part of what is left of them that a port may have.
const PART: usize = 16;
/// Flows that each port may have.
const LEAST: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FlowShares {
    /// Ports without flows are not in it.
    of_ports: HashMap<PortNo, usize>,
    all: usize,
}

impl FlowShares {
    pub fn has_room(&self, port: PortNo) -> bool {
        let has = self.of_ports.get(&port).copied().unwrap_or(0);
        has < LEAST.max(FLOWS.saturating_sub(self.all) / PART)
    }

    pub fn add(&mut self, port: PortNo) {
        *self.of_ports.entry(port).or_default() += 1;
        self.all += 1;
    }

    pub fn remove(&mut self, port: PortNo) {
        if let Some(count) = self.of_ports.get_mut(&port) {
            *count -= 1;
            self.all -= 1;
            if *count == 0 {
                self.of_ports.remove(&port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &mut FlowShares, port: u32) -> usize {
        let taken = (0..).take_while(|_| {
            let has_room = shares.has_room(PortNo(port));
            if has_room {
                shares.add(PortNo(port));
            }
            has_room
        });
        taken.count()
    }

    #[test]
    fn one_port_has_a_small_part_and_many_leave_the_same_to_another() {
        let mut shares = FlowShares::default();
        // Less than the limit with which ovs-vswitchd starts.
        assert_eq!(fill(&mut shares, 1), 7_710);
        for port in 2..300 {
            assert!(fill(&mut shares, port) >= LEAST);
        }
        assert!(shares.all < FLOWS + 300 * LEAST);
    }

    #[test]
    fn what_ends_is_given_back() {
        let mut shares = FlowShares::default();
        for _ in 0..3 {
            let count = fill(&mut shares, 1);
            assert!(!shares.has_room(PortNo(1)) && shares.has_room(PortNo(2)));
            (0..count).for_each(|_| shares.remove(PortNo(1)));
            assert!(shares.of_ports.is_empty() && shares.all == 0);
        }
        shares.remove(PortNo(1));
        assert_eq!(shares.all, 0);
    }
}
