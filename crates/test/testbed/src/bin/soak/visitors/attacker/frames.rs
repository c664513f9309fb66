//! A guest on everybody's switch that uses up what guests share, in frames without a fault: floods of one
//! neighbour and of all, ever new stations, a neighbour's address, headers that take long to parse, and large
//! frames of tiny segments.

use super::Harm;
use crate::pair::options;
use anyhow::{Context, Result};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testbed::Switch;
use testbed::polling::{Frame, HEADER_LEN, PollingGuest};

/// The attacker's number as a station; nobody has [`NOBODY`].
const OWN: u32 = 900;
const NOBODY: u32 = 901;

/// Largest frame in bytes, and the payload of each of its segments.
const LARGE: usize = 60_000;
const SEGMENT: u16 = 8;

/// Frames of one misdeed at most, and the time between two: a driver that polls takes a whole processor.
const FRAMES: u32 = 2000;
const REST: Duration = Duration::from_millis(200);

/// IPv6 extension headers of a frame, of eight bytes each.
const HEADERS: usize = 150;

/// Connects to the port.
pub(super) fn arrive(switch: &Switch, port: &'static str, random: Rng) -> Result<Harm> {
    let guest = PollingGuest::connect(&[switch.socket(port)], LARGE)?;
    let victims = ["a", "b"].map(|name| mac_of(switch, name));
    Ok(Box::new(move |stop| misbehave(guest, &victims, random, stop)))
}

/// Address of the guest of the pair that is named so.
fn mac_of(switch: &Switch, name: &str) -> [u8; 6] {
    let text = options(switch, name, 0).mac;
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    std::array::from_fn(|_| bytes.next().and_then(Result::ok).expect("guests have addresses"))
}

fn misbehave(mut guest: PollingGuest, victims: &[[u8; 6]], mut random: Rng, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let (kind, victim) = (random.u8(..6), random.choice(victims).context("there are two")?);
        for _ in 0..random.u32(1..FRAMES) {
            while !guest.send(0, &misdeed(kind, victim, &mut random))? && !stop.load(Ordering::Relaxed) {
                guest.flush(0);
                guest.receive(0, usize::MAX, |_| ())?;
            }
        }
        guest.flush(0);
        guest.receive(0, usize::MAX, |_| ())?;
        thread::sleep(REST);
    }
    Ok(())
}

fn misdeed(kind: u8, victim: &[u8; 6], random: &mut Rng) -> Frame {
    let mut small = Frame::udp(60, OWN, NOBODY);
    match kind {
        0 => {}
        1 => return Frame::large_tcp(LARGE, SEGMENT, OWN, NOBODY),
        2 => small.scramble(random.u64(..)),
        3 => return patched(&small, 0, &[0xff; 6]),
        4 => return patched(&small, 6, victim),
        _ => return patched(&deep(), 0, victim),
    }
    patched(&small, 0, victim)
}

/// The frame with other bytes from `at` on.
fn patched(frame: &Frame, at: usize, bytes: &[u8]) -> Frame {
    let mut frame = frame.bytes()[HEADER_LEN..].to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    Frame::raw(&frame)
}

/// IPv6 whose transport header lies behind many destination options (RFC 8200, 4.6).
fn deep() -> Frame {
    const OPTIONS: u8 = 60;
    const UDP: u8 = 17;
    let mut frame = Frame::udp(60, OWN, NOBODY).bytes()[HEADER_LEN..][..12].to_vec();
    let payload = u16::try_from(8 * HEADERS + 8).expect("headers fit into a packet");
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(payload.to_be_bytes());
    frame.extend([OPTIONS, 64]);
    frame.extend([0xfd; 32]);
    for left in (0..HEADERS).rev() {
        // Four bytes of padding (PadN).
        frame.extend([if left == 0 { UDP } else { OPTIONS }, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend([0x13, 0x88, 0x13, 0x89, 0, 8, 0, 0]);
    Frame::raw(&frame)
}
