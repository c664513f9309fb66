//! Hiding what arrives at a device from the host's stack.
//!
//! | means | where | vanishes with | what it does |
//! |---|---|---|---|
//! | program | Linux 6.6 and later | the last descriptor of its link: so with the switch, however it ends | drops at the device's ingress (tcx), behind packet sockets |
//! | bridge | older kernels, if asked for | [`show`], not with the process | the device is a port of a bridge that is down, which drops (`br_handle_frame`) |
//!
//! The program comes before those of others at the same device, and before VLAN devices on it. What the host
//! itself sends through the device goes out as before.
//!
//! A device has one bridge at a time, so one that is a port of another device is refused, and other owners
//! are refused from then on. To frames for addresses of the link alone (01:80:c2:00:00:0x, such as LLDP) a
//! bridge pays no attention.

use crate::netlink::{Change, Link, Netlink};
use crate::owner::{Made, Owner};
use crate::{NicError, check_name};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// `r0 = TCX_DROP; exit` (RFC 9669).
const DROP: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// Loads the program that hides devices, for [`open_hidden`]. Takes CAP_BPF and CAP_NET_ADMIN.
///
/// # Errors
///
/// The process may not, or the kernel has no such programs.
pub fn load_hiding_program() -> io::Result<OwnedFd> {
    ebpf::load(&DROP, c"Apache-2.0", "hs_hide", ebpf::Purpose::Ingress)
}

/// What keeps the frames of a device from the host's stack.
#[derive(Debug)]
pub enum Hiding {
    /// A program, as long as one of its link's descriptors is open.
    Program(OwnedFd),
    /// A bridge that is down, since a program is not possible for this reason.
    Bridge(String),
    /// Nothing, for this reason.
    Nothing(String),
}

impl Hiding {
    /// The link of the program.
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Hiding::Program(link) => Some(link.as_fd()),
            Hiding::Bridge(_) | Hiding::Nothing(_) => None,
        }
    }

    /// Takes the program away at once, even if other processes have the link.
    pub fn end(self) {
        if let Hiding::Program(link) = self {
            // The device may be gone already, and the program with it.
            let _ = ebpf::detach(link.as_fd());
        }
    }
}

/// How often the program's place at a device is asked for that a link of another process has, and the time
/// between.
const TRIES: (u32, Duration) = (50, Duration::from_millis(20));

/// Why a device has no program of the caller's.
enum NoProgram {
    /// The program is there, and the link belongs to a process that is about to close it.
    Held,
    /// The kernel refused, for this reason.
    Refused(String),
}

/// What to do where a program cannot hide a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// The host's stack sees its frames.
    Visible,
    /// A bridge hides it, even beyond the end of the process.
    Bridge,
}

/// Hides the frames that a device receives from the host's stack, by the program of [`load_hiding_program`]
/// or the reason why there is none, and opens it. `hiding` is what hides it already, if anything
/// does, and what does so from now on, even if the device cannot be opened.
///
/// # Errors
///
/// As `open`; [`NicError::Owned`] for one that is another device's port, [`NicError::Foreign`] for
/// one that another instance has hidden, [`NicError::Held`] for one that another process keeps hidden.
pub fn open_hidden<T>(
    name: &str,
    owner: &Owner,
    program: Result<BorrowedFd<'_>, &str>,
    otherwise: Otherwise,
    hiding: &mut Option<Hiding>,
    open: impl FnOnce() -> Result<T, NicError>,
) -> Result<T, NicError> {
    check_name(name)?;
    let mut netlink = Netlink::new()?;
    let link = netlink
        .link(name)?
        .ok_or_else(|| NicError::Missing(name.into()))?;
    let bridge = own_bridge(&mut netlink, name, &link, owner)?;
    let found = match (attach(program, link.index, hiding.take()), otherwise) {
        (Ok(link), _) => Hiding::Program(link),
        (Err(NoProgram::Held), _) => return Err(NicError::Held(name.into())),
        (Err(NoProgram::Refused(reason)), Otherwise::Visible) => Hiding::Nothing(reason),
        (Err(NoProgram::Refused(reason)), Otherwise::Bridge) => {
            add_to_bridge(&mut netlink, name, &link, bridge.as_ref(), owner)?;
            Hiding::Bridge(reason)
        }
    };
    let is_bridge = matches!(found, Hiding::Bridge(_));
    *hiding = Some(found);
    if !is_bridge {
        // Of an earlier switch, or an earlier kernel.
        show(name, owner)?;
    }
    let opened = open();
    if opened.is_err() {
        show(name, owner)?;
    }
    opened
}

