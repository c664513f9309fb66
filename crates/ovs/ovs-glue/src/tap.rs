//! Placeholders that are TAPs, in the namespace of the calling thread.
//!
//! Placeholders are persistent, as all our TAPs: a new glue process takes over the TAPs of the one before,
//! with index, address and MTU; TAPs that were set down stay down. A TAP that was lent is in use at that
//! time, and is left as it is. A TAP that was moved to another namespace is still ours, but its state there
//! is not followed, and a new process finds it again only if it was lent: then it is known by the index that
//! it had.
//!
//! A TAP vanishes with the namespace where it is, or when an administrator deletes it. The descriptor of one
//! that is silent is waited for, since nothing else makes it ready; that of one that the host uses would be
//! ready with each frame, and the process to which it was lent says that it fails.

use crate::datapath::DeviceSettings;
use crate::placeholder::{DeviceState, Placeholders, address};
use nic_packet::{LinkEvent, LinkState, LinkWatch, NicError, Owner, PlaceholderTaps, Tap};
use ovs_netlink::Errno;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};

/// Of the watch among events; TAPs have numbers from 1 on.
const WATCH: u64 = 0;
/// Events taken at a time.
const MAX_EVENTS: usize = 64;
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// `EBADFD`: the error of a descriptor whose TAP has gone.
const DETACHED: i32 = 77;

/// See the module.
#[derive(Debug)]
pub struct TapPlaceholders {
    netlink: PlaceholderTaps,
    taps: BTreeMap<String, OpenTap>,
    /// Devices of others whose changes are told, by name.
    followed: BTreeMap<String, u32>,
    /// Devices that an earlier process lent, with the indices they had.
    lent: BTreeMap<String, u32>,
    watch: LinkWatch,
    /// Readable when the watch is, or a silent TAP has gone.
    events: OwnedFd,
    last_key: u64,
    /// Changes to be told.
    changed: VecDeque<(String, DeviceState)>,
    /// TAPs that have gone, to be told.
    gone: VecDeque<String>,
}

#[derive(Debug)]
struct OpenTap {
    /// `None`: the process to which an earlier one of ours lent it has it.
    tap: Option<Tap>,
    /// Number of the device among events.
    key: u64,
    /// Index in our namespace, also after the device was moved.
    index: u32,
    /// `None`: nothing was said yet.
    user: Option<User>,
}

/// The use of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// The host speaks through it.
    Host,
    /// The device shows the state of a port whose other end is something else.
    Nobody,
}

impl TapPlaceholders {
    /// Begins to watch the namespace. The devices that it makes are the instance's.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn new(owner: Owner) -> Result<Self, NicError> {
        let watch = LinkWatch::new()?;
        let refused = |errno: rustix::io::Errno| NicError::Refused {
            what: "watching placeholders".into(),
            source: errno.into(),
        };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        epoll::add(&events, &watch, EventData::new_u64(WATCH), EventFlags::IN).map_err(refused)?;
        Ok(Self {
            netlink: PlaceholderTaps::new(owner)?,
            taps: BTreeMap::new(),
            followed: BTreeMap::new(),
            lent: BTreeMap::new(),
            watch,
            events,
            last_key: WATCH,
            changed: VecDeque::new(),
            gone: VecDeque::new(),
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
            LinkEvent::Addresses { .. } | LinkEvent::Gone { .. } => return,
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
            if let Ok(Some(link)) = self.netlink.state(name)
                && link.index == index
            {
                self.changed.push_back((name.clone(), here(link)));
            }
        }
    }

    fn enter(&mut self, name: &str, tap: Option<Tap>, index: u32, user: Option<User>) {
        self.last_key += 1;
        let open = OpenTap {
            tap,
            key: self.last_key,
            index,
            user,
        };
        self.taps.insert(name.to_owned(), open);
    }

    fn leave(&mut self, name: &str) -> Option<OpenTap> {
        let open = self.taps.remove(name)?;
        unwatch(&self.events, &open);
        Some(open)
    }

    /// An entered TAP, opened if it can be.
    fn open(&mut self, name: &str) -> Result<&mut OpenTap, Errno> {
        let open = self.taps.get_mut(name).ok_or(Errno::ENODEV)?;
        if open.tap.is_none() {
            // The process that had it may have died.
            open.tap = self.netlink.reopen(name).ok();
        }
        Ok(open)
    }

    /// Has a placeholder be used so, and show a link or not.
    fn give(&mut self, name: &str, user: User, link: bool) -> Result<&Tap, Errno> {
        self.open(name)?;
        let open = self.taps.get_mut(name).ok_or(Errno::ENODEV)?;
        let tap = open.tap.as_ref().ok_or(Errno::EBUSY)?;
        if open.user != Some(user) {
            let silent = user == User::Nobody;
            match self.netlink.set_silent(tap, open.index, silent) {
                // In another namespace it stays as it is.
                Ok(()) | Err(NicError::Missing(_)) => {}
                Err(error) => return Err(refusal(&error)),
            }
            unwatch(&self.events, open);
            if silent {
                watch(&self.events, tap, open.key);
            }
            open.user = Some(user);
        }
        match tap.set_carrier(link) {
            Ok(()) => Ok(tap),
            Err(NicError::Refused { source, .. }) if source.raw_os_error() == Some(DETACHED) => {
                self.gone.push_back(name.to_owned());
                Err(Errno::ENODEV)
            }
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Notes silent TAPs that have gone.
    fn note_gone(&mut self) {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(WATCH),
        }; MAX_EVENTS];
        let count = epoll::wait(&self.events, &mut events[..], Some(&AT_ONCE)).unwrap_or(0);
        for event in &events[..count] {
            let (flags, key) = (event.flags, event.data.u64());
            if flags.contains(EventFlags::ERR)
                && let Some((name, _)) = self.taps.iter().find(|(_, open)| open.key == key)
            {
                self.gone.push_back(name.clone());
            }
        }
    }
}

