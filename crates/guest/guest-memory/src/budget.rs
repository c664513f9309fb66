//! Bounds for the part of the data plane's address space that guests' memory takes.
//!
//! A memory file's size costs its owner nothing: a sparse one of 2^47 bytes fills our whole address space,
//! and then other ports cannot be mapped and the next allocation fails. So both bytes and regions are
//! counted, per port and in all.
//!
//! Every port has a share of each that is set aside for it: whatever other ports do, a guest within its share
//! is mapped. Larger guests take from a common pool, up to a limit per port. Usual guests need the pool only
//! for their bytes. Using the pool up takes several ports at their limits, and keeps out only guests that are
//! larger than their share.
//!
//! A port holds what is mapped on its behalf until it is unmapped: a new table counts beside the old one, and
//! so do tables in which packets under way lie.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ports for which a share is set aside; as many as the switch has at most.
const PORTS: u64 = 4096;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The bounds of one countable thing.
struct Limits {
    /// Always there for a port.
    share: u64,
    /// Most that one port may have.
    most: u64,
    /// For all ports' needs above their shares.
    common: u64,
}

/// Bytes: 32 TiB in shares and 64 TiB in common leave a quarter of the 128 TiB that a process has on x86-64
/// for everything else. A guest of 8 TiB can replace its whole memory table at once.
const BYTES: Limits = Limits {
    share: 8 * GIB,
    most: 16 * TIB,
    common: 64 * TIB,
};

/// Regions, each of which is a mapping: the system allows a process 65,530 (`vm.max_map_count`), of which
/// threads take some. A port may replace a table of 64 by another one while packets lie in a third.
const REGIONS: Limits = Limits {
    share: 4,
    most: 192,
    common: 16 * 1024,
};

/// Regions that can be mapped at a time, at most.
pub(crate) const ALL_REGIONS: usize = (PORTS * REGIONS.share + REGIONS.common) as usize;

/// Bytes and regions that are held.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    regions: u64,
}

/// Bytes and regions that ports hold above their shares.
static COMMON: Mutex<Held> = Mutex::new(Held { bytes: 0, regions: 0 });

/// The bound that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes of one port.
    PortBytes,
    /// Regions of one port.
    PortRegions,
    /// Bytes of all ports.
    AllBytes,
    /// Regions of all ports.
    AllRegions,
}

impl Bound {
    /// Whether the port alone has reached it.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Bound::PortBytes | Bound::PortRegions)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::PortBytes => write!(f, "more than the {} TiB that a port may map", BYTES.most / TIB),
            Bound::PortRegions => write!(f, "more than the {} regions that a port may map", REGIONS.most),
            Bound::AllBytes => write!(
                f,
                "no room: ports have mapped {} TiB above the {} GiB set aside for each",
                BYTES.common / TIB,
                BYTES.share / GIB
            ),
            Bound::AllRegions => write!(
                f,
                "no room: ports have mapped {} regions above the {} set aside for each",
                REGIONS.common, REGIONS.share
            ),
        }
    }
}

/// A port's account of mapped memory. Clones are the same account.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<Mutex<Held>>);

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of a port's holding that comes from the common pool.
fn above(limits: &Limits, held: u64) -> u64 {
    held.saturating_sub(limits.share)
}

impl Account {
    /// Counts one region of `bytes`.
    pub(crate) fn charge(&self, bytes: u64) -> Result<Charge, Bound> {
        let (mut own, mut common) = (lock(&self.0), lock(&COMMON));
        let after = Held {
            bytes: own.bytes.checked_add(bytes).ok_or(Bound::PortBytes)?,
            regions: own.regions + 1,
        };
        let in_common = Held {
            bytes: common.bytes + above(&BYTES, after.bytes) - above(&BYTES, own.bytes),
            regions: common.regions + above(&REGIONS, after.regions) - above(&REGIONS, own.regions),
        };
        if after.bytes > BYTES.most {
            return Err(Bound::PortBytes);
        }
        if after.regions > REGIONS.most {
            return Err(Bound::PortRegions);
        }
        if in_common.bytes > BYTES.common {
            return Err(Bound::AllBytes);
        }
        if in_common.regions > REGIONS.common {
            return Err(Bound::AllRegions);
        }
        (*own, *common) = (after, in_common);
        Ok(Charge {
            account: self.clone(),
            bytes,
        })
    }

    /// Bytes mapped for the port, in whole pages.
    pub fn bytes(&self) -> u64 {
        lock(&self.0).bytes
    }
}

/// A region that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Account,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let (mut own, mut common) = (lock(&self.account.0), lock(&COMMON));
        let after = Held {
            bytes: own.bytes - self.bytes,
            regions: own.regions - 1,
        };
        common.bytes -= above(&BYTES, own.bytes) - above(&BYTES, after.bytes);
        common.regions -= above(&REGIONS, own.regions) - above(&REGIONS, after.regions);
        *own = after;
    }
}

/// The pool is the process's: tests that use much of it take turns.
#[cfg(test)]
pub(crate) static TURN: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_whatever_others_take() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let greedy: Vec<_> = (0..8).map(|_| Account::default()).collect();
        let mut charges = Vec::new();
        assert_eq!(greedy[0].charge(BYTES.most + 1).map(drop), Err(Bound::PortBytes));
        assert_eq!(greedy[0].charge(u64::MAX).map(drop), Err(Bound::PortBytes));
        let refused = greedy.iter().find_map(|port| {
            charges.push(port.charge(BYTES.most - TIB).ok()?);
            charges.push(port.charge(GIB).ok()?);
            port.charge(TIB).map(drop).err()
        });
        assert_eq!(refused, Some(Bound::PortBytes));
        let full = (0..8).find_map(|_| {
            let port = Account::default();
            match port.charge(BYTES.most) {
                Ok(charge) => {
                    charges.push(charge);
                    None
                }
                Err(bound) => Some(bound),
            }
        });
        assert_eq!(full, Some(Bound::AllBytes));
        let modest = Account::default();
        let mine: Vec<_> = (0..REGIONS.share)
            .map(|_| modest.charge(BYTES.share / REGIONS.share).unwrap())
            .collect();
        assert_eq!(modest.bytes(), BYTES.share);
        assert_eq!(modest.charge(BYTES.most / 2).map(drop), Err(Bound::AllBytes));
        drop(mine);
        drop(charges);
        assert_eq!((modest.bytes(), greedy[0].bytes()), (0, 0));
        let many: Vec<_> = (0..REGIONS.most).map(|_| modest.charge(4096).unwrap()).collect();
        assert_eq!(modest.charge(4096).map(drop), Err(Bound::PortRegions));
        drop(many);
        modest.charge(BYTES.most).unwrap();
    }
}
