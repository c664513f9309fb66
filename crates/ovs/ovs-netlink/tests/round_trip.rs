//! Keys, masks, actions, requests and replies that are written are read again unchanged.

#![allow(clippy::unwrap_used)]

mod strategies;

use ovs_netlink::attribute::{Writer, attributes};
use ovs_netlink::key::{Key, Match};
use ovs_netlink::message::{Flags, Header, messages};
use ovs_netlink::{Reply, Request, action};
use proptest::prelude::*;

const HEADER: Header = Header {
    kind: 0,
    flags: Flags(0),
    sequence: 7,
    port: 1234,
};

/// The values of the attributes that `write` writes.
fn values(write: impl FnOnce(&mut Writer)) -> Vec<Vec<u8>> {
    let mut writer = Writer::new();
    write(&mut writer);
    let bytes = writer.finish().unwrap();
    attributes(&bytes)
        .map(|attribute| attribute.unwrap().value.to_vec())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn keys(key in strategies::keys::key()) {
        let written = values(|writer| writer.nested(1, |writer| key.write(writer)));
        prop_assert_eq!(Key::read(&written[0]), Ok(key));
    }

    #[test]
    fn masks(flow in strategies::keys::flow()) {
        let written = values(|writer| flow.write(writer, 1, 2));
        prop_assert_eq!(Match::read(&written[0], Some(&written[1])), Ok(flow));
    }

    #[test]
    fn a_mask_that_is_not_sent_is_exact(key in strategies::keys::key()) {
        let written = values(|writer| writer.nested(1, |writer| key.write(writer)));
        // Refused where the tuple does not suit the packet.
        if let Ok(flow) = Match::read(&written[0], None) {
            prop_assert_eq!(flow.mask, key.exact_mask());
        }
    }

    #[test]
    fn actions(actions in strategies::actions::actions()) {
        let written = values(|writer| writer.nested(1, |writer| action::write(&actions, writer)));
        prop_assert_eq!(action::read(&written[0]), Ok(actions));
    }

    #[test]
    fn requests(all in proptest::collection::vec(strategies::messages::request(), 1..5)) {
        let mut writer = Writer::new();
        all.iter().for_each(|request| request.write(HEADER, &mut writer));
        let bytes = writer.finish().unwrap();
        let mut count = 0;
        for (message, request) in messages(&bytes).zip(&all) {
            let message = message.unwrap();
            prop_assert_eq!((message.header.sequence, message.header.port), (7, 1234));
            prop_assert_eq!(&Request::read(&message), &Ok(request.clone()));
            count += 1;
        }
        prop_assert_eq!(count, all.len());
    }

    #[test]
    fn replies(reply in strategies::messages::reply()) {
        let mut writer = Writer::new();
        reply.write(HEADER, &mut writer);
        let bytes = writer.finish().unwrap();
        let message = messages(&bytes).next().unwrap().unwrap();
        prop_assert_eq!(message.header, Header { kind: message.header.kind, ..HEADER });
        prop_assert_eq!(Reply::read(&message), Ok(reply));
    }
}
