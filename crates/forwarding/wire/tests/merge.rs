//! Segments that were merged, cut again: the same segments, whatever they were.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::tcp_recipe::*;
use common::*;
use flow::PortId;
use proptest::prelude::*;
use proptest::sample::Index;
use wire::{Mergeable, Offload, Run, Sum, VnetHeader, finish_checksum, parse, segments};

/// A frame with what its header asks for, and how many it was made of.
struct Merged {
    request: VnetHeader,
    frame: Vec<u8>,
    segments: usize,
}

/// Merges frames as they come, with one run at a time, as a back end does.
fn merge(frames: &[Vec<u8>]) -> Vec<Merged> {
    let mut merged: Vec<Merged> = Vec::new();
    let mut run: Option<Run> = None;
    for frame in frames {
        let segment = Mergeable::read(frame);
        if let (Some(run), Some(segment)) = (&mut run, &segment)
            && let Some(payload) = run.append(segment)
        {
            merged.last_mut().unwrap().frame.extend(payload);
            continue;
        }
        end(run.take(), merged.last_mut());
        run = segment.and_then(|segment| Run::begin(&segment));
        merged.push(Merged {
            request: VnetHeader::default(),
            frame: frame.clone(),
            segments: 1,
        });
    }
    end(run, merged.last_mut());
    merged
}

fn end(run: Option<Run>, last: Option<&mut Merged>) {
    let (Some(mut run), Some(last)) = (run, last) else {
        return;
    };
    assert_eq!(run.frame_len(), last.frame.len());
    last.segments = run.segments();
    if let Some((request, headers)) = run.headers() {
        last.request = request;
        last.frame[..headers.len()].copy_from_slice(headers);
    }
}

/// Cuts a merged frame as the data plane does for a receiver without offloads.
fn cut(merged: &Merged) -> Vec<Vec<u8>> {
    if merged.request == VnetHeader::default() {
        return vec![merged.frame.clone()];
    }
    let frame = &merged.frame;
    let layers = parse(head(frame), frame.len(), PortId(1)).layers;
    let offload = Offload::check(&merged.request, &layers, head(frame), frame.len()).expect("fits");
    assert_eq!(offload.header(), &merged.request, "nothing was to be corrected");
    let pieces = segments(head(frame), &layers, &offload, frame.len()).expect("can be cut");
    let complete = pieces.map(|mut piece| {
        let payload = &frame[piece.payload_offset..][..piece.payload_len];
        piece.finish(&Sum::of(payload));
        [piece.header(), payload].concat()
    });
    complete.collect()
}

/// Segments of a stream, as its sender makes them.
fn stream(recipe: &Recipe, each: usize) -> Vec<Vec<u8>> {
    recipe.naive_segments(each)
}

fn counts(merged: &[Merged]) -> Vec<usize> {
    merged.iter().map(|one| one.segments).collect()
}

