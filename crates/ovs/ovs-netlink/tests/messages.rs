//! Headers, lengths that lie, acknowledgements.

#![allow(clippy::unwrap_used)]

use ovs_netlink::attribute::{MAX_VALUE, Writer, attributes};
use ovs_netlink::message::{self, Flags, Header, Message, Status, messages};
use ovs_netlink::{Errno, Error, Request};

fn header(kind: u16) -> Header {
    Header {
        kind,
        flags: Flags::REQUEST,
        sequence: 1,
        port: 2,
    }
}

fn datagram(payloads: &[&[u8]]) -> Vec<u8> {
    let mut writer = Writer::new();
    payloads
        .iter()
        .for_each(|payload| writer.message(header(0x20), |writer| writer.raw(payload)));
    writer.finish().unwrap()
}

#[test]
fn several_messages_are_aligned_and_the_last_need_not_be() {
    let bytes = datagram(&[b"abcde", b"", b"xyz"]);
    assert_eq!(bytes.len(), 24 + 16 + 20);
    for end in [bytes.len(), bytes.len() - 1] {
        let payloads: Vec<&[u8]> = messages(&bytes[..end])
            .map(|message| message.unwrap().payload)
            .collect();
        assert_eq!(payloads, [b"abcde".as_slice(), b"", b"xyz"]);
    }
}

#[test]
fn a_cut_datagram_ends_in_one_error() {
    let bytes = datagram(&[b"abcde", b"fgh"]);
    for end in 1..bytes.len() - 1 {
        let read: Vec<_> = messages(&bytes[..end]).collect();
        let whole = read.iter().filter(|message| message.is_ok()).count();
        // The padding between them may be cut with all that follows.
        assert_eq!(whole, if end >= 21 { 1 } else { 0 }, "{end}");
        assert_eq!(
            read.len() - whole,
            usize::from(!(21..=24).contains(&end)),
            "{end}"
        );
    }
}

#[test]
fn a_length_that_lies_ends_the_datagram() {
    for claimed in [0u32, 15, 22, 100, u32::MAX] {
        let mut bytes = datagram(&[b"abcd"]);
        bytes[..4].copy_from_slice(&claimed.to_ne_bytes());
        let read: Vec<_> = messages(&bytes).collect();
        assert!(
            matches!(read[..], [Err(Error::Length { .. })]),
            "{claimed}: {read:?}"
        );
    }
}

#[test]
fn attributes_that_lie_end_the_list() {
    for claimed in [0u16, 3, 9, u16::MAX] {
        let mut bytes = vec![8, 0, 1, 0, 1, 2, 3, 4];
        bytes[..2].copy_from_slice(&claimed.to_ne_bytes());
        let read: Vec<_> = attributes(&bytes).collect();
        assert!(
            matches!(read[..], [Err(Error::Length { .. })]),
            "{claimed}: {read:?}"
        );
    }
    assert!(matches!(
        attributes(&[8, 0, 1]).next(),
        Some(Err(Error::Cut { .. }))
    ));
}

#[test]
fn the_nested_flag_is_no_part_of_the_kind() {
    let bytes = [4, 0, 5, 0x80];
    assert_eq!(attributes(&bytes).next().unwrap().unwrap().kind, 5);
    // NLA_F_NET_BYTEORDER is not known to the families.
    let bytes = [4, 0, 5, 0x40];
    assert_eq!(attributes(&bytes).next().unwrap().unwrap().kind, 0x4005);
}

#[test]
fn what_does_not_fit_is_an_error_when_finished() {
    let mut writer = Writer::new();
    writer.attribute(1, &vec![0; MAX_VALUE]);
    assert!(writer.finish().is_ok());
    let mut writer = Writer::new();
    writer.attribute(1, &vec![0; MAX_VALUE + 1]);
    writer.u32(2, 3);
    let error = Error::TooLong {
        what: "attribute",
        found: MAX_VALUE + 1,
        limit: MAX_VALUE,
    };
    assert_eq!(writer.finish(), Err(error));
    let mut writer = Writer::new();
    writer.message(header(1), |writer| writer.raw(&vec![0; message::MAX_MESSAGE]));
    assert!(matches!(writer.finish(), Err(Error::TooLong { .. })));
}

#[test]
fn errors_repeat_the_request_and_acknowledgements_its_header() {
    let bytes = datagram(&[b"abcd"]);
    let request = messages(&bytes).next().unwrap().unwrap();
    let written = |status: Status| {
        let mut writer = Writer::new();
        status.write(&request, &mut writer);
        writer.finish().unwrap()
    };
    let refused = written(Status::Answer(Some(Errno::EINVAL)));
    assert_eq!(refused[16..20], (-22i32).to_ne_bytes());
    assert_eq!(refused[20..], bytes);
    let done = written(Status::Answer(None));
    assert_eq!(done[16..20], [0; 4]);
    assert_eq!(done[20..], bytes[..16]);
    for status in [
        Status::Answer(Some(Errno::ENODEV)),
        Status::Answer(None),
        Status::Done(None),
        Status::Done(Some(Errno::EAGAIN)),
    ] {
        let bytes = written(status);
        let message = messages(&bytes).next().unwrap().unwrap();
        assert_eq!(message.status(), Ok(Some(status)));
        assert_eq!((message.header.sequence, message.header.port), (1, 2));
        assert_eq!(
            message.header.flags.contains(Flags::MULTI),
            matches!(status, Status::Done(_))
        );
    }
}

#[test]
fn error_numbers_are_bounded() {
    for number in [1i32, -4096, i32::MIN] {
        let payload = number.to_ne_bytes();
        let message = Message {
            header: header(message::ERROR),
            payload: &payload,
        };
        assert!(matches!(message.status(), Err(Error::Value { .. })), "{number}");
    }
}

#[test]
fn requests_of_no_family_and_unknown_commands() {
    fn read(kind: u16, payload: &[u8], flags: Flags) -> Result<Request<'_>, Errno> {
        let header = Header {
            flags: Flags::REQUEST | flags,
            ..header(kind)
        };
        Request::read(&Message { header, payload }).map_err(|error| error.errno())
    }
    let none = Flags::default();
    assert_eq!(read(0x99, &[3, 1, 0, 0], none), Err(Errno::ENOENT));
    assert_eq!(
        read(0x20, &[9, 1, 0, 0, 0, 0, 0, 0], none),
        Err(Errno::EOPNOTSUPP)
    );
    // A meter cannot be dumped.
    assert_eq!(
        read(0x24, &[4, 1, 0, 0, 0, 0, 0, 0], Flags::DUMP),
        Err(Errno::EOPNOTSUPP)
    );
    assert_eq!(read(0x20, &[3, 1, 0], none), Err(Errno::EINVAL));
    assert_eq!(read(0x20, &[3, 1, 0, 0, 0, 0, 0], none), Err(Errno::EINVAL));
    let message = Message {
        header: Header::default(),
        payload: &[],
    };
    assert!(Request::read(&message).is_err());
}
