//! Outer headers of a tunnel: nested `OVS_TUNNEL_KEY_ATTR_*`, in keys, masks, `set` actions and upcalls.

use crate::attribute::{self, AttributeSet, Rule, Writer};
use crate::error::Error;
use crate::layout::Layout;

/// Most bytes of Geneve options or ERSPAN metadata (`IP_TUNNEL_OPTS_MAX`).
pub const MAX_TUNNEL_OPTIONS: usize = 255;

mod attr {
    pub const ID: u16 = 0;
    pub const IPV4_SRC: u16 = 1;
    pub const IPV4_DST: u16 = 2;
    pub const TOS: u16 = 3;
    pub const TTL: u16 = 4;
    pub const DONT_FRAGMENT: u16 = 5;
    pub const CSUM: u16 = 6;
    pub const OAM: u16 = 7;
    pub const GENEVE_OPTS: u16 = 8;
    pub const TP_SRC: u16 = 9;
    pub const TP_DST: u16 = 10;
    pub const VXLAN_OPTS: u16 = 11;
    pub const IPV6_SRC: u16 = 12;
    pub const IPV6_DST: u16 = 13;
    pub const ERSPAN_OPTS: u16 = 15;
    pub const IPV4_INFO_BRIDGE: u16 = 16;
}

static SET: AttributeSet<17> = AttributeSet {
    name: "OVS_TUNNEL_KEY_ATTR",
    rules: {
        use Rule::{Any, Between, Exactly, Padding};
        [
            Exactly(8),
            Exactly(4),
            Exactly(4),
            Exactly(1),
            Exactly(1),
            Exactly(0),
            Exactly(0),
            Exactly(0),
            Between(0, MAX_TUNNEL_OPTIONS),
            Exactly(2),
            Exactly(2),
            Any,
            Exactly(16),
            Exactly(16),
            Padding,
            Between(0, MAX_TUNNEL_OPTIONS),
            Exactly(0),
        ]
    },
};

type Table<'a> = attribute::Table<'a, 17>;

/// `OVS_VXLAN_EXT_GBP`.
const VXLAN_GBP: u16 = 1;
static VXLAN: AttributeSet<2> = AttributeSet {
    name: "OVS_VXLAN_EXT",
    rules: [Rule::Unknown, Rule::Exactly(4)],
};

/// Outer headers of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Tunnel number, if there is one.
    pub id: Option<u64>,
    /// Addresses of both ends.
    pub addresses: TunnelAddresses,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Flags.
    pub flags: TunnelFlags,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Options of the tunnel's kind.
    pub options: TunnelOptions,
    /// Addresses come from the kernel's FDB (`OVS_TUNNEL_KEY_ATTR_IPV4_INFO_BRIDGE`); only the number may be
    /// given.
    pub bridge: bool,
}

/// Addresses of a tunnel's ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TunnelAddresses {
    /// A wildcard, in masks of keys without a tunnel; no addresses, with [`Tunnel::bridge`].
    #[default]
    None,
    /// IPv4.
    V4 {
        /// Source.
        source: u32,
        /// Destination; in a key not 0.
        destination: u32,
    },
    /// IPv6.
    V6 {
        /// Source.
        source: u128,
        /// Destination; in a key not 0.
        destination: u128,
    },
}

/// Flags of a tunnel. In masks: those that are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelFlags {
    /// The outer header forbids fragments.
    pub dont_fragment: bool,
    /// The outer UDP or GRE header has a checksum.
    pub checksum: bool,
    /// Geneve: a control packet.
    pub oam: bool,
}

/// Options that a kind of tunnel adds to the outer headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum TunnelOptions {
    /// Nothing.
    #[default]
    None,
    /// Geneve options, as in the packet; a multiple of 4 bytes.
    Geneve(Vec<u8>),
    /// VXLAN's group policy: flags and group.
    Vxlan {
        /// Flags and group, in the kernel's form.
        group_policy: u32,
    },
    /// ERSPAN metadata (`struct erspan_metadata`).
    Erspan(Vec<u8>),
}