/// Computes the checksums of IP and TCP, which are in headers without options of IP.
fn complete(frame: &mut [u8], l3: usize, v6: bool) {
    let l4 = if v6 { l3 + 40 } else { l3 + 20 };
    let addresses = if v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    if !v6 {
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = !ones_complement_sum(&frame[l3..l4]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let partial = wire::pseudo(&frame[addresses], 6, frame.len() - l4).fold();
    frame[l4 + 16..l4 + 18].copy_from_slice(&partial.to_be_bytes());
    assert!(finish_checksum(frame, l4, 16, &Sum::new()));
}

#[test]
fn a_stream_is_merged_up_to_the_longest_frame() {
    for v6 in [false, true] {
        for tags in [vec![], vec![(0x8100, 10)], vec![(0x88a8, 20), (0x8100, 10)]] {
            let mut recipe = plain(v6, ACK | PSH, 64_000);
            recipe.tcp_options = 12;
            recipe.tags = tags;
            let frames = stream(&recipe, 1448);
            let merged = merge(&frames);
            assert_eq!(counts(&merged), [45]);
            assert_eq!(merged[0].frame[..12], recipe.whole()[..12]);
            assert_eq!(merged[0].request.gso_size, 1448);
            assert_eq!(cut(&merged[0]), frames);
        }
    }
    // A longer stream would make too long a frame.
    let mut recipe = plain(false, ACK, 65_000);
    recipe.tags = vec![(0x88a8, 20), (0x8100, 10)];
    let frames = stream(&recipe, 500);
    let mut next = frames.clone();
    for (number, frame) in (0..).zip(&mut next) {
        let id = 0xfffe_u16.wrapping_add(130 + number).to_be_bytes();
        frame[26..28].copy_from_slice(&id);
        let sequence = 0xffff_ff00_u32.wrapping_add(65_000 + 500 * u32::from(number));
        frame[46..50].copy_from_slice(&sequence.to_be_bytes());
        complete(frame, 22, false);
    }
    let all = [frames, next].concat();
    let merged = merge(&all);
    assert_eq!(counts(&merged), [130, 130]);
    let back: Vec<Vec<u8>> = merged.iter().flat_map(cut).collect();
    assert_eq!(back, all);
}

#[test]
fn what_ends_a_run_is_the_last_of_it() {
    let frames = stream(&plain(false, ACK, 5000), 1000);
    // A short one ends it, and what follows begins again.
    let two = stream(&plain(false, ACK | PSH, 2500), 1000);
    let mut later = frames[3].clone();
    later[38..42].copy_from_slice(&0xffff_ff00_u32.wrapping_add(2500).to_be_bytes());
    complete(&mut later, 14, false);
    assert_eq!(counts(&merge(&[two.clone(), vec![later]].concat())), [3, 1]);
    // FIN and PSH as well; SYN and RST never belong to a run.
    for (flags, expected) in [(ACK | FIN, vec![2, 1]), (ACK | PSH, vec![2, 1])] {
        let mut ended = frames[..3].to_vec();
        ended[1][47] = flags as u8;
        complete(&mut ended[1], 14, false);
        assert_eq!(counts(&merge(&ended)), expected, "{flags:#x}");
    }
    for flags in [ACK | 2, ACK | 4, ACK | 0x20, ACK | CWR, 0, PSH] {
        let mut other = frames[..3].to_vec();
        other[1][47] = flags as u8;
        complete(&mut other[1], 14, false);
        assert_eq!(counts(&merge(&other)), [1, 1, 1], "{flags:#x}");
    }
}

#[test]
fn frames_that_are_no_segments_go_by_themselves() {
    let good = stream(&plain(false, ACK, 3000), 1000);
    assert_eq!(counts(&merge(&good)), [3]);
    let alone = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frames = good.clone();
        change(&mut frames[1]);
        let merged = merge(&frames);
        assert_eq!(counts(&merged), [1, 1, 1]);
        let back: Vec<Vec<u8>> = merged.iter().flat_map(cut).collect();
        assert_eq!(back, frames);
    };
    // A wrong checksum of IP, of TCP, and of the payload.
    alone(&|frame| frame[24] ^= 1);
    alone(&|frame| frame[50] ^= 1);
    alone(&|frame| frame[999] ^= 1);
    // A fragment, bytes behind the packet, a shorter packet, a header that ends behind the frame.
    alone(&|frame| {
        frame[20] |= 0x20;
        complete(frame, 14, false);
    });
    alone(&|frame| frame.push(0));
    alone(&|frame| {
        frame.pop();
    });
    alone(&|frame| frame.truncate(53));
    alone(&|frame| frame.truncate(13));
    alone(&|frame| frame.clear());
    alone(&|frame| {
        frame[46] = 0xf0;
        frame.truncate(60);
        frame[16..18].copy_from_slice(&46_u16.to_be_bytes());
        complete(frame, 14, false);
    });
    // No payload, and another protocol.
    alone(&|frame| {
        frame.truncate(54);
        frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
        complete(frame, 14, false);
    });
    alone(&|frame| {
        frame[23] = 17;
        complete(frame, 14, false);
    });
    // Options of IP, as all of a stream have them.
    let mut recipe = plain(false, ACK, 3000);
    recipe.ip_options = 4;
    assert_eq!(counts(&merge(&stream(&recipe, 1000))), [1, 1, 1]);
    // Payload that segments may not be so short.
    assert_eq!(counts(&merge(&stream(&plain(false, ACK, 21), 7))), [1, 1, 1]);
    assert_eq!(counts(&merge(&stream(&plain(false, ACK, 24), 8))), [3]);
}

#[test]
fn open_checksums_are_merged_with_open_ones() {
    let complete = stream(&plain(false, ACK, 3000), 1000);
    let mut frames = complete.clone();
    for frame in &mut frames {
        let partial = wire::pseudo(&frame[26..34], 6, frame.len() - 34).fold();
        frame[50..52].copy_from_slice(&partial.to_be_bytes());
    }
    let merged = merge(&frames);
    assert_eq!(counts(&merged), [3]);
    assert_eq!(cut(&merged[0]), complete);
    frames[1].clone_from(&complete[1]);
    assert_eq!(counts(&merge(&frames)), [1, 1, 1]);
}

/// A change of one segment of a stream.
#[derive(Clone, Debug)]
enum Change {
    /// Of a byte of its headers, after which checksums are right again, or not.
    Byte(Index, u8, bool),
    Lost,
    Twice,
    Swapped,
    None,
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        8 => (any::<Index>(), 1u8.., prop::bool::weighted(0.8))
            .prop_map(|(at, bits, is_sound)| Change::Byte(at, bits, is_sound)),
        1 => Just(Change::Lost),
        1 => Just(Change::Twice),
        1 => Just(Change::Swapped),
        2 => Just(Change::None),
    ]
}

