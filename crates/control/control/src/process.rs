//! The poll loop: descriptors that are ready, and tasks that are due.

use crate::control::{Control, Reported};
use crate::data_plane::DataPlane;
use crate::events::EventLog;
use crate::intent::Intent;
use crate::learning::Learning;
use crate::p4::{P4Run, Version};
use crate::pending::{AllGathered, DeviceQueries};
use crate::policies::{PolicyRun, RuleLog};
use crate::port::PortRun;
use crate::refusal::Refusal;
use crate::state::{State, desired};
use crate::store::Store;
use crate::switches::Switches;
use crate::users::{Incoming, Rights, Token, Users};
use crate::vcpus::Vcpus;
use crate::view::View;
use crate::warnings::core_warning;
use crate::{Error, Options, plan, reload};
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, ProcessStatus, Role, ToChild};
use controller::{DriverClient, Link};
use flow::ControllerId;
use management::{Happening, SwitchConfig, SwitchKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Messages taken from one peer before the others get a turn.
const BURST: usize = 64;

/// Longest wait, which a timer at any distance is shortened to.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// A descriptor that is ready.
enum Source {
    Supervisor,
    DataPlane,
    Driver,
    Listener(Rights),
    User(Token),
}

impl Control {
    pub fn new(supervisor: Channel, options: Options) -> Result<Self, Error> {
        let run_dir = |path: &Path| {
            let path = path.to_owned();
            move |error| Error::RunDir { path, error }
        };
        fs::create_dir_all(&options.run_dir).map_err(run_dir(&options.run_dir))?;
        let socket = management::control_socket(&options.run_dir);
        let users = Users::listen(&socket).map_err(run_dir(&socket))?;
        let store = Store::new(&options.run_dir);
        let (intent, versions) = match (store.load(), &options.config) {
            (Some(intent), _) => (intent, Vec::new()),
            (None, Some(file)) => reload::begin(file, &options)?,
            (None, None) => (default_intent(), Vec::new()),
        };
        let mut control = Control {
            started: Instant::now(),
            supervisor: Link::new(supervisor),
            reported: Reported::default(),
            store,
            intent: Intent::default(),
            state: State::default(),
            switches: Switches::default(),
            ports: BTreeMap::new(),
            names: HashMap::new(),
            data_plane: DataPlane::default(),
            policies: PolicyRun::default(),
            rule_log: RuleLog::default(),
            learning: Learning::default(),
            p4: P4Run::default(),
            unsettled: Vec::new(),
            device_queries: DeviceQueries::default(),
            driver: DriverClient::new(ControllerId::BUILT_IN),
            vcpus: Vcpus::new(),
            users,
            gathered: AllGathered::new(),
            told: telemetry::Problems::new("port"),
            unsaved: None,
            events: EventLog::new(),
            view: View::default(),
            options,
        };
        // An error is told when the intent is saved.
        let _ = control.save_programs(&versions);
        control.adopt_unsaved(intent)?;
        if let Some(warning) = core_warning(&control.options, &control.intent.config) {
            log::warn!("{warning}");
        }
        Ok(control)
    }

    /// Adopts another intent, and returns the changes that were made.
    ///
    /// # Errors
    /// The intent contradicts itself, or cannot be saved; nothing has changed.
    pub fn adopt(&mut self, intent: Intent) -> Result<Vec<plan::Change>, Refusal> {
        let state = desired(&intent, &self.options)?;
        self.save(&intent)?;
        Ok(self.enact(intent, state))
    }

    /// As [`adopt`](Self::adopt), with P4 programs that the store does not have yet.
    ///
    /// # Errors
    /// As there.
    pub fn adopt_with(&mut self, intent: Intent, versions: &[Version]) -> Result<Vec<plan::Change>, Refusal> {
        let needed = intent.programs();
        let adopted = self.save_programs(versions).and_then(|()| self.adopt(intent));
        if adopted.is_err() {
            self.store
                .remove_programs(needed.difference(&self.intent.programs()));
        }
        adopted
    }

    /// As [`adopt`](Self::adopt), where there is nobody to refuse it to.
    ///
    /// # Errors
    /// The intent contradicts itself; nothing has changed.
    pub fn adopt_unsaved(&mut self, intent: Intent) -> Result<Vec<plan::Change>, Refusal> {
        let state = desired(&intent, &self.options)?;
        // The error is kept for `status`.
        let _ = self.save(&intent);
        Ok(self.enact(intent, state))
    }

    /// Saves an intent for the next control process; an error is told to the log once, and kept for users.
    pub fn save(&mut self, intent: &Intent) -> Result<(), Refusal> {
        let Err(error) = self.store.save(intent) else {
            self.unsaved = None;
            return Ok(());
        };
        let refusal = Refusal::Unsaved {
            path: self.store.path().to_owned(),
            error,
        };
        let text = refusal.to_string();
        if self.unsaved.as_ref() != Some(&text) {
            log::error!("{text}");
            self.unsaved = Some(text);
        }
        Err(refusal)
    }

    /// Saves the state if that was not possible before.
    pub fn save_at_last(&mut self) {
        if self.unsaved.is_some() {
            let intent = self.intent.clone();
            // The error is kept for `status`.
            let _ = self.save(&intent);
        }
    }

    fn enact(&mut self, intent: Intent, state: State) -> Vec<plan::Change> {
        let changes = plan::plan(&self.state, &state);
        let before = std::mem::replace(&mut self.intent, intent);
        self.state = state;
        self.apply(&changes);
        self.tell_changes(&changes);
        self.listen_for_queries();
        if before.p4 != self.intent.p4 {
            self.want_programs();
        }
        if self.unsaved.is_none() {
            let idle = before.programs();
            self.store
                .remove_programs(idle.difference(&self.intent.programs()));
        }
        // A change of this alone is none.
        for (name, run) in &mut self.ports {
            run.wanted.origin = self
                .state
                .ports
                .get(name)
                .map_or(run.wanted.origin, |port| port.origin);
        }
        changes
    }

    pub fn run(mut self) -> Result<(), Error> {
        loop {
            for (source, flags) in self.wait()? {
                if self.on_ready(source, flags).is_break() {
                    self.finish();
                    return Ok(());
                }
            }
            self.tick();
            for _ in 0..BURST {
                let Some(token) = self.users.pipelined() else {
                    break;
                };
                let now_ms = self.now_ms();
                let Some(incoming) = self.users.next_request(token, now_ms) else {
                    break;
                };
                self.serve_incoming(incoming);
            }
        }
    }

    fn wait(&mut self) -> Result<Vec<(Source, PollFlags)>, Error> {
        let pipelined = self.users.pipelined().is_some();
        let mut sources = vec![(
            Source::Supervisor,
            self.supervisor.fd(),
            self.supervisor.interest(),
        )];
        let data_plane = self.data_plane.client.interest();
        sources.extend(data_plane.map(|(fd, flags)| (Source::DataPlane, fd, flags)));
        let driver = self.driver.interest();
        sources.extend(driver.map(|(fd, flags)| (Source::Driver, fd, flags)));
        let listeners = self.users.listeners();
        sources.extend(listeners.map(|(rights, fd)| (Source::Listener(rights), fd, PollFlags::IN)));
        let users = self.users.interests();
        sources.extend(users.map(|(token, fd, flags)| (Source::User(token), fd, flags)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd, flags)| PollFd::new(fd, *flags))
            .collect();
        let deadline_ms = if pipelined { Some(0) } else { self.deadline_ms() };
        let timeout = deadline_ms.map(|deadline_ms| {
            let left = Duration::from_millis(deadline_ms.saturating_sub(self.now_ms()));
            Timespec::try_from(left.min(LONGEST_WAIT)).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::Poll(error.into())),
        }
        let flags: Vec<_> = fds.iter().map(PollFd::revents).collect();
        let ready = sources
            .into_iter()
            .zip(flags)
            .filter(|(_, flags)| !flags.is_empty());
        Ok(ready.map(|((source, ..), flags)| (source, flags)).collect())
    }

    /// Handles what a descriptor has; breaks when this process is to end.
    fn on_ready(&mut self, source: Source, flags: PollFlags) -> ControlFlow<()> {
        let now_ms = self.now_ms();
        match source {
            Source::Supervisor => return self.on_supervisor(),
            Source::DataPlane => self.on_data_plane(BURST),
            Source::Driver => self.on_driver(BURST),
            Source::Listener(rights) => self.users.accept(rights, now_ms),
            Source::User(token) => {
                if let Some(incoming) = self.users.ready(token, flags, now_ms) {
                    self.serve_incoming(incoming);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn serve_incoming(&mut self, incoming: Incoming) {
        let Incoming {
            token,
            rights,
            request,
            fds,
        } = incoming;
        let allowed = request.and_then(|request| self.allowed(rights, request));
        let served = allowed.and_then(|request| self.serve(token, request, fds));
        self.answer_user(token, served);
    }

    fn on_supervisor(&mut self) -> ControlFlow<()> {
        self.supervisor.flush();
        loop {
            let (message, fds) = match self.supervisor.receive::<ToChild>() {
                Ok(Some(message)) => message,
                Ok(None) => return ControlFlow::Continue(()),
                Err(_) => return ControlFlow::Break(()),
            };
            match message {
                ToChild::Peer(role) => self.attach_peer(role, fds),
                ToChild::Processes(processes) => self.on_processes(processes),
                ToChild::VmState(states) => self.vcpus.attach(states, &fds),
                ToChild::Placement(_) | ToChild::Controller(_) | ToChild::Constraints(_) => {}
                ToChild::HidingProgram(_)
                | ToChild::SteeringProgram(_)
                | ToChild::FanOut(_)
                | ToChild::VethMeans(_)
                | ToChild::KernelPath
                | ToChild::Kept(_)
                | ToChild::Recalled(_) => {}
                ToChild::Priority(priority) => self.reported.priority = Some(priority),
                ToChild::IdlePoll(idle_poll) => self.reported.idle_poll = Some(idle_poll),
                ToChild::Reload => match self.reload() {
                    Ok(summary) => log::info!("configuration reloaded, {} changes", summary.changes.len()),
                    Err(error) => {
                        log::error!("configuration not reloaded: {error}");
                        self.tell(Happening::ConfigurationRefused {
                            reason: error.to_string(),
                        });
                    }
                },
                ToChild::Ping(ping) => self.supervisor.send(FromChild::Pong(ping), Vec::new()),
                ToChild::Shutdown => return ControlFlow::Break(()),
            }
        }
    }

    fn on_processes(&mut self, processes: Vec<ProcessStatus>) {
        let is_forwarder = |process: &&ProcessStatus| matches!(process.role, Role::Forwarder(_));
        let forwarders = processes.iter().filter(is_forwarder);
        let forwarders = forwarders.filter_map(|process| process.pid);
        self.vcpus.on_forwarders(forwarders.collect());
        self.tell_processes(&processes);
        self.reported.processes = processes;
    }

    fn attach_peer(&mut self, role: Role, mut fds: Vec<OwnedFd>) {
        let Some(fd) = fds.pop() else {
            log::error!("a channel to {role} was announced and not sent");
            return;
        };
        match role {
            Role::DataPlane => self.attach_data_plane(Channel::from(fd)),
            Role::Driver => self.attach_driver(Channel::from(fd)),
            Role::View => {
                let now_ms = self.now_ms();
                self.users.attach_view_process(fd, now_ms);
            }
            Role::P4Runtime => self.users.attach_p4runtime(fd, self.now_ms()),
            Role::Control | Role::Ovs | Role::Forwarder(_) => {
                log::error!("a control process needs no channel to {role}")
            }
        }
    }

    /// When the next task is due, if there is one.
    fn deadline_ms(&self) -> Option<u64> {
        let deadlines = [
            self.ports.values().filter_map(|port| port.retry.due_ms()).min(),
            self.switches
                .ageing_deadline_ms(self.data_plane.client.is_connected()),
            self.switches.stale_deadline_ms(),
            self.data_plane.client.due_ms(),
            self.vcpus.deadline_ms(),
            self.told.due_ms(),
            self.roll_back_ms(),
            self.device_queries.due_ms(),
            self.sources_due_ms(),
            self.driver.due_ms(),
            self.users.next_deadline_ms(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Performs the tasks that are due.
    fn tick(&mut self) {
        self.roll_back_if_due();
        self.renew_sources();
        let now_ms = self.now_ms();
        self.answer_late_device_queries(now_ms);
        self.connect_links(now_ms);
        self.switches.age(&mut self.data_plane, now_ms);
        if let Some(request) = self.vcpus.work(now_ms) {
            self.data_plane.client.tell(request);
        }
        self.watch_peers(now_ms);
        self.refresh_stale(now_ms);
        self.tell_problems(now_ms);
        self.tell_stations();
        for token in self.users.overdue(now_ms) {
            self.forget_user(token);
            self.answer_user(token, Err(Refusal::NoAnswer));
        }
    }

    /// Removes this process's files and sockets.
    fn finish(&mut self) {
        self.ports.values().for_each(PortRun::remove_socket);
        socket_path::remove(&management::control_socket(&self.options.run_dir).into());
        self.close_view();
        self.store.clear(&self.intent);
    }
}

fn default_intent() -> Intent {
    let name = "sw0".parse().expect("sw0 is a name");
    Intent {
        switches: vec![SwitchConfig::new(name, SwitchKind::Private)],
        ..Intent::default()
    }
}
