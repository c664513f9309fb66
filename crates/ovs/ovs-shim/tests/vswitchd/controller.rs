//! An OpenFlow controller: what no flow matches is its to decide about (OpenFlow 1.3.5).

use crate::forwarding::{Guest, TIMEOUT, all_arrive, begin};
use crate::world::World;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

const VERSION: u8 = 4;
const HEADER: usize = 8;

/// Kinds of messages (7.1, `enum ofp_type`).
const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const FEATURES_REQUEST: u8 = 5;
const FEATURES_REPLY: u8 = 6;
const PACKET_IN: u8 = 10;
const PACKET_OUT: u8 = 13;
const FLOW_MOD: u8 = 14;

const NO_BUFFER: u32 = u32::MAX;
const ANY: u32 = u32::MAX;
const TO_CONTROLLER: u32 = 0xffff_fffd;
const FLOOD: u32 = 0xffff_fffb;

/// The connection of a switch.
struct Controller {
    /// Where the switch would connect again.
    _listener: UnixListener,
    switch: UnixStream,
    received: Vec<u8>,
    /// Packets that the switch has asked about.
    asked: usize,
}

impl Controller {
    fn accept(world: &World) -> Controller {
        // The one place where ovs-vswitchd connects to a Unix socket.
        let path = world.path("br0.controller");
        let listener = UnixListener::bind(&path).unwrap();
        world.vsctl(&format!(
            "--no-wait set Bridge br0 protocols=OpenFlow13 fail_mode=secure -- set-controller br0 unix:{}",
            path.display()
        ));
        let (switch, _) = listener.accept().unwrap();
        let mut controller = Controller {
            _listener: listener,
            switch,
            received: Vec::new(),
            asked: 0,
        };
        controller.send(HELLO, &[]);
        controller.send(FEATURES_REQUEST, &[]);
        let features = controller.wait_for(FEATURES_REPLY);
        assert_eq!(features[0], VERSION);
        controller
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        let length = u16::try_from(HEADER + body.len()).unwrap();
        let header = [&[VERSION, kind][..], &length.to_be_bytes(), &1u32.to_be_bytes()].concat();
        self.switch.write_all(&[&header, body].concat()).unwrap();
    }

    /// A message that has come, if any has within a moment.
    fn message(&mut self) -> Option<Vec<u8>> {
        self.switch
            .set_read_timeout(Some(Duration::from_millis(2)))
            .unwrap();
        let mut part = [0; 65_536];
        match self.switch.read(&mut part) {
            Ok(0) => panic!("the switch has hung up"),
            Ok(length) => self.received.extend_from_slice(&part[..length]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let length = u16::from_be_bytes(*self.received.get(2..4)?.first_chunk()?);
        let message = self.received.get(..length.into())?.to_vec();
        self.received.drain(..message.len());
        Some(message)
    }

    /// Answers what there is to answer, until such a message comes.
    fn wait_for(&mut self, kind: u8) -> Vec<u8> {
        let end = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < end, "no message of kind {kind}");
            let Some(message) = self.message() else { continue };
            self.answer(&message);
            if message[1] == kind {
                return message;
            }
        }
    }

    /// Has packets flooded.
    fn answer(&mut self, message: &[u8]) {
        match message[1] {
            ECHO_REQUEST => self.send(ECHO_REPLY, &message[HEADER..]),
            PACKET_IN => {
                self.asked += 1;
                // Buffer, length, reason, table, cookie; then a match of one field, the input port, and
                // padding (7.4.1).
                let port = &message[HEADER + 16..][8..12];
                let packet = &message[HEADER + 16 + 16 + 2..];
                let action = output(FLOOD);
                let length = (action.len() as u16).to_be_bytes();
                let head = [&NO_BUFFER.to_be_bytes()[..], port, &length, &[0; 6]].concat();
                self.send(PACKET_OUT, &[&head, &action[..], packet].concat());
            }
            _ => {}
        }
    }

    /// Adds a flow for what comes from a port, or for all that no other flow matches (7.3.4.1).
    fn flow(&mut self, in_port: Option<u32>, to: u32) {
        let priority = u16::from(in_port.is_some());
        let head = [
            &[0; 16][..],
            &[0, 0, 0, 0, 0, 0],
            &priority.to_be_bytes(),
            &NO_BUFFER.to_be_bytes(),
            &ANY.to_be_bytes(),
            &ANY.to_be_bytes(),
            &[0; 4],
        ];
        // A field of the basic class: the input port.
        let field = in_port.map(|port| [&[0x80, 0, 0, 4][..], &port.to_be_bytes()].concat());
        let field = field.unwrap_or_default();
        let length = u16::try_from(4 + field.len()).unwrap();
        let mut matches = [&1u16.to_be_bytes()[..], &length.to_be_bytes(), &field].concat();
        matches.resize(matches.len().next_multiple_of(8), 0);
        let action = output(to);
        // An instruction: apply these actions.
        let length = u16::try_from(8 + action.len()).unwrap();
        let instruction = [&4u16.to_be_bytes()[..], &length.to_be_bytes(), &[0; 4], &action].concat();
        self.send(FLOW_MOD, &[head.concat(), matches, instruction].concat());
    }

    /// Sends until it arrives by way of the controller. How many packets that took.
    fn reach(&mut self, a: &mut Guest, b: &mut Guest) -> usize {
        let end = Instant::now() + TIMEOUT;
        b.take();
        self.asked = 0;
        loop {
            a.send(b);
            while let Some(message) = self.message() {
                self.answer(&message);
            }
            if !b.take().is_empty() {
                return self.asked;
            }
            assert!(Instant::now() < end, "nothing arrives");
        }
    }
}

/// All of a packet to a port (7.2.5).
fn output(port: u32) -> Vec<u8> {
    [&[0, 0, 0, 16][..], &port.to_be_bytes(), &[0xff, 0xff], &[0; 6]].concat()
}

pub fn a_controller_decides(world: &mut World) {
    let guests = begin(world, &["vm1", "vm2", "vm3"]);
    let [mut a, mut b, mut c] = guests.try_into().ok().unwrap();
    a.reach(&mut b);
    let mut controller = Controller::accept(world);
    world.ofctl("del-flows br0");
    a.loses(&mut b);
    // What no flow matches is asked for, and flooded.
    controller.flow(None, TO_CONTROLLER);
    assert_ne!(controller.reach(&mut a, &mut b), 0);
    a.take();
    assert_ne!(controller.reach(&mut b, &mut c), 0);
    world.until("the other guest has the flood as well", |_| !a.take().is_empty());
    // A flow of the controller's, of which it hears no more.
    let number = |name: &str| {
        world
            .vsctl(&format!("get Interface {name} ofport"))
            .parse::<u32>()
            .unwrap()
    };
    controller.flow(Some(number("vm1")), number("vm2"));
    world.until("the flow is there", |world| {
        world.ofctl("dump-flows br0").contains("in_port=")
    });
    while controller.reach(&mut a, &mut b) != 0 {}
    all_arrive(100, &mut a, &mut b);
    assert!(controller.message().is_none_or(|message| message[1] != PACKET_IN));
    assert_ne!(controller.reach(&mut b, &mut a), 0, "the other way is asked for");
    // It goes: its flows forward, and what no flow matches is lost.
    drop(controller);
    world.until("the switch has seen it", |world| {
        world.vsctl("get Controller br0 is_connected") == "false"
    });
    all_arrive(100, &mut a, &mut b);
    b.loses(&mut a);
    assert!(world.glue("counters").contains("violations: 0"));
}
