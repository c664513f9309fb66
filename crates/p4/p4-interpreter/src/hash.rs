//! Hash and checksum algorithms of v1model.
//!
//! Each takes its input piece by piece, so that a payload that lies elsewhere need not be gathered. The
//! results agree with BMv2's `simple_switch`: `crc16` is CRC-16/ARC, `crc32` that of Ethernet, `csum16` the
//! Internet checksum (RFC 1071), `identity` the first eight bytes, `xor16` and its relatives the sum without
//! carry of big-endian words.

/// Parameters of a cyclic redundancy check, as the Rocksoft model names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcParameters {
    /// Width in bits: 8, 16, 32 or 64.
    pub width: u32,
    /// The polynomial without its highest term.
    pub polynomial: u64,
    /// The register's first value.
    pub initial: u64,
    /// Added (without carry) to the result.
    pub final_xor: u64,
    /// Bytes enter with their lowest bit first.
    pub reflect_data: bool,
    /// The register is mirrored before the last addition.
    pub reflect_result: bool,
}

impl CrcParameters {
    /// The parameters of `crc16` and, until others are set, of `crc16_custom`.
    pub const CRC16: CrcParameters = CrcParameters {
        width: 16,
        polynomial: 0x8005,
        initial: 0,
        final_xor: 0,
        reflect_data: true,
        reflect_result: true,
    };

    /// The parameters of `crc32` and, until others are set, of `crc32_custom`.
    pub const CRC32: CrcParameters = CrcParameters {
        width: 32,
        polynomial: 0x04C1_1DB7,
        initial: 0xFFFF_FFFF,
        final_xor: 0xFFFF_FFFF,
        reflect_data: true,
        reflect_result: true,
    };

    /// CRC-16/CCITT-FALSE, BMv2's `crcCCITT`.
    pub const CCITT: CrcParameters = CrcParameters {
        width: 16,
        polynomial: 0x1021,
        initial: 0xFFFF,
        final_xor: 0,
        reflect_data: false,
        reflect_result: false,
    };
}

/// A cyclic redundancy check with its table of remainders, of 2 KiB.
#[derive(Clone, Debug)]
pub struct Crc {
    parameters: CrcParameters,
    /// Remainders per byte; for reflected data of the mirrored register, which saves mirroring each byte.
    table: Box<[u64; 256]>,
}

impl Crc {
    /// Computes the table.
    pub fn new(parameters: CrcParameters) -> Self {
        let width = parameters.width.clamp(8, 64);
        let parameters = CrcParameters { width, ..parameters };
        let mut table = Box::new([0; 256]);
        for (byte, entry) in table.iter_mut().enumerate() {
            *entry = if parameters.reflect_data {
                reflected_remainder(byte as u64, parameters)
            } else {
                remainder(byte as u64, parameters)
            };
        }
        Crc { parameters, table }
    }

    /// The parameters that were given.
    pub fn parameters(&self) -> CrcParameters {
        self.parameters
    }

    fn start(&self) -> u64 {
        let CrcParameters {
            width,
            initial,
            reflect_data,
            ..
        } = self.parameters;
        if reflect_data {
            reflect(initial, width)
        } else {
            initial & crate::bits::mask(width)
        }
    }

    fn update(&self, mut register: u64, bytes: &[u8]) -> u64 {
        let width = self.parameters.width;
        if self.parameters.reflect_data {
            for &byte in bytes {
                let index = (register as u8) ^ byte;
                register = (register >> 8) ^ self.table[usize::from(index)];
            }
        } else {
            for &byte in bytes {
                let index = (register >> (width - 8)) as u8 ^ byte;
                register = (register << 8) ^ self.table[usize::from(index)];
            }
        }
        register
    }

