//! The family `ovs_meter` (`net/openvswitch/meter.c`).

use super::{Outcome, Result, Step, Switch, Then, refused, reply};
use crate::datapath::{Datapath, DatapathId, MeterSeen, MeterSpec, Question};
use crate::placeholder::Placeholders;
use ovs_netlink::message::Header;
use ovs_netlink::meter::{Command, MAX_BANDS, Reply as Description, Request};
use ovs_netlink::{Errno, Reply};

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn meter(&mut self, header: Header, number: u32, request: Request) -> Result<Step> {
        let (datapath, _) = self.bridge(number)?;
        let (question, command, id) = match request {
            Request::Features => {
                let features = Description::Features {
                    max_meters: self.capabilities.meters,
                    max_bands: u32::try_from(MAX_BANDS).unwrap_or(u32::MAX),
                };
                return reply(header, &Reply::Meter(number, features)).map(Step::Done);
            }
            Request::Set { .. } if self.capabilities.meters == 0 => return refused(Errno::EFBIG),
            Request::Set {
                id, kilobits, bands, ..
            } => {
                let spec = MeterSpec { kilobits, bands };
                (Question::SetMeter(id, spec), Command::Set, id)
            }
            Request::Get(id) => (Question::Meter(id), Command::Get, id),
            Request::Delete(id) => (Question::RemoveMeter(id), Command::Delete, id),
        };
        Ok(Step::Ask(
            datapath,
            question,
            Then::TellMeter(datapath, command, id),
        ))
    }
}

/// Tells of a meter that was asked for, or of the one that was there before. One that is not there can be
/// removed, and not be got.
pub(super) fn tell(
    header: Header,
    datapath: DatapathId,
    (command, id): (Command, u32),
    meter: Option<MeterSeen>,
) -> Result<Outcome> {
    if command == Command::Get && meter.is_none() {
        return refused(Errno::ENOENT);
    }
    reply(header, &Reply::Meter(datapath.0, told(command, id, meter)))
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
