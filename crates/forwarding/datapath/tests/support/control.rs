//! The data plane under test, its supervisor, and its controllers, which do what the test says. Most tests
//! have one: the control process.

use super::frames::mac;
use super::{TIMEOUT, eventually};
use control_protocol::data_plane::{
    Answer, Connection, Detail, EndedFlow, Execute, FromDataPlane, Packet, PortInfo, PortSpec, PortState,
    Request, ToDataPlane, Upcall, UpcallCause, UpcallId, VERSION,
};
use control_protocol::supervisor::{FromChild, ToChild, VmStates};
use control_protocol::{Channel, ChannelError, RequestError};
use flow::{
    Action, ControllerId, DropReason, Filters, Flow, FlowId, FlowKey, FlowMask, FlowStats, PortCounters,
    PortId, PutMode, Stage, Statistics, SwitchId,
};
use placement::Mode;
use rule_list::LogRecord;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vm_state::{Publisher, Registry};

/// All tests use this one unless they are about switches.
pub const SWITCH: SwitchId = SwitchId(1);

/// A data plane with a control process.
pub struct Switch {
    supervisor: Arc<Channel>,
    thread: Option<JoinHandle<Result<(), datapath::Error>>>,
    controller: Controller,
}

/// Usually it is the control process that is meant.
impl Deref for Switch {
    type Target = Controller;

    fn deref(&self) -> &Controller {
        &self.controller
    }
}

impl DerefMut for Switch {
    fn deref_mut(&mut self) -> &mut Controller {
        &mut self.controller
    }
}

/// A controller of the data plane.
pub struct Controller {
    pub id: ControllerId,
    supervisor: Weak<Channel>,
    pub control: Option<Channel>,
    serial: u32,
    pub upcalls: VecDeque<Upcall>,
    pub states: Vec<(PortId, PortState)>,
    /// States of others' ports, and the processes at their ends.
    pub foreign: Vec<(PortId, PortState, Option<u32>)>,
    /// Packets that rules noted.
    pub records: Vec<LogRecord>,
    /// Upcalls ended by `Execute`, per port.
    executed: HashMap<PortId, u64>,
    /// Ports were removed, and their counters with them.
    pub removed: bool,
}

/// Waits for something to read; false when the time is up.
fn readable(fd: BorrowedFd<'_>, end: Instant) -> bool {
    let left = end.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: left.as_secs().cast_signed(),
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap() > 0
}

/// The mode that the environment asks for, or the default; `vm-state` is the default with knowledge of what
/// cores and guests do.
pub fn mode() -> Mode {
    match std::env::var("HYPERSWITCH_TEST_MODE").as_deref() {
        Err(_) | Ok("hyperswitch" | "vm-state") => Mode::Hyperswitch,
        Ok("poll") => Mode::Poll,
        Ok("thread-per-vnic") => Mode::ThreadPerVnic,
        Ok("driver-domain") => Mode::DriverDomain,
        Ok(other) => panic!("no mode {other}"),
    }
}

/// What cores and guests do, in mode `vm-state`, with the privilege to find out.
static KNOWN: LazyLock<Option<(Publisher, Registry)>> = LazyLock::new(|| {
    if std::env::var("HYPERSWITCH_TEST_MODE").as_deref() != Ok("vm-state") {
        return None;
    }
    let publisher = Publisher::attach()
        .inspect_err(|error| eprintln!("without knowledge of cores and guests: {error}"))
        .ok()?;
    let registry = Registry::map(publisher.area()).unwrap();
    Some((publisher, registry))
});

fn placement() -> placement::Config {
    placement::Config {
        mode: mode(),
        ..placement::Config::default()
    }
}

impl Switch {
    /// A data plane with a control process.
    pub fn start() -> Switch {
        Switch::seeing(KNOWN.as_ref().map(|(publisher, _)| publisher.area()))
    }

