//! The family `ovs_ct_limit` (`net/openvswitch/conntrack.c`): connections per zone. Limits belong to no
//! datapath.

use super::{Outcome, Result, Switch, reply};
use crate::datapath::Datapath;
use crate::placeholder::Placeholders;
use ovs_netlink::Reply;
use ovs_netlink::ct_limit::{Command, Reply as Description, Request, Zone};
use ovs_netlink::message::Header;

impl<D: Datapath, P: Placeholders> Switch<D, P> {
    pub(super) fn ct_limit(&mut self, header: Header, request: Request) -> Result<Outcome> {
        let mut limits = None;
        let command = match request {
            Request::Set(wanted) => {
                for limit in wanted {
                    self.datapath.set_zone_limit(limit.zone, limit.limit)?;
                }
                Command::Set
            }
            Request::Delete(wanted) => {
                for limit in wanted {
                    self.datapath.remove_zone_limit(limit.zone);
                }
                Command::Delete
            }
            Request::Get(wanted) => {
                let zones: Vec<Zone> = match wanted {
                    Some(wanted) => wanted.iter().map(|limit| limit.zone).collect(),
                    None => self.datapath.limited_zones(),
                };
                limits = Some(
                    zones
                        .into_iter()
                        .map(|zone| self.datapath.zone_limit(zone))
                        .collect(),
                );
                Command::Get
            }
        };
        reply(header, &Reply::CtLimit(Description { command, limits }))
    }
}
