//! What a host's operator costs: the loop of [`packet_loop`] with a scrape of all metrics once a second and
//! `top` beside it, and without both.
//!
//! The switch with watchers has the process `view`, which the other one lacks. Watchers run while theirs is
//! measured, and no longer: the contenders take turns.

use super::packet_loop::{self, PORTS, measure};
use super::{Case, Rig};
use crate::Effort;
use crate::contender::{Contender, HYPERSWITCH, VIEW, WATCHED};
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use testbed::polling::Traffic;
use testbed::{PollingGuest, Switch};

pub const CASE: Case = Case {
    name: "watched",
    about: "the loop with metrics scraped and `top` once a second, and without",
    axis: "frame bytes",
    contenders: &[WATCHED, HYPERSWITCH],
    run,
    ..packet_loop::CASE
};

/// Time between scrapes, and between screens of `top`.
const INTERVAL: Duration = Duration::from_secs(1);
/// One measurement, with a few scrapes.
const TURN: Duration = Duration::from_secs(4);

fn run(effort: &Effort, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let effort = &Effort {
        short: TURN,
        ..*effort
    };
    let rigs = Rig::start_all(contenders, record, &PORTS, |network, ports| {
        PollingGuest::connect(&network.sockets(ports)?, 1514)
    })?;
    let points = [("64 io".to_owned(), Traffic::new(64))];
    Rig::sweep(rigs, record, &points, |network, guest, traffic| {
        let watchers = network.watched().map(Watchers::start).transpose()?;
        let measured = measure(effort, network, guest, traffic);
        watchers.map_or(Ok(()), Watchers::stop)?;
        measured
    })
}

/// A scraper and a `top`.
struct Watchers {
    top: Child,
    stop: Sender<()>,
    scraper: JoinHandle<Result<()>>,
}

impl Watchers {
    fn start(switch: &Switch) -> Result<Watchers> {
        let top = Command::new(switch.binary())
            .arg("--run-dir")
            .arg(switch.run_dir())
            .arg("top")
            .stdout(Stdio::null())
            .spawn()?;
        let (stop, stopped) = channel();
        let scraper = thread::spawn(move || {
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                scrape()?;
            }
            Ok(())
        });
        Ok(Watchers { top, stop, scraper })
    }

    /// Ends both; an error if one had ended by itself.
    fn stop(mut self) -> Result<()> {
        ensure!(self.top.try_wait()?.is_none(), "`top` has ended");
        self.top.kill()?;
        self.top.wait()?;
        drop(self.stop);
        self.scraper.join().ok().context("the scraper has panicked")?
    }
}

fn scrape() -> Result<()> {
    let mut stream = UnixStream::connect(VIEW)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.contains("\nhyperswitch_port_received_total{"),
        "a scrape says: {text:.200}"
    );
    Ok(())
}
