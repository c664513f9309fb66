//! `hyperswitch capture`: from the data plane's socket into a file.
//!
//! Packets do not pass through the control process: the socket on which the data plane writes them is handed
//! over, and the data plane drops (and counts) what is not read in time. Ends with the requested count or
//! time, a signal, the reader of standard output, or the port.

use super::Session;
use crate::capture_file::Writer;
use crate::cli::CaptureArgs;
use crate::output;
use anyhow::{Context, Result};
use control_protocol::data_plane::CapturedPacket;
use control_protocol::{Channel, ChannelError};
use process::{Signal, Signals};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Captures, and says on standard error how much it was.
///
/// # Errors
/// When the instance refuses or the file cannot be written.
pub fn run(session: &mut Session<'_>, args: &CaptureArgs) -> Result<()> {
    let signals = Signals::new().context("cannot receive signals")?;
    let channel = session.client()?.capture(&args.port, args.snap_length)?;
    let file: Box<dyn Write> = if args.write == Path::new("-") {
        Box::new(std::io::stdout().lock())
    } else {
        let file = std::fs::File::create(&args.write);
        Box::new(file.with_context(|| format!("cannot create {}", args.write.display()))?)
    };
    let mut writer = Writer::new(
        BufWriter::with_capacity(1 << 20, file),
        &args.port,
        args.snap_length,
    )?;
    // The reader of standard output should see the header at once, not with the first packet.
    writer.flush()?;
    eprintln!("capturing port {}, Ctrl-C ends", args.port);
    let limits = Limits {
        count: args.count.unwrap_or(u64::MAX),
        end: args
            .duration
            .map(|seconds| Instant::now() + Duration::from_secs(seconds)),
    };
    let seen = copy(&channel, &mut writer, &limits, &signals)?;
    let packets = output::counted(seen.packets, "packet");
    eprintln!("{packets} captured, {} lost", seen.lost);
    if session.json && args.write != Path::new("-") {
        output::json(&seen)?;
    }
    Ok(())
}

/// When to end.
struct Limits {
    count: u64,
    end: Option<Instant>,
}

/// Counts of a capture.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Captured")]
pub struct Seen {
    /// Packets in the file.
    packets: u64,
    /// Packets that came too fast for it.
    lost: u64,
}

fn copy(
    channel: &Channel,
    writer: &mut Writer<impl Write>,
    limits: &Limits,
    signals: &Signals,
) -> Result<Seen> {
    let mut seen = Seen::default();
    while seen.packets < limits.count {
        match channel.try_recv::<CapturedPacket>() {
            Ok((packet, _)) => {
                writer.packet(&packet)?;
                seen.packets += 1;
                seen.lost += packet.lost;
            }
            Err(ChannelError::WouldBlock) => {
                writer.flush()?;
                if !wait(channel, limits.end, signals)? {
                    break;
                }
            }
            Err(ChannelError::Closed) => {
                eprintln!("the port or the data plane is gone");
                break;
            }
            Err(error) => return Err(error.into()),
        }
        // A port that is never idle must not keep the capture going for ever.
        if limits.end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    writer.flush()?;
    Ok(seen)
}

/// Waits for packets; false when it is time to end.
fn wait(channel: &Channel, end: Option<Instant>, signals: &Signals) -> Result<bool> {
    let timeout = end.map(|end| end.saturating_duration_since(Instant::now()));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let mut fds = [
        PollFd::new(channel, PollFlags::IN),
        PollFd::new(signals, PollFlags::IN),
    ];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(0) => return Ok(false),
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    while let Some(signal) = signals.take()? {
        if signal == Signal::Terminate {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control_protocol::data_plane::CaptureDirection;

    #[test]
    fn ends_by_count_by_time_and_with_the_port() {
        let signals = Signals::new().unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        let packet = CapturedPacket {
            time_ns: 1,
            direction: CaptureDirection::ToGuest,
            dropped: None,
            length: 60,
            lost: 2,
            vnet_header: [0; 12],
            frame: vec![0; 60],
        };
        (0..3).for_each(|_| theirs.send(&packet, &[]).unwrap());
        let mut writer = Writer::new(Vec::new(), "p", 100).unwrap();
        let mut run = |count, end| copy(&ours, &mut writer, &Limits { count, end }, &signals).unwrap();
        assert_eq!(run(1, None), Seen { packets: 1, lost: 2 });
        let started = Instant::now();
        let soon = started + Duration::from_millis(50);
        assert_eq!(run(u64::MAX, Some(soon)), Seen { packets: 2, lost: 4 });
        assert!(started.elapsed() >= Duration::from_millis(50));
        drop(theirs);
        assert_eq!(run(u64::MAX, None), Seen::default());
    }
}
