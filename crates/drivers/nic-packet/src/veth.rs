//! Ports that are veth pairs: a network stack has one end, the switch the other one.
//!
//! ```text
//!  container's namespace        the switch's namespace
//!        eth0  ~~~~~~~~~~~~  v7   <- program: into another container by the kernel path, or to t7
//!                            t7   <- program: into the container
//!                             |  TAP, whose frames a forwarder reads and writes
//! ```
//!
//! The switch's ends lie in a network namespace that has no name. Only the supervisor and the broker have it,
//! and no process of the host is in it: what arrives at an end cannot meet a network stack, not even without
//! the program. All of it vanishes with the last descriptor, and so with the switch, however that ends.
//!
//! Indices of devices follow from the port's number (`kernel-path`), so the program at all of these devices
//! is one. Nothing outside of the namespace can be reached by an index.
//!
//! A TAP is behind each end, and not a packet socket: a packet socket would also see the frames that a
//! program sends elsewhere.

use crate::namespace::{self, NamespaceId};
use crate::netlink::{Change, Netlink, Peer};
use crate::settings::{set_addresses, set_link};
use crate::tap::Tap;
use crate::{Addresses, LinkWatch, NicError, TapSpec, addresses_of, check_name};
use kernel_path::{PORTS, end_index, tap_index};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// What the ends of pairs take: a program with its table, and the namespaces.
#[derive(Debug)]
pub struct VethMeans {
    program: OwnedFd,
    /// The table of the kernel path; the data plane's, and of no use to a broker.
    table: Option<OwnedFd>,
    /// Where the switch's ends are.
    switch: OwnedFd,
    /// Where containers' ends are if no namespace is given.
    host: OwnedFd,
}

impl VethMeans {
    /// Loads the program and makes the namespace. Takes CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN.
    ///
    /// # Errors
    ///
    /// The process may not, or the kernel attaches no programs to the ingress of devices (before Linux 6.6).
    pub fn make() -> Result<VethMeans, NicError> {
        let refused = |what: &'static str| move |error| NicError::refused(what, error);
        let table = kernel_path::create().map_err(refused("the table of the kernel path"))?;
        let code = kernel_path::program(table.as_raw_fd());
        let program = ebpf::load(&code, c"Apache-2.0", "hs_veth", ebpf::Purpose::Ingress)
            .map_err(refused("loading the program at veth pairs"))?;
        let means = VethMeans {
            program,
            table: Some(table),
            switch: namespace::make().map_err(refused("a network namespace for veth pairs"))?,
            host: namespace::own().map_err(refused("the host's network namespace"))?,
        };
        means.within(|| {
            let lo = Netlink::new()?.link("lo")?;
            let index = lo.ok_or_else(|| NicError::Missing("lo".into()))?.index;
            ebpf::attach_to_ingress(means.program.as_fd(), index)
                .map(drop)
                .map_err(refused("a program at the ingress of a device (Linux 6.6)"))
        })?;
        Ok(means)
    }

    /// The means that another process has made, by [`Self::descriptors`].
    pub fn of_descriptors([program, switch, host]: [OwnedFd; 3]) -> VethMeans {
        VethMeans {
            program,
            table: None,
            switch,
            host,
        }
    }

    /// Program, namespace of the switch's ends, namespace of the host.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.program.as_fd(), self.switch.as_fd(), self.host.as_fd()]
    }

    /// Watches the switch's ends; [`Self::port_of`] says of which port an event is.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn watch(&self) -> Result<LinkWatch, NicError> {
        self.within(LinkWatch::new)
    }

    /// The port to which a device in the switch's namespace belongs.
    pub fn port_of(index: u32) -> Option<u32> {
        kernel_path::port_of(index)
    }

    /// The table of the kernel path, for the data plane; of the maker alone.
    pub fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(OwnedFd::as_fd)
    }

    /// Withdraws what a data plane that has ended has left in the table.
    pub fn wipe_table(&self) {
        // If that is not possible, the next data plane does it.
        let _ = self.table().map(kernel_path::wipe);
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> Result<T, NicError> + Send) -> Result<T, NicError> {
        namespace::inside(&self.switch, "of the switch", work)
    }
}