    /// As [`start`](Self::start), with a place where it is published what cores and guests do.
    pub fn seeing(vm_state: Option<BorrowedFd<'_>>) -> Switch {
        let (supervisor, child) = Channel::pair().unwrap();
        supervisor.send(&ToChild::Placement(placement()), &[]).unwrap();
        let states = match vm_state {
            Some(_) => VmStates::Published,
            None => VmStates::Unavailable("a test".into()),
        };
        supervisor
            .send(&ToChild::VmState(states), vm_state.as_slice())
            .unwrap();
        let topology = placement::Topology::of_machine();
        let thread = std::thread::spawn(move || datapath::run(child, topology, datapath::Queues::Allowed));
        let supervisor = Arc::new(supervisor);
        Switch {
            controller: Controller::new(ControllerId::BUILT_IN, &supervisor),
            supervisor,
            thread: Some(thread),
        }
    }

    /// Another controller of the same data plane.
    pub fn controller(&self, number: u8) -> Controller {
        Controller::new(ControllerId(number), &self.supervisor)
    }

    /// Says something as the supervisor.
    /// A message of the data plane to the supervisor, if there is one.
    pub fn said(&self) -> Option<FromChild> {
        self.supervisor.try_recv().ok().map(|(said, _)| said)
    }

    pub fn order(&self, order: &ToChild, fds: &[BorrowedFd<'_>]) {
        self.supervisor.send(order, fds).unwrap();
    }

    /// A data plane with `guests` ports, numbered from 1.
    pub fn with_ports(ports: u32) -> Switch {
        Switch::start().and_ports(ports)
    }

    /// With `ports` ports, numbered from 1.
    pub fn and_ports(mut self, ports: u32) -> Switch {
        (1..=ports).for_each(|port| self.add(port));
        self
    }

    /// A port spec with nothing special.
    pub fn spec(port: u32) -> PortSpec {
        PortSpec {
            port: PortId(port),
            switch: SWITCH,
            name: format!("vm{port}"),
            connection: Connection::Attached,
            mtu: 1500,
            miss_rate: 100_000,
            mac: Some([2, 0, 0, 0, 0, port as u8]),
            masked_features: 0,
            filters: Filters::default(),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        }
    }

    pub fn port_flow(in_port: u32, actions: &[Action]) -> Flow {
        let mut key = FlowKey::default();
        key.set_in_port(in_port);
        let mut mask = FlowMask::default();
        mask.0.set_in_port(u32::MAX);
        Flow::new(FlowId(in_port.into()), SWITCH, key, mask, actions.to_vec())
    }

    /// A flow for exactly this key.
    pub fn exact_flow(id: u128, key: FlowKey, actions: &[Action]) -> Flow {
        let mask = FlowMask(FlowKey {
            words: [u64::MAX; flow::KEY_WORDS],
        });
        Flow::new(FlowId(id), SWITCH, key, mask, actions.to_vec())
    }

    /// At the end of every test: all is accounted for, on every port.
    #[track_caller]
    pub fn finish(mut self) {
        self.controller.settle();
        self.stop();
    }

    /// Ends the data plane in an orderly way.
    pub fn stop(&mut self) {
        // The last one, as controllers hold it only while they use it.
        self.supervisor = Arc::new(Channel::pair().unwrap().0);
        if let Some(thread) = self.thread.take() {
            eventually("the data plane ends", || thread.is_finished());
            thread.join().expect("no panic").expect("an orderly end");
        }
    }
}

impl Controller {
    fn new(id: ControllerId, supervisor: &Arc<Channel>) -> Controller {
        let mut controller = Controller {
            id,
            supervisor: Arc::downgrade(supervisor),
            control: None,
            serial: 0,
            upcalls: VecDeque::new(),
            states: Vec::new(),
            foreign: Vec::new(),
            records: Vec::new(),
            executed: HashMap::new(),
            removed: false,
        };
        controller.connect();
        controller
    }

    /// The controller's port of that number.
    pub fn own(&self, number: u32) -> u32 {
        self.id.port(number).unwrap().0
    }

    /// Gives the data plane a new control channel and says hello on it.
    pub fn connect(&mut self) {
        self.connect_silently();
        let hello = self.ask(Request::Hello { version: VERSION });
        assert!(
            matches!(hello, Ok(Answer::Welcome { controller, workers: 1.., .. }) if controller == self.id),
            "{hello:?}"
        );
    }