/// Attaches the program to a device, or finds it there already. A device has a program once: a link that is
/// not ours is one that the supervisor was told to forget, and has not yet.
fn attach(
    program: Result<BorrowedFd<'_>, &str>,
    device: u32,
    before: Option<Hiding>,
) -> Result<OwnedFd, NoProgram> {
    let program = program.map_err(|reason| NoProgram::Refused(reason.into()))?;
    let mut before = before;
    for _ in 0..TRIES.0 {
        let error = match ebpf::attach_to_ingress(program, device) {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        if error.kind() != io::ErrorKind::AlreadyExists {
            let reason = format!("no program at the device's ingress (Linux 6.6): {error}");
            return Err(NoProgram::Refused(reason));
        }
        if let Some(Hiding::Program(link)) = before.take() {
            return Ok(link);
        }
        std::thread::sleep(TRIES.1);
    }
    Err(NoProgram::Held)
}

/// Gives a device back to the host's stack that a bridge hides; no error if this instance has not hidden it
/// so, or it does not exist any more.
///
/// # Errors
///
/// The kernel refused.
pub fn show(name: &str, owner: &Owner) -> Result<(), NicError> {
    check_name(name)?;
    let mut netlink = Netlink::new()?;
    let bridge = netlink.link(&bridge_name(name))?;
    let is_ours = |alias: &str| owner.has_made(Made::Hiding, name, alias).unwrap_or(false);
    let Some(bridge) = bridge.filter(|bridge| is_ours(&bridge.alias)) else {
        return Ok(());
    };
    netlink
        .delete(bridge.index)
        .map_err(|error| NicError::refused(format!("{name}: giving it back"), error))
}

/// The bridge that hides a device already. A device that is a port of anything else is refused.
fn own_bridge(
    netlink: &mut Netlink,
    name: &str,
    link: &Link,
    owner: &Owner,
) -> Result<Option<Link>, NicError> {
    let bridge = netlink.link(&bridge_name(name))?;
    if let Some(bridge) = &bridge
        && (!owner.has_made(Made::Hiding, name, &bridge.alias)? || bridge.is_up())
    {
        return Err(NicError::Owned(name.into()));
    }
    let own = bridge.as_ref().map_or(0, |bridge| bridge.index);
    if link.master != 0 && link.master != own {
        return Err(NicError::Owned(name.into()));
    }
    Ok(bridge)
}

/// Makes the device a port of its bridge, which is made if there is none.
fn add_to_bridge(
    netlink: &mut Netlink,
    name: &str,
    link: &Link,
    bridge: Option<&Link>,
    owner: &Owner,
) -> Result<(), NicError> {
    let hiding = bridge_name(name);
    let refused = |error| NicError::refused(format!("{name}: hiding it from the host"), error);
    let index = match bridge {
        Some(bridge) => bridge.index,
        None => {
            netlink.add_bridge(&hiding).map_err(refused)?;
            let made = netlink.link(&hiding)?;
            let made = made.ok_or_else(|| NicError::Missing(hiding.clone()))?;
            let alias = owner.alias(Made::Hiding);
            let named = Change {
                alias: Some(&alias),
                ..Change::default()
            };
            netlink.change(made.index, named).map_err(refused)?;
            made.index
        }
    };
    let port = Change {
        master: Some(index),
        ..Change::default()
    };
    netlink.change(link.index, port).map_err(refused)
}

/// The bridge that hides a device: it depends on the device's name alone, so that the next process finds it
/// (FNV-1a).
fn bridge_name(name: &str) -> String {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("hs-{:012x}", hash & 0xffff_ffff_ffff)
}
