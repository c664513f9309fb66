//! The family `ovs_ct_limit` (`net/openvswitch/conntrack.c`): connections per zone. Limits belong to no datapath.

use super::{Outcome, Request, Result, Switch, refused};
use crate::datapath::{Datapath, DatapathId};
use crate::placeholder::Placeholders;
use crate::uapi::ct_limit::{ATTRIBUTES, DEL, GET, SET, ZONE_LIMIT};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};

/// `OVS_ZONE_LIMIT_DEFAULT_ZONE`: zones without a limit of their own.
const DEFAULT_ZONE: i32 = -1;

/// `struct ovs_zone_limit`, without the count.
struct ZoneLimit {
    zone: i32,
    limit: u32,
}

impl ZoneLimit {
    /// The zone; `None`: those without a limit of their own. An error for what is none.
    fn zone(&self) -> std::result::Result<Option<u16>, std::num::TryFromIntError> {
        if self.zone == DEFAULT_ZONE {
            Ok(None)
        } else {
            u16::try_from(self.zone).map(Some)
        }
    }
}

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn ct_limit(&mut self, request: &Request<'_>) -> Result<Outcome> {
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        let wanted = table.bytes(ZONE_LIMIT);
        match request.command {
            SET => {
                for limit in zone_limits(table.required(ZONE_LIMIT, wanted)?) {
                    // Zones that cannot be are passed over, as in the kernel.
                    if let Ok(zone) = limit.zone() {
                        self.datapath.set_zone_limit(zone, limit.limit)?;
                    }
                }
                request.reply(SET, DatapathId(request.datapath), |_| {})
            }
            DEL => {
                for limit in zone_limits(table.required(ZONE_LIMIT, wanted)?) {
                    match limit.zone() {
                        Ok(Some(zone)) => self.datapath.remove_zone_limit(zone),
                        Ok(None) => self.datapath.set_zone_limit(None, 0)?,
                        Err(_) => {}
                    }
                }
                request.reply(DEL, DatapathId(request.datapath), |_| {})
            }
            GET => {
                let zones: Vec<Option<u16>> = match wanted {
                    Some(wanted) => zone_limits(wanted)
                        .filter_map(|limit| limit.zone().ok())
                        .collect(),
                    None => {
                        let own = self.datapath.limited_zones().into_iter().map(Some);
                        std::iter::once(None).chain(own).collect()
                    }
                };
                let datapath = DatapathId(request.datapath);
                request.reply(GET, datapath, |writer| self.write_limits(writer, &zones))
            }
            _ => refused(Errno::EOPNOTSUPP),
        }
    }

    fn write_limits(&self, writer: &mut Writer, zones: &[Option<u16>]) {
        writer.nested(ZONE_LIMIT, |writer| {
            for zone in zones {
                let (limit, count) = self.datapath.zone_limit(*zone);
                writer.raw(&zone.map_or(DEFAULT_ZONE, i32::from).to_ne_bytes());
                writer.raw(&limit.to_ne_bytes());
                writer.raw(&count.to_ne_bytes());
            }
        });
    }
}

fn zone_limits(bytes: &[u8]) -> impl Iterator<Item = ZoneLimit> {
    bytes.as_chunks::<12>().0.iter().map(|chunk| {
        let [a, b, c, d, e, f, g, h, ..] = *chunk;
        ZoneLimit {
            zone: i32::from_ne_bytes([a, b, c, d]),
            limit: u32::from_ne_bytes([e, f, g, h]),
        }
    })
}
