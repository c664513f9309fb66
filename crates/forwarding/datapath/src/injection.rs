//! Slots for packets that a controller sends, of which each port has a share.
//!
//! A packet keeps its slot until its receivers have taken it, which a slow receiver may do late: one port's
//! packets could hold all slots, and packets of other ports would be lost. So a port gets a slot only while
//! it holds fewer than are free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
//! packet switches", 1998). One port holds half of all slots at most, and `n` ports leave one of `n + 1`
//! equal parts.

use flow::PortId;
use lock_free::{PoolOwner, Unique};
use std::collections::HashMap;
use std::sync::Arc;
use vnic::{Counters, Packet};

const SLOTS: u32 = 512;

/// Packets of a controller under way.
pub(crate) struct Injection {
    pool: PoolOwner<Packet>,
    /// Slots that hold packets of a port, or copies of them. Ports without slots are not in it.
    held: HashMap<PortId, usize>,
    /// For slots at rest.
    account: Arc<Counters>,
}

impl Injection {
    pub fn new() -> Injection {
        let memory = Arc::new(guest_memory::GuestMemory::new());
        let account = Arc::new(Counters::default());
        Injection {
            pool: PoolOwner::new(SLOTS, || Packet::new(PortId(0), account.clone(), memory.clone())),
            held: HashMap::new(),
            account,
        }
    }

    /// A slot for a packet from this port. `None`: the port has its share.
    pub fn take(&mut self, from: PortId) -> Option<Unique<Packet>> {
        let held = self.held.get(&from).copied().unwrap_or(0);
        if held >= self.pool.available() {
            return None;
        }
        let mut packet = self.pool.take()?;
        // As the slot comes back, also if nothing is put into it.
        packet.origin = from;
        self.held.insert(from, held + 1);
        Some(packet)
    }

    /// Makes slots free again, with nothing in them that belongs to a port.
    pub fn reclaim(&mut self) {
        let Injection { pool, held, account } = self;
        pool.reclaim(|packet| {
            packet.reset(account);
            if let Some(count) = held.get_mut(&packet.origin) {
                *count -= 1;
                if *count == 0 {
                    held.remove(&packet.origin);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many slots for a port as it gets.
    fn fill(injection: &mut Injection, port: u32) -> Vec<Unique<Packet>> {
        std::iter::from_fn(|| injection.take(PortId(port))).collect()
    }

    #[test]
    fn ports_that_hold_all_they_get_leave_slots_to_others() {
        let mut injection = Injection::new();
        let mut all = Vec::new();
        for port in 1..8 {
            let slots = fill(&mut injection, port);
            assert!(slots.len() >= SLOTS as usize >> port, "{port}: {}", slots.len());
            all.push(slots);
        }
        assert_eq!(all[0].len(), SLOTS as usize / 2);
        assert!(injection.take(PortId(9)).is_some());
    }

    #[test]
    fn slots_come_back_to_the_port_that_held_them() {
        let mut injection = Injection::new();
        for _ in 0..5 {
            let slots = fill(&mut injection, 1);
            assert_eq!(slots.len(), SLOTS as usize / 2);
            drop(slots);
            assert!(injection.take(PortId(1)).is_none(), "not reclaimed yet");
            injection.reclaim();
            assert!(injection.held.is_empty());
        }
    }
}
