//! The vCPU threads of a guest.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use vm_state::Slot;

/// Number of vCPUs that most guests do not exceed.
const FEW: usize = 8;

/// The threads of a guest. The placement policy reads them with each burst, so few threads are read by plain
/// loads. While they change, a reader may see some old and some new ones: the state is a hint anyway.
#[derive(Default)]
pub(crate) struct Threads {
    /// Number of valid entries of `few`; if larger than its length, `many` has the threads.
    count: AtomicU8,
    few: [AtomicU16; FEW],
    many: RwLock<Box<[Slot]>>,
}

impl Threads {
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&[Slot]) -> R) -> R {
        let count = usize::from(self.count.load(Ordering::Acquire));
        if count > FEW {
            return look(&self.many.read());
        }
        let slots: [Slot; FEW] = std::array::from_fn(|at| Slot(self.few[at].load(Ordering::Relaxed)));
        look(&slots[..count])
    }

    pub fn set(&self, threads: Box<[Slot]>) {
        for (few, slot) in self.few.iter().zip(&threads) {
            few.store(slot.0, Ordering::Relaxed);
        }
        let count = threads.len().min(FEW + 1) as u8;
        *self.many.write() = threads;
        self.count.store(count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_seen() {
        let threads = Threads::default();
        for count in [0, 1, FEW, FEW + 1, 300, 3] {
            let slots: Box<[Slot]> = (0..count as u16).map(Slot).collect();
            threads.set(slots.clone());
            threads.with(|seen| assert_eq!(seen, &slots[..]));
        }
    }
}
