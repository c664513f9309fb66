//! Whether a worker serves one guest only.

use placement::VnicId;

/// Time in nanoseconds after which a vNIC whose rings alone were served is the only one.
const ALONE_NS: u64 = 10_000_000;

/// The vNIC that a worker served last, of those that are owed calls for sent frames.
#[derive(Debug, Default)]
pub(crate) struct SoleSender {
    vnic: Option<VnicId>,
    since_ns: u64,
}

impl SoleSender {
    /// Notes that `vnic` is served; true if no other one has been served for a while.
    pub fn served(&mut self, vnic: VnicId, now_ns: u64) -> bool {
        if self.vnic.replace(vnic) != Some(vnic) {
            self.since_ns = now_ns;
        }
        now_ns.saturating_sub(self.since_ns) >= ALONE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vnic_is_alone_until_another_is_served() {
        let (mut sole, [a, b]) = (SoleSender::default(), [VnicId(0), VnicId(1)]);
        assert!(!sole.served(a, ALONE_NS));
        assert!(!sole.served(a, 2 * ALONE_NS - 1));
        assert!(sole.served(a, 2 * ALONE_NS));
        assert!(!sole.served(b, 2 * ALONE_NS));
        assert!(!sole.served(a, 3 * ALONE_NS));
        assert!(sole.served(a, 4 * ALONE_NS));
    }
}