/// A pair of ours, and the TAP behind it. Nothing is persistent: it disappears once nobody has its TAP and
/// links open and it is [deleted](Veth::delete), or with its namespace.
#[derive(Debug)]
pub struct Veth {
    tap: Tap,
    /// The programs at the pair's end and at the TAP.
    links: [OwnedFd; 2],
    port: u32,
    /// The network namespace by whose name the container's end was made.
    netns: Option<(String, NamespaceId)>,
    /// Where the switch's end is.
    switch: OwnedFd,
}

impl Veth {
    /// Makes the pair of a port. The container's end gets the name, settings and addresses of the
    /// specification.
    ///
    /// # Errors
    ///
    /// [`NicError::Taken`] if there is an interface of that name, or the kernel refused.
    pub fn open(port: u32, spec: &TapSpec, means: &VethMeans) -> Result<Veth, NicError> {
        check_name(&spec.name)?;
        if port >= PORTS {
            return Err(NicError::refused(
                "port",
                io::Error::from(io::ErrorKind::InvalidInput),
            ));
        }
        // Before it is entered: if it is replaced meanwhile, we notice later.
        let netns = match &spec.netns {
            Some(name) => Some((name.clone(), namespace::id(name)?)),
            None => None,
        };
        let target = match &spec.netns {
            Some(name) => namespace::open(name)?,
            None => namespace::duplicate(&means.host)?,
        };
        let switch = namespace::duplicate(&means.switch)?;
        let (tap, links) = means.within(|| make(port, spec, &target, means.program.as_fd()))?;
        let veth = Veth {
            tap,
            links,
            port,
            netns,
            switch,
        };
        let configured = namespace::inside(&target, &spec.name, || configure(spec));
        match configured {
            Ok(()) => Ok(veth),
            Err(error) => {
                veth.delete()?;
                Err(error)
            }
        }
    }

    /// A pair that an earlier process has opened, by [`Self::descriptors`].
    ///
    /// # Errors
    ///
    /// The process has no more room for descriptors.
    pub fn of_earlier(
        [tap, end, other]: [OwnedFd; 3],
        port: u32,
        netns: Option<(String, NamespaceId)>,
        means: &VethMeans,
    ) -> Result<Veth, NicError> {
        Ok(Veth {
            tap: Tap::of_earlier(tap, &names(port)[1], true, None),
            links: [end, other],
            port,
            netns,
            switch: namespace::duplicate(&means.switch)?,
        })
    }

    /// Descriptors of the TAP and of the links of the two programs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.tap.as_fd(), self.links[0].as_fd(), self.links[1].as_fd()]
    }

    /// Device and inode of the network namespace by whose name the container's end was made.
    pub fn namespace(&self) -> Option<NamespaceId> {
        self.netns.as_ref().map(|(_, id)| *id)
    }

    /// Whether the name of the container's namespace still means that namespace.
    pub fn is_current(&self) -> bool {
        namespace::is_current(self.netns.as_ref())
    }

    /// Whether there is a pair: a container can remove it by its end.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn exists(&self) -> Result<bool, NicError> {
        namespace::inside(&self.switch, "of the switch", || {
            Ok(Netlink::new()?.link(&names(self.port)[0])?.is_some())
        })
    }

    /// Changes the container's end in place, from one specification of it to another.
    ///
    /// # Errors
    ///
    /// The end is gone, renamed or moved, or the kernel refused. Settings may have changed in part.
    pub fn change(&self, old: &TapSpec, new: &TapSpec, means: &VethMeans) -> Result<(), NicError> {
        if let Some(mtu) = new.mtu.filter(|_| new.mtu != old.mtu) {
            means.within(|| {
                let mut netlink = Netlink::new()?;
                let mut set =
                    |(index, name): (u32, &String)| set_link(&mut netlink, name, index, None, Some(mtu));
                indices(self.port)
                    .into_iter()
                    .zip(&names(self.port))
                    .try_for_each(&mut set)
            })?;
        }
        let target = self.target(new, means)?;
        namespace::inside(&target, &new.name, || {
            let mut netlink = Netlink::new()?;
            let link = netlink.link(&new.name)?;
            let index = link.ok_or_else(|| NicError::Missing(new.name.clone()))?.index;
            crate::settings::change(&mut netlink, &new.name, index, old, new)
        })
    }

    /// The addresses of the container's end.
    ///
    /// # Errors
    ///
    /// As [`Self::change`].
    pub fn addresses(&self, spec: &TapSpec, means: &VethMeans) -> Result<Addresses, NicError> {
        let target = self.target(spec, means)?;
        namespace::inside(&target, &spec.name, || addresses_of(&spec.name))
    }

    fn target(&self, spec: &TapSpec, means: &VethMeans) -> Result<OwnedFd, NicError> {
        match &spec.netns {
            Some(name) => namespace::open(name),
            None => namespace::duplicate(&means.host),
        }
    }

    /// Removes both ends and the TAP, wherever the container's end is, even if other processes have them
    /// open.
    ///
    /// # Errors
    ///
    /// The kernel refused.
    pub fn delete(self) -> Result<(), NicError> {
        namespace::inside(&self.switch, "of the switch", || {
            clear(&mut Netlink::new()?, self.port)
        })
    }
}

