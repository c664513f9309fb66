//! The product's data plane under a controller that is played here.
//!
//! The product's own control process is a learning switch, which looks at Ethernet addresses and at nothing
//! else: all connections between two stations are one flow. What flows cost that are told apart, by a rule on
//! transport ports for instance, takes another controller. So the executable's data plane is started as the
//! supervisor starts it, isolation and priority included, and told by the same messages (`control-protocol`)
//! about ports and flows. What it does with packets is the product's; who decided is not.
//!
//! Flows are installed before any packet comes. When the controller asks for something, it drops the packets
//! of upcalls: a packet without a flow is lost, which whoever counts packets sees.

use crate::process::memory;
use crate::switch::binary;
use anyhow::{Context, Result, bail, ensure};
use control_protocol::Channel;
use control_protocol::data_plane::{Answer, Connection, Detail, PortSpec, Request};
use control_protocol::supervisor::{PriorityStatus, Role, ToChild, VmStates};
use control_protocol::work::WorkReport;
use controller::{Client, Event};
use flow::{
    Action, ControllerId, DropReason, Filters, Flow, FlowId, FlowKey, FlowMask, PortId, PutMode, SwitchId,
};
use placement_config::{Config, Priority};
use rustix::event::{PollFd, poll};
use rustix::process::{Pid, Signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vm_state::{Publisher, Registry, vcpu_threads};

const SWITCH: SwitchId = SwitchId(1);
const TIMEOUT: Duration = Duration::from_secs(15);
/// From port 1 to port 2, and back.
const BOTH_WAYS: [(u32, u32); 2] = [(1, 2), (2, 1)];

/// A running data plane; killed on drop.
pub struct Controlled {
    process: Child,
    client: Client<()>,
    ports: usize,
    /// The data plane's channel to the supervisor, by which it gets channels to peers.
    supervisor: Channel,
    publisher: Option<Publisher>,
    directory: TempDir,
    stopped_well: bool,
}

impl Controlled {
    /// Starts a data plane with these ports, numbered from 1 on. To be called by a thread that lives as long.
    pub fn start(ports: &[&str]) -> Result<Controlled> {
        let directory = tempfile::Builder::new().prefix("hs-plane-").tempdir()?;
        let granted = thread_priority::grant(Priority::Auto);
        let (supervisor, theirs) = Channel::pair()?;
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut command = Command::new(binary()?);
        command
            .arg("--run-dir")
            .arg(directory.path())
            .arg(Role::DataPlane.name());
        if granted.by_capability {
            command.env("HYPERSWITCH_NICE", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let process = ::process::spawn(&mut command, theirs.as_fd())?;
        let (control, peer) = Channel::pair()?;
        let mut plane = Controlled {
            process,
            client: Client::default(),
            ports: ports.len(),
            supervisor,
            publisher: Publisher::attach().ok(),
            directory,
            stopped_well: false,
        };
        plane.client.attach(control, 0);
        // There is nothing to agree about.
        plane.client.compare(0);
        plane.introduce(
            PriorityStatus {
                class: granted.class,
                refused: granted.refused,
            },
            peer.as_fd(),
        )?;
        for (number, port) in (1..).zip(ports) {
            plane
                .add(PortId(number), port)
                .with_context(|| format!("port {port}"))?;
        }
        Ok(plane)
    }

    /// The supervisor's messages at the start, in its order.
    fn introduce(&mut self, priority: PriorityStatus, peer: BorrowedFd<'_>) -> Result<()> {
        let supervisor = &self.supervisor;
        supervisor.send(&ToChild::Placement(Config::default()), &[])?;
        supervisor.send(&ToChild::Priority(priority), &[])?;
        match &self.publisher {
            Some(publisher) => {
                supervisor.send(&ToChild::VmState(VmStates::Published), &[publisher.area()])?;
            }
            None => {
                let reason = VmStates::Unavailable("the test bed cannot attach its programs".into());
                supervisor.send(&ToChild::VmState(reason), &[])?;
            }
        }
        supervisor.send(&ToChild::Controller(ControllerId::BUILT_IN), &[peer])?;
        self.ask(Request::Barrier, Vec::new())?;
        ensure!(
            self.client.welcome().is_some(),
            "no welcome by the data plane:\n{}",
            self.log()
        );
        Ok(())
    }

    fn add(&mut self, port: PortId, name: &str) -> Result<()> {
        let listener = UnixListener::bind(self.socket(name))?;
        // As the control process has them.
        listener.set_nonblocking(true)?;
        let spec = PortSpec {
            port,
            switch: SWITCH,
            name: name.to_owned(),
            connection: Connection::Listener,
            mtu: 1500,
            miss_rate: 1000,
            mac: None,
            masked_features: 0,
            filters: Filters::default(),
            mirrors: Vec::new(),
            p4: control_protocol::p4::P4Attachment::default(),
        };
        self.ask(Request::PortAdd(spec), vec![listener.into()]).map(drop)
    }

    /// Registers this process as the guest of the ports, as the control process does when a guest connects.
    pub fn register_guest(&mut self, ports: &[&str]) -> Result<()> {
        let Some(publisher) = &self.publisher else {
            return Ok(());
        };
        let registry = Registry::map(publisher.area())?;
        let threads = vcpu_threads(Path::new("/proc"), std::process::id())?;
        let slots: Vec<u16> = threads
            .into_iter()
            .filter_map(|tid| Some(registry.add(tid)?.0))
            .collect();
        for (number, _) in (1..).zip(ports) {
            let request = Request::PortThreads {
                port: PortId(number),
                slots: slots.clone(),
            };
            self.ask(request, Vec::new())?;
        }
        Ok(())
    }

    /// Joins ports 1 and 2 by a flow for each of these pairs of UDP ports, in each direction. Flows look at
    /// the port that packets come from, at the protocol and at both UDP ports.
    pub fn join_by_udp_ports(&mut self, pairs: impl Iterator<Item = (u16, u16)>) -> Result<()> {
        let keys = pairs.flat_map(|(source, destination)| {
            BOTH_WAYS.map(|(from, to)| (udp_key(from, source, destination), to))
        });
        self.put_flows(keys, udp_mask())
    }

    /// Joins ports 1 and 2 by a flow in each direction.
    pub fn join_ports(&mut self) -> Result<()> {
        let mut mask = FlowMask::ANY;
        mask.0.set_in_port(u32::MAX);
        let from = |from| {
            let mut key = FlowKey::default();
            key.set_in_port(from);
            key
        };
        self.put_flows(BOTH_WAYS.map(|way| (from(way.0), way.1)).into_iter(), mask)
    }

    /// Installs flows with these keys to these ports.
    fn put_flows(&mut self, keys: impl Iterator<Item = (FlowKey, u32)>, mask: FlowMask) -> Result<()> {
        let put = |(number, (key, to))| Request::FlowPut {
            flow: Flow::new(
                FlowId(number),
                SWITCH,
                key,
                mask,
                vec![Action::Output(PortId(to))],
            ),
            mode: PutMode::Create,
        };
        self.ask_all((1..).zip(keys).map(put))
    }

    /// Has the data plane serve these requests one after the other, and waits for all answers.
    pub fn ask_all(&mut self, requests: impl IntoIterator<Item = Request>) -> Result<()> {
        for request in requests {
            self.tell(request, Vec::new())?;
            if !self.client.has_room() {
                self.answer()?;
            }
        }
        while self.client.count(|()| true) > 0 {
            self.answer()?;
        }
        Ok(())
    }

    /// Flows in its table.
    pub fn flows(&mut self) -> Result<usize> {
        let asked = self.client.ask_for_flows(SWITCH, Detail::Terse, ());
        ensure!(asked.is_ok(), "there is no data plane");
        match self.answer()? {
            Answer::FlowStats { flows, .. } => Ok(flows.len()),
            other => bail!("no list of flows: {other:?}"),
        }
    }

    /// The report about the threads' work.
    pub fn work(&mut self) -> Result<WorkReport> {
        match self.ask(Request::Work, Vec::new())? {
            Answer::Work(report) => Ok(report),
            other => bail!("not an account of work: {other:?}"),
        }
    }

    fn tell(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<()> {
        let asked = self.client.ask(request, fds, ());
        ensure!(asked.is_ok(), "there is no data plane");
        Ok(())
    }

    /// The next answer.
    fn answer(&mut self) -> Result<Answer> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.client.receive(self.ports) {
                Ok(Some(Event::Answered((), result))) => {
                    return result.map_err(|error| anyhow::anyhow!("the data plane refuses: {}", error.text));
                }
                Ok(Some(Event::Upcall(upcall))) => {
                    let (upcall, reason) = (upcall.id, DropReason::ControlLost);
                    self.client.end_upcall(Request::Discard { upcall, reason });
                }
                // Guests see the states of ports.
                Ok(Some(_)) => {}
                Ok(None) => self.wait(deadline)?,
                Err(lost) => bail!("the data plane is given up: {lost:?}\n{}", self.log()),
            }
        }
    }

    /// Waits until the data plane has said something, or can be told something.
    fn wait(&mut self, deadline: Instant) -> Result<()> {
        self.client.flush();
        let Some((channel, events)) = self.client.interest() else {
            bail!("there is no data plane");
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::from_borrowed_fd(channel, events)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&left.try_into().unwrap_or_default())))?;
        ensure!(ready > 0, "the data plane does not answer:\n{}", self.log());
        Ok(())
    }

    fn ask(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<Answer> {
        self.tell(request, fds)?;
        self.answer()
    }

    /// The socket of a port.
    pub fn socket(&self, port: &str) -> PathBuf {
        self.directory.path().join(format!("{port}.sock"))
    }

    /// Log of the data plane.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Process identifier of the data plane.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Proportional share of its memory in bytes.
    pub fn memory(&self) -> u64 {
        memory(self.pid())
    }

    /// Stops it where it is.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            // One that has just ended is no error.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Ends it in good order.
    pub fn stop(mut self) -> Result<()> {
        self.supervisor.send(&ToChild::Shutdown, &[])?;
        let deadline = Instant::now() + TIMEOUT;
        while self.process.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the data plane does not end");
            thread::sleep(Duration::from_millis(10));
        }
        self.stopped_well = true;
        Ok(())
    }
}

impl Drop for Controlled {
    fn drop(&mut self) {
        if !self.stopped_well {
            // Nothing useful can be done if it fails.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn udp_key(from: u32, source: u16, destination: u16) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_in_port(from);
    key.set_eth_type(0x0800);
    key.set_ip_proto(17);
    key.set_tp_src(source);
    key.set_tp_dst(destination);
    key
}

fn udp_mask() -> FlowMask {
    let mut mask = FlowMask::default();
    mask.0.set_in_port(u32::MAX);
    mask.0.set_eth_type(u16::MAX);
    mask.0.set_ip_proto(u8::MAX);
    mask.0.set_tp_src(u16::MAX);
    mask.0.set_tp_dst(u16::MAX);
    mask
}