fn change(frames: &mut Vec<Vec<u8>>, number: usize, l3: usize, v6: bool, change: &Change) {
    let headers = l3 + if v6 { 60 } else { 40 };
    match change {
        Change::Byte(at, bits, is_sound) => {
            let frame = &mut frames[number];
            let at = at.index(headers);
            frame[at] ^= bits;
            if *is_sound {
                complete(frame, l3, v6);
            }
        }
        Change::Lost => drop(frames.remove(number)),
        Change::Twice => frames.insert(number, frames[number].clone()),
        Change::Swapped => frames.swap(number, 0),
        Change::None => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// All of a stream that is long enough is merged, and comes back.
    #[test]
    fn streams_are_merged_and_come_back(recipe in recipes(), each in 8_usize..2000) {
        let recipe = Recipe { ip_options: 0, flags: ACK | recipe.flags & (FIN | PSH | 0x40), ..recipe };
        let frames = stream(&recipe, each);
        let merged = merge(&frames);
        prop_assert_eq!(merged.len(), 1);
        prop_assert_eq!(cut(&merged[0]), frames);
    }

    /// Whatever differs from what a sender cuts, nothing of it is lost.
    #[test]
    fn what_is_merged_comes_back(recipe in recipes(), each in 1_usize..1500, which: Index, what in changes()) {
        let recipe = Recipe { ip_options: 0, ..recipe };
        let l3 = 14 + 4 * recipe.tags.len();
        let mut frames = stream(&recipe, each);
        let number = which.index(frames.len());
        change(&mut frames, number, l3, recipe.v6, &what);
        let back: Vec<Vec<u8>> = merge(&frames).iter().flat_map(cut).collect();
        prop_assert_eq!(back, frames);
    }

    /// Frames of strangers do no harm.
    #[test]
    fn no_frame_does_harm(mut frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..5), kind in 0..3_usize) {
        for frame in &mut frames {
            if let Some(place) = frame.get_mut(12..15) {
                place.copy_from_slice(&[[8, 0, 0x45], [0x86, 0xdd, 0x60], [0x81, 0, 0]][kind]);
            }
        }
        let back: Vec<Vec<u8>> = merge(&frames).iter().flat_map(cut).collect();
        prop_assert_eq!(back, frames);
    }
}
