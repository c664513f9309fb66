//! The VLAN tag that the kernel takes out of a frame and reports beside it.

const DEFAULT_TPID: u16 = 0x8100;

/// A VLAN tag that was taken out of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol identifier.
    pub tpid: u16,
    /// Tag control information.
    pub tci: u16,
}

impl VlanTag {
    /// The tag as a packet socket reports it (`tp_status`, `tp_vlan_tci` and `tp_vlan_tpid` of
    /// `linux/if_packet.h`); `None` if there was none.
    pub(crate) fn reported(status: u32, tci: u16, tpid: u16) -> Option<VlanTag> {
        let has = |bit| status & bit != 0;
        let tpid = if has(libc::TP_STATUS_VLAN_TPID_VALID) {
            tpid
        } else {
            DEFAULT_TPID
        };
        has(libc::TP_STATUS_VLAN_VALID).then_some(VlanTag { tpid, tci })
    }
}