    pub fn connect_silently(&mut self) {
        let (control, theirs) = Channel::pair().unwrap();
        let supervisor = self.supervisor.upgrade().expect("the data plane runs");
        supervisor
            .send(&ToChild::Controller(self.id), &[theirs.as_fd()])
            .unwrap();
        self.control = Some(control);
        self.upcalls.clear();
    }

    /// The control process dies.
    pub fn disconnect(&mut self) {
        self.control = None;
        self.upcalls.clear();
    }

    /// Takes in one message; false when none came until `end`.
    fn take(&mut self, end: Instant) -> Option<FromDataPlane> {
        let control = self.control.as_ref().unwrap();
        if !control.has_received() && !readable(control.as_fd(), end) {
            return None;
        }
        match control.try_recv::<FromDataPlane>() {
            Ok((message, _)) => Some(message),
            Err(ChannelError::WouldBlock) => None,
            Err(error) => panic!("control channel: {error}"),
        }
    }

    fn note(&mut self, message: FromDataPlane) {
        match message {
            FromDataPlane::Upcall(upcall) => self.upcalls.push_back(upcall),
            FromDataPlane::PortState { port, state, .. } => self.states.push((port, state)),
            FromDataPlane::ForeignPort {
                port, state, peer, ..
            } => self.foreign.push((port, state, peer)),
            FromDataPlane::RuleRecords(records) => self.records.extend(records),
            FromDataPlane::Answer { serial, result } => {
                panic!("answer {serial} nobody waits for: {result:?}")
            }
        }
    }

    pub fn tell(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> u32 {
        self.serial += 1;
        let message = ToDataPlane {
            serial: self.serial,
            request,
        };
        let end = Instant::now() + TIMEOUT;
        while let Err(error) = self.control.as_ref().unwrap().try_send(&message, fds) {
            assert!(
                matches!(error, ChannelError::WouldBlock),
                "control channel: {error}"
            );
            assert!(Instant::now() < end, "the data plane does not read requests");
            if let Some(message) = self.take(Instant::now() + Duration::from_millis(1)) {
                self.note(message);
            }
        }
        self.serial
    }

    pub fn answer(&mut self, expected: u32) -> Result<Answer, RequestError> {
        let (serial, result) = self.any_answer();
        assert_eq!(serial, expected, "{result:?}");
        result
    }

    /// The next answer, with its number.
    pub fn any_answer(&mut self) -> (u32, Result<Answer, RequestError>) {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.take(end) {
                Some(FromDataPlane::Answer { serial, result }) => return (serial, result),
                Some(message) => self.note(message),
                None => assert!(Instant::now() < end, "no answer in time"),
            }
        }
    }

    pub fn ask_with(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Answer, RequestError> {
        let serial = self.tell(request, fds);
        self.answer(serial)
    }

    pub fn ask(&mut self, request: Request) -> Result<Answer, RequestError> {
        self.ask_with(request, &[])
    }

    #[track_caller]
    pub fn done(&mut self, request: Request) {
        if let Request::PortDel { port } = request {
            self.removed = true;
            self.executed.remove(&port);
        }
        let answer = self.ask(request);
        assert!(
            matches!(answer, Ok(Answer::Done | Answer::Ended { .. })),
            "{answer:?}"
        );
    }

    /// What flows that a request ends have counted in the end.
    #[track_caller]
    pub fn ended(&mut self, request: Request) -> Vec<EndedFlow> {
        match self.ask(request) {
            Ok(Answer::Ended {
                flows,
                complete: true,
            }) => flows,
            other => panic!("{other:?}"),
        }
    }

    /// The number of the error with which the request is answered.
    #[track_caller]
    pub fn refused(&mut self, request: Request) -> Errno {
        let error = self.ask(request).expect_err("an error");
        assert!(!error.text.is_empty());
        Errno::from_raw_os_error(error.errno)
    }

    /// The next upcall within `timeout`.
    pub fn upcall_within(&mut self, timeout: Duration) -> Option<Upcall> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(upcall) = self.upcalls.pop_front() {
                return Some(upcall);
            }
            let message = self.take(end)?;
            self.note(message);
        }
    }

