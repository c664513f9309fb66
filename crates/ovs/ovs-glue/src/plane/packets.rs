//! Packets on their way to ovs-vswitchd, complete as the kernel makes them: cut into segments, with
//! checksums. A guest sets the length of segments, and so their number; but to decide what is done with a
//! packet, its first segment is enough.

use control_protocol::data_plane::{Packet, UpcallId};
use flow::{FlowKey, PortId};
use std::time::{Duration, Instant};
use wire::{L3, Layers, MAX_HEADERS, Offload, Snapshot, Sum, VnetHeader, finish_checksum, parse, segments};

const ETHERNET_HEADER: usize = 14;
/// Bytes of an Ethernet header with two tags.
const SHORTEST: usize = 22;
/// Most segments of one packet that ovs-vswitchd is shown: those of the longest one with segments of a usual
/// size.
const MAX_SEGMENTS: usize = 64;
/// Packets handed over before the data plane is told, a part of those that a port may have under way.
const TOLD_TOGETHER: usize = 48;
/// How long the data plane is not told, if there is nothing else to say.
const TOLD_AFTER: Duration = Duration::from_millis(1);

/// Packets that were handed over, of which the data plane was not told yet. Most often it is told with what
/// ovs-vswitchd makes of them: to wake it up for this alone is as expensive as a new flow.
#[derive(Debug, Default)]
pub(super) struct Handed {
    ids: Vec<UpcallId>,
    since: Option<Instant>,
}

impl Handed {
    pub fn add(&mut self, id: UpcallId) {
        self.ids.push(id);
        self.since.get_or_insert_with(Instant::now);
    }

    /// When the data plane is to be told though there is nothing else to say.
    pub fn due(&self) -> Option<Instant> {
        let since = self.since?;
        let is_full = self.ids.len() >= TOLD_TOGETHER;
        Some(if is_full { since } else { since + TOLD_AFTER })
    }

    /// All of them.
    pub fn take(&mut self) -> Vec<UpcallId> {
        self.since = None;
        std::mem::take(&mut self.ids)
    }
}

/// What ovs-vswitchd does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// ovs-vswitchd says what is to be done with them.
    Decides,
    /// ovs-vswitchd counts them, or samples.
    Samples,
    /// ovs-vswitchd passes them on to an OpenFlow controller, which needs all of their bytes.
    PassesOn,
}

impl Use {
    /// Of packets of a `userspace` action: the type with which ovs-vswitchd's data begin (`enum
    /// user_action_cookie_type` of `lib/odp-util.h`).
    pub fn of(userdata: &[u8]) -> Use {
        match userdata.first_chunk().map(|kind| u16::from_ne_bytes(*kind)) {
            // SFLOW, FLOW_SAMPLE, IPFIX.
            Some(1 | 3 | 4) => Use::Samples,
            // SLOW_PATH.
            Some(2) => Use::Decides,
            _ => Use::PassesOn,
        }
    }
}

/// What ovs-vswitchd is shown of a packet.
pub(super) struct Shown {
    pub frames: Vec<Vec<u8>>,
    /// Segments that are left out.
    pub left_out: usize,
    /// The packet, if what is decided about the frame can be done to all of it.
    pub original: Option<Packet>,
}

/// The frames that ovs-vswitchd is shown: of a packet that stands for several segments [one](alone), or
/// [`MAX_SEGMENTS`] if each one counts. A packet whose header contradicts it goes as it is.
pub(super) fn shown(packet: Packet, to: Use) -> Shown {
    let comes_back = to == Use::Decides && is_understood(&packet);
    let mut shown = Shown {
        frames: Vec::new(),
        left_out: 0,
        original: None,
    };
    if comes_back || to == Use::Samples {
        shown.frames.extend(alone(&packet));
        shown.original = (comes_back && !shown.frames.is_empty()).then(|| packet.clone());
    } else if let Some((count, segments)) = segments_of(&packet, usize::MAX) {
        shown.frames = segments.take(MAX_SEGMENTS).collect();
        shown.left_out = count - shown.frames.len();
    }
    if shown.frames.is_empty() {
        shown.frames.push(complete(packet));
    }
    shown
}

