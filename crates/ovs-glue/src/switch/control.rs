//! The family that tells of families (`nlctrl`, `net/netlink/genetlink.c`).

use super::{Dump, Outcome, Result, Switch, refused, write_name};
use crate::uapi::control::{
    FAMILY_ID, FAMILY_NAME, GET_FAMILY, GROUP_ID, GROUP_NAME, GROUPS, HEADER_SIZE, MAX_ATTRIBUTE, NEW_FAMILY,
    SET, VERSION,
};
use crate::uapi::{CONTROL, CT_LIMIT, FAMILIES, Family};
use ovs_netlink::Errno;
use ovs_netlink::attribute::{Table, Writer};
use ovs_netlink::message::{Flags, Generic, Header};

impl<D, P> Switch<D, P> {
    pub(super) fn control(&self, header: Header, command: u8, attributes: &[u8]) -> Result<Outcome> {
        if command != GET_FAMILY {
            return refused(Errno::EOPNOTSUPP);
        }
        if header.flags.contains(Flags::DUMP) {
            return Ok(Outcome {
                dump: Some(Dump::families(header)),
                ..Outcome::default()
            });
        }
        let table = Table::read(&SET, attributes)?;
        let family = match (table.u16(FAMILY_ID), table.bytes(FAMILY_NAME)) {
            (Some(number), _) => self.families().find(|family| family.number == number),
            (None, Some(wanted)) => {
                let wanted = wanted.strip_suffix(&[0]).unwrap_or(wanted);
                self.families().find(|family| family.name.as_bytes() == wanted)
            }
            (None, None) => return refused(Errno::EINVAL),
        };
        let mut writer = Writer::new();
        write_family(&mut writer, header, family.ok_or(Errno::ENOENT)?);
        Ok(Outcome {
            reply: Some(writer.finish()?),
            ..Outcome::default()
        })
    }

    /// The families that there are.
    pub(super) fn families(&self) -> impl Iterator<Item = &'static Family> {
        let zone_limits = self.capabilities.zone_limits;
        FAMILIES
            .into_iter()
            .filter(move |family| *family != &CT_LIMIT || zone_limits)
    }
}

/// Tells of one family. `header` is that of the request.
pub(super) fn write_family(writer: &mut Writer, header: Header, family: &Family) {
    let flags = if header.flags.contains(Flags::DUMP) {
        Flags::MULTI
    } else {
        Flags::default()
    };
    let header = Header {
        kind: CONTROL.number,
        flags,
        ..header
    };
    writer.message(header, |writer| {
        writer.generic(Generic {
            command: NEW_FAMILY,
            version: CONTROL.version,
        });
        write_name(writer, FAMILY_NAME, family.name);
        writer.u16(FAMILY_ID, family.number);
        writer.u32(VERSION, u32::from(family.version));
        writer.u32(HEADER_SIZE, family.header);
        writer.u32(MAX_ATTRIBUTE, family.max_attribute);
        if family.group != 0 {
            writer.nested(GROUPS, |writer| {
                writer.nested(1, |writer| {
                    writer.u32(GROUP_ID, family.group);
                    write_name(writer, GROUP_NAME, family.name);
                });
            });
        }
    });
}
