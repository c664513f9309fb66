//! Routes through an interface in a network namespace.
//!
//! Containers get their routes here once their TAP is up. A route is added as `ip route add` adds one: the
//! kernel refuses a gateway that no address of the interface reaches.

use crate::netlink::{Netlink, attribute, attributes};
use crate::{NicError, check_name, namespace};
use std::io;
use std::net::IpAddr;

/// `struct rtmsg`.
const ROUTE_LEN: usize = 12;

/// One route, of IPv4 or IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; of length 0 for a default route.
    pub destination: (IpAddr, u8),
    /// The next hop, of the same family; `None`: stations of the network are on the link.
    pub gateway: Option<IpAddr>,
    /// Largest packet in bytes.
    pub mtu: Option<u32>,
    /// Largest TCP segment to advertise, in bytes.
    pub advertised_mss: Option<u32>,
    /// Metric; a lower one goes first.
    pub priority: Option<u32>,
    /// Routing table; the main one if `None`.
    pub table: Option<u32>,
    /// Scope (`rtnetlink(7)`); if `None`, the universe behind a gateway and the link without one.
    pub scope: Option<u8>,
}

/// Adds routes through an interface in a namespace: a name under `/run/netns`, or a path. One that is there
/// already is no error.
///
/// # Errors
///
/// There is no such namespace or interface, or the kernel refuses one of the routes, which the error names.
/// Routes before that one stay.
pub fn add_routes(netns: &str, interface: &str, routes: &[Route]) -> Result<(), NicError> {
    through(netns, interface, |netlink, index| {
        for route in routes {
            match netlink.add_route(index, route) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                result => result.map_err(|error| {
                    let (network, length) = route.destination;
                    NicError::refused(format!("adding the route to {network}/{length}"), error)
                })?,
            }
        }
        Ok(())
    })
}

/// Networks of the routes through an interface in a namespace, those of its addresses included.
///
/// # Errors
///
/// There is no such namespace or interface, or the kernel refuses.
pub fn routes(netns: &str, interface: &str) -> Result<Vec<(IpAddr, u8)>, NicError> {
    through(netns, interface, |netlink, index| {
        let mut found = Vec::new();
        let each = |body: &[u8]| found.extend(parse_route(body, index));
        netlink
            .exchange(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &[0; ROUTE_LEN], each)
            .map_err(|error| NicError::refused("listing routes", error))?;
        Ok(found)
    })
}

fn through<T: Send>(
    netns: &str,
    interface: &str,
    work: impl FnOnce(&mut Netlink, u32) -> Result<T, NicError> + Send,
) -> Result<T, NicError> {
    check_name(interface)?;
    namespace::within(Some(netns), || {
        let mut netlink = Netlink::new()?;
        let link = netlink.link(interface)?;
        let link = link.ok_or_else(|| NicError::Missing(interface.into()))?;
        work(&mut netlink, link.index)
    })
}

impl Netlink {
    fn add_route(&mut self, index: u32, route: &Route) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let body = route_body(index, route)?;
        self.exchange(libc::RTM_NEWROUTE, flags, &body, |_| {})
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn route_body(index: u32, route: &Route) -> io::Result<Vec<u8>> {
    let (network, length) = route.destination;
    let (family, longest) = match network {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let of_other_family = |gateway: IpAddr| gateway.is_ipv4() != network.is_ipv4();
    if length > longest || route.gateway.is_some_and(of_other_family) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let family = u8::try_from(family).expect("address families are small");
    let scope = route.scope.unwrap_or(match route.gateway {
        None if network.is_ipv4() => libc::RT_SCOPE_LINK,
        _ => libc::RT_SCOPE_UNIVERSE,
    });
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RTN_UNICAST);
    let mut body = vec![family, length, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0];
    if length > 0 {
        attribute(&mut body, libc::RTA_DST, &octets(network));
    }
    if let Some(gateway) = route.gateway {
        attribute(&mut body, libc::RTA_GATEWAY, &octets(gateway));
    }
    attribute(&mut body, libc::RTA_OIF, &index.to_ne_bytes());
    if let Some(priority) = route.priority {
        attribute(&mut body, libc::RTA_PRIORITY, &priority.to_ne_bytes());
    }
    if let Some(table) = route.table {
        // Takes the place of the table in the header, which has 8 bits.
        attribute(&mut body, libc::RTA_TABLE, &table.to_ne_bytes());
    }
    let mut metrics = Vec::new();
    for (kind, value) in [(RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advertised_mss)] {
        if let Some(value) = value {
            attribute(&mut metrics, kind, &value.to_ne_bytes());
        }
    }
    if !metrics.is_empty() {
        attribute(&mut body, libc::RTA_METRICS, &metrics);
    }
    Ok(body)
}

/// Numbers of metrics (`linux/rtnetlink.h`), which `libc` lacks.
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

/// The network of a route, if it leads through that interface.
fn parse_route(body: &[u8], index: u32) -> Option<(IpAddr, u8)> {
    let [family, length] = *body.first_chunk()?;
    let mut device = None;
    let mut network = match i32::from(family) {
        libc::AF_INET => IpAddr::from([0; 4]),
        libc::AF_INET6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    for (kind, value) in attributes(body.get(ROUTE_LEN..)?) {
        match kind {
            libc::RTA_OIF => device = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
            libc::RTA_DST => {
                let ipv4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
                let ipv6 = <[u8; 16]>::try_from(value).map(IpAddr::from);
                network = ipv4.or(ipv6).ok()?;
            }
            _ => {}
        }
    }
    (device == Some(index)).then_some((network, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(network: &str, length: u8, gateway: Option<&str>) -> Route {
        Route {
            destination: (network.parse().unwrap(), length),
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            mtu: Some(1400),
            advertised_mss: None,
            priority: Some(7),
            table: None,
            scope: None,
        }
    }

    #[test]
    fn what_is_encoded_is_read_again() {
        for (network, length) in [("10.0.0.0", 8), ("0.0.0.0", 0), ("fd00::", 64), ("::", 0)] {
            let body = route_body(3, &route(network, length, None)).unwrap();
            let found = parse_route(&body, 3);
            assert_eq!(found, Some((network.parse().unwrap(), length)));
            assert_eq!(parse_route(&body, 4), None, "another interface's");
            for cut in 0..body.len() {
                parse_route(&body[..cut], 3);
            }
        }
    }

    #[test]
    fn impossible_routes_are_refused() {
        assert!(route_body(3, &route("10.0.0.0", 33, None)).is_err());
        assert!(route_body(3, &route("fd00::", 129, None)).is_err());
        assert!(route_body(3, &route("10.0.0.0", 8, Some("fd00::1"))).is_err());
    }
}
