//! What the tests need around a driver domain: namespaces, a control process, a data plane.

#![allow(dead_code, missing_docs, reason = "shared by several test programs")]

pub mod backend;
pub mod pair;
pub mod supervision;

use control_protocol::Channel;
use control_protocol::driver::{
    FromDriver, InterfaceKind, InterfaceSpec, InterfaceState, StackSettings, ToDriver,
};
use control_protocol::supervisor::ToChild;
use flow::{ControllerId, PortId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use supervision::{Runs, Supervision};

/// Long enough for a loaded machine, short enough to notice a hang.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the machine lets us test; says why not.
pub fn can_run() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !std::path::Path::new("/dev/net/tun").exists() {
        "no /dev/net/tun"
    } else {
        return true;
    };
    println!("skipped: {reason}");
    false
}

/// The instance as which tests make devices.
pub fn owner() -> driver_domain::Owner {
    driver_domain::Owner::new(std::path::Path::new("/run/hyperswitch-test"))
}

/// A name no other test or process uses, of at most 13 bytes.
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "hs{:x}-{:x}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

pub fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed; returns what it prints.
pub fn sh(line: &str) -> String {
    let output = command(line).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{line}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// A network namespace without IPv6 noise unless wanted, gone when dropped.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new() -> Namespace {
        let name = unique();
        sh(&format!("ip netns add {name}"));
        let namespace = Namespace(name);
        namespace.sh("ip link set lo up");
        namespace
    }

    pub fn sh(&self, line: &str) -> String {
        sh(&format!("ip netns exec {} {line}", self.0))
    }

    pub fn spawn(&self, line: &str) -> Child {
        let line = format!("ip netns exec {} {line}", self.0);
        command(&line)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub fn has(&self, interface: &str) -> bool {
        let line = format!("ip netns exec {} ip link show {interface}", self.0);
        command(&line).output().unwrap().status.success()
    }

    pub fn ping(&self, address: &str) {
        self.sh(&format!("ping -c 3 -i 0.05 -W 5 {address}"));
    }

    /// Sends TCP to a server in `to` for two seconds; returns bits per second.
    pub fn iperf(&self, to: &Namespace, address: &str, options: &str) -> f64 {
        let mut server = to.spawn("iperf3 -s -1");
        let deadline = Instant::now() + TIMEOUT;
        while to.sh("ss -Hltn sport = 5201").is_empty() {
            assert!(Instant::now() < deadline, "the iperf3 server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = self.sh(&format!("iperf3 -c {address} -t 2 -J {options}"));
        server.wait().unwrap();
        let end = &text[text
            .find("\"sum_received\"")
            .expect("iperf3 reports what was received")..];
        let rate = &end[end.find("\"bits_per_second\"").unwrap()..];
        let rate = rate.split([':', ',', '\n']).nth(1).unwrap();
        rate.trim().parse().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = command(&format!("ip netns del {}", self.0)).output();
    }
}

/// An address with its prefix length.
pub fn address(text: &str) -> (IpAddr, u8) {
    let (address, prefix) = text.split_once('/').unwrap();
    (address.parse().unwrap(), prefix.parse().unwrap())
}

pub fn tap(name: &str, netns: &Namespace, addresses: &[&str]) -> InterfaceSpec {
    let addresses = addresses.iter().map(|text| address(text));
    InterfaceSpec {
        kind: InterfaceKind::Tap(StackSettings {
            netns: Some(netns.0.clone()),
            addresses: addresses.collect(),
            ..StackSettings::default()
        }),
        name: name.into(),
        mtu: None,
    }
}

/// As [`tap`], of a veth pair, which keeps its hardware address when it is made again, as in the product.
pub fn veth(name: &str, netns: &Namespace, addresses: &[&str]) -> InterfaceSpec {
    let mut spec = tap(name, netns, addresses);
    if let InterfaceKind::Tap(mut stack) = spec.kind {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let [a, b, c, d, e, ..] = hasher.finish().to_be_bytes();
        stack.initial_mac = Some([2, a, b, c, d, e]);
        spec.kind = InterfaceKind::Veth(stack);
    }
    spec
}

/// Supervisor and control process of a driver domain, or another controller of it. Ports are numbered by the
/// controller.
pub struct Driver {
    id: ControllerId,
    pub supervisor: Channel,
    pub control: Channel,
    /// States of ports for which the test has not waited yet.
    heard: RefCell<VecDeque<(PortId, InterfaceState)>>,
    runs: Option<Runs>,
    pub supervision: Supervision,
    /// The namespace of brokers that are processes.
    netns: Option<String>,
}

impl Driver {
    /// Runs the driver domain on a thread, in a namespace if given.
    pub fn start(netns: Option<&Namespace>) -> Driver {
        Driver::start_on_kernel(netns, true)
    }

    /// As [`Driver::start`], on a kernel that attaches programs to the ingress of devices, or does not.
    pub fn start_on_kernel(netns: Option<&Namespace>, has_tcx: bool) -> Driver {
        let (supervisor, theirs) = Channel::pair().unwrap();
        let netns = netns.map(|netns| std::fs::File::open(format!("/run/netns/{}", netns.0)).unwrap());
        let thread = std::thread::spawn(move || {
            if let Some(netns) = netns {
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(netns.as_fd(), kind).unwrap();
            }
            driver_domain::run(theirs, owner()).unwrap();
        });
        Driver::with_forwarders(supervisor, Runs::Thread(thread), None, has_tcx)
    }

    /// Runs it as a process that can be killed: this test program, running `entry` only. Forwarders are
    /// threads, or processes that run another entry.
    pub fn start_process(entry: &str, forwarders: Option<&'static str>) -> Driver {
        let (supervisor, theirs) = Channel::pair().unwrap();
        Driver::with_forwarders(supervisor, Runs::process(entry, theirs), forwarders, true)
    }

    /// As [`Driver::start_process`], with a broker in a namespace, and forwarders that are threads.
    pub fn start_process_in(netns: &Namespace, entry: &str) -> Driver {
        Driver::start_in(netns, entry, None)
    }

    /// As [`Driver::start_process`], with a broker in a namespace, and forwarders that are processes.
    pub fn start_processes_in(netns: &Namespace, entry: &str, forwarders: &'static str) -> Driver {
        Driver::start_in(netns, entry, Some(forwarders))
    }

    fn start_in(netns: &Namespace, entry: &str, forwarders: Option<&'static str>) -> Driver {
        let (supervisor, theirs) = Channel::pair().unwrap();
        let runs = Runs::process_in(Some(&netns.0), entry, theirs);
        let mut driver = Driver::with_forwarders(supervisor, runs, forwarders, true);
        driver.netns = Some(netns.0.clone());
        driver
    }

    fn with_forwarders(
        supervisor: Channel,
        runs: Runs,
        forwarders: Option<&'static str>,
        hides: bool,
    ) -> Driver {
        let id = ControllerId::BUILT_IN;
        let control = connect(&supervisor, id);
        Driver {
            id,
            supervision: Supervision::new(&supervisor, forwarders, hides),
            supervisor,
            control,
            heard: RefCell::default(),
            runs: Some(runs),
            netns: None,
        }
    }

    /// Kills the broker; another process that runs `entry` takes its place. The controller has no channel to
    /// it yet.
    pub fn replace_broker(&mut self, entry: &str) {
        self.kill_broker();
        self.start_broker(entry);
    }

    /// Kills the broker.
    pub fn kill_broker(&mut self) {
        self.runs.take().unwrap().kill();
    }

    /// Another process that runs `entry` takes the place of a broker that was killed.
    pub fn start_broker(&mut self, entry: &str) {
        let (supervisor, theirs) = Channel::pair().unwrap();
        self.runs = Some(Runs::process_in(self.netns.as_deref(), entry, theirs));
        self.supervision.replace_broker(&supervisor);
        self.supervisor = supervisor;
    }

    /// Another controller of the same driver domain.
    pub fn beside(&self, number: u8) -> Driver {
        let id = ControllerId(number);
        let supervisor = self.supervisor.as_fd().try_clone_to_owned().unwrap();
        Driver {
            id,
            control: connect(&self.supervisor, id),
            supervisor: Channel::from(supervisor),
            heard: RefCell::default(),
            runs: None,
            supervision: self.supervision.clone(),
            netns: None,
        }
    }

    /// As if the controller had been restarted.
    pub fn new_control(&mut self) {
        self.control = connect(&self.supervisor, self.id);
        self.heard.borrow_mut().clear();
    }

    /// A port of its own.
    pub fn own(&self, number: u32) -> PortId {
        self.id.port(number).unwrap()
    }

    pub fn attach(&self, port: u32, spec: &InterfaceSpec, stream: UnixStream) {
        self.attach_as(self.own(port), spec, stream);
    }

    /// As a port that may be another controller's.
    pub fn attach_as(&self, port: PortId, spec: &InterfaceSpec, stream: UnixStream) {
        let spec = spec.clone();
        let message = ToDriver::Attach { port, spec };
        self.control.send(&message, &[stream.as_fd()]).unwrap();
    }

    pub fn change(&self, port: u32, spec: &InterfaceSpec) {
        let change = ToDriver::Change {
            port: self.own(port),
            spec: spec.clone(),
        };
        self.control.send(&change, &[]).unwrap();
    }

    pub fn detach(&self, port: u32) {
        self.control
            .send(&ToDriver::Detach { port: self.own(port) }, &[])
            .unwrap();
    }

    pub fn list(&self) -> Vec<(PortId, InterfaceSpec, InterfaceState)> {
        self.control.send(&ToDriver::List, &[]).unwrap();
        loop {
            if let FromDriver::Interfaces(list) = self.receive("the list") {
                return list;
            }
        }
    }

    /// Has the broker look at the states of devices.
    pub fn look_at_devices(&self) {
        self.control.send(&ToDriver::Devices, &[]).unwrap();
        while !matches!(self.receive("devices"), FromDriver::Devices(_)) {}
    }

    /// Waits until the port reports `up`, through whatever other states.
    pub fn expect_up(&self, port: u32) {
        self.expect(port, |state| *state == InterfaceState::Up);
    }

    pub fn expect_failed(&self, port: u32, text: &str) {
        self.expect(
            port,
            |state| matches!(state, InterfaceState::Failed(reason) if reason.contains(text)),
        );
    }

    pub fn expect(&self, port: u32, wanted: impl Fn(&InterfaceState) -> bool) {
        self.expect_of(self.own(port), wanted);
    }

    pub fn expect_of(&self, port: PortId, wanted: impl Fn(&InterfaceState) -> bool) {
        let mut seen = Vec::new();
        loop {
            let heard = self.heard.borrow().iter().position(|(number, _)| *number == port);
            if let Some(at) = heard {
                let (_, state) = self.heard.borrow_mut().remove(at).unwrap();
                if wanted(&state) {
                    return;
                }
                seen.push(state);
            } else if let FromDriver::State { port: number, state } =
                self.receive(&format!("port {port}, after {seen:?}"))
            {
                self.heard.borrow_mut().push_back((number, state));
            }
        }
    }

    fn receive(&self, what: &str) -> FromDriver {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        let timeout = Timespec::try_from(TIMEOUT).unwrap();
        assert_eq!(
            poll(&mut fds, Some(&timeout)).unwrap(),
            1,
            "nothing heard while waiting for {what}"
        );
        self.control.recv().unwrap().0
    }

    /// Orderly end.
    pub fn shut_down(mut self) {
        self.supervisor.send(&ToChild::Shutdown, &[]).unwrap();
        self.runs.take().unwrap().wait();
        self.supervision.end_forwarders();
    }

    /// `kill -9`, of a process. Its forwarders end as well, and nothing is kept.
    pub fn kill(mut self) {
        self.runs.take().unwrap().kill();
        self.supervision.end_forwarders();
        self.supervision.forget();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.runs.is_some() {
            let _ = self.supervisor.send(&ToChild::Shutdown, &[]);
        }
        match self.runs.take() {
            Some(Runs::Thread(thread)) => drop(thread.join()),
            Some(Runs::Process(mut child)) => drop(child.wait()),
            None => return,
        }
        self.supervision.end_forwarders();
    }
}

fn connect(supervisor: &Channel, id: ControllerId) -> Channel {
    let (control, theirs) = Channel::pair().unwrap();
    supervisor
        .send(&ToChild::Controller(id), &[theirs.as_fd()])
        .unwrap();
    control
}
