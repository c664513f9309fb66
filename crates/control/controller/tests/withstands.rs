//! The bare client before data planes that a guest has taken over, with a clock of its own.

#![allow(clippy::unwrap_used)]

mod hostile;

use control_protocol::Channel;
use control_protocol::data_plane::{Answer, Execute, Request, Upcall};
use control_protocol::supervisor::{FromChild, Role};
use controller::{Client, Event, Lost};
use flow::{ControllerId, PortId, Stage, SwitchId};
use hostile::Victim;
use std::time::Duration;

struct Bare {
    client: Client<()>,
    now_ms: u64,
    has_replaced: bool,
}

impl Bare {
    fn read(&mut self) -> Result<(), Lost> {
        self.client.check(self.now_ms)?;
        while let Some(event) = self.client.receive(1)? {
            match event {
                Event::Answered((), Ok(Answer::Ports { .. })) => self.client.compare(0),
                Event::Upcall(upcall) => assert!(self.client.end_upcall(sent_back(upcall))),
                _ => {}
            }
        }
        Ok(())
    }
}

fn sent_back(upcall: Upcall) -> Request {
    Request::Execute(Execute {
        upcall: Some(upcall.id),
        in_port: upcall.id.port,
        recirc_id: 0,
        dp_hash: 0,
        no_ethernet: false,
        stage: Stage::Forward,
        actions: Vec::new(),
        packet: upcall.packet,
    })
}

impl Victim for Bare {
    fn meet(&mut self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        self.client.detach(None, self.now_ms);
        self.client.attach(ours, self.now_ms);
        self.client.ask(Request::PortList, Vec::new(), ()).unwrap();
        theirs
    }

    fn go_on(&mut self) {
        if let Err(lost) = self.read() {
            self.client.detach(Some(lost), self.now_ms);
        }
        self.client.flush();
        while let Some(complaint) = self.client.complaint(self.now_ms) {
            self.has_replaced |= complaint == FromChild::Replace(Role::DataPlane);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now_ms += u64::try_from(time.as_millis()).unwrap();
    }

    fn take_replace_request(&mut self) -> bool {
        std::mem::take(&mut self.has_replaced)
    }

    fn memory(&self) -> u64 {
        hostile::memory(std::process::id())
    }

    fn controller(&self) -> ControllerId {
        ControllerId::OVS
    }

    fn port(&self) -> Option<(PortId, SwitchId)> {
        Some((ControllerId::OVS.port(1)?, SwitchId(1)))
    }
}

fn bare() -> Bare {
    Bare {
        client: Client::default(),
        now_ms: 0,
        has_replaced: false,
    }
}

#[test]
fn a_client_withstands_nonsense() {
    hostile::nonsense(&mut bare());
}

#[test]
fn a_client_withstands_answers_that_nobody_asked_for() {
    hostile::answers_that_nobody_asked_for(&mut bare());
}

#[test]
fn a_client_withstands_answers_to_other_questions() {
    hostile::answers_to_other_questions(&mut bare());
}

/// One after the other, since both measure the memory of this process.
#[test]
fn a_client_withstands_lists_and_packets_without_end() {
    hostile::lists_without_end(&mut bare());
    hostile::packets_without_end(&mut bare());
}

#[test]
fn a_client_withstands_absence() {
    hostile::absence(&mut bare());
}

#[test]
fn a_client_ends_each_packet_once() {
    hostile::each_packet_ends_once(&mut bare());
}

/// Time that the others cannot wait for.
#[test]
fn a_client_withstands_silence() {
    hostile::silence(&mut bare());
}