/// Has `events` tell when a silent TAP has gone. The kernel wakes with `EPOLLIN` then; frames that the host
/// sends into it do as well, until it is full, since nobody reads them.
fn watch(events: &OwnedFd, tap: &Tap, key: u64) {
    let flags = EventFlags::IN | EventFlags::ET;
    if let Err(errno) = epoll::add(events, tap, EventData::new_u64(key), flags) {
        log::warn!("a placeholder is not watched: {errno}");
    }
}

/// Stops watching a device. The descriptor may be lent, and with that would be waited for after it was closed
/// here.
fn unwatch(events: &OwnedFd, open: &OpenTap) {
    if let (Some(tap), Some(User::Nobody)) = (&open.tap, open.user) {
        let _ = epoll::delete(events, tap);
    }
}

impl Placeholders for TapPlaceholders {
    fn create(&mut self, name: &str) -> Result<u32, Errno> {
        if self.taps.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let lent = self.lent.get(name).copied();
        let found = self.netlink.state(name).map_err(|error| refusal(&error))?;
        if let (Some(index), None) = (lent, found) {
            // It was moved to another namespace, and goes on there.
            self.enter(name, None, index, Some(User::Host));
            return Ok(index);
        }
        let (tap, link, user) = match (self.netlink.open(name, address(name)), lent, found) {
            (Ok((tap, link)), ..) => (Some(tap), link, None),
            (Err(NicError::Busy(_)), Some(_), Some(link)) => (None, link, Some(User::Host)),
            (Err(error), ..) => return Err(refusal(&error)),
        };
        self.enter(name, tap, link.index, user);
        self.changed.push_back((name.to_owned(), here(link)));
        Ok(link.index)
    }

    fn remove(&mut self, name: &str) {
        let Some(open) = self.leave(name) else {
            return;
        };
        // The process that it was lent to may have it open for another moment; the name is free at once.
        let removed = match self.netlink.remove(name, open.index) {
            Err(NicError::Missing(_)) => open.tap.map_or(Ok(()), Tap::remove),
            removed => removed,
        };
        if let Err(error) = removed {
            log::warn!("placeholder '{name}' stays: {error}");
        }
    }

    fn next_gone(&mut self) -> Option<String> {
        let name = self.gone.pop_front()?;
        self.leave(&name);
        Some(name)
    }

    fn renew(&mut self, name: &str) -> Result<u32, Errno> {
        let known = self.taps.get(name).map(|open| open.index);
        let found = self.netlink.state(name).ok().flatten();
        if let (Some(known), Some(found)) = (known, found)
            && known == found.index
        {
            // The process that has it fails for another reason.
            return Ok(known);
        }
        self.leave(name);
        self.lent.remove(name);
        self.create(name)
    }

    fn announce(&mut self, name: &str) {
        let index = self.taps.get(name).map(|open| open.index);
        if let Some(Err(error)) = index.map(|index| self.netlink.announce(name, index)) {
            log::warn!("placeholder: {error}");
        }
    }

    fn index(&mut self, name: &str) -> Option<u32> {
        let link = self.netlink.state(name).ok().flatten()?;
        self.followed.insert(name.to_owned(), link.index);
        self.changed.push_back((name.to_owned(), here(link)));
        Some(link.index)
    }

    fn forget(&mut self, name: &str) {
        self.followed.remove(name);
    }

    fn lend(&mut self, name: &str) -> Result<(u32, Option<OwnedFd>), Errno> {
        let open = self.open(name)?;
        let index = open.index;
        if open.tap.is_none() {
            return Ok((index, None));
        }
        let tap = self.give(name, User::Host, true)?;
        let descriptor = tap.descriptor().map_err(|_| Errno::ENOMEM)?;
        Ok((index, Some(descriptor)))
    }

    fn set_carrier(&mut self, name: &str, up: bool) -> Result<(), Errno> {
        self.give(name, User::Nobody, up).map(drop)
    }

    fn changes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn next_change(&mut self) -> Option<(String, DeviceState)> {
        while self.changed.is_empty() {
            let Some(event) = self.watch.next_event() else {
                self.note_gone();
                return None;
            };
            self.note(event);
        }
        self.changed.pop_front()
    }

    fn remove_abandoned(&mut self) -> usize {
        for (name, index) in std::mem::take(&mut self.lent) {
            if !self.taps.contains_key(&name) {
                // It was moved, or has gone: then its user closes it.
                let _ = self.netlink.remove(&name, index);
            }
        }
        match self.netlink.remove_idle() {
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
    telemetry::limited!(log::Level::Warn, "placeholder: {error}");
    match error {
        NicError::BadName(_) => Errno::EINVAL,
        NicError::NotATap { .. } | NicError::Busy(_) | NicError::Foreign { .. } => Errno::EEXIST,
        NicError::Missing(_) => Errno::ENODEV,
        NicError::Refused { source, .. } => source.raw_os_error().map_or(Errno::EINVAL, Errno),
        _ => Errno::EINVAL,
    }
}
