//! Placeholders that are TAPs, in the namespace of the calling thread.
//!
//! They are persistent, as all our TAPs: a new glue process takes over the TAPs of the one before, with index and MTU; TAPs that were
//! set down stay down. A TAP that was lent is in use at that time, and is left as it is. A TAP that was moved to another namespace
//! is still ours, but its state there is not followed, and a new process finds it again only if it was lent: then it is known by
//! the index that it had.

use crate::datapath::DeviceSettings;
use crate::placeholder::{DeviceState, Placeholders, address};
use nic_packet::{LinkEvent, LinkState, LinkWatch, NicError, Tap, link_state};
use ovs_netlink::Errno;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};

/// See the module.
#[derive(Debug)]
pub struct TapPlaceholders {
    taps: BTreeMap<String, OpenTap>,
    /// Devices of others whose changes are told, by name.
    followed: BTreeMap<String, u32>,
    /// Those that an earlier process lent, with the indices they had.
    lent: BTreeMap<String, u32>,
    watch: LinkWatch,
    /// Changes to be told.
    changed: VecDeque<(String, DeviceState)>,
}

#[derive(Debug)]
struct OpenTap {
    /// `None`: the process to which an earlier one of ours lent it has it.
    tap: Option<Tap>,
    /// Its index in our namespace, also after it was moved.
    index: u32,
    /// The host may speak through it.
    is_lent: bool,
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
            followed: BTreeMap::new(),
            lent: BTreeMap::new(),
            watch: LinkWatch::new()?,
            changed: VecDeque::new(),
        })
    }

    /// Names and indices of those that an earlier process lent.
    pub fn know_lent(&mut self, lent: BTreeMap<String, u32>) {
        self.lent = lent;
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
        let taps = self.taps.iter().map(|(name, open)| (name, open.index));
        let followed = self.followed.iter().map(|(name, index)| (name, *index));
        if let Some((name, _)) = taps.chain(followed).find(|(_, its)| *its == index) {
            self.changed.push_back((name.clone(), state));
        }
    }

    /// Looks at all devices, since notices were lost.
    fn look_again(&mut self) {
        let taps = self.taps.iter().map(|(name, open)| (name, open.index));
        let followed = self.followed.iter().map(|(name, index)| (name, *index));
        for (name, index) in taps.chain(followed) {
            if let Ok(Some(link)) = link_state(name)
                && link.index == index
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
        if let (Some(&index), Ok(None)) = (self.lent.get(name), link_state(name)) {
            // It was moved to another namespace, and goes on there.
            let open = OpenTap {
                tap: None,
                index,
                is_lent: true,
            };
            self.taps.insert(name.to_owned(), open);
            return Ok(index);
        }
        let tap = match (Tap::open_placeholder(name, address(name)), self.lent.get(name)) {
            (Ok(tap), _) => Some(tap),
            (Err(NicError::Busy(_)), Some(_)) => None,
            (Err(error), _) => return Err(refusal(&error)),
        };
        let link = link_state(name).ok().flatten().ok_or(Errno::ENODEV)?;
        let index = link.index;
        let is_lent = tap.is_none();
        self.taps.insert(name.to_owned(), OpenTap { tap, index, is_lent });
        self.changed.push_back((name.to_owned(), here(link)));
        Ok(index)
    }

    fn remove(&mut self, name: &str) {
        let Some(open) = self.taps.remove(name) else {
            return;
        };
        // Whoever it was lent to may have it open for another moment; the name is free at once.
        let removed = match Tap::remove_placeholder(name, open.index) {
            Err(NicError::Missing(_)) => open.tap.map_or(Ok(()), Tap::remove),
            removed => removed,
        };
        if let Err(error) = removed {
            log::warn!("placeholder '{name}' stays: {error}");
        }
    }

    fn index(&mut self, name: &str) -> Option<u32> {
        let link = link_state(name).ok().flatten()?;
        self.followed.insert(name.to_owned(), link.index);
        self.changed.push_back((name.to_owned(), here(link)));
        Some(link.index)
    }

    fn forget(&mut self, name: &str) {
        self.followed.remove(name);
    }

    fn lend(&mut self, name: &str) -> Result<(u32, Option<OwnedFd>), Errno> {
        let open = self.taps.get_mut(name).ok_or(Errno::ENODEV)?;
        if open.tap.is_none() {
            // Whoever had it may have died.
            open.tap = Tap::reopen_placeholder(name).ok();
        }
        let Some(tap) = &open.tap else {
            return Ok((open.index, None));
        };
        if !open.is_lent {
            tap.set_carrier(true).map_err(|error| refusal(&error))?;
            Tap::set_silent(name, open.index, false).map_err(|error| refusal(&error))?;
            open.is_lent = true;
        }
        let descriptor = tap.descriptor().map_err(|_| Errno::ENOMEM)?;
        Ok((open.index, Some(descriptor)))
    }

    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno> {
        let open = self.taps.get_mut(name).ok_or(Errno::ENODEV)?;
        if open.tap.is_none() {
            open.tap = Tap::reopen_placeholder(name).ok();
        }
        let tap = open.tap.as_ref().ok_or(Errno::EBUSY)?;
        if open.is_lent {
            open.is_lent = false;
            Tap::set_silent(name, open.index, true).map_err(|error| refusal(&error))?;
        }
        tap.set_carrier(up).map_err(|error| refusal(&error))
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
        for (name, index) in std::mem::take(&mut self.lent) {
            if !self.taps.contains_key(&name) {
                // It was moved, or has gone: then its user closes it.
                let _ = Tap::remove_placeholder(&name, index);
            }
        }
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
        port: Some(DeviceSettings {
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
