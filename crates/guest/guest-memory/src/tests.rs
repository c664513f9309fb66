use crate::{
    Account, Bound, GuestMemory, GuestRange, MAX_REGIONS, MapError, Messages, Region, copy, fault_count,
    survive_truncation, unmap_apart,
};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

fn file(size: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    file
}

fn memory(regions: &[(u64, u64)]) -> GuestMemory {
    regions
        .iter()
        .fold(GuestMemory::new(), |memory, &(address, size)| {
            memory
                .with(Region::map(address, address + (1 << 40), size, file(size), 0).unwrap())
                .unwrap()
        })
}

#[test]
fn any_offset_can_be_mapped() {
    let file = file(0x10_000);
    rustix::io::pwrite(&file, b"hello", 0x5123).unwrap();
    let region = Region::map(0x1000, 0x7000, 0x2000, &file, 0x5123).unwrap();
    let memory = GuestMemory::new().with(region).unwrap();
    let mut bytes = [0; 5];
    assert_eq!(memory.read(memory.range(0x1000, 100).unwrap(), &mut bytes), 5);
    assert_eq!(&bytes, b"hello");
}

#[test]
fn a_message_is_copied_whole_or_not_at_all() {
    let memory = memory(&[(0, 0x2000)]);
    let range = memory.range(0x1000, 5).unwrap();
    memory.write(range, b"guest");
    let mut messages = Messages::with_capacity(3);
    messages.push_bytes(b"head ");
    messages.push_guest(&memory, range);
    messages.push_bytes(b"!");
    messages.end();
    messages.end();
    messages.push_bytes(b"next");
    messages.end();
    let mut room = [b'.'; 12];
    assert_eq!(messages.copy(0, &mut room[..10]), None);
    assert_eq!(&room, b"............");
    assert_eq!(messages.copy(0, &mut room), Some(11));
    assert_eq!(&room, b"head guest!.");
    assert_eq!(messages.copy(1, &mut []), Some(0));
    assert_eq!(messages.copy(2, &mut room), Some(4));
    assert_eq!(&room, b"next guest!.");
    assert_eq!(messages.copy(3, &mut room), None);
}

