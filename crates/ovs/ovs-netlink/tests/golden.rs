//! Messages recorded from ovs-vswitchd 3.1.0 of Debian 12 and from the process that answered it; see
//! `golden/README.md`.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use ovs_netlink::attribute::Writer;
use ovs_netlink::message::{self, Message, messages};
use ovs_netlink::{Errno, Reply, Request};

/// A recorded message: its sender, file, line and bytes.
struct Golden {
    request: bool,
    place: String,
    bytes: Vec<u8>,
}

/// Requests that the kernel refuses as well.
const REFUSED: &str = "refused.hex";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden() -> Vec<Golden> {
    let folder = folder();
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let wanted = |file: &PathBuf| file.file_name().is_some_and(|name| name != REFUSED);
    let files = files.filter(wanted);
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "hex"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read(file)).collect()
}

/// Reads a file of messages. A line that begins with `#` describes the next one; the others begin with `>`
/// for requests or `<` for answers, and go on with the bytes.
fn read(file: &Path) -> Vec<Golden> {
    let text = std::fs::read_to_string(file).unwrap();
    let line = |(number, line): (usize, &str)| {
        let (sender, hex) = line.split_once(' ').unwrap();
        let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
        Golden {
            request: sender == ">",
            place: format!("{}:{}", file.file_name().unwrap().display(), number + 1),
            bytes: digits
                .chunks(2)
                .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap())
                .collect(),
        }
    };
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    lines.map(line).collect()
}

/// Reads all messages of a datagram; errors are no failure.
fn read_all(bytes: &[u8], request: bool) {
    for message in messages(bytes).flatten() {
        if request {
            let _ = Request::read(&message).map_err(|error| error.errno());
        } else {
            let _ = message.status();
            let _ = Reply::read(&message).map_err(|error| error.errno());
        }
    }
}

fn only(bytes: &[u8]) -> Message<'_> {
    let mut all = messages(bytes);
    let first = all.next().unwrap().unwrap();
    assert!(all.next().is_none());
    first
}

#[test]
fn requests_and_replies_are_understood_and_written_again() {
    let (mut requests, mut replies, mut same) = (0, 0, 0);
    for Golden {
        request,
        place,
        bytes,
    } in golden()
    {
        let message = only(&bytes);
        let mut writer = Writer::new();
        if request {
            requests += 1;
            let request = Request::read(&message).unwrap_or_else(|error| panic!("{place}: {error}"));
            request.write(message.header, &mut writer);
            let written = writer.finish().unwrap();
            assert_eq!(Request::read(&only(&written)), Ok(request), "{place}");
            assert_eq!(only(&written).header, message.header, "{place}");
            same += usize::from(written == bytes);
        } else if message.header.kind >= message::FIRST_TYPE {
            replies += 1;
            let reply = Reply::read(&message).unwrap_or_else(|error| panic!("{place}: {error}"));
            reply.write(message.header, &mut writer);
            // Replies are written as they were: ovs-vswitchd understood them so.
            assert_eq!(writer.finish().unwrap(), bytes, "{place}");
        } else {
            assert!(matches!(message.status(), Ok(Some(_))), "{place}");
        }
    }
    println!("{requests} requests ({same} written byte for byte), {replies} replies");
    assert!(requests > 100 && replies > 100);
}

#[test]
fn probes_of_what_the_kernel_lacks_are_refused() {
    let probes = read(&folder().join(REFUSED));
    assert!(!probes.is_empty());
    for Golden { place, bytes, .. } in probes {
        let error = Request::read(&only(&bytes)).expect_err(&place);
        assert_eq!(error.errno(), Errno::EINVAL, "{place}: {error}");
    }
}

#[test]
fn every_cut_is_an_error_or_a_shorter_message() {
    for Golden { request, bytes, .. } in golden() {
        for end in 0..bytes.len() {
            read_all(&bytes[..end], request);
            // The same with a length that fits, so that what is inside is cut.
            let mut cut = bytes[..end].to_vec();
            if let Some(length) = cut.get_mut(..4) {
                length.copy_from_slice(&u32::try_from(end).unwrap().to_ne_bytes());
            }
            read_all(&cut, request);
        }
    }
}

#[test]
fn every_change_of_a_byte_is_an_error_or_another_message() {
    for Golden { request, bytes, .. } in golden() {
        let mut changed = bytes.clone();
        for place in 0..bytes.len() {
            for value in [
                0,
                0xff,
                bytes[place].wrapping_add(1),
                bytes[place].wrapping_sub(1),
            ] {
                changed[place] = value;
                read_all(&changed, request);
            }
            for bit in 0..8 {
                changed[place] = bytes[place] ^ 1 << bit;
                read_all(&changed, request);
            }
            changed[place] = bytes[place];
        }
    }
}

/// An acknowledged request is repeated with its length; nothing of it may be lost.
#[test]
fn a_changed_length_is_never_taken_for_the_whole_message() {
    for Golden { place, bytes, .. } in golden() {
        for length in [0, 15, bytes.len() + 1, usize::try_from(u32::MAX).unwrap()] {
            let mut changed = bytes.clone();
            changed[..4].copy_from_slice(&u32::try_from(length).unwrap().to_ne_bytes());
            assert!(messages(&changed).next().unwrap().is_err(), "{place} {length}");
        }
    }
}