/// The devices of a port in the switch's namespace: the pair's end, and the TAP.
fn indices(port: u32) -> [u32; 2] {
    [end_index(port), tap_index(port)]
}

fn names(port: u32) -> [String; 2] {
    [format!("v{port}"), format!("t{port}")]
}

/// Makes pair and TAP, in the switch's namespace, with the program at both.
fn make(
    port: u32,
    spec: &TapSpec,
    target: &OwnedFd,
    program: BorrowedFd<'_>,
) -> Result<(Tap, [OwnedFd; 2]), NicError> {
    let mut netlink = Netlink::new()?;
    clear(&mut netlink, port)?;
    let ([end, behind], [end_name, tap_name]) = (indices(port), names(port));
    let tap = Tap::numbered(&tap_name, behind)?;
    let peer = Peer {
        name: &spec.name,
        namespace: target.as_fd(),
        mac: spec.first_mac(),
        mtu: spec.mtu,
    };
    netlink
        .add_veth(&end_name, end, peer)
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => NicError::Taken(spec.name.clone()),
            _ => NicError::refused(format!("{}: making a veth pair", spec.name), error),
        })?;
    let prepared = prepare(
        &mut netlink,
        spec,
        [(end, &end_name), (behind, &tap_name)],
        program,
    );
    match prepared {
        Ok(links) => Ok((tap, links)),
        Err(error) => {
            clear(&mut netlink, port)?;
            Err(error)
        }
    }
}

/// Attaches the program to both devices, and brings them up: neither speaks for itself.
fn prepare(
    netlink: &mut Netlink,
    spec: &TapSpec,
    devices: [(u32, &String); 2],
    program: BorrowedFd<'_>,
) -> Result<[OwnedFd; 2], NicError> {
    let mut attach = |(index, name): (u32, &String)| {
        let refused = |what: &str| {
            let what = format!("{}: {what} of its switch's end", spec.name);
            move |error| NicError::refused(what, error)
        };
        netlink.set_no_ipv6_address(index).map_err(refused("IPv6"))?;
        set_link(netlink, name, index, None, spec.mtu)?;
        let link = ebpf::attach_to_ingress(program, index).map_err(refused("program"))?;
        let up = Change {
            up: Some(true),
            no_arp: Some(true),
            ..Change::default()
        };
        netlink.change(index, up).map_err(refused("bringing up"))?;
        Ok::<_, NicError>(link)
    };
    let [end, tap] = devices;
    Ok([attach(end)?, attach(tap)?])
}

/// Removes a port's devices in the switch's namespace, if there are any.
fn clear(netlink: &mut Netlink, port: u32) -> Result<(), NicError> {
    for name in names(port) {
        let Some(link) = netlink.link(&name)? else {
            continue;
        };
        match netlink.delete(link.index) {
            // A container has been faster.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            other => other.map_err(|error| NicError::refused(format!("{name}: removing it"), error))?,
        }
    }
    Ok(())
}

/// Brings the container's end up, with its addresses.
fn configure(spec: &TapSpec) -> Result<(), NicError> {
    let mut netlink = Netlink::new()?;
    let link = netlink.link(&spec.name)?;
    let index = link.ok_or_else(|| NicError::Missing(spec.name.clone()))?.index;
    let up = Change {
        up: Some(true),
        ..Change::default()
    };
    let refused = |error| NicError::refused(format!("{}: bringing up", spec.name), error);
    netlink.change(index, up).map_err(refused)?;
    let none: &[(IpAddr, u8)] = &[];
    set_addresses(&mut netlink, &spec.name, index, none, &spec.addresses)
}
