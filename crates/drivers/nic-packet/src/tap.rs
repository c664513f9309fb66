//! TAP devices (`Documentation/networking/tuntap.rst`, `linux/if_tun.h`).
//!
//! A TAP of ours is persistent: it outlives the process, with its addresses and the settings that users have
//! added, and the next process that opens it takes it over. Its alias says which instance made it (`owner`),
//! so that we only ever remove devices that we have made. TAPs that we make have one queue: the kernel opens
//! it for one process at a time, and a multi-queue TAP takes 6 MB of the kernel's memory and 10 ms to make
//! (room for 256 queues and their disciplines). A multi-queue TAP that was there before is used as well;
//! since any process can add a queue to it, and the kernel then spreads packets over the queues, one that has
//! another queue already is refused as busy.
//!
//! States: absent -> `open` -> ours and open -> drop -> ours and idle -> `open` ...; `remove` -> absent. A
//! device that another program prepared goes idle again on `remove`.

use crate::namespace::NamespaceId;
use crate::netlink::{Change, Link, Netlink};
use crate::owner::{Made, Owner};
use crate::settings::set_addresses;
use crate::{NicError, VNET_HEADER_LEN, check_name, namespace};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The request for the network namespace of a TAP's device (`linux/if_tun.h`).
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// Specification of a TAP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapSpec {
    /// Interface name, at most 15 bytes.
    pub name: String,
    /// Network namespace: a name under `/run/netns`, a path, or `None` for the caller's. The kernel does not
    /// let us follow a path under `/proc` to a process with more capabilities than ours; such a namespace
    /// needs a name.
    pub netns: Option<String>,
    /// Hardware address.
    pub mac: Option<[u8; 6]>,
    /// Hardware address of a device that is made, if none is given; `None`: the kernel's choice. A device
    /// that exists keeps its own.
    pub initial_mac: Option<[u8; 6]>,
    /// Largest IP packet in bytes, 68 to 65,521 (what the kernel takes).
    pub mtu: Option<u16>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Offloads that the kernel may leave to us when it sends through a TAP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Checksums.
    pub checksum: bool,
    /// TCP segmentation over IPv4; needs `checksum`.
    pub tso4: bool,
    /// TCP segmentation over IPv6; needs `checksum`.
    pub tso6: bool,
    /// Segmentation of packets with ECN's CWR set.
    pub ecn: bool,
    /// UDP segmentation, over IPv4 and IPv6; needs `checksum`.
    pub uso: bool,
}

/// An open TAP, non-blocking: one read or write is one frame with its virtio-net header.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    name: String,
    made_by_us: bool,
    netns: Option<(String, NamespaceId)>,
}

impl Tap {
    /// Creates the device, or takes an idle one over, and configures it. Addresses in `stale` that the
    /// specification does not name are removed; all others stay. [`Tap::change`] changes it later.
    pub fn open(spec: &TapSpec, stale: &[(IpAddr, u8)], owner: &Owner) -> Result<Tap, NicError> {
        check_name(&spec.name)?;
        // Before it is entered: if it is replaced meanwhile, we notice later.
        let netns = match &spec.netns {
            Some(name) => Some((name.clone(), namespace::id(name)?)),
            None => None,
        };
        namespace::within(spec.netns.as_deref(), || {
            let mut netlink = Netlink::new()?;
            let (tap, link, is_new) = Tap::take(&mut netlink, &spec.name, Made::Tap, owner)?;
            let tap = Tap { netns, ..tap };
            tap.set_header()?;
            if tap.made_by_us {
                tap.name_as(&mut netlink, link.index, &owner.alias(Made::Tap))?;
            }
            tap.configure(&mut netlink, link.index, spec, is_new)?;
            tap.bring_up(&mut netlink, link.index)?;
            set_addresses(&mut netlink, &spec.name, link.index, stale, &spec.addresses)?;
            tap.persist(true)?;
            Ok(tap)
        })
    }

    /// Creates a device in the namespace of `netlink`, or takes an idle one over, as it is. Returns what it
    /// is, and whether it is new.
    pub(crate) fn take(
        netlink: &mut Netlink,
        name: &str,
        made: Made,
        owner: &Owner,
    ) -> Result<(Tap, Link, bool), NicError> {
        check_name(name)?;
        let existing = netlink.link(name)?;
        let made_by_us = match &existing {
            Some(link) => {
                check_takeover(name, link)?;
                owner.has_made(made, name, &link.alias)?
            }
            None => true,
        };
        let file = attach(name, existing.as_ref())?;
        let link = netlink.link(name)?;
        let link = link.ok_or_else(|| NicError::Missing(name.into()))?;
        if link.queues > 1 {
            // Another process was faster. Closing our queue leaves the device as it was.
            return Err(NicError::Busy(name.into()));
        }
        let tap = Tap {
            file,
            name: name.into(),
            made_by_us,
            netns: None,
        };
        Ok((tap, link, existing.is_none()))
    }

