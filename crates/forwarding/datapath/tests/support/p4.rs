//! P4 programs for a data plane.

use super::control::Controller;
use control_protocol::data_plane::{Answer, Request};
use control_protocol::p4::{MAX_PIECE, P4Answer, P4Attachment, P4Binding, P4Info, P4Request};
use flow::{P4Id, PortId};
use p4_ir::Checked;
use std::path::PathBuf;

/// The P4 switch of all tests.
pub const P4: P4Id = P4Id(5);

/// Programs of the project.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../p4/p4-bmv2/programs")
}

pub fn program(name: &str) -> Checked {
    let last = name.rsplit('/').next().unwrap();
    let json = std::fs::read(folder().join(name).join(format!("{last}.json"))).unwrap();
    p4_bmv2::load(&json, None).unwrap()
}

impl Controller {
    #[track_caller]
    pub fn p4(&mut self, request: P4Request) {
        self.done(Request::P4(request));
    }

    #[track_caller]
    pub fn draft(&mut self, switch: P4Id, bytes: &[u8]) {
        self.p4(P4Request::Begin { switch });
        for piece in bytes.chunks(MAX_PIECE) {
            let bytes = piece.to_vec();
            self.p4(P4Request::Add { switch, bytes });
        }
    }

    /// Puts a version in force.
    #[track_caller]
    pub fn put_p4(&mut self, switch: P4Id, bytes: &[u8], tag: u64) {
        self.draft(switch, bytes);
        self.p4(P4Request::Commit { switch, tag });
    }

    /// Waits until all that a port has sent, so many packets, has ended: packets of other ports that come
    /// next meet what these have changed.
    #[track_caller]
    pub fn until_ended(&mut self, port: u32, sent: u64) {
        self.until(port, "the ends of its packets", |counters| {
            let ended = counters.delivered + counters.dropped.total();
            counters.received == sent && ended == sent + counters.copies
        });
    }

    #[track_caller]
    pub fn bind(&mut self, port: u32, place: u16) {
        let binding = Some(P4Binding {
            switch: P4,
            port: place,
        });
        let port = PortId(port);
        self.done(Request::PortP4 {
            port,
            attachment: P4Attachment::bound(binding),
        });
    }

    #[track_caller]
    pub fn p4_switches(&mut self) -> Vec<P4Info> {
        match self.ask(Request::P4(P4Request::List)) {
            Ok(Answer::P4(P4Answer::Switches(switches))) => switches,
            other => panic!("{other:?}"),
        }
    }
}
