//! TAPs that stand for ports at the host (`ovs-glue`).
//!
//! A new one is down, so that the host sends nothing through it. Its use decides what follows:
//!
//! | use | ARP and IPv6 | up |
//! |---|---|---|
//! | none yet | as the host's settings say | no |
//! | the host's: its other end is the switch | the same | as the administrator sets it; at first no |
//! | silent: it only shows a port's state | off | yes, unless it is set down |
//!
//! `IFF_NOARP` says which one it is, also to the next process.

use crate::netlink::{Change, Link, Netlink};
use crate::owner::{Made, Owner};
use crate::tap::Tap;
use crate::watch::{LinkState, state};
use crate::{NicError, check_name};
use std::io;

/// Frames that wait in a TAP at most; the kernel's queue has 1,000.
const MAX_WAITING: usize = 4096;

/// Makes, changes and removes placeholders in the namespace of the thread that made it.
#[derive(Debug)]
pub struct PlaceholderTaps {
    netlink: Netlink,
    owner: Owner,
}

impl PlaceholderTaps {
    /// # Errors
    ///
    /// The kernel refused a socket.
    pub fn new(owner: Owner) -> Result<PlaceholderTaps, NicError> {
        Ok(PlaceholderTaps {
            netlink: Netlink::new()?,
            owner,
        })
    }

    /// Makes one, which has that address, or takes an idle one over as it is. It shows a link while it is
    /// open, unless set otherwise.
    ///
    /// # Errors
    ///
    /// The name is taken, or the kernel refused.
    pub fn open(&mut self, name: &str, mac: [u8; 6]) -> Result<(Tap, LinkState), NicError> {
        let (tap, link, is_new) = Tap::take(&mut self.netlink, name, Made::Placeholder, &self.owner)?;
        tap.set_header()?;
        if tap.is_made_by_us() {
            let alias = self.owner.alias(Made::Placeholder);
            let named = Change {
                mac: is_new.then_some(mac),
                alias: Some(&alias),
                ..Change::default()
            };
            let refused = |error| NicError::refused(format!("{name}: setting the hardware address"), error);
            self.netlink.change(link.index, named).map_err(refused)?;
        }
        tap.persist(true)?;
        Ok((tap, state(&link)))
    }

    /// Takes over one that exists and is not open, as it is.
    ///
    /// # Errors
    ///
    /// There is none of this name, or it is open.
    pub fn reopen(&mut self, name: &str) -> Result<Tap, NicError> {
        check_name(name)?;
        let link = self.netlink.link(name)?;
        self.made(name, link)?;
        let (tap, ..) = Tap::take(&mut self.netlink, name, Made::Placeholder, &self.owner)?;
        tap.set_header()?;
        Ok(tap)
    }

    /// Any device of this name; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The name is none, or the kernel refused.
    pub fn state(&mut self, name: &str) -> Result<Option<LinkState>, NicError> {
        check_name(name)?;
        Ok(self.netlink.link(name)?.map(|link| state(&link)))
    }

    /// From now on a placeholder is silent, and up; or it is the host's, and down until the administrator
    /// sets it up. No change for one that is so already. What the host had sent through a silent one is
    /// thrown away.
    ///
    /// # Errors
    ///
    /// There is none with that name and index, or the kernel refused.
    pub fn set_silent(&mut self, tap: &Tap, index: u32, silent: bool) -> Result<(), NicError> {
        let name = tap.name();
        let link = self.netlink.link(name)?.filter(|link| link.index == index);
        let link = self.made(name, link)?;
        if link.has_no_arp() == silent {
            return Ok(());
        }
        let netlink = &mut self.netlink;
        let mut change = |up, no_arp| {
            let change = Change {
                up,
                no_arp,
                ..Change::default()
            };
            let refused = |error| NicError::refused(format!("{name}: bringing up or down"), error);
            netlink.change(index, change).map_err(refused)
        };
        if silent {
            change(None, Some(true))?;
            set_ipv6(name, false)?;
            change(Some(true), None)
        } else {
            change(Some(false), Some(false))?;
            set_ipv6(name, true)?;
            tap.discard(MAX_WAITING);
            Ok(())
        }
    }

    /// Has the kernel tell all who watch devices of a change: ARP is switched over and back, which does
    /// nothing while it is down.
    ///
    /// # Errors
    ///
    /// There is none with that name and index, or the kernel refused.
    pub fn announce(&mut self, name: &str, index: u32) -> Result<(), NicError> {
        let link = self.netlink.link(name)?.filter(|link| link.index == index);
        let no_arp = self.made(name, link)?.has_no_arp();
        for no_arp in [!no_arp, no_arp] {
            let change = Change {
                no_arp: Some(no_arp),
                ..Change::default()
            };
            let refused = |error| NicError::refused(format!("{name}: switching ARP over"), error);
            self.netlink.change(index, change).map_err(refused)?;
        }
        Ok(())
    }

    /// Removes one at once, even while a process has it open.
    ///
    /// # Errors
    ///
    /// There is none with that name and index, or the kernel refused.
    pub fn remove(&mut self, name: &str, index: u32) -> Result<(), NicError> {
        check_name(name)?;
        let link = self.netlink.link(name)?.filter(|link| link.index == index);
        self.made(name, link)?;
        let refused = |error| NicError::refused(format!("{name}: removing"), error);
        self.netlink.delete(index).map_err(refused)
    }

    /// Removes those that an earlier process of this instance has made and no process has open, and returns
    /// their names. Devices whose aliases do not name this instance stay.
    ///
    /// # Errors
    ///
    /// The kernel refused to list interfaces.
    pub fn remove_idle(&mut self) -> Result<Vec<String>, NicError> {
        let alias = self.owner.alias(Made::Placeholder);
        let mut removed = Vec::new();
        for link in self.netlink.links()? {
            if link.alias != alias {
                continue;
            }
            // One that is open is busy; another process may have taken its name meanwhile.
            let taken = Tap::take(&mut self.netlink, &link.name, Made::Placeholder, &self.owner);
            if let Ok((tap, now, false)) = taken
                && now.index == link.index
            {
                tap.remove()?;
                removed.push(link.name);
            }
        }
        Ok(removed)
    }

    /// A device, if it is a placeholder of this instance.
    fn made(&self, name: &str, link: Option<Link>) -> Result<Link, NicError> {
        let link = link.ok_or_else(|| NicError::Missing(name.into()))?;
        match self.owner.has_made(Made::Placeholder, name, &link.alias)? {
            true => Ok(link),
            false => Err(NicError::Missing(name.into())),
        }
    }
}

/// Whether the host uses IPv6 on a device.
fn set_ipv6(name: &str, on: bool) -> Result<(), NicError> {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    match std::fs::write(&path, if on { "0" } else { "1" }) {
        Ok(()) => Ok(()),
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A service whose kernel settings are protected: the host's settings for new devices stay in force.
        // Nobody reads what is sent through a silent device.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        Err(error) => Err(NicError::refused(path, error)),
    }
}
