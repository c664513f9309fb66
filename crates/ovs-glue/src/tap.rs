//! Placeholders that are TAPs, in the namespace of the calling thread.
//!
//! They are persistent, as all our TAPs: a new glue process takes over those of the one before, with index and MTU; those that were
//! set down stay down. One that was moved to another namespace is still ours, but its state there is not followed, and a new process
//! does not find it again.

use crate::datapath::PortState;
use crate::placeholder::{DeviceState, Placeholders, address};
use nic_packet::{LinkEvent, LinkState, LinkWatch, NicError, Tap, link_state};
use ovs_netlink::Errno;
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Debug)]
pub struct TapPlaceholders {
    taps: BTreeMap<String, OpenTap>,
    watch: LinkWatch,
    /// Changes to be told.
    changed: VecDeque<(String, DeviceState)>,
}

#[derive(Debug)]
struct OpenTap {
    tap: Tap,
    /// Its index in our namespace, also after it was moved.
    index: u32,
}

impl TapPlaceholders {
    /// Begins to watch the namespace.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn new() -> Result<Self, NicError> {
        Ok(Self {
            taps: BTreeMap::new(),
            watch: LinkWatch::new()?,
            changed: VecDeque::new(),
        })
    }

    fn note(&mut self, event: LinkEvent) {
        let (index, state) = match event {
            LinkEvent::Is(link) => (link.index, here(link)),
            LinkEvent::Moved {
                index,
                namespace,
                index_there,
            } => {
                let state = DeviceState {
                    index: index_there,
                    namespace: Some(namespace),
                    port: None,
                };
                (index, state)
            }
            LinkEvent::Lost => return self.look_again(),
        };
        let is_it = |(_, open): &(&String, &OpenTap)| open.index == index;
        if let Some((name, _)) = self.taps.iter().find(is_it) {
            self.changed.push_back((name.clone(), state));
        }
    }

    /// Looks at all devices, since notices were lost.
    fn look_again(&mut self) {
        for (name, open) in &self.taps {
            if let Ok(Some(link)) = link_state(name)
                && link.index == open.index
            {
                self.changed.push_back((name.clone(), here(link)));
            }
        }
    }
}

impl Placeholders for TapPlaceholders {
    fn create(&mut self, name: &str) -> Result<u32, Errno> {
        if self.taps.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let tap = Tap::open_placeholder(name, address(name)).map_err(|error| refusal(&error))?;
        let link = link_state(name).ok().flatten().ok_or(Errno::ENODEV)?;
        let index = link.index;
        self.taps.insert(name.to_owned(), OpenTap { tap, index });
        self.changed.push_back((name.to_owned(), here(link)));
        Ok(index)
    }

    fn remove(&mut self, name: &str) {
        if let Some(open) = self.taps.remove(name)
            && let Err(error) = open.tap.remove()
        {
            log::warn!("placeholder '{name}' stays: {error}");
        }
    }

    fn index(&mut self, name: &str) -> Option<u32> {
        link_state(name).ok().flatten().map(|link| link.index)
    }

    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno> {
        let open = self.taps.get(name).ok_or(Errno::ENODEV)?;
        open.tap.set_carrier(up).map_err(|error| refusal(&error))
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn next_change(&mut self) -> Option<(String, DeviceState)> {
        while self.changed.is_empty() {
            let event = self.watch.next_event()?;
            self.note(event);
        }
        self.changed.pop_front()
    }

    fn remove_abandoned(&mut self) -> usize {
        match Tap::remove_idle_placeholders() {
            Ok(removed) => {
                for name in &removed {
                    log::info!("placeholder '{name}' of a port that is no more was removed");
                }
                removed.len()
            }
            Err(error) => {
                log::warn!("placeholders of earlier ports stay: {error}");
                0
            }
        }
    }
}

fn here(link: LinkState) -> DeviceState {
    DeviceState {
        index: link.index,
        namespace: None,
        port: Some(PortState {
            up: link.up,
            mtu: link.mtu,
        }),
    }
}

/// The error number that ovs-vswitchd is told. The text goes to the log.
fn refusal(error: &NicError) -> Errno {
    log::warn!("placeholder: {error}");
    match error {
        NicError::BadName(_) => Errno::EINVAL,
        NicError::NotATap { .. } | NicError::Busy(_) => Errno::EEXIST,
        NicError::Missing(_) => Errno::ENODEV,
        NicError::Refused { source, .. } => source.raw_os_error().map_or(Errno::EINVAL, Errno),
        _ => Errno::EINVAL,
    }
}
