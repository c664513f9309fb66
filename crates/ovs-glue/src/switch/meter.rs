//! The family `ovs_meter` (`net/openvswitch/meter.c`).

use super::{Outcome, Result, Switch, refused, reply};
use crate::datapath::{Datapath, MeterSeen, MeterSpec};
use crate::placeholder::Placeholders;
use ovs_netlink::message::Header;
use ovs_netlink::meter::{Command, MAX_BANDS, Reply as Description, Request};
use ovs_netlink::{Errno, Reply};

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn meter(&mut self, header: Header, number: u32, request: Request) -> Result<Outcome> {
        let (datapath, _) = self.bridge(number)?;
        let description = match request {
            Request::Features => Description::Features {
                max_meters: self.capabilities.meters,
                max_bands: u32::try_from(MAX_BANDS).unwrap_or(u32::MAX),
            },
            Request::Set { .. } if self.capabilities.meters == 0 => return refused(Errno::EFBIG),
            Request::Set {
                id, kilobits, bands, ..
            } => {
                let spec = MeterSpec { kilobits, bands };
                told(Command::Set, id, self.datapath.set_meter(datapath, id, spec)?)
            }
            Request::Get(id) => {
                let meter = self.datapath.meter(datapath, id).ok_or(Errno::ENOENT)?;
                told(Command::Get, id, Some(meter))
            }
            // One that is not there is none.
            Request::Delete(id) => told(Command::Delete, id, self.datapath.remove_meter(datapath, id)),
        };
        reply(header, &Reply::Meter(number, description))
    }
}

/// `ovs_meter_cmd_reply_stats`.
fn told(command: Command, id: u32, meter: Option<MeterSeen>) -> Description {
    let seen = meter.as_ref().map(|meter| meter.seen);
    Description::Meter {
        command,
        id,
        stats: seen.map(|seen| seen.stats),
        used: seen.and_then(|seen| seen.used),
        bands: meter.map(|meter| meter.bands).unwrap_or_default(),
    }
}
