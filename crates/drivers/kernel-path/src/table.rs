//! The table in the data plane, and its making and wiping in the supervisor.

use crate::layout::{ARMED, Area, Entry, LIVE, SETS, WAYS, bucket, end_index};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};

/// How long a grace period is waited for before the kernel is asked for one. It knows its programs alone, and
/// not the threads that stand for them in tests.
const LONGEST_WAIT: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 1 });

/// What an entry is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The port from which frames come.
    pub from: u32,
    /// Source address.
    pub source: [u8; 6],
    /// Destination address.
    pub destination: [u8; 6],
}

impl Key {
    /// The words by which the program compares.
    fn words(&self) -> [u64; 2] {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.destination, self.source);
        let tail = u64::from(u32::from_le_bytes([i, j, k, l]));
        let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        [first, tail | u64::from(end_index(self.from)) << 32]
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(usize);

/// State of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Frames go to the TAP.
    Withdrawn,
    /// Frames go to the TAP; so many have.
    Armed(u64),
    /// Frames go to the other container.
    Live,
}

/// Makes the map, with a secret seed. Takes CAP_BPF.
///
/// # Errors
///
/// The process may not, or the kernel has no memory.
pub fn create() -> io::Result<OwnedFd> {
    use rustix::fd::AsFd;
    let map = ebpf::create_mappable("hs_kernel_path", size_of::<Area>())?;
    Mapping::new(map.as_fd())?.seed.store(secret(), Relaxed);
    Ok(map)
}

/// A number that nobody else knows.
fn secret() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Withdraws all entries of the map of a data plane that has ended. No grace period is waited for.
///
/// # Errors
///
/// The map cannot be mapped.
pub fn wipe(map: BorrowedFd<'_>) -> io::Result<()> {
    let area = Mapping::new(map)?;
    area.entries
        .iter()
        .for_each(|entry| entry.state.store(0, Release));
    Ok(())
}

struct Mapping(NonNull<Area>);

// SAFETY: the area consists of atomics, and the mapping is changed only by `drop`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: BorrowedFd<'_>) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Area>(),
                protection,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let area = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Mapping(area))
    }
}

impl std::ops::Deref for Mapping {
    type Target = Area;

    fn deref(&self) -> &Area {
        // SAFETY: the mapping is as long as an `Area`, page-aligned, lives as long as `self`, and cannot
        // shrink, as BPF maps cannot. Any bytes are an `Area`, which consists of integers that are read and
        // written atomically, by the program as well.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives `self`. It fails only for other
        // addresses.
        let _ = unsafe { munmap(self.0.as_ptr().cast::<c_void>(), size_of::<Area>()) };
    }
}

