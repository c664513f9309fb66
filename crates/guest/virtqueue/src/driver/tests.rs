//! The driver side against a device written from the specification in the plainest way, and against a
//! `VecDeque` that says what should be where.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const BASE: u64 = 1 << 32;
const SIZE: u16 = 8;

/// Reads and writes the rings as bytes, with nothing of the driver's code.
struct Device {
    memory: Arc<SharedMemory>,
    layout: Layout,
    seen: u16,
    used: u16,
}

impl Device {
    fn u16(&self, offset: usize) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read(offset, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// Next available descriptor: identifier, address, length, flags.
    fn pop(&mut self) -> Option<(u16, u64, u32, u16)> {
        if self.u16(self.layout.available + 2) == self.seen {
            return None;
        }
        let id = self.u16(self.layout.available + 4 + usize::from(self.seen % SIZE) * 2);
        self.seen = self.seen.wrapping_add(1);
        let mut bytes = [0; 16];
        self.memory
            .read(self.layout.descriptors + usize::from(id) * 16, &mut bytes);
        let address = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        Some((
            id,
            address,
            len,
            u16::from_le_bytes(bytes[12..14].try_into().unwrap()),
        ))
    }

    /// Returns a buffer; says whether the driver wants to be notified.
    fn push(&mut self, id: u32, len: u32) -> bool {
        let entry = self.layout.used + 4 + usize::from(self.used % SIZE) * 8;
        self.memory.write(entry, &id.to_le_bytes());
        self.memory.write(entry + 4, &len.to_le_bytes());
        let event = self.u16(self.layout.available + 4 + usize::from(SIZE) * 2);
        let notify = event == self.used;
        self.used = self.used.wrapping_add(1);
        self.memory.write(self.layout.used + 2, &self.used.to_le_bytes());
        notify
    }

    fn want_kick_at(&mut self, index: u16) {
        self.memory
            .write(self.layout.used + 4 + usize::from(SIZE) * 8, &index.to_le_bytes());
    }
}

fn pair(event_idx: bool) -> (DriverQueue, Device) {
    let layout = Layout::new(100, SIZE);
    let memory = Arc::new(SharedMemory::new("ring", layout.end).unwrap());
    let device = Device {
        memory: memory.clone(),
        layout,
        seen: 0,
        used: 0,
    };
    (DriverQueue::new(memory, layout, BASE, event_idx), device)
}

#[derive(Clone, Debug)]
enum Step {
    Add {
        offset: usize,
        len: usize,
        writable: bool,
    },
    Publish,
    Pop,
    Push {
        pick: usize,
        len: u32,
    },
    Take,
    Enable {
        after: u16,
    },
    Disable,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..1 << 20, 1usize..70_000, any::<bool>())
            .prop_map(|(offset, len, writable)| Step::Add { offset, len, writable }),
        3 => Just(Step::Publish),
        4 => Just(Step::Pop),
        4 => (any::<usize>(), any::<u32>()).prop_map(|(pick, len)| Step::Push { pick, len }),
        4 => Just(Step::Take),
        1 => (0u16..5).prop_map(|after| Step::Enable { after }),
        1 => Just(Step::Disable),
    ]
}

