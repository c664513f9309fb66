//! The players around the control process: supervisor, data plane, driver domain, users.

use control_protocol::data_plane::*;
use control_protocol::port_counts::PortCount;
use control_protocol::supervisor::{Role, ToChild};
use control_protocol::work::WorkReport;
use control_protocol::{Channel, RequestError};
use flow::{
    Action, ControllerId, DropReason, Flow, FlowId, FlowKey, FlowStats, MeterSpec, PortCounters, PortId,
    PortRates, Stage,
};
use management::{Client, ClientError, PortConfig, PortKind, Reply, Request as Verb};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Environment variables that make the test program a control process.
pub const CHILD: &str = "CONTROL_TEST_RUN_DIR";
pub const CONFIG: &str = "CONTROL_TEST_CONFIG";

/// How long the control process may take to re-examine flows that flood, on a busy machine.
const FLOODS: Duration = Duration::from_secs(5);

/// State of the data plane that the test plays, and the requests that it got.
#[derive(Default)]
pub struct Plane {
    pub ports: BTreeMap<PortId, PortInfo>,
    pub flows: BTreeMap<FlowId, Flow>,
    pub fds: BTreeMap<PortId, OwnedFd>,
    pub log: Vec<Request>,
    pub capture: Option<OwnedFd>,
    pub threads: BTreeMap<PortId, Vec<u16>>,
    pub meters: BTreeMap<u32, MeterSpec>,
    pub rates: BTreeMap<PortId, PortRates>,
}

/// Answer to a hello.
pub fn welcome(pid: u32) -> Answer {
    Answer::Welcome {
        controller: ControllerId::BUILT_IN,
        workers: 2,
        pid,
    }
}

impl Plane {
    pub fn port(&self, name: &str) -> Option<&PortInfo> {
        self.ports.values().find(|info| info.spec.name == name)
    }

    /// Handles a request as a data plane does; returns the answers, and whether the port just got connected.
    fn handle(
        &mut self,
        request: Request,
        mut fds: Vec<OwnedFd>,
    ) -> (Option<Result<Answer, RequestError>>, Option<PortId>) {
        self.log.push(request.clone());
        let mut connected = None;
        let answer = match request {
            Request::Hello { .. } => welcome(42),
            Request::PortAdd(spec) => {
                assert_eq!(fds.len(), usize::from(spec.connection == Connection::Listener));
                if let Some(fd) = fds.pop() {
                    self.fds.insert(spec.port, fd);
                }
                let counters = PortCounters {
                    received: 3,
                    delivered: 3,
                    ..PortCounters::default()
                };
                let info = PortInfo {
                    state: PortState::Disconnected,
                    peer: None,
                    shortfall: None,
                    guest: GuestState::Unknown,
                    features: 0,
                    costly: Default::default(),
                    kernel_path: None,
                    device_queue: None,
                    counters,
                    spec: spec.clone(),
                };
                assert!(
                    self.ports.insert(spec.port, info).is_none(),
                    "port {} added twice",
                    spec.name
                );
                Answer::Done
            }
            Request::PortAttach { port } => {
                self.fds.insert(port, fds.pop().unwrap());
                self.ports.get_mut(&port).unwrap().state = PortState::Connected;
                connected = Some(port);
                Answer::Done
            }
            Request::PortDel { port } => {
                assert!(self.ports.remove(&port).is_some());
                self.fds.remove(&port);
                Answer::Done
            }
            Request::PortSet { port, mtu, miss_rate } => {
                let spec = &mut self.ports.get_mut(&port).unwrap().spec;
                (spec.mtu, spec.miss_rate) = (mtu, miss_rate);
                Answer::Done
            }
            Request::PortRates { port, rates } => {
                self.rates.insert(port, rates);
                Answer::Done
            }
            Request::PortQueue {
                header_len, receives, ..
            } => {
                let sockets = [header_len, receives].into_iter().flatten().count();
                assert_eq!(fds.len(), sockets);
                Answer::Done
            }
            Request::PortSteering { .. } => Answer::Done,
            Request::PortThreads { port, slots } => {
                self.threads.insert(port, slots);
                Answer::Done
            }
            Request::PortList => Answer::Ports {
                ports: self.ports.values().cloned().collect(),
                more: false,
            },
            Request::Counters => {
                let count = |(id, info): (&PortId, &PortInfo)| PortCount {
                    port: *id,
                    core: Some(1),
                    counters: info.counters.clone(),
                };
                let ports: Vec<PortCount> = self.ports.iter().map(count).collect();
                Answer::Counters {
                    ports: ports.iter().collect(),
                    more: false,
                }
            }
            Request::PortGet { .. }
            | Request::PortClasses { .. }
            | Request::PortEnable { .. }
            | Request::PortFilters { .. }
            | Request::PortMirrors { .. }
            | Request::FlowGet { .. }
            | Request::MeterGet { .. }
            | Request::MeterFlush
            | Request::Rules(_)
            | Request::PortP4 { .. }
            | Request::P4(_)
            | Request::Taken { .. } => {
                panic!("only other controllers ask for that")
            }
            Request::MeterSet { meter, spec } => {
                self.meters.insert(meter, spec);
                Answer::Meter(None)
            }
            Request::MeterDel { meter } => {
                self.meters.remove(&meter);
                Answer::Meter(None)
            }
            Request::FlowPut { flow, .. } => {
                self.flows.insert(flow.id, flow);
                nothing_ended()
            }
            Request::FlowDel { id, .. } => {
                self.flows.remove(&id);
                nothing_ended()
            }
            Request::FlowFlush { switch } => {
                self.flows.retain(|_, flow| flow.switch != switch);
                Answer::Done
            }
            Request::FlowList {
                switch,
                after,
                detail,
            } => {
                // Pages of one, so that there are several.
                let of_switch = self.flows.values().filter(|flow| flow.switch == switch);
                let mut left = of_switch.filter(|flow| after.is_none_or(|after| flow.id > after));
                let page = left.next();
                let more = left.next().is_some();
                let stats = FlowStats {
                    packets: 1,
                    bytes: 60,
                    idle_ms: Some(10),
                    tcp_flags: 0,
                };
                match detail {
                    Detail::Full => Answer::Flows {
                        flows: page.map(|flow| (flow.clone(), stats)).into_iter().collect(),
                        ways: Vec::new(),
                        more,
                    },
                    Detail::Terse => Answer::FlowStats {
                        flows: page.map(|flow| (flow.id, stats)).into_iter().collect(),
                        more,
                    },
                }
            }
            Request::Barrier => Answer::Done,
            Request::Work => Answer::Work(WorkReport {
                calls: 7,
                ..WorkReport::default()
            }),
            Request::Trace { in_port, frame } => Answer::Trace(vec![
                TraceStep::Parsed(key(in_port, frame[11].into(), frame[5].into())),
                TraceStep::Miss {
                    stage: Stage::Forward,
                    key: key(in_port, frame[11].into(), frame[5].into()),
                },
            ]),
            Request::TraceActions { actions, .. } => {
                Answer::Trace(actions.into_iter().map(TraceStep::Action).collect())
            }
            Request::Capture { .. } => {
                self.capture = fds.pop();
                Answer::Done
            }
            Request::Execute(_) | Request::Discard { .. } => return (None, None),
        };
        (Some(Ok(answer)), connected)
    }
}