impl Tunnel {
    /// Reads the tunnel of a key, of a `set` action or of an upcall.
    ///
    /// # Errors
    ///
    /// An attribute is wrong; the destination or the time to live is missing; there are addresses of both IP
    /// versions.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let table = Table::read(&SET, bytes)?;
        let tunnel = Self::read_common(&table)?;
        if tunnel.bridge {
            return tunnel.check_bridge(&table);
        }
        match tunnel.addresses {
            TunnelAddresses::None | TunnelAddresses::V4 { destination: 0, .. } => {
                Err(table.missing(attr::IPV4_DST))
            }
            TunnelAddresses::V6 { destination: 0, .. } => Err(table.missing(attr::IPV6_DST)),
            _ if !table.has(attr::TTL) => Err(table.missing(attr::TTL)),
            _ => Ok(tunnel),
        }
    }

    /// Reads the tunnel of a mask, whose key has the tunnel `key`.
    ///
    /// # Errors
    ///
    /// An attribute is wrong; addresses are not of the key's IP version; Geneve options are not as long as
    /// the key's.
    pub(super) fn read_mask(bytes: &[u8], key: Option<&Self>) -> Result<Self, Error> {
        let table = Table::read(&SET, bytes)?;
        let mut mask = Self::read_common(&table)?;
        let length = match key.map(|key| &key.options) {
            Some(TunnelOptions::Geneve(options)) => options.len(),
            _ => 0,
        };
        if let TunnelOptions::Geneve(options) = &mask.options
            && options.len() != length
        {
            return Err(Error::Size {
                set: SET.name,
                kind: attr::GENEVE_OPTS,
                found: options.len(),
            });
        }
        let Some(key) = key else { return Ok(mask) };
        let wildcard = key.wildcard().addresses;
        match (mask.addresses, wildcard) {
            (TunnelAddresses::None, _) => mask.addresses = wildcard,
            (TunnelAddresses::V4 { .. }, TunnelAddresses::V6 { .. }) => {
                return Err(table.misplaced(attr::IPV4_DST));
            }
            (TunnelAddresses::V6 { .. }, TunnelAddresses::V4 { .. } | TunnelAddresses::None) => {
                return Err(table.misplaced(attr::IPV6_DST));
            }
            _ => {}
        }
        Ok(mask)
    }

    fn read_common(table: &Table<'_>) -> Result<Self, Error> {
        Ok(Self {
            id: table.be64(attr::ID),
            addresses: addresses(table)?,
            tos: table.u8(attr::TOS).unwrap_or(0),
            ttl: table.u8(attr::TTL).unwrap_or(0),
            flags: TunnelFlags {
                dont_fragment: table.has(attr::DONT_FRAGMENT),
                checksum: table.has(attr::CSUM),
                oam: table.has(attr::OAM),
            },
            source_port: table.be16(attr::TP_SRC).unwrap_or(0),
            destination_port: table.be16(attr::TP_DST).unwrap_or(0),
            options: options(table)?,
            bridge: table.has(attr::IPV4_INFO_BRIDGE),
        })
    }

    /// Checks a tunnel with [`Self::bridge`]: it has only its number; other fields may be present as zeros.
    fn check_bridge(self, table: &Table<'_>) -> Result<Self, Error> {
        if matches!(self.addresses, TunnelAddresses::V6 { .. }) {
            return Err(table.misplaced(attr::IPV6_DST));
        }
        let zeros = TunnelAddresses::V4 {
            source: 0,
            destination: 0,
        };
        let only_number = Self {
            id: self.id,
            bridge: true,
            ..Self::default()
        };
        let zeros_are_absent = Self {
            addresses: if self.addresses == zeros {
                TunnelAddresses::None
            } else {
                self.addresses
            },
            ..self
        };
        if zeros_are_absent == only_number {
            Ok(only_number)
        } else {
            Err(table.misplaced(attr::IPV4_INFO_BRIDGE))
        }
    }

    /// The wildcard mask of this tunnel.
    pub(super) fn wildcard(&self) -> Self {
        let addresses = match self.addresses {
            TunnelAddresses::None => TunnelAddresses::None,
            TunnelAddresses::V4 { .. } => TunnelAddresses::V4 {
                source: 0,
                destination: 0,
            },
            TunnelAddresses::V6 { .. } => TunnelAddresses::V6 {
                source: 0,
                destination: 0,
            },
        };
        Self {
            addresses,
            ..Self::default()
        }
    }

    /// The exact mask of this tunnel, also for fields that are absent.
    pub(super) fn exact(&self) -> Self {
        let addresses = match self.addresses {
            TunnelAddresses::None => TunnelAddresses::None,
            TunnelAddresses::V4 { .. } => TunnelAddresses::V4 {
                source: u32::MAX,
                destination: u32::MAX,
            },
            TunnelAddresses::V6 { .. } => TunnelAddresses::V6 {
                source: u128::MAX,
                destination: u128::MAX,
            },
        };
        let options = match &self.options {
            TunnelOptions::None => TunnelOptions::None,
            TunnelOptions::Geneve(options) => TunnelOptions::Geneve(vec![0xff; options.len()]),
            TunnelOptions::Vxlan { .. } => TunnelOptions::Vxlan {
                group_policy: u32::MAX,
            },
            TunnelOptions::Erspan(options) => TunnelOptions::Erspan(vec![0xff; options.len()]),
        };
        Self {
            id: Some(u64::MAX),
            addresses,
            tos: u8::MAX,
            ttl: u8::MAX,
            flags: TunnelFlags {
                dont_fragment: true,
                checksum: true,
                oam: true,
            },
            source_port: u16::MAX,
            destination_port: u16::MAX,
            options,
            bridge: self.bridge,
        }
    }

    /// Writes the attributes, without the one that holds them. Fields that are zero are left out, as by the
    /// kernel.
    pub fn write(&self, writer: &mut Writer) {
        if let Some(id) = self.id {
            writer.be64(attr::ID, id);
        }
        match self.addresses {
            TunnelAddresses::None => {}
            TunnelAddresses::V4 { source, destination } => {
                write_address(writer, attr::IPV4_SRC, source, 0);
                write_address(writer, attr::IPV4_DST, destination, 0);
            }
            TunnelAddresses::V6 { source, destination } => {
                write_address(writer, attr::IPV6_SRC, source, 0);
                write_address(writer, attr::IPV6_DST, destination, 0);
            }
        }
        if self.tos != 0 {
            writer.u8(attr::TOS, self.tos);
        }
        writer.u8(attr::TTL, self.ttl);
        writer.flag(attr::DONT_FRAGMENT, self.flags.dont_fragment);
        writer.flag(attr::CSUM, self.flags.checksum);
        write_address(writer, attr::TP_SRC, self.source_port, 0);
        write_address(writer, attr::TP_DST, self.destination_port, 0);
        writer.flag(attr::OAM, self.flags.oam);
        match &self.options {
            TunnelOptions::None => {}
            TunnelOptions::Geneve(options) => writer.attribute(attr::GENEVE_OPTS, options),
            TunnelOptions::Vxlan { group_policy } => {
                writer.nested(attr::VXLAN_OPTS, |writer| writer.u32(VXLAN_GBP, *group_policy));
            }
            TunnelOptions::Erspan(options) => writer.attribute(attr::ERSPAN_OPTS, options),
        }
        writer.flag(attr::IPV4_INFO_BRIDGE, self.bridge);
    }

    /// Checks that Geneve options are complete, as the kernel does for options to be sent
    /// (`validate_geneve_opts`).
    ///
    /// # Errors
    ///
    /// An option is longer than the remaining bytes.
    pub fn check_options(&self) -> Result<(), Error> {
        let TunnelOptions::Geneve(options) = &self.options else {
            return Ok(());
        };
        let mut rest = options.as_slice();
        while let Some(&[_, _, _, words]) = rest.first_chunk::<4>() {
            let length = 4 + 4 * usize::from(words & 0x1f);
            rest = rest.get(length..).ok_or(Error::Length {
                what: "Geneve option",
                claimed: length,
                room: rest.len(),
            })?;
        }
        Ok(())
    }
}

