//! Hardware addresses of TAPs for which the configuration names none.
//!
//! An address follows from the machine, the run directory and the port's name. So an interface that is made
//! again, after a restart of the switch or of the machine, has the address that neighbours and firewalls
//! know, and ports of other machines and of other instances have other addresses.

use crate::Options;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;

/// The first byte of a unicast address that belongs to no manufacturer (IEEE 802c, administratively
/// assigned).
const LOCAL: u8 = 0x02;
/// The bits of the first byte that say group and locally administered.
const KIND: u8 = 0x03;

/// The address of a port's TAP; `None` where the machine has no number, so that the kernel has to choose.
pub fn initial_mac(options: &Options, port: &str) -> Option<[u8; 6]> {
    let mut hasher = keyed_hasher(options.machine?);
    hasher.write(options.run_dir.as_os_str().as_bytes());
    // Ends the path, so that no other path with another name gives the same bytes.
    hasher.write(&[0]);
    hasher.write(port.as_bytes());
    let [mut first, b, c, d, e, f, ..] = hasher.finish().to_be_bytes();
    first = first & !KIND | LOCAL;
    Some([first, b, c, d, e, f])
}

/// SipHash-2-4 with the machine's number as its key: the number is not to become known (machine-id(5)), and
/// the addresses do.
#[expect(
    deprecated,
    reason = "the standard library's successor does not promise an algorithm, and these addresses must last"
)]
fn keyed_hasher(machine: u128) -> impl Hasher {
    let [low, high] = [machine, machine >> 64].map(|half| half as u64);
    std::hash::SipHasher::new_with_keys(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(run_dir: &str, machine: Option<u128>) -> Options {
        Options {
            run_dir: run_dir.into(),
            config: None,
            machine,
            groups: crate::Groups::default(),
            cores: Default::default(),
            p4: crate::P4Files::NONE,
        }
    }

    /// The example of "SipHash: a fast short-input PRF" (Aumasson, Bernstein), appendix A.
    #[test]
    fn the_hash_is_the_published_one() {
        let mut hasher = keyed_hasher(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        hasher.write(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn addresses_last_and_differ() {
        let mac = |run_dir, machine, port| initial_mac(&options(run_dir, Some(machine)), port).unwrap();
        let web = mac("/run/hyperswitch", 7, "web");
        assert_eq!(web, [0x7e, 0xf9, 0x07, 0x8b, 0x4d, 0xcf], "the same for ever");
        let others = [
            mac("/run/hyperswitch", 7, "web2"),
            mac("/run/hyperswitch", 8, "web"),
            mac("/run/other", 7, "web"),
            mac("/run/hyperswitchw", 7, "eb"),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(*other, web);
            assert!(!others[..index].contains(other));
            assert_eq!(other[0] & KIND, LOCAL);
        }
        assert_eq!(initial_mac(&options("/run/hyperswitch", None), "web"), None);
    }
}