    fn finish(&self, register: u64) -> u64 {
        let CrcParameters {
            width,
            final_xor,
            reflect_data,
            reflect_result,
            ..
        } = self.parameters;
        let mirrored = reflect_data != reflect_result;
        let register = register & crate::bits::mask(width);
        let value = if mirrored {
            reflect(register, width)
        } else {
            register
        };
        (value ^ final_xor) & crate::bits::mask(width)
    }
}

fn remainder(byte: u64, parameters: CrcParameters) -> u64 {
    let top = 1 << (parameters.width - 1);
    (0..8).fold(byte << (parameters.width - 8), |remainder, _| {
        let next = remainder << 1;
        if remainder & top != 0 {
            next ^ parameters.polynomial
        } else {
            next
        }
    }) & crate::bits::mask(parameters.width)
}

fn reflected_remainder(byte: u64, parameters: CrcParameters) -> u64 {
    let polynomial = reflect(parameters.polynomial, parameters.width);
    (0..8).fold(byte, |remainder, _| {
        if remainder & 1 != 0 {
            (remainder >> 1) ^ polynomial
        } else {
            remainder >> 1
        }
    })
}

/// The lowest `width` bits in reverse order.
fn reflect(value: u64, width: u32) -> u64 {
    value.reverse_bits() >> (64 - width)
}

/// An algorithm that is ready to run, with its parameters and tables.
#[derive(Clone, Debug)]
pub enum Algorithm {
    /// A cyclic redundancy check.
    Crc(Crc),
    /// The Internet checksum.
    Csum16,
    /// Big-endian words of that many bytes (1 to 8), added without carry.
    Xor(u32),
    /// The first eight bytes, big-endian; of fewer bytes all.
    Identity,
    /// xxHash, 64 bits, seed 0.
    Xxh64,
}

/// A hash under way.
#[derive(Clone, Copy, Debug)]
pub struct HashState {
    register: u64,
    /// Bytes so far.
    length: usize,
    /// For xxHash: four accumulators, and the bytes that do not fill a stripe yet.
    lanes: [u64; 4],
    stripe: [u8; STRIPE],
}

const STRIPE: usize = 32;

/// The primes of xxHash.
const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

impl Algorithm {
    /// The state before the first byte.
    pub fn start(&self) -> HashState {
        let register = match self {
            Algorithm::Crc(crc) => crc.start(),
            _ => 0,
        };
        let lanes = [
            PRIMES[0].wrapping_add(PRIMES[1]),
            PRIMES[1],
            0,
            PRIMES[0].wrapping_neg(),
        ];
        HashState {
            register,
            length: 0,
            lanes,
            stripe: [0; STRIPE],
        }
    }

    /// Takes further bytes.
    pub fn update(&self, state: &mut HashState, bytes: &[u8]) {
        match self {
            Algorithm::Crc(crc) => state.register = crc.update(state.register, bytes),
            Algorithm::Csum16 => state.register += csum_part(bytes, state.length % 2 == 1),
            Algorithm::Xor(size) => state.register ^= xor_part(bytes, *size as usize, state.length),
            Algorithm::Identity => {
                for &byte in bytes.iter().take(8_usize.saturating_sub(state.length)) {
                    state.register = (state.register << 8) | u64::from(byte);
                }
            }
            Algorithm::Xxh64 => state.stripes(bytes),
        }
        state.length += bytes.len();
    }

    /// The hash of all bytes taken.
    pub fn finish(&self, state: HashState) -> u64 {
        match self {
            Algorithm::Crc(crc) => crc.finish(state.register),
            Algorithm::Csum16 => u64::from(!fold(state.register)),
            Algorithm::Xxh64 => state.xxh64(),
            Algorithm::Xor(_) | Algorithm::Identity => state.register,
        }
    }

    /// The hash of bytes that are all at hand.
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        match self {
            // The algorithm that most programs use needs no state of a hash under way.
            Algorithm::Csum16 => u64::from(!fold(csum_part(bytes, false))),
            Algorithm::Crc(crc) => crc.finish(crc.update(crc.start(), bytes)),
            _ => {
                let mut state = self.start();
                self.update(&mut state, bytes);
                self.finish(state)
            }
        }
    }
}

