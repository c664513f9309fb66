//! The log lines of a child, on their way to our standard error.
//!
//! A child that was taken over must not be able to write to the user's terminal, fill the disk, or speak in
//! another's name. So its standard error is a pipe, which is read here: lines are cut, counted, cleaned of
//! control characters, and marked with the child's role. The child never waits for us (its end of the pipe
//! does not block), and the supervisor's loop does not wait for the reader of our standard error: each child
//! has a thread here, which ends with it.

use control_protocol::supervisor::Role;
use pacing::{TokenBucket, since_first};
use std::io::Read;
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes of a line that are kept.
const MAX_LINE: usize = 1024;

/// Lines that a child may write in one burst, after silence.
const BURST: u32 = 1000;

/// Lines per second after the burst.
const RATE: u32 = 20;

/// Lines per second when the user asks for more than usual.
const DEBUG_RATE: u32 = 5000;

/// Starts the thread that relays a child's lines until the child closes the pipe. If no thread can be
/// started, the child's lines are lost.
pub fn start(role: Role, pipe: impl Read + Send + 'static) -> Option<JoinHandle<()>> {
    let rate = if log::max_level() > log::LevelFilter::Info {
        DEBUG_RATE
    } else {
        RATE
    };
    let thread = std::thread::Builder::new().name(format!("log-{role}"));
    let started = thread.spawn(move || {
        let mut limit = LineLimit::new(rate);
        lines(pipe, |line| {
            let Some(suppressed) = limit.admit(Instant::now()) else {
                return;
            };
            if suppressed > 0 {
                log::warn!("{role}: {suppressed} log lines were too many and are left out");
            }
            telemetry::relay(role.name(), line);
        });
    });
    started
        .map_err(|error| log::error!("{role}: its log cannot be read: {error}"))
        .ok()
}

/// Cuts the input into lines of at most [`MAX_LINE`] bytes; further bytes of longer lines are left out.
fn lines(mut pipe: impl Read, mut say: impl FnMut(&[u8])) {
    let mut chunk = [0u8; 4096];
    let mut line = Vec::with_capacity(MAX_LINE);
    loop {
        let read = match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in &chunk[..read] {
            match byte {
                b'\n' => {
                    say(&line);
                    line.clear();
                }
                byte if line.len() < MAX_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        say(&line);
    }
}

/// A bound on the lines of one child.
struct LineLimit {
    bucket: TokenBucket,
    suppressed: u64,
}

impl LineLimit {
    fn new(per_second: u32) -> Self {
        LineLimit {
            bucket: TokenBucket::new(BURST, per_second),
            suppressed: 0,
        }
    }

    /// Admits one more line or counts it as left out. If admitted, returns how many were left out before.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if !self.bucket.take(since_first(now)) {
            self.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn relayed(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut said = Vec::new();
        lines(bytes, |line| said.push(line.to_vec()));
        said
    }

    #[test]
    fn lines_are_bounded() {
        assert_eq!(relayed(b"one\ntwo\n\nlast"), [&b"one"[..], b"two", b"", b"last"]);
        let mut endless = vec![b'x'; 10 << 20];
        endless.extend(b"\nnext\n");
        assert_eq!(relayed(&endless), [vec![b'x'; MAX_LINE], b"next".to_vec()]);
    }

    #[test]
    fn a_flood_is_cut_to_its_rate_and_counted() {
        let mut now = Instant::now();
        let mut limit = LineLimit::new(RATE);
        let said = (0..1_000_000).filter(|_| limit.admit(now).is_some()).count();
        assert_eq!(said, 1000);
        now += Duration::from_secs(1);
        assert_eq!(limit.admit(now), Some(999_000));
        let said = (0..1000).filter(|_| limit.admit(now).is_some()).count();
        assert_eq!(said, 19);
        // The number of calls meanwhile does not change the tokens that time adds.
        let mut said = 0;
        for _ in 0..100_000 {
            now += Duration::from_micros(100);
            said += u32::from(limit.admit(now).is_some());
        }
        assert!((199..=201).contains(&said), "{said} in ten seconds");
    }
}
