//! The one rtnetlink message that is changed.
//!
//! At its start ovs-vswitchd asks the kernel for a device of kind `ovs_geneve`. Any answer but `EOPNOTSUPP`
//! says that tunnels are made by the datapath (`dpif_netlink_rtnl_probe_oot_tunnels`, OVS 2.17 to 3.x), which
//! is what we want. So the kernel is sent, in its place, a message to which it answers `EEXIST` whatever
//! happens: make a new device, and only a new one, with the index of the loopback device. The kernel's own
//! answer bears the sequence number that the asker expects.

use std::ops::Range;

const NEW_LINK: u16 = libc::RTM_NEWLINK;
/// `struct nlmsghdr` and `struct ifinfomsg`.
const LINK_LEN: usize = 32;
/// `LOOPBACK_IFINDEX` of `net/flow.h`, in each namespace.
const LOOPBACK: i32 = 1;
const LINKINFO: u16 = 18; // IFLA_LINKINFO
const KIND: u16 = 1; // IFLA_INFO_KIND

/// What to send instead of this datagram, if it is the probe.
pub fn replacement(datagram: &[u8]) -> Option<[u8; LINK_LEN]> {
    let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*datagram.get(4..)?.first_chunk()?);
    if kind != NEW_LINK || length != datagram.len() {
        return None;
    }
    let info = &datagram[attribute(datagram, LINK_LEN..length, LINKINFO)?];
    if &info[attribute(info, 0..info.len(), KIND)?] != b"ovs_geneve\0" {
        return None;
    }
    let mut instead = [0; LINK_LEN];
    instead[..16].copy_from_slice(&datagram[..16]);
    instead[..4].copy_from_slice(&(LINK_LEN as u32).to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    instead[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    instead[20..24].copy_from_slice(&LOOPBACK.to_ne_bytes());
    Some(instead)
}

/// Where the contents of the first attribute of this type are.
fn attribute(bytes: &[u8], mut range: Range<usize>, wanted: u16) -> Option<Range<usize>> {
    while !range.is_empty() {
        let rest = bytes.get(range.clone())?;
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        rest.get(4..length)?;
        if kind == wanted {
            return Some(range.start + 4..range.start + length);
        }
        range.start += length.next_multiple_of(4);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_kind(kind: &[u8]) -> Vec<u8> {
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let mut message = vec![0; LINK_LEN];
        message[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        message[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        message.extend(attribute(3, b"genev_sys_6081\0"));
        message.extend(attribute(LINKINFO, &attribute(KIND, kind)));
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    #[test]
    fn only_the_probe_is_replaced() {
        let instead = replacement(&with_kind(b"ovs_geneve\0")).unwrap();
        assert_eq!(
            instead[8..16],
            [1, 2, 3, 4, 5, 6, 7, 8],
            "sequence number and port id"
        );
        for other in [&b"geneve\0"[..], b"ovs_geneve", b"ovs_geneve1\0", b""] {
            assert_eq!(replacement(&with_kind(other)), None);
        }
    }

    #[test]
    fn cut_and_changed_messages_are_let_alone() {
        let whole = with_kind(b"ovs_geneve\0");
        for length in 0..whole.len() {
            assert_eq!(replacement(&whole[..length]), None);
            for byte in [0, 1, 0xff] {
                let mut changed = whole.clone();
                changed[length] = byte;
                replacement(&changed);
            }
        }
    }
}