/// One segment in the place of all that a packet stands for, if it stands for several: the bytes of the first
/// one, and the flags of all, which the data plane looks at in the packet.
pub(super) fn alone(packet: &Packet) -> Option<Vec<u8>> {
    segments_of(packet, 1)?.1.next()
}

/// The number of segments that a packet stands for, if it stands for several, and the segments, as if there
/// were `most` of them at most.
fn segments_of(packet: &Packet, most: usize) -> Option<(usize, impl Iterator<Item = Vec<u8>>)> {
    let frame = &packet.frame;
    if !Offload::is_wanted(&packet.vnet_header) {
        return None;
    }
    let head = &frame[..frame.len().min(Snapshot::MAX_LEN)];
    let header = VnetHeader::from_bytes(&packet.vnet_header);
    let layers = layers(head, frame.len());
    let offload = Offload::check(&header, &layers, head, frame.len()).ok()?;
    let longest =
        usize::from(offload.header().hdr_len).saturating_add(most.saturating_mul(header.gso_size.into()));
    let parts = segments(head, &layers, &offload, frame.len().min(longest)).ok()?;
    let whole = |mut segment: wire::Segment| {
        let end = segment.payload_offset + segment.payload_len;
        let payload = frame.get(segment.payload_offset..end).unwrap_or_default();
        segment.finish(&Sum::of(payload));
        [segment.header(), payload].concat()
    };
    Some((offload.packets(frame.len()), parts.map(whole)))
}

/// Whether the data plane would take the packet's offloads from us: it looks for no headers behind labels.
fn is_understood(packet: &Packet) -> bool {
    let (header, frame) = (VnetHeader::from_bytes(&packet.vnet_header), &packet.frame);
    let head = &frame[..frame.len().min(Snapshot::MAX_LEN)];
    let layers = parse(head, frame.len(), PortId(0)).layers;
    Offload::check(&header, &layers, head, frame.len()).is_ok()
}

/// The frame of a packet that is one, with the checksum that its sender left out. One that ends in a tag is
/// padded with zeros, as on a wire: ovs-vswitchd does not see the tag otherwise, which the key has.
fn complete(packet: Packet) -> Vec<u8> {
    let Packet {
        vnet_header,
        mut frame,
    } = packet;
    frame.resize(frame.len().max(SHORTEST), 0);
    let header = VnetHeader::from_bytes(&vnet_header);
    let head = &frame[..frame.len().min(Snapshot::MAX_LEN)];
    if Offload::is_wanted(&vnet_header)
        && let Ok(offload) = Offload::check(&header, &layers(head, frame.len()), head, frame.len())
        && offload.segmentation().is_none()
        && offload.needs_checksum()
    {
        let (start, offset) = (header.csum_start.into(), header.csum_offset.into());
        // It lies in the frame: that was checked.
        let _ = finish_checksum(&mut frame, start, offset, &Sum::default());
    }
    frame
}

/// The key of each of the frames that the packet with that key stands for. Segments have flags of their own:
/// ovs-vswitchd decides by those that it sees, and the decision is for packets with the key that it is given.
pub(super) fn keys(key: &FlowKey, frames: &[Vec<u8>]) -> impl Iterator<Item = FlowKey> {
    let is_cut = frames.len() > 1;
    frames.iter().map(move |frame| {
        let mut key = *key;
        if is_cut {
            let head = &frame[..frame.len().min(MAX_HEADERS)];
            key.set_tcp_flags(parse(head, frame.len(), PortId(0)).key.tcp_flags());
        }
        key
    })
}

/// The frame that a packet of ovs-vswitchd's is in our data plane, where all begin with an Ethernet header.
/// One that has none comes with its Ethernet type.
pub(super) fn frame(eth_type: Option<u16>, packet: &[u8]) -> Vec<u8> {
    match eth_type {
        None => packet.to_vec(),
        Some(eth_type) => [&[0; 12], &eth_type.to_be_bytes()[..], packet].concat(),
    }
}

/// Takes the Ethernet header off that a packet has in our data plane only.
pub(super) fn begin_behind_ethernet(frame: &mut Vec<u8>) {
    frame.drain(..frame.len().min(ETHERNET_HEADER));
}