impl HashState {
    /// Takes whole stripes of 32 bytes and keeps the remaining bytes. `length` still counts the bytes before.
    fn stripes(&mut self, mut bytes: &[u8]) {
        let kept = self.length % STRIPE;
        if kept > 0 {
            let take = bytes.len().min(STRIPE - kept);
            self.stripe[kept..kept + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if kept + take < STRIPE {
                return;
            }
            let stripe = self.stripe;
            self.stripe_in(&stripe);
        }
        let (stripes, rest) = bytes.as_chunks::<STRIPE>();
        for stripe in stripes {
            self.stripe_in(stripe);
        }
        self.stripe[..rest.len()].copy_from_slice(rest);
    }

    fn stripe_in(&mut self, stripe: &[u8; STRIPE]) {
        let (words, _) = stripe.as_chunks::<8>();
        for (lane, word) in self.lanes.iter_mut().zip(words) {
            *lane = round(*lane, u64::from_le_bytes(*word));
        }
    }

    fn xxh64(&self) -> u64 {
        let mut hash = if self.length >= STRIPE {
            let [a, b, c, d] = self.lanes;
            let sum = [(a, 1), (b, 7), (c, 12), (d, 18)];
            let sum = sum
                .iter()
                .fold(0_u64, |sum, (lane, by)| sum.wrapping_add(lane.rotate_left(*by)));
            self.lanes.iter().fold(sum, |hash, &lane| {
                (hash ^ round(0, lane))
                    .wrapping_mul(PRIMES[0])
                    .wrapping_add(PRIMES[3])
            })
        } else {
            PRIMES[4]
        };
        hash = hash.wrapping_add(self.length as u64);
        let (words, rest) = self.stripe[..self.length % STRIPE].as_chunks::<8>();
        for word in words {
            hash ^= round(0, u64::from_le_bytes(*word));
            hash = hash
                .rotate_left(27)
                .wrapping_mul(PRIMES[0])
                .wrapping_add(PRIMES[3]);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIMES[0]);
            hash = hash
                .rotate_left(23)
                .wrapping_mul(PRIMES[1])
                .wrapping_add(PRIMES[2]);
        }
        for &byte in rest {
            hash ^= u64::from(byte).wrapping_mul(PRIMES[4]);
            hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(PRIMES[1]);
        hash = (hash ^ (hash >> 29)).wrapping_mul(PRIMES[2]);
        hash ^ (hash >> 32)
    }
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIMES[1]))
        .rotate_left(31)
        .wrapping_mul(PRIMES[0])
}

/// The sum of 16-bit words, not folded. `odd`: the first byte is a word's second one. 2^32 bytes do not
/// overflow it.
fn csum_part(bytes: &[u8], odd: bool) -> u64 {
    let (first, rest) = match bytes.split_first() {
        Some((&first, rest)) if odd => (u64::from(first), rest),
        _ => (0, bytes),
    };
    let (words, last) = rest.as_chunks::<8>();
    let mut sum = first;
    for word in words {
        sum += halves(u64::from_be_bytes(*word));
    }
    let mut end = [0; 8];
    end[..last.len()].copy_from_slice(last);
    sum + halves(u64::from_be_bytes(end))
}

/// The sum of the two halves of eight bytes: carries between 16-bit words are folded later.
fn halves(word: u64) -> u64 {
    (word >> 32) + (word & 0xFFFF_FFFF)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16
}