/// Waits until the kernel has ended all programs that were under way (`synchronize_rcu`), some 10 ms.
fn wait_for_kernel() {
    // SAFETY: membarrier(2) with this command has no effect on memory but order.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// The table, to be changed by one thread at a time.
pub struct Table {
    area: Mapping,
    /// The set of counters that programs use.
    set: usize,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl Table {
    /// Maps the table of a map whose earlier data plane has ended. Whatever that one has left is withdrawn,
    /// programs count where it has written nothing, and seed and entries are new ones. Takes some 20 ms.
    ///
    /// # Errors
    ///
    /// The descriptor is none of such a map.
    pub fn map(map: BorrowedFd<'_>) -> io::Result<Table> {
        wipe(map)?;
        let area = Mapping::new(map)?;
        // No program is left that began before the earlier data plane's end, so all use the present set.
        wait_for_kernel();
        let set = (area.set.load(SeqCst) as usize & (SETS - 1)) ^ 1;
        for core in &area.grace[set] {
            core.begun.store(0, Relaxed);
            core.decided.store(0, Relaxed);
        }
        area.seed.store(secret(), Relaxed);
        area.set.store(set as u64, SeqCst);
        wait_for_kernel();
        for entry in &area.entries {
            entry.state.store(0, Relaxed);
            entry.first.store(0, Relaxed);
            entry.second.store(0, Relaxed);
        }
        Ok(Table { area, set })
    }

    fn entry(&self, place: Place) -> &Entry {
        &self.area.entries[place.0]
    }

    /// The places where a key may be.
    pub fn places(&self, key: &Key) -> [Place; WAYS] {
        let [first, second] = key.words();
        let bucket = bucket(self.area.seed.load(Relaxed), first, second) * WAYS;
        std::array::from_fn(|way| Place(bucket + way))
    }

    /// Has a withdrawn entry be one for a key, of which it is one of the [places](Self::places): frames go to
    /// the port `to` if they have `longest` bytes at most.
    pub fn fill(&self, place: Place, key: &Key, to: u32, longest: u32) {
        let [first, second] = key.words();
        let entry = self.entry(place);
        entry.first.store(first, Relaxed);
        entry.second.store(second, Relaxed);
        entry.to.store(to, Relaxed);
        entry.longest.store(longest, Relaxed);
        entry.packets.store(0, Relaxed);
        entry.bytes.store(0, Relaxed);
    }

    /// Sets the longest frame of an entry that is withdrawn.
    pub fn set_longest(&self, place: Place, longest: u32) {
        self.entry(place).longest.store(longest, Relaxed);
    }

    /// The longest frame of an entry.
    pub fn longest(&self, place: Place) -> u32 {
        self.entry(place).longest.load(Relaxed)
    }

    /// Arms an entry that is withdrawn.
    pub fn arm(&self, place: Place) {
        self.entry(place).state.store(ARMED, Release);
    }

    /// An entry's state.
    pub fn state(&self, place: Place) -> State {
        match self.entry(place).state.load(Acquire) {
            0 => State::Withdrawn,
            LIVE => State::Live,
            armed => State::Armed((armed - ARMED) / ARMED),
        }
    }

    /// Makes an entry live if it is armed and exactly so many frames have come since. False if it is not.
    pub fn make_live(&self, place: Place, frames: u64) -> bool {
        let armed = ARMED.wrapping_mul(frames.wrapping_add(1));
        let state = &self.entry(place).state;
        state.compare_exchange(armed, LIVE, SeqCst, Relaxed).is_ok()
    }

    /// Packets and bytes that an entry has sent.
    pub fn counts(&self, place: Place) -> [u64; 2] {
        let entry = self.entry(place);
        [&entry.packets, &entry.bytes].map(|count| count.load(Acquire))
    }

    /// Withdraws entries: when this returns, no program uses them, and their counts are final. Returns how
    /// long that took.
    pub fn withdraw(&self, places: &[Place]) -> Duration {
        let since = Instant::now();
        // An armed entry may be counted once more, and be armed again, by a program that is under way.
        let end = |place: &&Place| self.entry(**place).state.swap(0, SeqCst) != 0;
        while places.iter().filter(end).count() > 0 {
            self.wait();
        }
        since.elapsed()
    }

    /// Waits until no program is under way that was before.
    fn wait(&self) {
        fence(SeqCst);
        let cores = &self.area.grace[self.set];
        let begun: Vec<u64> = cores.iter().map(|core| core.begun.load(SeqCst)).collect();
        let is_over = || {
            let mut all = cores.iter().zip(&begun);
            all.all(|(core, begun)| core.decided.load(Acquire).wrapping_sub(*begun).cast_signed() >= 0)
        };
        let since = Instant::now();
        while !is_over() {
            std::hint::spin_loop();
            if since.elapsed() > LONGEST_WAIT {
                // The core of a virtual machine may be away, or an earlier data plane has broken the
                // counters.
                return wait_for_kernel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    const KEY: Key = Key {
        from: 3,
        source: [2, 0, 0, 0, 0, 1],
        destination: [2, 0, 0, 0, 0, 2],
    };

    /// Memory in the place of a map.
    fn memory() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size_of::<Area>() as u64).unwrap();
        file
    }

    fn filled(table: &Table) -> Place {
        let place = table.places(&KEY)[0];
        table.fill(place, &KEY, 4, 1514);
        place
    }

    #[test]
    fn a_key_has_the_bytes_of_the_frame() {
        let frame = [KEY.destination, KEY.source].concat();
        let [first, second] = KEY.words();
        assert_eq!(first.to_le_bytes(), frame[..8]);
        assert_eq!(second.to_le_bytes()[..4], frame[8..]);
        assert_eq!(second >> 32, u64::from(end_index(3)));
    }

    #[test]
    fn places_of_a_key_are_those_that_are_compared() {
        let file = memory();
        let table = Table::map(file.as_fd()).unwrap();
        let places = table.places(&KEY);
        for (number, place) in places.iter().enumerate() {
            assert_eq!(place.0, places[0].0 + number);
            table.fill(*place, &KEY, number as u32, 1514);
        }
        assert_eq!(places[0].0 % WAYS, 0);
        assert_eq!(table.entry(places[5]).to.load(Relaxed), 5);
    }

    #[test]
    fn an_entry_becomes_live_only_if_no_frame_has_come() {
        let file = memory();
        let table = Table::map(file.as_fd()).unwrap();
        let place = filled(&table);
        assert!(!table.make_live(place, 0), "it is not armed");
        table.arm(place);
        assert_eq!(table.state(place), State::Armed(0));
        table.entry(place).state.fetch_add(ARMED, Relaxed);
        assert!(!table.make_live(place, 0));
        assert_eq!(table.state(place), State::Armed(1));
        assert!(table.make_live(place, 1));
        assert_eq!(table.state(place), State::Live);
        table.withdraw(&[place]);
        assert_eq!(table.state(place), State::Withdrawn);
        // The next data plane, or the supervisor, finds nothing.
        table.arm(place);
        wipe(file.as_fd()).unwrap();
        assert_eq!(table.state(place), State::Withdrawn);
        table.arm(place);
        let next = Table::map(file.as_fd()).unwrap();
        assert_eq!(next.state(place), State::Withdrawn);
    }

    /// Counters say that programs are under way on all cores, and always will be.
    #[test]
    fn a_data_plane_that_leaves_garbage_holds_up_no_later_one() {
        let file = memory();
        let mut seeds = Vec::new();
        for _ in 0..4 {
            let earlier = Table::map(file.as_fd()).unwrap();
            let place = filled(&earlier);
            seeds.push(earlier.area.seed.load(Relaxed));
            earlier.arm(place);
            for core in earlier.area.grace.iter().flatten() {
                core.begun.store(u64::MAX / 2, Relaxed);
                core.decided.store(0, Relaxed);
            }
            earlier.area.set.store(u64::MAX, Relaxed);
            drop(earlier);
            let next = Table::map(file.as_fd()).unwrap();
            assert_eq!(next.area.set.load(Relaxed), next.set as u64);
            let place = filled(&next);
            next.arm(place);
            assert!(next.withdraw(&[place]) < Duration::from_secs(1));
        }
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 4, "what one knows of the hash is of no use later");
    }

    /// A thread does what the program does, with a long time between its look and its count.
    #[test]
    fn nobody_uses_an_entry_after_it_was_withdrawn() {
        let file = memory();
        let table = Arc::new(Table::map(file.as_fd()).unwrap());
        let place = filled(&table);
        let (ends, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let program = {
            let (table, ends, turns) = (table.clone(), ends.clone(), turns.clone());
            std::thread::spawn(move || {
                while !ends.load(Relaxed) {
                    let core = &table.area.grace[table.set][7];
                    core.begun.fetch_add(1, SeqCst);
                    if table.entry(place).state.load(Acquire) == LIVE {
                        (0..2_000).for_each(|_| std::hint::spin_loop());
                        table.entry(place).packets.fetch_add(1, SeqCst);
                        turns.fetch_add(1, Relaxed);
                    }
                    core.decided.fetch_add(1, SeqCst);
                }
            })
        };
        for _ in 0..200 {
            table.arm(place);
            assert!(table.make_live(place, 0));
            let before = turns.load(Relaxed);
            while turns.load(Relaxed) == before {
                std::thread::yield_now();
            }
            table.withdraw(&[place]);
            let last = table.counts(place);
            let since = Instant::now();
            while since.elapsed() < Duration::from_micros(200) {
                std::hint::spin_loop();
            }
            assert_eq!(table.counts(place), last);
        }
        ends.store(true, Relaxed);
        program.join().unwrap();
    }
}