fn addresses(table: &Table<'_>) -> Result<TunnelAddresses, Error> {
    let v4 = [attr::IPV4_SRC, attr::IPV4_DST].map(|kind| table.bytes(kind).and_then(u32::from_bytes));
    let v6 = [attr::IPV6_SRC, attr::IPV6_DST].map(|kind| table.bytes(kind).and_then(u128::from_bytes));
    match (v4, v6) {
        ([None, None], [None, None]) => Ok(TunnelAddresses::None),
        ([source, destination], [None, None]) => Ok(TunnelAddresses::V4 {
            source: source.unwrap_or(0),
            destination: destination.unwrap_or(0),
        }),
        ([None, None], [source, destination]) => Ok(TunnelAddresses::V6 {
            source: source.unwrap_or(0),
            destination: destination.unwrap_or(0),
        }),
        _ => Err(table.misplaced(attr::IPV6_DST)),
    }
}

fn options(table: &Table<'_>) -> Result<TunnelOptions, Error> {
    let geneve = table.bytes(attr::GENEVE_OPTS);
    let vxlan = table.bytes(attr::VXLAN_OPTS);
    let erspan = table.bytes(attr::ERSPAN_OPTS);
    match (geneve, vxlan, erspan) {
        (None, None, None) => Ok(TunnelOptions::None),
        (Some(options), None, None) if options.len().is_multiple_of(4) => {
            Ok(TunnelOptions::Geneve(options.to_vec()))
        }
        (Some(options), None, None) => Err(Error::Size {
            set: SET.name,
            kind: attr::GENEVE_OPTS,
            found: options.len(),
        }),
        (None, Some(bytes), None) => {
            let table = attribute::Table::read(&VXLAN, bytes)?;
            Ok(TunnelOptions::Vxlan {
                group_policy: table.u32(VXLAN_GBP).unwrap_or(0),
            })
        }
        (None, None, Some(options)) => Ok(TunnelOptions::Erspan(options.to_vec())),
        (Some(_), ..) => Err(table.misplaced(attr::GENEVE_OPTS)),
        (None, ..) => Err(table.misplaced(attr::VXLAN_OPTS)),
    }
}

/// Writes a field in network order, unless it is `zero`.
fn write_address<T: Layout + PartialEq>(writer: &mut Writer, kind: u16, value: T, zero: T) {
    if value != zero {
        writer.layout(kind, &value);
    }
}
