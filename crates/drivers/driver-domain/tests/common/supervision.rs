//! A supervisor for one driver domain: it keeps interfaces for the broker, and starts and ends forwarders.

use control_protocol::Channel;
use control_protocol::forwarder::OpenInterface;
use control_protocol::supervisor::{ForwarderId, FromChild, Role, ToChild};
use flow::PortId;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// A broker or a forwarder.
pub enum Runs {
    Thread(JoinHandle<()>),
    Process(Child),
}

impl Runs {
    /// Starts this test program as a process that runs `entry` only, with a channel as standard input.
    pub fn process(entry: &str, channel: Channel) -> Runs {
        Runs::process_in(None, entry, channel)
    }

    /// As [`Runs::process`], in a network namespace.
    pub fn process_in(netns: Option<&str>, entry: &str, channel: Channel) -> Runs {
        let program = std::env::current_exe().unwrap();
        let mut command = match netns {
            None => Command::new(program),
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(program);
                command
            }
        };
        command.args(["--exact", entry, "--ignored", "--nocapture"]);
        let command = command.stdin(OwnedFd::from(channel)).stdout(Stdio::null());
        Runs::Process(command.spawn().unwrap())
    }

    /// Waits for its orderly end.
    pub fn wait(self) {
        match self {
            Runs::Thread(thread) => thread.join().unwrap(),
            Runs::Process(mut child) => assert!(child.wait().unwrap().success()),
        }
    }

    /// `kill -9`, of a process.
    pub fn kill(self) {
        if let Runs::Process(mut child) = self {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Outlives the broker.
#[derive(Clone)]
pub struct Supervision(Arc<Mutex<State>>);

struct State {
    broker: Channel,
    kept: BTreeMap<PortId, (OpenInterface, Vec<OwnedFd>)>,
    forwarders: BTreeMap<ForwarderId, (Channel, Runs)>,
    /// What forwarders serve, as the broker says.
    serves: Vec<(ForwarderId, String)>,
    /// Forwarders are processes that run this test.
    entry: Option<&'static str>,
    /// What each forwarder is told first.
    greetings: Vec<(ToChild, Vec<OwnedFd>)>,
    /// The broker can hide devices by a program.
    hides: bool,
    /// Outlives brokers, as its map has the sockets.
    steering: driver_domain::Steering,
    /// Outlives brokers, as their pairs' ends are in its namespace.
    veth: Result<driver_domain::VethMeans, String>,
    fan_out: Result<driver_domain::FanOut, String>,
}

impl Supervision {
    /// Without `hides` the program that the broker gets for hiding is one that the kernel does not attach
    /// there, as one before 6.6 attaches none.
    pub fn new(broker: &Channel, entry: Option<&'static str>, hides: bool) -> Supervision {
        let supervision = Supervision(Arc::new(Mutex::new(State {
            broker: duplicate(broker),
            kept: BTreeMap::new(),
            forwarders: BTreeMap::new(),
            serves: Vec::new(),
            entry,
            greetings: Vec::new(),
            hides,
            steering: driver_domain::Steering::load().unwrap(),
            veth: driver_domain::VethMeans::make().map_err(|error| error.to_string()),
            fan_out: driver_domain::FanOut::load().map_err(|error| error.to_string()),
        })));
        lend_programs(broker, &supervision.state());
        supervision.serve(duplicate(broker));
        supervision
    }

    /// Another broker has taken the place of the one before.
    pub fn replace_broker(&self, broker: &Channel) {
        let mut state = self.state();
        state.broker = duplicate(broker);
        let ids: Vec<ForwarderId> = state.forwarders.keys().copied().collect();
        ids.into_iter().for_each(|id| state.join(id));
        lend_programs(broker, &state);
        drop(state);
        self.serve(duplicate(broker));
    }

    /// Forwarders that start from now on are told this first.
    pub fn greet_with(&self, message: ToChild, fds: &[impl AsFd]) {
        let fds = fds.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap());
        let fds = fds.collect();
        self.state().greetings.push((message, fds));
    }

    /// Whether the interface of a port is kept as one that is not open; `None` if none is kept.
    pub fn keeps_hidden(&self, port: PortId) -> Option<bool> {
        let state = self.state();
        state
            .kept
            .get(&port)
            .map(|(interface, _)| interface.opened.is_none())
    }

    /// The process of a forwarder.
    pub fn pid(&self, id: ForwarderId) -> Option<u32> {
        match self.state().forwarders.get(&id) {
            Some((_, Runs::Process(child))) => Some(child.id()),
            _ => None,
        }
    }

    /// What forwarders serve, as the broker says.
    pub fn serves(&self) -> Vec<(ForwarderId, String)> {
        self.state().serves.clone()
    }

    /// Kills a forwarder, and starts it again.
    pub fn replace_forwarder(&self, id: ForwarderId) {
        let before = self.state().forwarders.remove(&id);
        let (channel, runs) = before.unwrap();
        runs.kill();
        drop(channel);
        self.state().start(id);
    }

    /// Ends all forwarders.
    pub fn end_forwarders(&self) {
        let forwarders = std::mem::take(&mut self.state().forwarders);
        for (channel, runs) in forwarders.into_values() {
            let _ = channel.send(&ToChild::Shutdown, &[]);
            runs.wait();
        }
    }

    /// Nothing is kept any more.
    pub fn forget(&self) {
        self.state().kept.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Reads what a broker says until it has ended.
    fn serve(&self, broker: Channel) {
        let supervision = self.clone();
        std::thread::spawn(move || {
            while let Ok((message, fds)) = broker.recv::<FromChild>() {
                supervision.state().on_message(message, fds);
            }
        });
    }
}

impl State {
    fn on_message(&mut self, message: FromChild, fds: Vec<OwnedFd>) {
        match message {
            FromChild::Keep(interface) => {
                self.kept.insert(interface.port, (interface, fds));
            }
            FromChild::Forget(port) => drop(self.kept.remove(&port)),
            FromChild::Recall(_) => {
                for (interface, descriptors) in self.kept.values() {
                    let message = ToChild::Kept(interface.clone());
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    let _ = self.broker.send(&message, &descriptors);
                }
                let _ = self.broker.send(&ToChild::Recalled(None), &[]);
            }
            FromChild::Forwarders(wanted) => {
                for (id, _) in &wanted {
                    if !self.forwarders.contains_key(id) {
                        self.start(*id);
                    }
                }
                let is_wanted = |id: &ForwarderId| wanted.iter().any(|(other, _)| other == id);
                let unwanted: Vec<ForwarderId> = self
                    .forwarders
                    .keys()
                    .copied()
                    .filter(|id| !is_wanted(id))
                    .collect();
                for id in unwanted {
                    let (channel, runs) = self.forwarders.remove(&id).unwrap();
                    let _ = channel.send(&ToChild::Shutdown, &[]);
                    runs.wait();
                }
                self.serves = wanted;
            }
            _ => {}
        }
    }

    fn start(&mut self, id: ForwarderId) {
        let (ours, theirs) = Channel::pair().unwrap();
        let runs = match self.entry {
            Some(entry) => Runs::process(entry, theirs),
            None => Runs::Thread(std::thread::spawn(|| driver_domain::forward(theirs).unwrap())),
        };
        for (message, fds) in &self.greetings {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            ours.send(message, &fds).unwrap();
        }
        self.forwarders.insert(id, (ours, runs));
        self.join(id);
    }

    /// Gives the broker and a forwarder a channel to each other.
    fn join(&mut self, id: ForwarderId) {
        let (one, other) = Channel::pair().unwrap();
        let forwarder = &self.forwarders[&id].0;
        let _ = self
            .broker
            .send(&ToChild::Peer(Role::Forwarder(id)), &[one.as_fd()]);
        forwarder
            .send(&ToChild::Peer(Role::Driver), &[other.as_fd()])
            .unwrap();
    }
}

fn lend_programs(broker: &Channel, state: &State) {
    let [steers, map] = state.steering.descriptors();
    let hides = driver_domain::load_hiding_program().unwrap();
    let program = if state.hides { hides.as_fd() } else { steers };
    broker.send(&ToChild::HidingProgram(Ok(())), &[program]).unwrap();
    broker
        .send(&ToChild::SteeringProgram(Ok(())), &[steers, map])
        .unwrap();
    let fan_out = state.fan_out.as_ref();
    let told = fan_out.map(drop).map_err(Clone::clone);
    let both = fan_out.map_or(Vec::new(), |fan_out| fan_out.descriptors().to_vec());
    broker.send(&ToChild::FanOut(told), &both).unwrap();
    let told = match &state.veth {
        Ok(veth) if state.hides => Ok(veth),
        Ok(_) => Err("this kernel is told to be old".into()),
        Err(reason) => Err(reason.clone()),
    };
    let message = ToChild::VethMeans(told.map(drop));
    let descriptors = match &state.veth {
        Ok(veth) => veth.descriptors().to_vec(),
        Err(_) => Vec::new(),
    };
    broker.send(&message, &descriptors).unwrap();
}

fn duplicate(channel: &Channel) -> Channel {
    Channel::from(channel.as_fd().try_clone_to_owned().unwrap())
}
