//! The poll loop, and the state of the control process.

use crate::data_plane::DataPlane;
use crate::l2;
use crate::links::{DriverDomain, PortRun};
use crate::peer::Peer;
use crate::refusal::Refusal;
use crate::serve::AllGathered;
use crate::sockets;
use crate::state::{Intent, State, desired};
use crate::store::Store;
use crate::ups::Ups;
use crate::users::{Incoming, Token, Users};
use crate::vcpus::Vcpus;
use crate::{Error, Options, plan};
use control_protocol::Channel;
use control_protocol::supervisor::{FromChild, IdlePollStatus, PriorityStatus, ProcessStatus, Role, ToChild};
use flow::{PortId, SwitchId};
use management::{Config, Response, SwitchConfig, SwitchKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Messages taken from one peer before the others get a turn.
const BURST: usize = 64;

/// A switch as it runs.
pub(crate) struct SwitchRun {
    /// Number in the data plane; `None` until the data plane has listed the numbers in use.
    pub id: Option<SwitchId>,
    /// Learning switch.
    pub l2: l2::LearningSwitch,
    /// Ports that came and went.
    pub ups: Ups,
}

/// The control process.
pub(crate) struct Control {
    pub options: Options,
    started: Instant,
    pub supervisor: Peer<FromChild>,
    pub store: Store,
    pub intent: Intent,
    /// Desired, and applied as far as peers are there.
    pub state: State,
    pub switches: BTreeMap<String, SwitchRun>,
    pub ports: BTreeMap<String, PortRun>,
    pub names: HashMap<PortId, String>,
    pub data_plane: Option<DataPlane>,
    /// Since when there has been no data plane after there was one, or when we last asked for another.
    pub absent_since_ms: Option<u64>,
    pub driver: Option<DriverDomain>,
    /// Whether a data plane has listed its ports, so that numbers are known or can be given.
    pub numbered: bool,
    pub processes: Vec<ProcessStatus>,
    /// How forwarding threads are scheduled, as the supervisor reported it.
    pub priority: Option<PriorityStatus>,
    pub idle_poll: Option<IdlePollStatus>,
    pub vcpus: Vcpus,
    pub users: Users,
    /// Flows on their way to users.
    pub gathered: AllGathered,
    running: bool,
}

/// A descriptor that is ready.
enum Source {
    Supervisor,
    DataPlane,
    Driver,
    Listener,
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
        let intent = match (store.load(), &options.config) {
            (Some(intent), _) => intent,
            (None, Some(file)) => Intent {
                config: read_config(file)?,
                ..Intent::default()
            },
            (None, None) => default_intent(),
        };
        let mut control = Control {
            started: Instant::now(),
            supervisor: Peer::new(supervisor),
            store,
            state: State::default(),
            intent: Intent::default(),
            switches: BTreeMap::new(),
            ports: BTreeMap::new(),
            names: HashMap::new(),
            data_plane: None,
            absent_since_ms: None,
            driver: None,
            numbered: false,
            processes: Vec::new(),
            priority: None,
            idle_poll: None,
            vcpus: Vcpus::new(),
            users,
            gathered: AllGathered::new(),
            running: true,
            options,
        };
        control.adopt(intent)?;
        Ok(control)
    }

    /// Milliseconds since this process started.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adopts another intent, and returns the changes that were made.
    ///
    /// # Errors
    /// The intent contradicts itself; nothing has changed.
    pub fn adopt(&mut self, intent: Intent) -> Result<Vec<plan::Change>, Refusal> {
        let state = desired(&intent, &self.options.run_dir)?;
        let changes = plan::plan(&self.state, &state);
        self.intent = intent;
        self.state = state;
        if let Err(error) = self.store.save(&self.intent) {
            log::error!("cannot save the state; a restarted control process would not know it: {error}");
        }
        self.apply(&changes);
        Ok(changes)
    }

    /// Reads the configuration file again.
    ///
    /// # Errors
    /// It cannot be used; nothing has changed.
    pub fn reload(&mut self) -> Result<Vec<plan::Change>, Refusal> {
        let file = self.options.config.clone().ok_or(Refusal::NoConfiguration)?;
        let config = read_config(&file)?;
        self.adopt(Intent {
            config,
            overrides: BTreeMap::new(),
            ..self.intent.clone()
        })
    }

    pub fn run(mut self) -> Result<(), Error> {
        while self.running {
            let ready = self.wait()?;
            for (source, flags) in ready {
                self.on_ready(source, flags);
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
        self.finish();
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<(Source, PollFlags)>, Error> {
        let pipelined = self.users.pipelined().is_some();
        let mut sources = vec![(
            Source::Supervisor,
            self.supervisor.fd(),
            self.supervisor.interest(),
        )];
        if let Some(data_plane) = &self.data_plane {
            sources.push((
                Source::DataPlane,
                data_plane.peer.fd(),
                data_plane.peer.interest(),
            ));
        }
        if let Some(driver) = &self.driver {
            sources.push((Source::Driver, driver.peer.fd(), driver.peer.interest()));
        }
        sources.push((Source::Listener, self.users.listener(), PollFlags::IN));
        let users = self.users.interests();
        sources.extend(users.map(|(token, fd, flags)| (Source::User(token), fd, flags)));
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(_, fd, flags)| PollFd::new(fd, *flags))
            .collect();
        let deadline_ms = if pipelined { Some(0) } else { self.deadline_ms() };
        let timeout = deadline_ms.map(|deadline_ms| {
            let left = deadline_ms.saturating_sub(self.now_ms()).min(3_600_000);
            let nanoseconds = (left % 1000) * 1_000_000;
            Timespec {
                tv_sec: i64::try_from(left / 1000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
            }
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

    fn on_ready(&mut self, source: Source, flags: PollFlags) {
        let now_ms = self.now_ms();
        match source {
            Source::Supervisor => self.on_supervisor(),
            Source::DataPlane => self.on_data_plane(BURST),
            Source::Driver => self.on_driver(BURST),
            Source::Listener => self.users.accept(now_ms),
            Source::User(token) => {
                if let Some(incoming) = self.users.ready(token, flags, now_ms) {
                    self.serve_incoming(incoming);
                }
            }
        }
    }

    fn serve_incoming(&mut self, incoming: Incoming) {
        let Incoming { token, request, fds } = incoming;
        let answer = match request {
            Ok(request) => self.serve(token, request, fds),
            Err(refusal) => Some(Response::Error(refusal.to_string())),
        };
        if let Some(answer) = answer {
            self.users.answer(token, &answer);
        }
    }

    fn on_supervisor(&mut self) {
        self.supervisor.flush();
        loop {
            match self.supervisor.receive::<ToChild>() {
                Ok(Some((ToChild::Peer(role), fds))) => self.attach_peer(role, fds),
                Ok(Some((ToChild::Processes(processes), _))) => self.processes_are(processes),
                Ok(Some((ToChild::VmState(states), fds))) => self.vcpus.attach(states, &fds),
                Ok(Some((ToChild::Placement(_) | ToChild::Controller(_) | ToChild::Constraints(_), _))) => {}
                Ok(Some((ToChild::Priority(priority), _))) => self.priority = Some(priority),
                Ok(Some((ToChild::IdlePoll(idle_poll), _))) => self.idle_poll = Some(idle_poll),
                Ok(Some((ToChild::Reload, _))) => match self.reload() {
                    Ok(changes) => log::info!("configuration reloaded, {} changes", changes.len()),
                    Err(error) => log::error!("configuration not reloaded: {error}"),
                },
                Ok(Some((ToChild::Shutdown, _))) => self.running = false,
                Ok(None) => return,
                Err(_) => {
                    self.running = false;
                    return;
                }
            }
        }
    }

    fn attach_peer(&mut self, role: Role, mut fds: Vec<OwnedFd>) {
        let Some(fd) = fds.pop() else {
            log::error!("a channel to {role} was announced and not sent");
            return;
        };
        match role {
            Role::DataPlane => self.attach_data_plane(Channel::from(fd)),
            Role::Driver => self.attach_driver(Channel::from(fd)),
            Role::Control | Role::Ovs => log::error!("a control process needs no channel to {role}"),
        }
    }

    /// When the next task is due, if there is one.
    fn deadline_ms(&self) -> Option<u64> {
        let links = self.ports.values().filter_map(|port| port.due_ms).min();
        let users = self.users.next_deadline_ms();
        let overdue = self.overdue_deadline_ms();
        let guests = [self.ups_deadline_ms(), self.vcpus.deadline_ms()];
        [links, self.ageing_deadline_ms(), users, overdue]
            .into_iter()
            .chain(guests)
            .flatten()
            .min()
    }

    /// Performs the tasks that are due.
    fn tick(&mut self) {
        let now_ms = self.now_ms();
        self.connect_links(now_ms);
        self.age(now_ms);
        self.refresh_guests(now_ms);
        self.watch_guests(now_ms);
        self.replace_overdue(now_ms);
        self.refresh_ups(now_ms);
        for token in self.users.overdue(now_ms) {
            self.forget_user(token);
            let refusal = Refusal::NoAnswer.to_string();
            self.users.answer(token, &Response::Error(refusal));
        }
    }

    /// Removes this process's files and sockets.
    fn finish(&mut self) {
        self.ports.values().for_each(PortRun::remove_socket);
        sockets::remove(&management::control_socket(&self.options.run_dir));
        self.store.clear();
    }
}

fn read_config(file: &Path) -> Result<Config, Refusal> {
    let text = fs::read_to_string(file).map_err(|error| Refusal::Unreadable {
        path: file.to_owned(),
        error,
    })?;
    Ok(management::parse(&text, &file.display().to_string())?)
}

fn default_intent() -> Intent {
    let name = "sw0".parse().expect("sw0 is a name");
    Intent {
        switches: vec![SwitchConfig::new(name, SwitchKind::Private)],
        ..Intent::default()
    }
}
