//! The glue process with our own data plane, which outlives the glue.

use crate::glue::{ANSWER, commands, owner};
use control_protocol::Channel;
use control_protocol::supervisor::{ToChild, VmStates};
use flow::ControllerId;
use ovs_glue::datapath::Datapath;
use ovs_glue::plane::{Options, Plane, Plug};
use ovs_glue::server::Limits;
use ovs_glue::switch::Switch;
use ovs_glue::tap::TapPlaceholders;
use ovs_glue::{Capabilities, Glue};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Set for a glue process that has a data plane.
pub const PLANE: &str = "HYPERSWITCH_TEST_PLANE";

type TestGlue = Glue<Plane, TapPlaceholders>;

/// The data plane's supervisor.
struct DataPlane {
    supervisor: Channel,
    /// Glue processes so far.
    glues: u64,
    plugs: BTreeMap<String, Plug>,
}

impl DataPlane {
    fn start() -> DataPlane {
        let (supervisor, child) = Channel::pair().unwrap();
        let config = placement::Config::default();
        supervisor.send(&ToChild::Placement(config), &[]).unwrap();
        let states = VmStates::Unavailable("a test".into());
        supervisor.send(&ToChild::VmState(states), &[]).unwrap();
        let topology = placement::Topology::of_machine();
        std::thread::spawn(move || datapath::run(child, topology, datapath::Queues::Allowed).unwrap());
        DataPlane {
            supervisor,
            glues: 0,
            plugs: BTreeMap::new(),
        }
    }

    fn channel(&self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        let peer = ToChild::Controller(ControllerId::OVS);
        self.supervisor.send(&peer, &[theirs.as_fd()]).unwrap();
        ours
    }

    fn glue(&mut self, socket: &Path) -> TestGlue {
        let options = Options {
            miss_rate: 50_000,
            directory: socket.parent().unwrap().to_owned(),
            plugs: self.plugs.clone(),
        };
        let mut plane = Plane::new(options).unwrap();
        plane.connect(self.channel()).unwrap();
        while !plane.is_ready() {
            plane.exchange();
        }
        self.glues += 1;
        let switch = Switch::new(
            plane,
            TapPlaceholders::new(owner(socket)).unwrap(),
            Capabilities::ours(),
        );
        let instance = u64::from(std::process::id()) << 16 | self.glues;
        Glue::listen(socket, instance, Limits::default(), switch).unwrap()
    }
}

/// Serves until standard input ends.
pub fn run(socket: &Path) {
    let mut data_plane = DataPlane::start();
    let mut glue = data_plane.glue(socket);
    let commands = commands();
    let pause = Duration::from_millis(5).try_into().unwrap();
    loop {
        while glue.turn(Some(&pause)).unwrap() {}
        let command = match commands.try_recv() {
            Ok(command) => command,
            Err(mpsc::TryRecvError::Empty) => continue,
            Err(mpsc::TryRecvError::Disconnected) => return,
        };
        let plane = &mut glue.switch.datapath;
        let answer = match command.split(' ').collect::<Vec<_>>()[..] {
            ["plug", port] => {
                plane.plug(port, Plug::Server);
                data_plane.plugs.insert(port.to_owned(), Plug::Server);
                String::new()
            }
            // The glue dies, and stays dead.
            ["die"] => {
                drop(glue);
                println!("\n{ANSWER}");
                while commands.recv().unwrap() != "live" {}
                glue = data_plane.glue(socket);
                String::new()
            }
            ["counters"] => format!("{:?}", plane.counters()),
            // As if another data plane took its place.
            ["lose"] => {
                data_plane = DataPlane {
                    glues: data_plane.glues,
                    plugs: data_plane.plugs.clone(),
                    ..DataPlane::start()
                };
                glue.switch.datapath.connect(data_plane.channel()).unwrap();
                while !glue.switch.datapath.is_ready() {
                    glue.turn(Some(&pause)).unwrap();
                }
                String::new()
            }
            _ => panic!("{command}"),
        };
        println!("\n{ANSWER}{answer}");
    }
}
