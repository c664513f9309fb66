//! The state of a device as users ask for it: cable, speed, what has passed through, and what the kernel has
//! dropped.

use crate::netlink::{Link, Netlink};
use crate::{NicError, Uplink};
use std::os::fd::{AsFd, AsRawFd};

/// `struct ethtool_cmd` begins with this request (`linux/ethtool.h`).
const ETHTOOL_GSET: u32 = 1;
/// Length of `struct ethtool_cmd` in 32-bit words.
const ETHTOOL_CMD_WORDS: usize = 11;
/// `struct ethtool_channels` begins with this request.
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// Length of `struct ethtool_channels` in 32-bit words.
const ETHTOOL_CHANNELS_WORDS: usize = 9;
/// `struct ethtool_value` begins with this request.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// The state of a device of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether the other end of its cable is there.
    pub carrier: bool,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Frames in, frames out, bytes in, bytes out.
    pub passed: [u64; 4],
    /// Frames in with errors, frames out with errors.
    pub errors: [u64; 2],
    /// Frames in dropped (with those for which the device had no buffer), frames out dropped.
    pub drops: [u64; 2],
}

/// Reads the states of those devices of the calling thread's namespace whose names are `wanted`.
///
/// # Errors
///
/// The kernel refused.
pub fn device_states(wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, DeviceState)>, NicError> {
    let links = Netlink::new()?.links()?;
    let found = links.into_iter().filter(|link| wanted(&link.name));
    Ok(found.map(|link| (link.name.clone(), state(&link))).collect())
}

/// By the order of `struct rtnl_link_stats64`.
fn state(link: &Link) -> DeviceState {
    let [
        received,
        transmitted,
        received_bytes,
        transmitted_bytes,
        receive_errors,
        transmit_errors,
        receive_drops,
        transmit_drops,
        ..,
        missed,
    ] = link.statistics;
    DeviceState {
        carrier: link.carrier,
        mtu: link.mtu,
        passed: [received, transmitted, received_bytes, transmitted_bytes],
        errors: [receive_errors, transmit_errors],
        drops: [receive_drops.saturating_add(missed), transmit_drops],
    }
}

impl Uplink {
    /// Frames that the kernel has dropped for want of room in ring or socket, since the last time it was
    /// asked.
    pub fn take_drops(&self) -> u64 {
        // SAFETY: `tpacket_stats` is plain data for which zeros are valid.
        let mut statistics: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of_val(&statistics)).expect("sizes of structures");
        // SAFETY: pointers and length describe one live structure, and its length.
        let result = unsafe {
            libc::getsockopt(
                self.as_fd().as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut len,
            )
        };
        if result == 0 {
            statistics.tp_drops.into()
        } else {
            0
        }
    }

    /// Speed of the device in Mb/s; `None` if it does not say.
    pub fn speed(&self, name: &str) -> Option<u32> {
        let command = self.ask_driver::<ETHTOOL_CMD_WORDS>(name, ETHTOOL_GSET)?;
        let bytes = |word: usize| command[word].to_ne_bytes();
        let ([low, high, ..], [up_low, up_high, ..]) = (bytes(3), bytes(7));
        let speed = u32::from(u16::from_ne_bytes([low, high]))
            | u32::from(u16::from_ne_bytes([up_low, up_high])) << 16;
        // `SPEED_UNKNOWN` is all ones, of 32 bits or of 16.
        (![0, 0xffff, u32::MAX].contains(&speed)).then_some(speed)
    }

    /// Queues in which frames arrive at the device; `None` if its driver does not say.
    pub fn receive_queues(&self, name: &str) -> Option<u32> {
        let channels = self.ask_driver::<ETHTOOL_CHANNELS_WORDS>(name, ETHTOOL_GCHANNELS)?;
        // Of their own, and shared with queues in which frames leave.
        Some(channels[5].saturating_add(channels[8]))
    }

    /// Whether the device takes VLAN tags out of frames that arrive, and passes them beside.
    pub fn takes_tags_out(&self, name: &str) -> bool {
        let flags = self.ask_driver::<2>(name, ETHTOOL_GFLAGS);
        flags.is_some_and(|[_, flags]| flags & ETH_FLAG_RXVLAN != 0)
    }

    /// Asks the driver of a device; `None` if it does not answer.
    fn ask_driver<const WORDS: usize>(&self, name: &str, question: u32) -> Option<[u32; WORDS]> {
        let mut command = [0_u32; WORDS];
        command[0] = question;
        // SAFETY: `ifreq` is plain data for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays zero.
        let room = request.ifr_name.len() - 1;
        let to = request.ifr_name[..room].iter_mut();
        to.zip(name.bytes())
            .for_each(|(to, byte)| *to = libc::c_char::from_ne_bytes([byte]));
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        // SAFETY: the request is live, its name ends with a zero, and its data is a live structure of the
        // length that belongs to the question, which the kernel fills.
        let result = unsafe { libc::ioctl(self.as_fd().as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        (result == 0).then_some(command)
    }
}

/// `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::parse_link;

    #[test]
    fn statistics_have_their_places() {
        let mut body = vec![0; 16];
        let words = 0..25_u64;
        body.extend(u16::try_from(4 + 8 * 25).unwrap().to_ne_bytes());
        body.extend(libc::IFLA_STATS64.to_ne_bytes());
        body.extend(words.flat_map(|word| (100 + word).to_ne_bytes()));
        let state = state(&parse_link(&body));
        assert_eq!(state.passed, [100, 101, 102, 103]);
        assert_eq!(state.errors, [104, 105]);
        assert_eq!(state.drops, [106 + 114, 107]);
        for length in 0..body.len() {
            parse_link(&body[..length]);
        }
    }
}
