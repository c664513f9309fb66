//! The family `ovs_meter` (`net/openvswitch/meter.c`).

use super::{Outcome, Request, Result, Switch, refused, words};
use crate::datapath::{Datapath, DatapathId, MeterSpec, MeterStats};
use crate::placeholder::Placeholders;
use crate::uapi::meter::{
    ATTRIBUTES, BAND, BAND_BURST, BAND_RATE, BAND_STATS, BAND_TYPE, BANDS, DEL, FEATURES, GET, ID, KBPS,
    MAX_BANDS, MAX_METERS, SET, STATS, TYPE_DROP, USED,
};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer, attributes};

/// Bands of a meter (`DP_MAX_BANDS`).
const BANDS_PER_METER: u32 = 1;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn meter(&mut self, request: &Request<'_>) -> Result<Outcome> {
        let table = Table::read(&ATTRIBUTES, request.attributes)?;
        let (datapath, _) = self.bridge(request.datapath)?;
        if request.command == FEATURES {
            return request.reply(FEATURES, datapath, |writer| {
                write_features(writer, self.capabilities.meters)
            });
        }
        let id = table.required(ID, table.u32(ID))?;
        match request.command {
            SET => {
                if self.capabilities.meters == 0 {
                    return refused(Errno::EFBIG);
                }
                let band = band(table.required(BANDS, table.bytes(BANDS))?)?;
                let kbps = table.has(KBPS);
                let before = self.datapath.set_meter(datapath, id, MeterSpec { kbps, band })?;
                let spec = MeterSpec { kbps, band };
                answer(request, datapath, SET, id, before.map(|stats| (spec, stats)))
            }
            GET => {
                let meter = self.datapath.meter(datapath, id).ok_or(Errno::ENOENT)?;
                answer(request, datapath, GET, id, Some(meter))
            }
            // One that is not there is none.
            DEL => answer(
                request,
                datapath,
                DEL,
                id,
                self.datapath.remove_meter(datapath, id),
            ),
            _ => refused(Errno::EOPNOTSUPP),
        }
    }
}

/// The band of a meter, if it has one (`dp_meter_create`).
fn band(bands: &[u8]) -> Result<Option<(u32, u32)>> {
    let mut found = None;
    for attribute in attributes(bands) {
        let table = Table::read(&BAND, attribute?.value)?;
        let kind = table.required(BAND_TYPE, table.u32(BAND_TYPE))?;
        let rate = table.required(BAND_RATE, table.u32(BAND_RATE))?;
        let burst = table.required(BAND_BURST, table.u32(BAND_BURST))?;
        if kind != TYPE_DROP || found.replace((rate, burst)).is_some() {
            return refused(Errno::EINVAL);
        }
    }
    Ok(found)
}

fn write_features(writer: &mut Writer, meters: u32) {
    writer.u32(MAX_METERS, meters);
    writer.u32(MAX_BANDS, BANDS_PER_METER);
    writer.nested(BANDS, |writer| {
        writer.nested(0, |writer| writer.u32(BAND_TYPE, TYPE_DROP));
    });
}

/// `ovs_meter_cmd_reply_stats`.
fn answer(
    request: &Request<'_>,
    datapath: DatapathId,
    command: u8,
    id: u32,
    meter: Option<(MeterSpec, MeterStats)>,
) -> Result<Outcome> {
    request.reply(command, datapath, |writer| {
        writer.u32(ID, id);
        let Some((spec, stats)) = meter else { return };
        writer.attribute(STATS, &words(&[stats.packets, stats.bytes]));
        if stats.used != 0 {
            writer.u64(USED, stats.used);
        }
        writer.nested(BANDS, |writer| {
            if spec.band.is_some() {
                let counted = words(&[stats.band_packets, stats.band_bytes]);
                writer.nested(0, |writer| writer.attribute(BAND_STATS, &counted));
            }
        });
    })
}
