//! What others notice of work: the longest time that a single packet between two ports takes meanwhile.

use crate::machine::on_processor;
use anyhow::{Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::PollingGuest;
use testbed::polling::{Frame, HEADER_LEN};

/// A frame must have arrived by then.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Stations at port 0 and at port 1 of those who notice.
const STATIONS: [u32; 2] = [10, 11];
/// A station is known this long after its first frame.
const LEARNING: Duration = Duration::from_millis(50);

/// The longest time of a frame from port 0 to port 1 while `work` is done elsewhere, and what that returns.
/// The guest has a processor; who works may be anywhere.
pub fn during<T: Send>(
    guest: &mut PollingGuest,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<(Duration, T)> {
    let [from, to] = STATIONS;
    // Frames to a station that is not known go everywhere, and not many a second may.
    guest.send(1, &Frame::udp(64, to, from))?;
    guest.flush(1);
    let begin = Instant::now();
    while begin.elapsed() < LEARNING {
        // Frames of others may wait in front.
        for port in 0..2 {
            guest.receive(port, usize::MAX, |_| ())?;
        }
    }
    let frame = &Frame::udp(64, from, to);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        });
        let delay = on_processor(0, || longest(guest, frame, || done.load(Ordering::Relaxed)));
        let result = working.join().expect("the work does not panic")?;
        Ok((delay?, result))
    })
}

/// The longest time that a frame takes, of frames that are sent one after the other until the end.
pub fn longest(guest: &mut PollingGuest, frame: &Frame, end: impl Fn() -> bool) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    while !end() {
        longest = longest.max(one_way(guest, [0, 1], frame)?);
    }
    Ok(longest)
}

/// Sends a frame from a port, and waits until it is at another.
pub fn one_way(guest: &mut PollingGuest, [from, to]: [usize; 2], frame: &Frame) -> Result<Duration> {
    let begin = Instant::now();
    guest.send(from, frame)?;
    guest.flush(from);
    let mut arrived = false;
    let destination = &frame.bytes()[HEADER_LEN..][..6];
    while !arrived {
        ensure!(
            begin.elapsed() < TIMEOUT,
            "a packet of a bystander does not arrive"
        );
        guest.receive(to, 64, |bytes| arrived |= bytes.starts_with(destination))?;
    }
    Ok(begin.elapsed())
}
