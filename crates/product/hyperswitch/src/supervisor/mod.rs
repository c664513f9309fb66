//! `hyperswitch run`: starts the processes of the switch, joins them, and keeps them running.
//!
//! One thread that blocks in `poll` until a signal arrives or a restart is due; others write the children's
//! log (`relay`). It sees no packets, parses nothing but the configuration file before anything is started
//! and one message of each child, and never waits for a child, except for a bounded time when ending. It
//! makes the channels between children, because only this way each can be replaced without the others:
//! whenever one was started, every peer that runs gets a fresh channel to it.
//!
//! The safe direction of error is to kill: a child that violates the protocol is ended and started again,
//! which the architecture is built to survive, rather than left in an unknown state.

mod backoff;
mod child;
mod hang;
mod interfaces;
mod keepalive;
mod ready;
mod relay;
mod run_dir;
mod status_socket;
mod threads;

use anyhow::{Context, Result};
use child::{Event, Supervised};
use control_protocol::supervisor::{IdlePollStatus, PriorityStatus, Role, ToChild, VmStates};
use control_protocol::{Channel, MAX_DESCRIPTORS};
use flow::ControllerId;
use idle_states::{CPUS, Constraints};
use interfaces::Kept;
use keepalive::Keepalive;
use process::{Signal, Signals};
use ready::Probe;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::Timespec;
use status_socket::StatusSocket;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use vm_state::{Publisher, Unavailable};

/// Pairs of roles with a channel between them: one that serves controllers, a controller, and the
/// controller's number there.
const JOINED: [(Role, Role, ControllerId); 4] = [
    (Role::DataPlane, Role::Control, ControllerId::BUILT_IN),
    (Role::Driver, Role::Control, ControllerId::BUILT_IN),
    (Role::DataPlane, Role::Ovs, ControllerId::OVS),
    (Role::Driver, Role::Ovs, ControllerId::OVS),
];

/// Order of ending: processes that depend on others end first, so that none reports the loss of a peer.
const ENDING: [Role; 6] = [
    Role::View,
    Role::P4Runtime,
    Role::Ovs,
    Role::Control,
    Role::Driver,
    Role::DataPlane,
];
/// Forwarders end with the broker, in the order of the list behind it.
const FORWARDERS_END: usize = 4;