#[test]
fn impossible_regions_are_refused() {
    let map = |guest, front_end, size, offset| Region::map(guest, front_end, size, file(0x4000), offset);
    assert!(matches!(map(0, 0, 0, 0), Err(MapError::Range { .. })));
    assert!(matches!(map(u64::MAX, 0, 2, 0), Err(MapError::Range { .. })));
    assert!(matches!(
        map(0, u64::MAX - 1, 0x1000, 0),
        Err(MapError::Range { .. })
    ));
    assert!(matches!(map(0, 0, 0x1000, u64::MAX), Err(MapError::Range { .. })));
    assert!(matches!(map(0, 0, 0x4000, 1), Err(MapError::Short { .. })));
    assert!(matches!(map(0, 0, 1 << 60, 0), Err(MapError::Short { .. })));
    let (pipe, _keep) = rustix::pipe::pipe().unwrap();
    assert!(matches!(Region::map(0, 0, 0x1000, pipe, 0), Err(MapError::Kind)));
    // A file that could be mapped, but is not the kernel's own to answer for.
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("memory-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let disk = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    disk.set_len(0x1000).unwrap();
    assert!(matches!(Region::map(0, 0, 0x1000, disk, 0), Err(MapError::Kind)));
}

#[test]
fn overlap_and_excess_are_refused() {
    let base = memory(&[(0x1000, 0x1000)]);
    let at = |guest, front_end| base.with(Region::map(guest, front_end, 0x1000, file(0x1000), 0).unwrap());
    assert!(matches!(at(0x1fff, 0), Err(MapError::Overlap)));
    assert!(matches!(at(0x9000, (1 << 40) + 0x1800), Err(MapError::Overlap)));
    assert!(at(0x2000, 0).is_ok());
    let regions: Vec<_> = (0..MAX_REGIONS as u64).map(|i| (i << 16, 0x1000)).collect();
    let full = memory(&regions);
    let one_more = Region::map(1 << 39, 0, 0x1000, file(0x1000), 0).unwrap();
    assert!(matches!(full.with(one_more), Err(MapError::TooMany)));
}

#[test]
fn a_removed_region_is_out_of_reach_but_stays_for_who_still_has_it() {
    let before = memory(&[(0, 0x1000), (0x1000, 0x1000)]);
    let range = before.range(0x1000, 8).unwrap();
    let after = before.without(0x1000, 0x1000 + (1 << 40), 0x1000).unwrap();
    assert!(before.without(0x1000, 0, 0x1000).is_none());
    assert_eq!(after.range(0x1000, 8), None);
    assert_eq!(
        after.write(range, b"x"),
        0,
        "the range names a region that the set does not have"
    );
    assert_eq!(before.write(range, b"x"), 1);
}

#[test]
fn truncation_breaks_the_region_and_nothing_else() {
    survive_truncation().unwrap();
    let short = file(0x2000);
    let broken = GuestMemory::new()
        .with(Region::map(0, 0, 0x2000, &short, 0).unwrap())
        .unwrap();
    let whole = memory(&[(0, 0x1000)]);
    let range = broken.range(0x1000, 4).unwrap();
    broken.write(range, b"data");
    ftruncate(&short, 0).unwrap();
    let faults = fault_count();
    let mut bytes = [7; 4];
    assert_eq!(broken.read(range, &mut bytes), 4);
    assert_eq!(bytes, [0; 4]);
    assert!(fault_count() > faults);
    assert!(broken.is_broken() && !whole.is_broken());
    assert_eq!(copy(&broken, range, &whole, whole.range(0, 4).unwrap()), 4);
}

/// A sparse file of any size costs its owner nothing, and would take the whole address space.
#[test]
fn a_sparse_file_does_not_take_the_address_space() {
    let _turn = crate::budget::TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let account = Account::default();
    let sparse = file((1 << 46) + 4096);
    let mut memory = GuestMemory::new();
    let refused = (0..MAX_REGIONS as u64).find_map(|number| {
        let at = number << 42;
        match account.map(at, at, 1 << 42, &sparse, 4096) {
            Ok(region) => {
                memory = memory.with(region).unwrap();
                None
            }
            Err(error) => Some(error),
        }
    });
    assert!(
        matches!(
            refused,
            Some(MapError::Budget {
                bound: Bound::PortBytes,
                ..
            })
        ),
        "{refused:?}"
    );
    // Others are mapped all the same.
    let other = Account::default();
    let small = other.map(0, 0, 1 << 30, file(1 << 30), 0).unwrap();
    assert_eq!(other.bytes(), 1 << 30);
    drop((memory, small));
    eventually("it is given back", || account.bytes() + other.bytes() == 0);
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !done() {
        assert!(std::time::Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_set_that_is_whole_is_not_searched_twice() {
    survive_truncation().unwrap();
    let whole = memory(&[(0, 0x1000)]);
    let short = file(0x1000);
    let region = Region::map(0, 0, 0x1000, &short, 0).unwrap();
    let broken = GuestMemory::new().with(region).unwrap();
    ftruncate(&short, 0).unwrap();
    broken.write(broken.range(0, 1).unwrap(), b"x");
    assert!(!whole.is_broken() && broken.is_broken());
    assert!(
        whole.whole_at.load(std::sync::atomic::Ordering::Relaxed) > 0,
        "the look is remembered"
    );
    assert!(broken.is_broken(), "and what is broken stays so");
}

/// The thread that drops the last reference does not unmap.
#[test]
fn unmapping_is_left_to_a_thread() {
    unmap_apart().unwrap();
    unmap_apart().unwrap();
    let account = Account::default();
    let region = account.map(0, 0, 0x10_0000, file(0x10_0000), 0).unwrap();
    let memory = GuestMemory::new().with(region).unwrap();
    let held = crate::unmap::pause::HOLD.lock().unwrap();
    drop(memory);
    assert_eq!(account.bytes(), 0x10_0000, "it is still mapped");
    drop(held);
    eventually("it is unmapped", || account.bytes() == 0);
}

proptest! {
    /// Twin: guest memory as one sparse byte array.
    #[test]
    fn ranges_and_copies_match_a_flat_model(
        operations in prop::collection::vec((0u64..0x5000, 0u32..0x3000, 0u64..0x5000, any::<u8>()), 1..40),
    ) {
        let regions = [(0u64, 0x1000u64), (0x1000, 0x1800), (0x3000, 0x1000)];
        let memory = memory(&regions);
        let mut model = vec![0u8; 0x8000];
        let end = |address: u64| regions.iter().find(|r| address >= r.0 && address < r.0 + r.1).map(|r| r.0 + r.1);
        for (source, len, target, byte) in operations {
            let expected = |address: u64| end(address).map_or(0, |end| u64::from(len).min(end - address));
            let [from, to] = [source, target].map(|address| memory.range(address, len));
            prop_assert_eq!(from.map_or(0, |r| u64::from(r.len())), expected(source));
            let (Some(from), Some(to)) = (from, to) else { continue };
            memory.write(from, &[byte]);
            model[source as usize] = byte;
            let copied = copy(&memory, from, &memory, to);
            prop_assert_eq!(copied as u64, expected(source).min(expected(target)));
            model.copy_within(source as usize..source as usize + copied, target as usize);
        }
        for (address, size) in regions {
            let mut bytes = vec![0; size as usize];
            memory.read(memory.range(address, size as u32).unwrap(), &mut bytes);
            prop_assert_eq!(&bytes[..], &model[address as usize..(address + size) as usize]);
        }
    }

    /// Twin: slices. Neither direction touches what lies around.
    #[test]
    fn copies_of_any_length_are_exact(len in 0usize..300, at in 0u64..64) {
        let memory = memory(&[(0, 0x1000)]);
        let bytes: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
        let range = memory.range(0x100 + at, 0x400).unwrap();
        prop_assert_eq!(memory.write(range, &bytes), len);
        let surroundings = memory.range(0x100 + at - 16, 0x400).unwrap();
        let mut around = vec![0; len + 32];
        memory.read(surroundings, &mut around);
        prop_assert_eq!(&around, &[&[0; 16][..], &bytes, &[0; 16]].concat());
        let mut back = vec![0xee; len + 16];
        prop_assert_eq!(memory.read(range, &mut back[8..8 + len]), len);
        prop_assert_eq!(back, [&[0xee; 8][..], &bytes, &[0xee; 8]].concat());
    }

    /// Twin: slices.
    #[test]
    fn a_prefix_and_what_follows_are_written_as_one(
        at in 10usize..=12,
        from in prop::collection::vec(1u8..0xaa, 2..300),
        room in 1u32..320,
    ) {
        let memory = memory(&[(0, 0x1000)]);
        let written = memory.write_both(memory.range(0x100, room).unwrap(), &[0xaa; 12], at, &from);
        let expected = [&[0xaa; 12][..at], &from].concat();
        let most = if room < 12 { at } else { expected.len() };
        prop_assert_eq!(written, most.min(room as usize));
        let mut around = [0; 512];
        memory.read(memory.range(0x100 - 16, 512).unwrap(), &mut around);
        prop_assert_eq!(&around[..16], &[0; 16]);
        prop_assert_eq!(&around[16..16 + written], &expected[..written]);
        prop_assert!(around[16 + written..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn split_and_join_are_inverse(len in 1u32..1000, at in 0u32..2000) {
        let range = memory(&[(0, 0x1000)]).range(16, len).unwrap();
        let (head, tail) = range.split_at(at);
        prop_assert_eq!(head.len() + tail.len(), len);
        prop_assert_eq!(head.join(tail), Some(range));
        prop_assert!(tail.len() == 0 || tail.join(head).is_none());
        prop_assert_ne!(GuestRange::default(), range);
    }
}
