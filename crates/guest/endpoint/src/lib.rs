//! An application that is a network card of the switch, without a kernel's stack or a virtual machine
//! between.
//!
//! An [`Endpoint`] connects to the socket of a vhost-user port as DPDK's virtio-user does, and has rings with
//! the data plane in memory of its own. TCP and UDP are smoltcp's. All work is done in the application's own
//! time, on its own thread, in turns of bounded length ([`Endpoint::poll`]): a flood fills the ring and is
//! dropped there at no cost to the application, and cannot keep it from its work (Menon, Schubert and
//! Zwaenepoel, Accelerated Xen, section 4).
//!
//! Large TCP segments come in whole, and go out so over IPv4, with checksums left open, as between virtual
//! machines. When the data plane dies the endpoint connects to the next one; its connections go on.
//!
//! ```no_run
//! use endpoint::{Endpoint, Settings};
//!
//! # fn main() -> Result<(), endpoint::EndpointError> {
//! let settings = Settings::at("10.0.0.5".parse().unwrap(), 24);
//! let mut endpoint = Endpoint::connect("/run/hyperswitch/app.sock".as_ref(), &settings)?;
//! let mut listener = endpoint.listen(7, 16)?;
//! loop {
//!     endpoint.wait(None)?;
//!     if let Some(stream) = endpoint.accept(&mut listener) {
//!         endpoint.send(&stream, b"hello")?;
//!         endpoint.close(stream);
//!     }
//! }
//! # }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `attached` | the rings with the data plane, and what moves frames through them |
//! | `device` | the rings as smoltcp's network device |
//! | `checksums` | checksums that are left open, and those that are to be verified |
//! | `settings` | addresses and sizes |
//! | `sockets` | TCP and UDP |
//! | `waiting` | when there is something to do |

#![forbid(unsafe_code)]

mod attached;
mod checksums;
mod device;
mod settings;
mod sockets;
mod waiting;

pub use settings::Settings;
pub use sockets::{Datagrams, Listener, Stream};

use attached::Attached;
use device::Card;
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use waiting::Waiting;

/// Frames that are taken in before sockets have their turn.
const BURST: usize = 64;