    #[track_caller]
    pub fn upcall(&mut self) -> Upcall {
        self.upcall_within(TIMEOUT).expect("an upcall")
    }

    #[track_caller]
    pub fn add(&mut self, port: u32) {
        self.add_with(port, Filters::default());
    }

    /// Adds a port that has filters from the beginning.
    pub fn add_with(&mut self, port: u32, filters: Filters) {
        self.done(Request::PortAdd(PortSpec {
            filters,
            ..Switch::spec(port)
        }));
        if let Some((_, registry)) = &*KNOWN {
            // The thread of the test is all its guests.
            let me = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            let slots = registry.add(me).iter().map(|slot| slot.0).collect();
            self.done(Request::PortThreads {
                port: PortId(port),
                slots,
            });
        }
    }

    /// Our end of a new connection of that port.
    #[track_caller]
    pub fn attach(&mut self, port: u32) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let request = Request::PortAttach { port: PortId(port) };
        assert_eq!(self.ask_with(request, &[theirs.as_fd()]), Ok(Answer::Done));
        ours
    }

    pub fn ports(&mut self) -> Vec<PortInfo> {
        let mut serial = self.tell(Request::PortList, &[]);
        let mut all = Vec::new();
        loop {
            let Ok(Answer::Ports { ports, more }) = self.answer(serial) else {
                panic!("no list of ports")
            };
            all.extend(ports);
            if !more {
                return all;
            }
            serial = self.serial;
        }
    }

    #[track_caller]
    pub fn port(&mut self, port: u32) -> PortInfo {
        let found = self.ports().into_iter().find(|info| info.spec.port.0 == port);
        found.expect("the port exists")
    }

    #[track_caller]
    pub fn shortfall(&mut self, port: u32) -> Option<String> {
        self.port(port).shortfall
    }

    #[track_caller]
    pub fn counters(&mut self, port: u32) -> PortCounters {
        self.port(port).counters
    }

    /// Waits until the port's counters satisfy `done`.
    #[track_caller]
    pub fn until(&mut self, port: u32, what: &str, done: impl Fn(&PortCounters) -> bool) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let counters = self.counters(port);
            if done(&counters) {
                return;
            }
            assert!(Instant::now() < end, "port {port}: {what}: {counters:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    pub fn until_dropped(&mut self, port: u32, reason: DropReason, count: u64) {
        self.until(port, reason.name(), |counters| {
            counters.dropped.get(reason) >= count
        });
        assert_eq!(self.counters(port).dropped.get(reason), count, "{reason}");
    }

    #[track_caller]
    pub fn until_state(&mut self, port: u32, done: impl Fn(&PortState) -> bool) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let state = self.port(port).state;
            if done(&state) {
                return;
            }
            assert!(Instant::now() < end, "port {port} is {state:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Installs a flow instead of what there is.
    #[track_caller]
    pub fn put(&mut self, flow: Flow) {
        let mode = PutMode::CreateOrModify(Statistics::New);
        self.done(Request::FlowPut { flow, mode });
    }

    /// All packets from that port get these actions.
    pub fn flow(&mut self, in_port: u32, actions: &[Action]) {
        let flow = Switch::port_flow(in_port, actions);
        self.put(flow);
    }

    /// Packets of `from` to the address of `to` go there.
    pub fn flow_by_address(&mut self, from: u32, to: u32) {
        let mut key = FlowKey::default();
        key.set_in_port(from);
        let address = mac(to)
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        key.set_eth_dst(address);
        let mut mask = FlowMask::default();
        mask.0.set_in_port(u32::MAX);
        mask.0.set_eth_dst(0xffff_ffff_ffff);
        self.put(Flow::new(
            FlowId(u128::from(from) << 32 | u128::from(to)),
            SWITCH,
            key,
            mask,
            vec![Action::Output(PortId(to))],
        ));
    }

    pub fn flows(&mut self) -> Vec<(Flow, FlowStats)> {
        let request = Request::FlowList {
            switch: SWITCH,
            after: None,
            detail: Detail::Full,
        };
        let Ok(Answer::Flows {
            flows, more: false, ..
        }) = self.ask(request)
        else {
            panic!("no list of flows")
        };
        flows
    }

    /// Sends a packet from both ports to each other.
    pub fn join(&mut self, a: u32, b: u32) {
        self.flow(a, &[Action::Output(PortId(b))]);
        self.flow(b, &[Action::Output(PortId(a))]);
    }

    /// Ends an upcall by sending its packet on from the forward stage.
    pub fn execute(&mut self, upcall: Upcall, actions: &[Action]) {
        self.execute_in(Stage::Forward, upcall, actions);
    }

    /// Ends an upcall by sending its packet on from a stage.
    pub fn execute_in(&mut self, stage: Stage, upcall: Upcall, actions: &[Action]) {
        *self.executed.entry(upcall.id.port).or_default() += 1;
        self.tell(
            Request::Execute(Execute {
                upcall: Some(upcall.id),
                in_port: upcall.id.port,
                stage,
                recirc_id: upcall.key.recirc_id(),
                dp_hash: upcall.key.dp_hash(),
                no_ethernet: upcall.key.no_ethernet() == 1,
                actions: actions.to_vec(),
                packet: upcall.packet,
            }),
            &[],
        );
    }

    /// Sends a packet of our own.
    pub fn inject(&mut self, in_port: u32, packet: Packet, actions: &[Action]) {
        self.tell(
            Request::Execute(Execute {
                upcall: None,
                in_port: PortId(in_port),
                stage: Stage::Forward,
                recirc_id: 0,
                dp_hash: 0,
                no_ethernet: false,
                actions: actions.to_vec(),
                packet,
            }),
            &[],
        );
    }

    pub fn discard(&mut self, upcall: UpcallId, reason: DropReason) {
        self.tell(Request::Discard { upcall, reason }, &[]);
    }

    /// All is accounted for, on every port.
    #[track_caller]
    pub fn settle(&mut self) {
        if self.control.is_none() {
            self.connect();
        }
        let end = Instant::now() + TIMEOUT;
        let ports = loop {
            while let Some(upcall) = self.upcall_within(Duration::from_millis(0)) {
                self.discard(upcall.id, DropReason::Policy);
            }
            let ports = self.ports();
            let settled = self.upcalls.is_empty() && ports.iter().all(|port| self.is_settled(port));
            // Counts stay as they are: what was sent last may not have been counted at all before.
            std::thread::sleep(Duration::from_millis(5));
            let after = self.ports();
            if settled
                && ports
                    .iter()
                    .zip(&after)
                    .all(|(before, after)| is_unchanged(before, after))
            {
                break after;
            }
            assert!(Instant::now() < end, "packets got lost: {after:#?}");
        };
        let sum = |get: fn(&PortCounters) -> u64| ports.iter().map(|port| get(&port.counters)).sum::<u64>();
        let (delivered, transmitted) = (sum(|c| c.delivered), sum(|c| c.transmitted));
        assert!(
            self.removed || delivered == transmitted,
            "what was delivered was received by some port"
        );
    }

    fn is_settled(&self, port: &PortInfo) -> bool {
        let counters = &port.counters;
        let executed = self.executed.get(&port.spec.port).copied().unwrap_or(0);
        counters.in_flight() == 0 && counters.upcalls == executed + counters.discarded.total()
    }
}

/// Whether a port has moved no packet between two looks. Chains may have come back to its guest.
fn is_unchanged(before: &PortInfo, after: &PortInfo) -> bool {
    let after = &after.counters;
    let before = PortCounters {
        calls: after.calls,
        calls_suppressed: after.calls_suppressed,
        kicks: after.kicks,
        ..before.counters.clone()
    };
    before == *after
}

/// The cause of an upcall about a packet without a flow in that stage.
pub fn miss(stage: Stage) -> UpcallCause {
    UpcallCause::Miss { stage }
}