/// How long a child may take to end when asked.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Signals to end that come within this time after the first one mean the same wish: a service manager and a
/// user, or a script, may both have sent one.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Runs the switch until a signal ends it.
///
/// # Errors
/// When it cannot be started. An unusable configuration is reported here, with exit status 2.
pub fn run(run_dir: &Path, config: Option<&Path>) -> Result<ExitCode> {
    telemetry::init("supervisor");
    let run_dir = std::path::absolute(run_dir)?;
    let config = config.map(std::path::absolute).transpose()?;
    let wanted = match config.as_deref().map(read_config).transpose() {
        Ok(config) => config.unwrap_or_default(),
        Err(error) => {
            eprintln!("hyperswitch: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let _held = run_dir::RunDir::take(&run_dir)?;
    process::raise_descriptor_limit();
    let signals = Signals::new().context("cannot receive signals")?;
    log::info!(
        "hyperswitch {} in {}",
        env!("CARGO_PKG_VERSION"),
        run_dir.display()
    );
    let probe = Probe::new(&run_dir, Instant::now());
    let note = run_dir.join("resume-latency");
    let granted = thread_priority::grant(wanted.placement.priority);
    let nice = granted.by_capability;
    let optional = Optional {
        has_queues: wanted.switches.iter().any(|switch| switch.uplink_fast_path),
        ovs: wanted.ovs,
        view: wanted.view,
        access: wanted.access,
        p4runtime: wanted.p4runtime,
    };
    let absent = optional.absent();
    let status_socket = StatusSocket::listen(&run_dir, Instant::now())
        .with_context(|| format!("cannot listen in {}", run_dir.display()))?;
    let launch = move |role| {
        let mut command = command(role, &run_dir, config.as_deref());
        optional.tell(role, &mut command);
        if nice && matches!(role, Role::DataPlane | Role::Forwarder(_)) {
            command.env(crate::children::NICE_VARIABLE, "1");
        }
        command
    };
    let vm_state = Publisher::attach();
    let may_idle_poll = vm_state.is_ok() && wanted.placement.may_idle_poll();
    let mut supervisor = Supervisor::new(Box::new(launch), Some(probe), wanted.placement, vm_state);
    supervisor.load_programs();
    supervisor.constraints = may_idle_poll.then(|| Constraints::open(Path::new(CPUS), &note));
    supervisor
        .children
        .retain(|child| !absent.contains(&child.role()));
    if std::env::var_os(crate::children::HANGS_VARIABLE).is_some_and(|value| value == "leave") {
        supervisor.tolerates_hangs = true;
        supervisor
            .children
            .iter_mut()
            .for_each(Supervised::tolerate_hangs);
    }
    supervisor.priority = PriorityStatus {
        class: granted.class,
        refused: granted.refused,
    };
    supervisor.status_socket = Some(status_socket);
    supervisor.keepalive = Keepalive::of_environment(Instant::now());
    supervisor.start_all()?;
    supervisor.supervise(&signals)?;
    ready::notify("STOPPING=1");
    supervisor.end_all(&signals)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the file, and refuses one that the control process would refuse, before anything is started.
fn read_config(path: &Path) -> Result<management::Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(policy::parse(&text, &path.display().to_string())?)
}

/// Configuration of the processes that there are only where they are wanted.
struct Optional {
    /// The data plane sends by queues of devices.
    has_queues: bool,
    ovs: management::OvsConfig,
    view: management::ViewConfig,
    access: management::AccessConfig,
    p4runtime: management::P4RuntimeConfig,
}

impl Optional {
    /// The processes that are not wanted.
    fn absent(&self) -> Vec<Role> {
        let wanted = [
            (Role::Ovs, self.ovs.enabled),
            (Role::View, self.view.listen.is_some()),
            (Role::P4Runtime, self.p4runtime.listen.is_some()),
        ];
        let absent = wanted.into_iter().filter(|(_, is_wanted)| !is_wanted);
        absent.map(|(role, _)| role).collect()
    }

    /// Adds what such a process has to know to its command.
    fn tell(&self, role: Role, command: &mut Command) {
        match role {
            Role::Ovs => {
                if let Some(database) = &self.ovs.database {
                    command.arg("--database").arg(database);
                }
                if self.ovs.claim_connections {
                    command.arg("--claim-connections");
                }
            }
            Role::View => {
                if let Some(listen) = &self.view.listen {
                    command.arg("--listen").arg(listen.to_string());
                }
                if let Some(group) = &self.access.view_group {
                    command.arg("--group").arg(group.as_str());
                }
                command.arg("--mode").arg(self.access.view_mode.to_string());
            }
            Role::P4Runtime => tell_p4runtime(command, &self.p4runtime),
            Role::DataPlane if self.has_queues => {
                command.env(crate::children::QUEUES_VARIABLE, "1");
            }
            Role::DataPlane | Role::Control | Role::Driver | Role::Forwarder(_) => {}
        }
    }
}

fn tell_p4runtime(command: &mut Command, p4runtime: &management::P4RuntimeConfig) {
    if let Some(listen) = p4runtime.listen {
        command.arg("--listen").arg(listen.to_string());
    }
    let files = [
        ("--certificate", &p4runtime.certificate),
        ("--key", &p4runtime.key),
        ("--client-authorities", &p4runtime.client_authorities),
    ];
    for (option, path) in files {
        if let Some(path) = path {
            command.arg(option).arg(path);
        }
    }
}

/// How a child is started: this executable again, even if another one has taken its place on disk since.
fn command(role: Role, run_dir: &Path, config: Option<&Path>) -> Command {
    // `ovs` is a verb of users.
    let verb = if role == Role::Ovs {
        "ovs-glue"
    } else {
        role.name()
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("hyperswitch")
        .arg("--run-dir")
        .arg(run_dir)
        .arg(verb);
    match (role, config) {
        (Role::Control, Some(config)) => drop(command.arg("--config").arg(config)),
        (Role::Forwarder(id), _) => drop(command.arg(id.0.to_string())),
        _ => {}
    }
    for variable in keepalive::VARIABLES {
        command.env_remove(variable);
    }
    command
        .env_remove(ready::NOTIFY_VARIABLE)
        .env_remove(crate::children::NICE_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Makes the command that starts a role.
type Launch = Box<dyn Fn(Role) -> Command>;

struct Supervisor {
    launch: Launch,
    /// The children that are configured, in the order of [`Role::ALL`], and forwarders.
    children: Vec<Supervised>,
    /// What the broker has open.
    kept: Kept,
    /// No child is replaced because it hangs.
    tolerates_hangs: bool,
    /// Until the switch is ready.
    probe: Option<Probe>,
    /// The service manager wants signs of life.
    keepalive: Option<Keepalive>,
    /// Where users ask to whom the control process does not answer. Only tests have none.
    status_socket: Option<StatusSocket>,
    /// How the data plane is to place its work.
    placement: placement::Config,
    /// How forwarding threads may be scheduled.
    priority: PriorityStatus,
    /// Publishes the states of cores and guests, or why it cannot. It is in the supervisor because it takes a
    /// privilege; and its descriptor survives all children.
    vm_state: Result<Publisher, Unavailable>,
    /// The program that hides devices from the host's stack, or why there is none. It is loaded here because
    /// that takes a privilege.
    hiding_program: Result<OwnedFd, String>,
    /// The program that hands frames to AF_XDP sockets, or why there is none.
    steering: Result<driver_domain::Steering, String>,
    /// What divides frames between uplinks and their queues, or why there is none.
    fan_out: Result<driver_domain::FanOut, String>,
    /// What veth pairs take, or why there is none. The namespace of their ends lives as long as the switch.
    veth: Result<driver_domain::VethMeans, String>,
    /// Files by which the data plane keeps cores from halting, if it may.
    constraints: Option<Constraints>,
}

impl Supervisor {
    fn new(
        launch: Launch,
        probe: Option<Probe>,
        placement: placement::Config,
        vm_state: Result<Publisher, Unavailable>,
    ) -> Self {
        Supervisor {
            launch,
            children: Role::ALL.map(Supervised::new).into(),
            kept: Kept::default(),
            tolerates_hangs: false,
            probe,
            keepalive: None,
            status_socket: None,
            placement,
            priority: PriorityStatus {
                class: placement::Priority::Normal,
                refused: String::new(),
            },
            vm_state,
            hiding_program: Err("it was not loaded".into()),
            steering: Err("it was not loaded".into()),
            fan_out: Err("it was not loaded".into()),
            veth: Err("they were not made".into()),
            constraints: None,
        }
    }

    fn child(&mut self, role: Role) -> &mut Supervised {
        self.find_child(role)
            .expect("there is a child for each of these roles")
    }

    /// The child of a role that another process has named.
    fn find_child(&mut self, role: Role) -> Option<&mut Supervised> {
        self.children.iter_mut().find(|child| child.role() == role)
    }

    fn roles(&self) -> Vec<Role> {
        self.children.iter().map(Supervised::role).collect()
    }

    fn is_running(&self, role: Role) -> bool {
        let mut children = self.children.iter();
        children.any(|child| child.role() == role && child.is_running())
    }

    /// The first start of all children; here a failure ends the supervisor.
    fn start_all(&mut self) -> Result<()> {
        for role in self.roles() {
            self.start(role, Instant::now())
                .with_context(|| format!("cannot start the {role} process"))?;
        }
        self.tell_status();
        Ok(())
    }

    fn start(&mut self, role: Role, now: Instant) -> Result<()> {
        let command = (self.launch)(role);
        self.child(role).start(command, now)?;
        self.children
            .iter_mut()
            .for_each(|child| child.forget_victim(role));
        if role == Role::DataPlane {
            let placement = ToChild::Placement(self.placement.clone());
            self.child(role).send(&placement, &[]);
            self.lend_kernel_path();
        }
        let priority = ToChild::Priority(self.priority.clone());
        self.child(role).send(&priority, &[]);
        self.tell_constraints(role);
        self.tell_vm_state(role);
        if role == Role::Driver {
            self.lend_programs();
        }
        for (server, controller, id) in JOINED {
            if role == server || role == controller {
                self.join(server, controller, id)?;
            }
        }
        for other in self.roles() {
            if let Role::Forwarder(id) = other
                && (role == Role::Driver || role == other)
            {
                self.join_forwarder(id)?;
            }
        }
        if matches!(role, Role::Control | Role::View) {
            self.join_user(Role::View)?;
        }
        if matches!(role, Role::Control | Role::P4Runtime) {
            self.join_user(Role::P4Runtime)?;
        }
        Ok(())
    }

    /// Gives a process a fresh connection to the control process, as users have, if both run.
    fn join_user(&mut self, user: Role) -> Result<()> {
        if self.is_running(Role::Control) && self.is_running(user) {
            let (to_control, to_user) = UnixStream::pair()?;
            for (role, peer, end) in [(Role::Control, user, to_user), (user, Role::Control, to_control)] {
                end.set_nonblocking(true)?;
                self.child(role).send(&ToChild::Peer(peer), &[end.as_fd()]);
            }
        }
        Ok(())
    }

    /// Starts a child, or has it started later if that fails.
    fn start_or_wait(&mut self, role: Role, now: Instant) {
        if let Err(error) = self.start(role, now) {
            self.child(role).end();
            self.child(role).failed_to_start(&error, now);
        }
    }

    /// Gives a controller and a process that serves controllers a fresh channel to each other, if both run.
    fn join(&mut self, server: Role, controller: Role, id: ControllerId) -> Result<()> {
        if self.is_running(server) && self.is_running(controller) {
            let (to_server, to_controller) = Channel::pair()?;
            self.child(server)
                .send(&ToChild::Controller(id), &[to_server.as_fd()]);
            self.child(controller)
                .send(&ToChild::Peer(server), &[to_controller.as_fd()]);
        }
        Ok(())
    }

    /// Lends the data plane the files of the cores that it may keep from halting, and tells the control
    /// process of them.
    fn tell_constraints(&mut self, role: Role) {
        let constraints = self.constraints.as_ref();
        let files: Vec<_> = constraints.into_iter().flat_map(Constraints::files).collect();
        let Some(child) = self.children.iter_mut().find(|child| child.role() == role) else {
            return;
        };
        match role {
            Role::DataPlane => {
                for some in files.chunks(MAX_DESCRIPTORS) {
                    let (cpus, files): (_, Vec<_>) = some.iter().copied().unzip();
                    child.send(&ToChild::Constraints(cpus), &files);
                }
            }
            Role::Control => {
                let refused = constraints.map_or("switched off", Constraints::refused);
                let status = IdlePollStatus {
                    cores: u32::try_from(files.len()).unwrap_or(u32::MAX),
                    refused: refused.into(),
                };
                child.send(&ToChild::IdlePoll(status), &[]);
            }
            Role::Driver | Role::Forwarder(_) | Role::Ovs | Role::View | Role::P4Runtime => {}
        }
    }

    fn tell_vm_state(&mut self, role: Role) {
        if matches!(role, Role::Ovs | Role::Driver | Role::View | Role::P4Runtime) {
            return;
        }
        let message = ToChild::VmState(match &self.vm_state {
            Ok(_) => VmStates::Published,
            Err(reason) => VmStates::Unavailable(reason.to_string()),
        });
        let area = self.vm_state.as_ref().map(Publisher::area);
        let child = self.children.iter_mut().find(|child| child.role() == role);
        child
            .expect("there is a child for each role")
            .send(&message, area.ok().as_slice());
    }

    /// Lends the data plane the table of the kernel path, if there is one.
    fn lend_kernel_path(&mut self) {
        let Some(table) = self.veth.as_ref().ok().and_then(|veth| veth.table()) else {
            return;
        };
        let is_data_plane = |child: &&mut Supervised| child.role() == Role::DataPlane;
        if let Some(child) = self.children.iter_mut().find(is_data_plane) {
            child.send(&ToChild::KernelPath, &[table]);
        }
    }

    /// Loads what the broker is lent.
    fn load_programs(&mut self) {
        self.hiding_program = driver_domain::load_hiding_program()
            .map_err(|error| format!("loading the eBPF program that hides devices: {error}"));
        self.steering = driver_domain::Steering::load().map_err(|error| {
            format!("loading the eBPF program that hands frames to AF_XDP sockets: {error}")
        });
        self.fan_out = driver_domain::FanOut::load().map_err(|error| {
            format!("loading the eBPF program that divides frames between uplinks and queues: {error}")
        });
        self.veth = driver_domain::VethMeans::make().map_err(|error| error.to_string());
    }

    /// Lends the broker the programs that hide devices from the host's stack, and hand frames to sockets, and
    /// what veth pairs take.
    fn lend_programs(&mut self) {
        let program = self.hiding_program.as_ref();
        let hides = ToChild::HidingProgram(program.map(drop).map_err(Clone::clone));
        let program = program.ok().map(AsFd::as_fd);
        let steering = self.steering.as_ref();
        let steers = ToChild::SteeringProgram(steering.map(drop).map_err(Clone::clone));
        let both = steering.map(|steering| steering.descriptors());
        let fan_out = self.fan_out.as_ref();
        let divides = ToChild::FanOut(fan_out.map(drop).map_err(Clone::clone));
        let table = fan_out.map(|fan_out| fan_out.descriptors());
        let veth = self.veth.as_ref();
        let pairs = ToChild::VethMeans(veth.map(drop).map_err(Clone::clone));
        let all = veth.map(|veth| veth.descriptors());
        let child = self
            .children
            .iter_mut()
            .find(|child| child.role() == Role::Driver);
        if let Some(child) = child {
            child.send(&hides, program.as_slice());
            child.send(&steers, both.as_ref().map_or(&[], |both| &both[..]));
            child.send(&divides, table.as_ref().map_or(&[], |both| &both[..]));
            child.send(&pairs, all.as_ref().map_or(&[], |all| &all[..]));
        }
    }

    fn tell_status(&mut self) {
        let status = self.children.iter().map(Supervised::status).collect();
        self.child(Role::Control).send(&ToChild::Processes(status), &[]);
    }

    /// Keeps everything running until a signal ends it.
    fn supervise(&mut self, signals: &Signals) -> Result<()> {
        loop {
            self.wait(signals)?;
            while let Some(signal) = signals.take()? {
                match signal {
                    Signal::Terminate => return Ok(()),
                    Signal::Reload => self.child(Role::Control).send(&ToChild::Reload, &[]),
                    // Handled below, for all children at once.
                    Signal::Child => {}
                }
            }
            self.keep_running(Instant::now());
            self.show_life(Instant::now());
            self.serve_users(Instant::now());
            self.advance_probe();
        }
    }

    /// Blocks until there is something to do.
    fn wait(&self, signals: &Signals) -> Result<()> {
        let due = self.children.iter().filter_map(Supervised::due);
        let due = due.chain(self.probe.as_ref().map(Probe::due));
        let due = due.chain(self.keepalive.as_ref().map(Keepalive::due));
        let socket = self.status_socket.as_ref();
        let due = due.chain(socket.and_then(StatusSocket::due)).min();
        let probe = self.probe.as_ref().and_then(Probe::descriptor);
        let children = self.children.iter().filter_map(Supervised::watched);
        let users = socket.map(StatusSocket::listener);
        let descriptors = [signals.as_fd()].into_iter().chain(probe).chain(users);
        let descriptors: Vec<_> = descriptors
            .map(|descriptor| (descriptor, PollFlags::IN))
            .chain(children)
            .collect();
        wait_until(&descriptors, due)
    }

    /// Notices processes that have ended and starts those whose wait is over.
    fn keep_running(&mut self, now: Instant) {
        // No short circuit: all of them may have ended.
        let mut changed = self.on_children(now);
        self.children.iter_mut().for_each(Supervised::notice_hang_up);
        for child in &mut self.children {
            changed |= child.look(now);
            let ended = child.reap(now);
            if ended && child.role() == Role::DataPlane {
                self.constraints.iter().for_each(Constraints::lift_all);
                // The kernel forwards by no decision of a data plane that is gone.
                self.veth.iter().for_each(driver_domain::VethMeans::wipe_table);
            }
            changed |= ended;
        }
        self.children.retain(|child| !child.is_done());
        for role in self.roles() {
            if self.child(role).restart_at().is_some_and(|due| due <= now) {
                self.start_or_wait(role, now);
                changed = true;
            }
        }
        if changed {
            self.tell_status();
        }
    }

    /// Reads and handles children's messages. True if the status for users has changed.
    fn on_children(&mut self, now: Instant) -> bool {
        let mut news = false;
        for role in self.roles() {
            while let Some(event) = self.child(role).on_message(now) {
                match event {
                    Event::Nothing => {}
                    Event::News => news = true,
                    Event::Owes(debtor) => {
                        if let Some(debtor) = self.find_child(debtor) {
                            debtor.ping(now);
                        }
                    }
                    Event::Broker(message, fds) => news |= self.on_broker(*message, fds, now),
                }
            }
            let victim = self.child(role).take_victim(now);
            if let Some(victim) = victim.and_then(|victim| self.find_child(victim)) {
                log::warn!(
                    "{} does not keep to the protocol, says {role}; it is replaced",
                    victim.role()
                );
                victim.kill();
            }
        }
        news
    }

    /// Gives the service manager a sign of life, and has children give one that were awake, when it is time.
    fn show_life(&mut self, now: Instant) {
        if self
            .keepalive
            .as_mut()
            .is_some_and(|keepalive| keepalive.take(now))
        {
            ready::notify("WATCHDOG=1");
            for child in &mut self.children {
                child.ping_if_it_has_run(now);
            }
        }
    }

    /// Answers users who ask here, once it is known which children work.
    fn serve_users(&mut self, now: Instant) {
        let Some(socket) = &mut self.status_socket else {
            return;
        };
        if socket.accept(now) {
            self.children.iter_mut().for_each(|child| child.ping(now));
        }
        let children = &self.children;
        let is_known = !children.iter().any(Supervised::is_unsure);
        let processes = || children.iter().map(|child| (&child.status()).into()).collect();
        socket.answer(is_known, processes, now);
    }

    fn advance_probe(&mut self) {
        if self
            .probe
            .as_mut()
            .is_some_and(|probe| probe.advance(Instant::now()))
        {
            self.probe = None;
            log::info!("ready");
            ready::notify("READY=1");
        }
    }

    /// Ends everything in order. Another signal to end, a moment later, skips the waiting.
    fn end_all(&mut self, signals: &Signals) -> Result<()> {
        let asked = Instant::now();
        let mut waits = true;
        let mut roles = self.roles();
        roles.sort_by_key(|role| {
            ENDING
                .iter()
                .position(|other| other == role)
                .unwrap_or(FORWARDERS_END)
        });
        for role in roles {
            let deadline = Instant::now() + END_TIMEOUT;
            self.child(role).send(&ToChild::Shutdown, &[]);
            while waits && !self.child(role).reap_for_good() && Instant::now() < deadline {
                wait_until(&[(signals.as_fd(), PollFlags::IN)], Some(deadline))?;
                while let Some(signal) = signals.take()? {
                    waits &= signal != Signal::Terminate || asked.elapsed() < SAME_WISH;
                }
            }
            if !self.child(role).reap_for_good() {
                if waits {
                    log::warn!("{role} did not end in {} s; killing it", END_TIMEOUT.as_secs());
                } else {
                    log::warn!("asked to end once more: killing {role}");
                }
                self.child(role).end();
            }
            self.child(role).flush();
        }
        Ok(())
    }
}

/// Blocks until one of the descriptors is ready, or was hung up, or `due` has come.
fn wait_until(descriptors: &[(BorrowedFd<'_>, PollFlags)], due: Option<Instant>) -> Result<()> {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|(descriptor, events)| PollFd::new(descriptor, *events))
        .collect();
    // Rounded up to the next millisecond: waking too early would mean waking twice.
    let timeout = due.map(|due| due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