/// Why an endpoint cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The switch cannot be reached, or breaks the protocol.
    #[error("{path}: {source}")]
    Switch {
        /// Socket of the port.
        path: PathBuf,
        /// Why not.
        source: AttachError,
    },
    /// The kernel refused.
    #[error("{0}")]
    Kernel(#[from] rustix::io::Errno),
    /// A setting is out of its range.
    #[error("{0}")]
    Setting(&'static str),
    /// Nothing can be sent or received now; [`Endpoint::wait`] says when that changes.
    #[error("not now")]
    WouldBlock,
    /// The peer reset or refused the connection, or did not answer in time.
    #[error("the connection is lost")]
    Reset,
    /// Sending is over at this end, or the datagram has no destination or is too long.
    #[error("it cannot be sent: {0}")]
    Unsendable(&'static str),
}

pub use attached::AttachError;

/// Counts since the endpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub received: u64,
    /// Frames sent; a large TCP segment is one.
    pub sent: u64,
    /// Frames whose checksum is wrong, or that are not what their header says.
    pub malformed: u64,
    /// Frames for which the ring had no room.
    pub unsent: u64,
    /// Data planes that went away.
    pub lost: u64,
}

/// An application's network card. One thread at a time uses it.
pub struct Endpoint {
    path: PathBuf,
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
    /// Connections that were closed and still say goodbye.
    closing: Vec<SocketHandle>,
    waiting: Waiting,
    settings: Settings,
    next_port: u16,
    begin: std::time::Instant,
}

impl Endpoint {
    /// Connects to the port whose socket is at `path`.
    ///
    /// # Errors
    ///
    /// A setting is out of its range, or there is no switch at `path` that takes us.
    pub fn connect(path: &Path, settings: &Settings) -> Result<Endpoint, EndpointError> {
        settings.check()?;
        let attached = Attached::connect(path).map_err(|source| EndpointError::Switch {
            path: path.to_owned(),
            source,
        })?;
        let waiting = Waiting::new(&attached)?;
        let mut card = Card::new(attached, settings.mtu);
        let mac = HardwareAddress::Ethernet(EthernetAddress(settings.mac));
        let mut config = Config::new(mac);
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        config.random_seed = u64::from_ne_bytes(seed);
        let interface = Interface::new(config, &mut card, Instant::ZERO);
        let mut endpoint = Endpoint {
            path: path.to_owned(),
            card,
            interface,
            sockets: SocketSet::new(Vec::new()),
            dhcp: None,
            closing: Vec::new(),
            waiting,
            settings: settings.clone(),
            // As Linux's range of local ports; which one comes first is not to be guessed.
            next_port: 32768 + u16::from_ne_bytes([seed[0], seed[1]]) % 28232,
            begin: std::time::Instant::now(),
        };
        for (address, prefix) in &settings.addresses {
            endpoint.add_address(IpCidr::new(IpAddress::from(*address), *prefix));
        }
        for gateway in &settings.gateways {
            endpoint.set_gateway(Some(*gateway));
        }
        if settings.dhcp {
            endpoint.dhcp = Some(endpoint.sockets.add(dhcpv4::Socket::new()));
        }
        Ok(endpoint)
    }

    /// One turn: takes in at most 64 frames, and sends what sockets have to send. Returns whether the state
    /// of a socket may have changed; then it is worth a look, and another turn.
    ///
    /// # Errors
    ///
    /// The kernel refused. A data plane that goes away is no error: the next one is connected to when it is
    /// there.
    pub fn poll(&mut self) -> Result<bool, EndpointError> {
        self.attach_anew()?;
        let now = self.now();
        let mut changed = false;
        for _ in 0..BURST {
            match (self.interface).poll_ingress_single(now, &mut self.card, &mut self.sockets) {
                PollIngressSingleResult::None => break,
                PollIngressSingleResult::PacketProcessed => {}
                PollIngressSingleResult::SocketStateChanged => changed = true,
            }
        }
        // A segment of each socket at a time: no more passes than there is room for in the ring.
        for _ in 0..BURST {
            let sent = self.interface.poll_egress(now, &mut self.card, &mut self.sockets);
            if sent == PollResult::None {
                break;
            }
            changed = true;
        }
        self.interface.poll_maintenance(now);
        self.card.flush();
        self.follow_dhcp();
        self.forget_closed();
        Ok(changed)
    }

    /// The addresses, also those that came by DHCP, with the length of their networks' prefixes.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> + '_ {
        let addresses = self.interface.ip_addrs().iter();
        addresses.map(|cidr| (cidr.address().into(), cidr.prefix_len()))
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.card.counters
    }

    /// Whether a data plane is there.
    pub fn is_attached(&self) -> bool {
        self.card.attached.is_some()
    }

    fn now(&self) -> Instant {
        let passed = self.begin.elapsed();
        Instant::from_micros(i64::try_from(passed.as_micros()).unwrap_or(i64::MAX))
    }

    fn add_address(&mut self, address: IpCidr) {
        // The number of addresses was checked with the settings, and DHCP has one.
        self.interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(address);
        });
    }

    /// There is room for one gateway of each family.
    fn set_gateway(&mut self, gateway: Option<IpAddr>) {
        let routes = self.interface.routes_mut();
        match gateway {
            Some(IpAddr::V4(gateway)) => drop(routes.add_default_ipv4_route(gateway)),
            Some(IpAddr::V6(gateway)) => drop(routes.add_default_ipv6_route(gateway)),
            None => drop(routes.remove_default_ipv4_route()),
        }
    }

    /// Takes the address that a DHCP server gave, or gives it up.
    fn follow_dhcp(&mut self) {
        let Some(handle) = self.dhcp else { return };
        let (address, gateway) = match self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll() {
            None => return,
            Some(dhcpv4::Event::Deconfigured) => (None, None),
            Some(dhcpv4::Event::Configured(config)) => (Some(config.address), config.router),
        };
        (self.interface).update_ip_addrs(|addresses| {
            addresses.retain(|cidr| !matches!(cidr, IpCidr::Ipv4(_)));
        });
        if let Some(address) = address {
            self.add_address(IpCidr::Ipv4(address));
        }
        self.set_gateway(gateway.map(IpAddr::V4));
    }
}