    /// Makes one with this index in the calling thread's namespace, where there is none of that name or
    /// index. It disappears when nobody has it open.
    pub(crate) fn numbered(name: &str, index: u32) -> Result<Tap, NicError> {
        let tap = Tap {
            file: device_file()?,
            name: name.into(),
            made_by_us: true,
            netns: None,
        };
        let index = usize::try_from(index).unwrap_or_default();
        tap.set_int("TUNSETIFINDEX", libc::TUNSETIFINDEX, index)?;
        become_queue(&tap.file, name, None)?;
        tap.set_header()?;
        Ok(tap)
    }

    /// A TAP that another process has opened, in whatever namespace it is.
    ///
    /// # Errors
    ///
    /// The descriptor is no TAP, or its reads would wait, or its frames have no virtio-net header.
    pub fn from_descriptor(file: OwnedFd, name: &str) -> Result<Tap, NicError> {
        let refused =
            |error: io::Error| NicError::refused(format!("{name}: the descriptor that was given"), error);
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| refused(errno.into()))?;
        let tap = Tap {
            file,
            name: name.into(),
            made_by_us: false,
            netns: None,
        };
        let request = tap.interface_request()?;
        // SAFETY: all of the union was initialised, and any bits are a number.
        let kind = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        let wanted = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if kind & wanted != wanted || !flags.contains(OFlags::NONBLOCK) {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        }
        tap.set_header()?;
        Ok(tap)
    }

    /// A TAP that an earlier process of this instance has opened: whether it [is ours](Self::is_made_by_us),
    /// and the [namespace](Self::namespace) by whose name it was opened.
    pub fn of_earlier(file: OwnedFd, name: &str, is_ours: bool, netns: Option<(String, NamespaceId)>) -> Tap {
        Tap {
            file,
            name: name.into(),
            made_by_us: is_ours,
            netns,
        }
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    ///
    /// The process has no more room for descriptors.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Whether this process or an earlier one of ours has created it.
    pub fn is_made_by_us(&self) -> bool {
        self.made_by_us
    }

    /// Device and inode of the network namespace by whose name it was opened.
    pub fn namespace(&self) -> Option<NamespaceId> {
        self.netns.as_ref().map(|(_, id)| *id)
    }

    /// Throws away what the host has sent through it, but at most so many frames.
    pub(crate) fn discard(&self, frames: usize) {
        let mut frame = [0; VNET_HEADER_LEN];
        // A frame that is longer than the room for it is cut, and gone all the same.
        let _ = (0..frames).all(|_| rustix::io::read(&self.file, &mut frame).is_ok());
    }

    /// Whether the device shows a link (`IFF_RUNNING`).
    pub fn set_carrier(&self, up: bool) -> Result<(), NicError> {
        self.set_int("TUNSETCARRIER", libc::TUNSETCARRIER, usize::from(up))
    }

    /// Whether the name of its namespace still means that namespace. An open TAP keeps a namespace alive
    /// after all other references to it are gone.
    pub fn is_current(&self) -> bool {
        namespace::is_current(self.netns.as_ref())
    }

    /// Closes the TAP, which makes it disappear if this process or an earlier one of ours has created it,
    /// once nobody has it open.
    pub fn remove(self) -> Result<(), NicError> {
        if self.made_by_us {
            self.persist(false)
        } else {
            Ok(())
        }
    }

    /// As [`Self::remove`], at once, even if other processes have it open. Enters its network namespace.
    pub fn delete(self) -> Result<(), NicError> {
        if !self.made_by_us {
            return Ok(());
        }
        self.persist(false)?;
        self.where_it_is(|name| {
            let mut netlink = Netlink::new()?;
            let refused = |error| NicError::refused(format!("{name}: removing it"), error);
            match netlink.link(name)? {
                Some(link) => netlink.delete(link.index).map_err(refused),
                None => Ok(()),
            }
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` in the network namespace in which the device is now, with the name that it has now: users
    /// move and rename devices.
    pub(crate) fn where_it_is<T: Send>(
        &self,
        work: impl FnOnce(&str) -> Result<T, NicError> + Send,
    ) -> Result<T, NicError> {
        let request = self.interface_request()?;
        let bytes = request.ifr_name.map(|byte| byte.to_ne_bytes()[0]);
        let name = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
        // SAFETY: TUNGETDEVNETNS takes no argument, and returns a descriptor or an error.
        let namespace = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNGETDEVNETNS) };
        self.check("TUNGETDEVNETNS", namespace)?;
        // SAFETY: The kernel has just made the descriptor, for us alone.
        let namespace = unsafe { OwnedFd::from_raw_fd(namespace) };
        namespace::inside(&namespace, &name, || work(&name))
    }

    fn interface_request(&self) -> Result<libc::ifreq, NicError> {
        // SAFETY: `ifreq` is plain data for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes one `ifreq` through the pointer, which is valid during the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
        self.check("TUNGETIFF", result)?;
        Ok(request)
    }

    fn name_as(&self, netlink: &mut Netlink, index: u32, alias: &str) -> Result<(), NicError> {
        let change = Change {
            alias: Some(alias),
            ..Change::default()
        };
        let refused = |error| NicError::refused(format!("{}: setting its alias", self.name), error);
        netlink.change(index, change).map_err(refused)
    }

    fn bring_up(&self, netlink: &mut Netlink, index: u32) -> Result<(), NicError> {
        let change = Change {
            up: Some(true),
            ..Change::default()
        };
        let refused = |error| NicError::refused(format!("{}: bringing up", self.name), error);
        netlink.change(index, change).map_err(refused)
    }

    /// The virtio-net header in front of frames.
    pub(crate) fn set_header(&self) -> Result<(), NicError> {
        self.set_int("TUNSETVNETHDRSZ", libc::TUNSETVNETHDRSZ, VNET_HEADER_LEN)?;
        self.set_int("TUNSETVNETLE", libc::TUNSETVNETLE, 1)
    }

    pub(crate) fn persist(&self, on: bool) -> Result<(), NicError> {
        // SAFETY: TUNSETPERSIST takes a truth value by value; the descriptor is ours.
        let result = unsafe {
            libc::ioctl(
                self.file.as_raw_fd(),
                libc::TUNSETPERSIST,
                libc::c_ulong::from(on),
            )
        };
        self.check("TUNSETPERSIST", result)
    }

    fn set_int(&self, what: &str, request: libc::Ioctl, value: usize) -> Result<(), NicError> {
        let value = libc::c_int::try_from(value).expect("small constants");
        // SAFETY: all requests it is called with read one int through the pointer, which is valid during the
        // call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), request, &raw const value) };
        self.check(what, result)
    }

    fn check(&self, what: &str, result: libc::c_int) -> Result<(), NicError> {
        if result >= 0 {
            return Ok(());
        }
        Err(NicError::refused(
            format!("{}: {what}", self.name),
            io::Error::last_os_error(),
        ))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sets the offloads that the kernel may leave to the reader of a TAP from now on.
///
/// # Errors
///
/// The descriptor is no TAP, or the kernel is older than 6.2 and knows no UDP segmentation (EINVAL).
pub fn set_tap_offloads(tap: BorrowedFd<'_>, offloads: Offloads) -> io::Result<()> {
    let mut flags = 0;
    for (wanted, flag) in [
        (offloads.checksum, libc::TUN_F_CSUM),
        (offloads.checksum && offloads.tso4, libc::TUN_F_TSO4),
        (offloads.checksum && offloads.tso6, libc::TUN_F_TSO6),
        (
            offloads.checksum && offloads.ecn && (offloads.tso4 || offloads.tso6),
            libc::TUN_F_TSO_ECN,
        ),
        // The kernel takes both or none.
        (
            offloads.checksum && offloads.uso,
            libc::TUN_F_USO4 | libc::TUN_F_USO6,
        ),
    ] {
        flags |= if wanted { flag } else { 0 };
    }
    let flags = libc::c_ulong::from(flags);
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn check_takeover(name: &str, link: &Link) -> Result<(), NicError> {
    let not_a_tap = |found: String| NicError::NotATap {
        name: name.into(),
        found,
    };
    match link.kind.as_str() {
        "tun" if !link.tap => Err(not_a_tap("a TUN".into())),
        "tun" if link.queues > 0 => Err(NicError::Busy(name.into())),
        "tun" => Ok(()),
        "" => Err(not_a_tap("a device".into())),
        kind => Err(not_a_tap(format!("a {kind}"))),
    }
}

/// Opens a queue of the TAP, which creates it if need be.
fn attach(name: &str, existing: Option<&Link>) -> Result<OwnedFd, NicError> {
    let file = device_file()?;
    become_queue(&file, name, existing)?;
    Ok(file)
}

fn device_file() -> Result<OwnedFd, NicError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|errno| NicError::refused("/dev/net/tun", errno))
}

/// Makes the file a queue of the TAP. The kernel wants to be told whether an existing one has several.
fn become_queue(file: &OwnedFd, name: &str, existing: Option<&Link>) -> Result<(), NicError> {
    // SAFETY: `ifreq` is plain data for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let queues = match existing {
        Some(link) if link.multi_queue => libc::IFF_MULTI_QUEUE,
        _ => 0,
    };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | queues;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).expect("the flags fit 15 bits");
    // SAFETY: TUNSETIFF reads and writes one `ifreq` through the pointer, which is valid during the call;
    // `check_name` left room for the terminating zero.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EBUSY) => Err(NicError::Busy(name.into())),
        _ => Err(NicError::refused(format!("{name}: TUNSETIFF"), error)),
    }
}