proptest! {
    /// Whatever the order of events, buffers come out at the device as they went in, come back as the device
    /// returned them, and descriptors are neither lost nor used twice.
    #[test]
    fn agrees_with_a_queue_of_buffers(steps in proptest::collection::vec(step(), 1..300)) {
        let (mut driver, mut device) = pair(true);
        // Buffers by where they are: added, published, at the device, returned.
        let mut added = VecDeque::new();
        let mut published = VecDeque::new();
        let mut at_device: Vec<(u16, Span, bool)> = Vec::new();
        let mut returned = VecDeque::new();
        for step in steps {
            match step {
                Step::Add { offset, len, writable } => {
                    let span = Span { offset, len };
                    let access = if writable { Access::Writable } else { Access::Readable };
                    let out = added.len() + published.len() + at_device.len() + returned.len();
                    let id = driver.add(span, access);
                    prop_assert_eq!(id.is_some(), out < usize::from(SIZE));
                    if id.is_some() {
                        added.push_back((span, writable));
                    }
                }
                Step::Publish => {
                    let kick = driver.publish();
                    // The device asked (initially, and never changed) for a kick at index 0.
                    let first = driver.published.wrapping_sub(u16::try_from(added.len()).unwrap()) == 0;
                    prop_assert_eq!(kick, first && !added.is_empty());
                    published.append(&mut added);
                }
                Step::Pop => match (device.pop(), published.pop_front()) {
                    (None, None) => {}
                    (Some((id, address, len, flags)), Some((span, writable))) => {
                        prop_assert_eq!(address, BASE + span.offset as u64);
                        prop_assert_eq!(len as usize, span.len);
                        prop_assert_eq!(flags, if writable { 2 } else { 0 });
                        prop_assert!(at_device.iter().all(|held| held.0 != id));
                        at_device.push((id, span, writable));
                    }
                    other => prop_assert!(false, "device and model differ: {:?}", other),
                },
                Step::Push { pick, len } if !at_device.is_empty() => {
                    let (id, span, writable) = at_device.swap_remove(pick % at_device.len());
                    let len = len % (span.len as u32 + 1);
                    device.push(id.into(), len);
                    returned.push_back((id, span, if writable { len as usize } else { 0 }));
                }
                Step::Push { .. } => {}
                Step::Take => {
                    let expected =
                        returned.pop_front().map(|(id, buffer, written)| Used { id, buffer, written });
                    prop_assert_eq!(driver.take(), Ok(expected));
                }
                Step::Enable { after } => {
                    let enough = returned.len() >= usize::from(after.max(1));
                    prop_assert_eq!(driver.enable_notifications(after), Ok(enough));
                }
                Step::Disable => driver.disable_notifications(),
            }
            let out = added.len() + published.len() + at_device.len() + returned.len();
            prop_assert_eq!(usize::from(driver.outstanding()), out);
            prop_assert_eq!(driver.room() + out, usize::from(SIZE));
        }
    }

    /// Whatever a hostile device writes into the used ring, each buffer comes back at most once and the
    /// driver reports an error instead of inventing one.
    #[test]
    fn survives_any_used_ring(
        given in 1usize..=usize::from(SIZE),
        entries in proptest::collection::vec((0u32..12, any::<u32>()), 0..12),
        index in any::<u16>(),
    ) {
        let (mut driver, mut device) = pair(true);
        for number in 0..given {
            driver.add(Span { offset: number * 100, len: 100 }, Access::Writable).unwrap();
        }
        let _ = driver.publish();
        for (id, len) in entries {
            device.push(id, len);
        }
        if index % 3 == 0 {
            device.memory.write(device.layout.used + 2, &index.to_le_bytes());
        }
        let mut seen = std::collections::HashSet::new();
        while let Ok(Some(used)) = driver.take() {
            prop_assert!(seen.insert(used.id));
            prop_assert!(used.written <= 100);
        }
        prop_assert!(seen.len() <= given);
    }
}

#[test]
fn kicks_when_the_device_asks() {
    let (mut driver, mut device) = pair(true);
    let buffer = Span { offset: 0, len: 64 };
    device.want_kick_at(1);
    driver.add(buffer, Access::Readable);
    assert!(!driver.publish());
    assert!(!driver.publish(), "nothing new, nothing to say");
    driver.add(buffer, Access::Readable);
    driver.add(buffer, Access::Readable);
    assert!(driver.publish(), "index 1 was passed within the batch");
    driver.add(buffer, Access::Readable);
    assert!(!driver.publish());

    let (mut driver, device) = pair(false);
    driver.add(buffer, Access::Readable);
    assert!(driver.publish());
    device.memory.write(device.layout.used, &[1, 0]);
    driver.add(buffer, Access::Readable);
    assert!(!driver.publish());
}

#[test]
fn is_notified_when_it_asks() {
    let (mut driver, mut device) = pair(true);
    for offset in 0..6 {
        driver.add(Span { offset, len: 1 }, Access::Readable);
    }
    let _ = driver.publish();
    let ids: Vec<u32> = std::iter::from_fn(|| device.pop())
        .map(|held| held.0.into())
        .collect();
    assert!(!device.push(ids[0], 0), "off at first");
    assert!(driver.enable_notifications(1).unwrap(), "one was waiting");
    driver.take().unwrap().unwrap();
    assert!(!driver.enable_notifications(2).unwrap());
    assert!(!device.push(ids[1], 0));
    assert!(device.push(ids[2], 0), "the second of two");
    driver.take().unwrap().unwrap();
    driver.take().unwrap().unwrap();
    driver.disable_notifications();
    assert!(!device.push(ids[3], 0));
}

#[test]
fn a_device_that_cheats_is_found_out() {
    let buffer = Span { offset: 0, len: 64 };
    for (id, len, error) in [
        (8, 0, RingError::UsedId(8)),
        (u32::MAX, 0, RingError::UsedId(u32::MAX)),
        (3, 0, RingError::UsedId(3)),
        (0, 65, RingError::UsedLength(65)),
    ] {
        let (mut driver, mut device) = pair(true);
        driver.add(buffer, Access::Writable);
        let _ = driver.publish();
        device.push(id, len);
        assert_eq!(driver.take(), Err(error));
    }
    let (mut driver, mut device) = pair(true);
    driver.add(buffer, Access::Writable);
    driver.add(buffer, Access::Writable);
    let _ = driver.publish();
    device.push(0, 1);
    device.push(0, 1);
    assert_eq!(driver.take().unwrap().unwrap().written, 1);
    assert_eq!(driver.take(), Err(RingError::UsedId(0)), "returned twice");
    let (mut driver, mut device) = pair(true);
    driver.add(buffer, Access::Writable);
    device.push(0, 1);
    assert_eq!(driver.take(), Err(RingError::UsedIndex), "not published yet");
}