fn xor_part(bytes: &[u8], size: usize, before: usize) -> u64 {
    bytes.iter().enumerate().fold(0, |value, (at, &byte)| {
        let place = (before + at) % size;
        value ^ (u64::from(byte) << (8 * (size - 1 - place)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHECK: &[u8] = b"123456789";

    fn all() -> Vec<Algorithm> {
        vec![
            Algorithm::Crc(Crc::new(CrcParameters::CRC16)),
            Algorithm::Crc(Crc::new(CrcParameters::CRC32)),
            Algorithm::Crc(Crc::new(CrcParameters::CCITT)),
            Algorithm::Csum16,
            Algorithm::Xor(2),
            Algorithm::Xor(4),
            Algorithm::Identity,
            Algorithm::Xxh64,
        ]
    }

    /// The check values of the catalogue of parametrised CRC algorithms.
    #[test]
    fn published_check_values() {
        let crc = |parameters| Algorithm::Crc(Crc::new(parameters)).hash(CHECK);
        assert_eq!(crc(CrcParameters::CRC16), 0xBB3D, "CRC-16/ARC");
        assert_eq!(crc(CrcParameters::CRC32), 0xCBF4_3926, "CRC-32/ISO-HDLC");
        assert_eq!(crc(CrcParameters::CCITT), 0x29B1, "CRC-16/IBM-3740");
        let crc8 = CrcParameters {
            width: 8,
            polynomial: 7,
            initial: 0,
            final_xor: 0,
            reflect_data: false,
            reflect_result: false,
        };
        assert_eq!(crc(crc8), 0xF4, "CRC-8/SMBUS");
        let crc64 = CrcParameters {
            width: 64,
            polynomial: 0x42F0_E1EB_A9EA_3693,
            initial: u64::MAX,
            final_xor: u64::MAX,
            reflect_data: true,
            reflect_result: true,
        };
        assert_eq!(crc(crc64), 0x995D_C9BB_DF19_39FA, "CRC-64/XZ");
        let mixed = CrcParameters {
            reflect_result: false,
            ..CrcParameters::CRC16
        };
        assert_eq!(crc(mixed), u64::from(0xBB3D_u16.reverse_bits()));
    }

    #[test]
    fn csum_of_an_ipv4_header() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xC0, 0xA8, 0, 1, 0xC0, 0xA8, 0, 0xC7,
        ];
        assert_eq!(Algorithm::Csum16.hash(&header), 0xB861);
        assert_eq!(Algorithm::Csum16.hash(&[]), 0xFFFF);
        assert_eq!(
            Algorithm::Csum16.hash(&[0xAB]),
            0x54FF,
            "a last odd byte is a word's upper half"
        );
    }

    /// Values of the reference implementation.
    #[test]
    fn xxh64_values() {
        assert_eq!(Algorithm::Xxh64.hash(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(Algorithm::Xxh64.hash(b"a"), 0xD24E_C4F1_A98C_6E5B);
        assert_eq!(Algorithm::Xxh64.hash(b"abc"), 0x44BC_2CF5_AD77_0999);
    }

    #[test]
    fn xor_and_identity() {
        assert_eq!(Algorithm::Xor(2).hash(&[0x12, 0x34, 0x01, 0x02, 0xFF]), 0xEC36);
        assert_eq!(Algorithm::Xor(4).hash(&[1, 2, 3, 4, 5]), 0x0402_0304);
        assert_eq!(Algorithm::Identity.hash(&[1, 2]), 0x0102);
        assert_eq!(
            Algorithm::Identity.hash(&[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            0x0102_0304_0506_0708
        );
    }

    proptest! {
        #[test]
        fn pieces_hash_as_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..120),
                                    cuts in proptest::collection::vec(0_usize..120, 0..4)) {
            for algorithm in all() {
                let mut cuts: Vec<_> = cuts.iter().map(|&cut| cut.min(bytes.len())).collect();
                cuts.sort_unstable();
                let mut state = algorithm.start();
                let mut from = 0;
                for cut in cuts.into_iter().chain([bytes.len()]) {
                    algorithm.update(&mut state, &bytes[from..cut]);
                    from = cut;
                }
                prop_assert_eq!(algorithm.finish(state), algorithm.hash(&bytes), "{:?}", algorithm);
            }
        }
    }
}