pub fn nothing_ended() -> Answer {
    Answer::Ended {
        flows: Vec::new(),
        complete: true,
    }
}

pub fn key(port: PortId, from: u64, to: u64) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(port.0);
    key.set_eth_src(0x0200_0000_0000 | from);
    key.set_eth_dst(if to == 0xff {
        0xffff_ffff_ffff
    } else {
        0x0200_0000_0000 | to
    });
    key.set_eth_type(0x0800);
    key
}

pub struct Rig {
    pub dir: tempfile::TempDir,
    pub config: Option<PathBuf>,
    pub child: Child,
    pub supervisor: Channel,
    pub plane: Arc<Mutex<Plane>>,
    pub to_control: Arc<Channel>,
    pub serial: u64,
}

impl Rig {
    pub fn start(config: Option<&str>) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let config = config.map(|text| {
            let file = dir.path().join("config.toml");
            std::fs::write(&file, text).unwrap();
            file
        });
        let (child, supervisor) = spawn(dir.path(), config.as_deref());
        let (plane, to_control) = (Arc::default(), Arc::new(Channel::pair().unwrap().0));
        let mut rig = Rig {
            dir,
            config,
            child,
            supervisor,
            plane,
            to_control,
            serial: 0,
        };
        rig.connect_plane();
        rig
    }

    /// Gives the control process a channel to the data plane, as the supervisor does after either restarts.
    pub fn connect_plane(&mut self) {
        let (ours, theirs) = Channel::pair().unwrap();
        self.supervisor
            .send(&ToChild::Peer(Role::DataPlane), &[theirs.as_fd()])
            .unwrap();
        self.to_control = Arc::new(ours);
        let (plane, channel) = (self.plane.clone(), self.to_control.clone());
        std::thread::spawn(move || {
            while let Ok((ToDataPlane { serial, request }, fds)) = channel.recv::<ToDataPlane>() {
                let (result, connected) = plane.lock().unwrap().handle(request, fds);
                let Some(result) = result else { continue };
                let _ = channel.send(&FromDataPlane::Answer { serial, result }, &[]);
                if let Some(port) = connected {
                    let state = PortState::Connected;
                    let _ = channel.send(
                        &FromDataPlane::PortState {
                            port,
                            state,
                            peer: None,
                            shortfall: None,
                        },
                        &[],
                    );
                }
            }
        });
    }

    pub fn connect_driver(&self) -> Channel {
        let (ours, theirs) = Channel::pair().unwrap();
        self.supervisor
            .send(&ToChild::Peer(Role::Driver), &[theirs.as_fd()])
            .unwrap();
        ours
    }

    /// `kill -9`, and a new one.
    pub fn restart_control(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.supervisor) = spawn(self.dir.path(), self.config.as_deref());
        self.plane.lock().unwrap().log.clear();
        self.connect_plane();
    }

    pub fn client(&self) -> Client {
        wait("the management socket", || {
            Client::connect(self.dir.path(), Duration::from_secs(60)).ok()
        })
    }

    pub fn call(&self, request: Verb) -> Reply {
        self.client().call(&request).unwrap()
    }

    pub fn refused(&self, request: Verb) -> String {
        match self.client().call(&request) {
            Err(ClientError::Refused(report)) => report.error,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    pub fn add(&self, switch: &str, name: &str) {
        let config = PortConfig::new(name.parse().unwrap(), PortKind::VhostUser);
        assert_eq!(
            self.call(Verb::PortAdd {
                switch: switch.into(),
                config: Box::new(config),
                exists_ok: false,
            }),
            Reply::Done
        );
    }

    /// Waits until the data plane has a port of this name, and returns its number.
    pub fn number(&self, name: &str) -> PortId {
        wait(name, || {
            self.plane.lock().unwrap().port(name).map(|info| info.spec.port)
        })
    }

    pub fn set_state(&self, port: PortId, state: PortState) {
        self.set_peer(port, state, None);
    }

    pub fn set_peer(&self, port: PortId, state: PortState, peer: Option<u32>) {
        self.tell(port, state, peer, None);
    }

    pub fn tell(&self, port: PortId, state: PortState, peer: Option<u32>, shortfall: Option<&str>) {
        let shortfall = shortfall.map(ToOwned::to_owned);
        if let Some(info) = self.plane.lock().unwrap().ports.get_mut(&port) {
            (info.state, info.peer) = (state.clone(), peer);
            info.shortfall = shortfall.clone();
        }
        let message = FromDataPlane::PortState {
            port,
            state,
            peer,
            shortfall,
        };
        self.to_control.send(&message, &[]).unwrap();
    }

    /// Sends an upcall and returns what ended it, and the position of that in the log. A flood misses ports
    /// that have just come until the control process has re-examined the flows that flood: then another
    /// packet is sent, as guests do.
    pub fn upcall(&mut self, port: PortId, from: u64, to: u64) -> (Request, usize) {
        let end = Instant::now() + FLOODS;
        loop {
            let ended = self.upcall_once(port, from, to);
            let nobody = matches!(
                ended.0,
                Request::Discard {
                    reason: DropReason::NoDestination,
                    ..
                }
            );
            if to != 0xff || !nobody || Instant::now() >= end {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn upcall_once(&mut self, port: PortId, from: u64, to: u64) -> (Request, usize) {
        self.serial += 1;
        let id = UpcallId {
            port,
            serial: self.serial,
        };
        let switch = self.plane.lock().unwrap().ports[&port].spec.switch;
        let packet = Packet {
            vnet_header: [0; 12],
            frame: vec![7; 60],
        };
        let upcall = Upcall {
            id,
            switch,
            cause: UpcallCause::Miss {
                stage: Stage::Forward,
            },
            key: key(port, from, to),
            context: None,
            packet,
        };
        self.to_control.send(&FromDataPlane::Upcall(upcall), &[]).unwrap();
        wait("the end of an upcall", || {
            let plane = self.plane.lock().unwrap();
            let ends = |request: &Request| match request {
                Request::Execute(execute) => execute.upcall == Some(id),
                Request::Discard { upcall, .. } => *upcall == id,
                _ => false,
            };
            let position = plane.log.iter().position(ends)?;
            Some((plane.log[position].clone(), position))
        })
    }

    pub fn executed(&mut self, port: PortId, from: u64, to: u64) -> Vec<Action> {
        match self.upcall(port, from, to).0 {
            Request::Execute(execute) => unmetered(&execute.actions).to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the flow of such packets to have these actions, besides storm control; `None`: for there
    /// being no flow.
    pub fn flow(&self, port: PortId, from: u64, to: u64, actions: Option<&[Action]>) {
        let id = control::l2::flow_id(&key(port, from, to));
        wait(&format!("flow {from} -> {to}: {actions:?}"), || {
            let plane = self.plane.lock().unwrap();
            let flow = plane.flows.get(&id);
            (flow.map(|flow| unmetered(&flow.actions)) == actions).then_some(())
        });
    }

    pub fn macs(&self) -> Vec<(String, String)> {
        let Reply::Macs(macs) = self.call(Verb::MacList { switch: None }) else {
            panic!()
        };
        macs.into_iter().map(|entry| (entry.mac, entry.port)).collect()
    }
}

/// Actions behind the meter of storm control, if they begin with one.
pub fn unmetered(actions: &[Action]) -> &[Action] {
    match actions {
        [Action::Meter(_), others @ ..] => others,
        all => all,
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn spawn(run_dir: &Path, config: Option<&Path>) -> (Child, Channel) {
    let (ours, theirs) = Channel::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, run_dir);
    if let Some(config) = config {
        command.env(CONFIG, config);
    }
    let stdin = Stdio::from(OwnedFd::from(theirs));
    (command.stdin(stdin).stdout(Stdio::null()).spawn().unwrap(), ours)
}

pub fn wait<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