/// The layers of a packet, also behind labels that were pushed while its segmentation was still to be done.
fn layers(head: &[u8], frame_len: usize) -> Layers {
    const MPLS: u16 = 0x8847;
    let outer = parse(head, frame_len, PortId(0)).layers;
    if outer.l3_kind != L3::Mpls {
        return outer;
    }
    let head = &head[..head.len().min(Snapshot::CAPACITY)];
    let mut bare = Snapshot::new();
    bare.fill(head.len()).copy_from_slice(head);
    let stack = head[outer.l3.into()..].chunks_exact(4);
    let depth = 1 + stack.take_while(|entry| entry[2] & 1 == 0).count();
    for _ in 1..depth {
        bare.pop_mpls(MPLS);
    }
    let behind = head.get(usize::from(outer.l3) + 4 * depth);
    bare.pop_mpls(match behind.map(|first| first >> 4) {
        Some(4) => 0x0800,
        Some(6) => 0x86dd,
        _ => return outer,
    });
    let inner = parse(bare.bytes(), frame_len - 4 * depth, PortId(0)).layers;
    inner.behind((4 * depth) as u16)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use wire::{GSO_TCPV4, NEEDS_CSUM};

    /// A TCP packet with so much payload, which stands for segments of that many bytes.
    pub fn large(payload: usize, gso_size: u16) -> Packet {
        Packet {
            vnet_header: header(gso_size),
            frame: tcp(payload),
        }
    }

    /// A TCP segment with so much payload, whose checksum field holds nothing.
    fn tcp(payload: usize) -> Vec<u8> {
        let length = u16::try_from(40 + payload).unwrap().to_be_bytes();
        let ethernet = [&[2; 6][..], &[4; 6], &[8, 0]].concat();
        let ip = [
            &[0x45, 0][..],
            &length,
            &[0, 1, 0, 0, 64, 6, 0, 0],
            &[10, 0, 0, 1, 10, 0, 0, 2],
        ]
        .concat();
        let tcp = [&[0, 80, 0, 81][..], &[0; 8], &[0x50, 0x18, 1, 0], &[0; 4]].concat();
        let payload: Vec<u8> = (0..payload).map(|byte| byte as u8).collect();
        [ethernet, ip, tcp, payload].concat()
    }

    fn header(gso_size: u16) -> [u8; 12] {
        VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: if gso_size > 0 { GSO_TCPV4 } else { 0 },
            hdr_len: 54,
            gso_size,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        }
        .to_bytes()
    }

    #[test]
    fn segments_are_whole_packets() {
        let frames = shown(large(2500, 1000), Use::PassesOn).frames;
        let lengths: Vec<_> = frames.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1054, 1054, 554]);
        for (number, frame) in frames.iter().enumerate() {
            assert_eq!(frame[54], (number * 1000) as u8, "payload of segment {number}");
            let key = parse(frame, frame.len(), PortId(0)).key;
            assert_eq!((key.tp_src(), key.tp_dst()), (80, 81));
            // Push is on the last one only.
            assert_eq!(key.tcp_flags(), if number == 2 { 0x18 } else { 0x10 });
            // Sender, receiver, protocol, length and all of the segment add up to nothing.
            let l4 = &frame[34..];
            let mut sum = Sum::of(l4);
            sum.add_sum(&Sum::of(&frame[26..34]));
            sum.add_u16(6);
            sum.add_u16(u16::try_from(l4.len()).unwrap());
            assert_eq!(sum.fold(), 0xffff);
        }
    }

    #[test]
    fn each_frame_s_key_is_what_is_seen_in_it() {
        let mut key = FlowKey::default();
        key.set_ct_mark(7);
        key.set_tcp_flags(0x18);
        let frames = shown(large(2500, 1000), Use::PassesOn).frames;
        let flags = |frames: &[Vec<u8>]| {
            let keys = keys(&key, frames).inspect(|key| assert_eq!(key.ct_mark(), 7));
            keys.map(|key| key.tcp_flags()).collect::<Vec<_>>()
        };
        assert_eq!(flags(&frames), [0x10, 0x10, 0x18]);
        assert_eq!(flags(&frames[..1]), [0x18], "not cut: the data plane has seen it");
    }

    #[test]
    fn frames_that_end_in_a_tag_are_padded() {
        let tagged = [&[2; 6][..], &[4; 6], &[0x81, 0, 0]].concat();
        let packet = Packet {
            vnet_header: [0; 12],
            frame: tagged.clone(),
        };
        assert_eq!(complete(packet), [&tagged[..], &[0; 7]].concat());
    }

    #[test]
    fn what_is_decided_or_sampled_is_one_segment_whatever_its_length() {
        for (gso_size, count) in [(8, 7500), (1448, 42)] {
            let packet = large(60_000, gso_size);
            let first = alone(&packet).unwrap();
            assert_eq!(first.len(), 54 + usize::from(gso_size));
            let decided = shown(packet.clone(), Use::Decides);
            assert_eq!(decided.frames, std::slice::from_ref(&first));
            assert_eq!((decided.original, decided.left_out), (Some(packet.clone()), 0));
            let sampled = shown(packet.clone(), Use::Samples);
            assert_eq!(sampled.frames, [first]);
            assert_eq!((sampled.original, sampled.left_out), (None, 0));
            let passed = shown(packet, Use::PassesOn);
            assert_eq!(passed.frames.len(), count.min(MAX_SEGMENTS));
            assert_eq!(
                (passed.original, passed.left_out),
                (None, count.saturating_sub(MAX_SEGMENTS))
            );
        }
    }

    #[test]
    fn what_is_decided_has_the_flags_of_all() {
        let mut packet = large(2500, 1000);
        const ALL: u8 = 0x99; // CWR, ACK, PSH, FIN
        packet.frame[47] = ALL;
        let flags = |to| -> Vec<_> {
            let frames = shown(packet.clone(), to).frames;
            frames.iter().map(|frame| frame[47]).collect()
        };
        assert_eq!(flags(Use::Decides), [ALL]);
        assert_eq!(flags(Use::PassesOn), [0x90, 0x10, 0x19]);
        let alone = alone(&packet).unwrap();
        assert_eq!(alone[16..18], 1040_u16.to_be_bytes(), "length of the IP packet");
        assert_eq!(alone[54..], packet.frame[54..1054]);
    }

    #[test]
    fn what_ovs_vswitchd_does_with_packets_is_the_type_of_its_data() {
        let of = |kind: u16| Use::of(&[&kind.to_ne_bytes()[..], &[7; 40]].concat());
        assert_eq!([1, 3, 4].map(of), [Use::Samples; 3]);
        assert_eq!(of(2), Use::Decides);
        assert_eq!([0, 5, 6, 0x100].map(of), [Use::PassesOn; 4]);
        assert_eq!([Use::of(&[]), Use::of(&[1])], [Use::PassesOn; 2]);
    }

    #[test]
    fn segments_keep_the_labels_that_were_pushed() {
        let labels = [0x88, 0x47, 0, 0, 0x90, 64, 0, 0, 0x51, 64];
        let mut frame = tcp(2500);
        frame.splice(12..14, labels);
        let mut vnet_header = VnetHeader::from_bytes(&header(1000));
        (vnet_header.hdr_len, vnet_header.csum_start) = (62, 42);
        let labelled = Packet {
            vnet_header: vnet_header.to_bytes(),
            frame,
        };
        let labelled = shown(labelled, Use::Decides);
        assert!(labelled.original.is_none(), "the data plane would refuse it");
        let bare = shown(large(2500, 1000), Use::PassesOn).frames;
        for (labelled, mut bare) in labelled.frames.into_iter().zip(bare) {
            bare.splice(12..14, labels);
            assert_eq!(labelled, bare);
        }
    }

    #[test]
    fn stacks_without_a_bottom_end_with_the_head() {
        let mut frame = vec![0x88; 300];
        frame[12..14].copy_from_slice(&[0x88, 0x47]);
        let packet = Packet {
            vnet_header: header(1000),
            frame: frame.clone(),
        };
        assert_eq!(shown(packet, Use::Decides).frames, [frame]);
    }

    #[test]
    fn what_contradicts_itself_goes_as_it_is() {
        for vnet_header in [[0xff; 12], header(1), [0; 12]] {
            let packet = Packet {
                vnet_header,
                frame: vec![7; 60],
            };
            assert_eq!(shown(packet, Use::Decides).frames, [vec![7; 60]]);
        }
    }
}
