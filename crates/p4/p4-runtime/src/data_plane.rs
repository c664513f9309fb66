//! Connections to the data plane, one for each device, by which packets come and go without the control
//! process.
//!
//! A thread of its own reads a connection, and waits while the thread that has the service is busy: what does
//! not fit into the socket meanwhile, the data plane drops and counts. Connections are made again a moment
//! after they have ended, as long as clients are there.
//!
//! | state | may become |
//! |---|---|
//! | apart | joined; waiting, when the instance has no version of the device, or no data plane |
//! | joined | waiting, when the data plane has ended or the P4 switch is gone |
//! | waiting | apart, a moment later |

use crate::failure::{Done, Failure};
use crate::jobs::Job;
use control_protocol::p4::ToP4;
use control_protocol::{Channel, ChannelError};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::mpsc::WeakSender;

/// Time until a connection is made again.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module's description.
#[derive(Debug, Default)]
pub enum Link {
    /// There is no connection.
    #[default]
    Apart,
    /// A connection.
    Joined(Arc<Channel>),
    /// There was none; it is time again when the thread that waits says so.
    Waiting,
}

impl Link {
    /// Ends the connection, of which the thread that reads it says when it is time for another one.
    #[must_use]
    pub fn parted(self) -> Link {
        match self {
            Link::Joined(channel) => {
                // Shutting down fails if the other end is closed already.
                let _ = rustix::net::shutdown(&*channel, rustix::net::Shutdown::Both);
                Link::Waiting
            }
            other => other,
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The data plane does not take it now.
    pub fn send(&self, message: &ToP4) -> Done<()> {
        let Link::Joined(channel) = self else {
            return Err(crate::packets::apart());
        };
        channel.try_send(message, &[]).map_err(|error| match error {
            ChannelError::WouldBlock => Failure::exhausted("the data plane takes no more packets now"),
            _ => crate::packets::apart(),
        })
    }
}

/// Has a thread read a connection, or wait without one, and say when it is time for the next one.
pub fn watch(device: u64, channel: Option<Arc<Channel>>, jobs: WeakSender<Job>) {
    let read = move || {
        if let Some(channel) = channel {
            read(device, &channel, &jobs);
            tell(&jobs, Job::Lost(device));
        }
        thread::sleep(PAUSE);
        tell(&jobs, Job::Again(device));
    };
    let started = thread::Builder::new().name("packets".into()).spawn(read);
    if let Err(error) = started {
        log::error!("packets of device {device} are not read: {error}");
    }
}

/// Whether the service has been told.
fn tell(jobs: &WeakSender<Job>, job: Job) -> bool {
    jobs.upgrade().is_some_and(|jobs| jobs.blocking_send(job).is_ok())
}

fn read(device: u64, channel: &Channel, jobs: &WeakSender<Job>) {
    loop {
        let told = match channel.recv() {
            Ok((message, _)) => tell(jobs, Job::FromDataPlane(device, message)),
            Err(ChannelError::Malformed(error)) => {
                log::error!("the data plane sends for device {device}: {error}");
                return;
            }
            Err(_) => return,
        };
        if !told {
            return;
        }
    }
}
