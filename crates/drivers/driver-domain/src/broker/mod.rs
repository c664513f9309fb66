//! The broker: the process of the driver domain that serves controllers, and opens, configures and watches
//! interfaces. No frame passes through it; forwarders get the descriptors.
//!
//! | module | contents |
//! |---|---|
//! | `controller` | one controller: its channel, and messages that wait for it |
//! | `opener` | a thread per port, which opens its interface and tries again |
//! | `open_interface` | opening, changing and closing an interface of any kind |
//! | `port` | a port: what its opener and its forwarder have said |
//! | `requests` | what controllers ask for |
//! | `devices` | states of devices for users |
//! | `queues` | queues of devices for the data plane |
//! | `forwarders` | which forwarder serves which port; what they say |
//! | `outbox` | a channel with messages that wait for room |
//!
//! The main thread never waits for anything but its channels and its openers' ends. It waits neither for a
//! controller nor for a forwarder that does not read. Controllers take turns, and each reaches its own ports
//! only: a port belongs to the controller in whose range its number is.
//!
//! Whatever is open is *kept* by the supervisor as well. A broker that begins asks for that first, and then
//! hears from the forwarders which of it they serve; until then no controller is answered. So the death of a
//! broker changes nothing for any frame, and that of a forwarder opens nothing again.

mod controller;
mod devices;
mod forwarders;
mod open_interface;
mod opener;
mod outbox;
mod port;
mod queues;
mod requests;

use control_protocol::driver::{FromDriver, InterfaceAddresses, InterfaceState};
use control_protocol::forwarder::{Hiding, Opened};
use control_protocol::supervisor::{ForwarderId, FromChild, Role, ToChild};
use control_protocol::{Channel, ChannelError};
use controller::Controller;
use flow::{ControllerId, PortId};
use forwarders::Forwarder;
use nic_packet::{FanOut, LinkEvent, LinkWatch, Owner, VethMeans};
use nic_xdp::Steering;
use open_interface::Means;
use opener::{Command, News, Report};
use outbox::Outbox;
use port::{Open, Port};
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use virtqueue::driver::Doorbell;

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The supervisor's channel broke.
    #[error("supervisor channel: {0}")]
    Supervisor(ChannelError),
    /// A descriptor could not be made, or not be waited for.
    #[error("waiting: {0}")]
    Io(#[from] io::Error),
}

/// Messages of a controller, or of a forwarder, that are read before others get their turn.
const BATCH: usize = 16;

/// How long controllers wait for forwarders to say what they serve, when the broker begins.
const SETTLE: Duration = Duration::from_secs(1);

/// Runs the broker until the supervisor asks it to end, or is gone. Then TAPs made by it or an earlier one
/// disappear; `owner` is the instance whose they are. Takes CAP_NET_ADMIN, CAP_NET_RAW and, to
/// enter network namespaces, CAP_SYS_ADMIN.
pub fn run(supervisor: Channel, owner: Owner) -> Result<(), DriverError> {
    let mut broker = Broker::new(supervisor, owner)?;
    let result = broker.serve();
    broker.end();
    result
}

struct Broker {
    supervisor: Outbox<FromChild>,
    controllers: BTreeMap<ControllerId, Controller>,
    ports: BTreeMap<PortId, Port>,
    /// The forwarders that run.
    forwarders: BTreeMap<ForwarderId, Forwarder>,
    /// As the supervisor was told last.
    wanted: Vec<(ForwarderId, String)>,
    /// Everything that was kept has arrived.
    is_recalled: bool,
    /// When controllers are answered at the latest, while forwarders have not said what they serve.
    settles: Option<Instant>,
    /// Number of the last opener started.
    generation: u64,
    reports: Receiver<Report>,
    reporter: Sender<Report>,
    reported: Arc<Doorbell>,
    /// What opening interfaces takes. Whole before the first one is opened.
    means: Arc<Means>,
    /// Interfaces of the host's namespace and their addresses; `None` if the kernel does not let us watch.
    watch: Option<LinkWatch>,
    /// The switch's ends of veth pairs.
    ends: Option<LinkWatch>,
}

/// What the supervisor wants.
enum Next {
    GoOn,
    End,
}

impl Broker {
    fn new(supervisor: Channel, owner: Owner) -> io::Result<Broker> {
        let (reporter, reports) = mpsc::channel();
        Ok(Broker {
            supervisor: Outbox::new(supervisor),
            controllers: BTreeMap::new(),
            ports: BTreeMap::new(),
            forwarders: BTreeMap::new(),
            wanted: Vec::new(),
            is_recalled: false,
            settles: None,
            generation: 0,
            reports,
            reporter,
            reported: Arc::new(Doorbell::new()?),
            means: Arc::new(Means {
                owner,
                hiding_program: Err("there is no program for it".into()),
                steering: Err("there is no program for it".into()),
                fan_out: Err("there is no program for it".into()),
                veth: Err("there are no means for them".into()),
            }),
            watch: LinkWatch::with_addresses()
                .inspect_err(|error| log::warn!("{error}"))
                .ok(),
            ends: None,
        })
    }

    fn serve(&mut self) -> Result<(), DriverError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        // Edge-triggered through an epoll instance of its own, since the event descriptor is not read.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let tag = epoll::EventData::new_u64(0);
        epoll::add(&poller, &*self.reported, tag, edge).map_err(io::Error::from)?;
        self.tell_supervisor(FromChild::Recall(None), Vec::new());
        loop {
            self.tell_forwarders_wanted();
            self.settle();
            self.report();
            self.wait(&poller)?;
            if let Next::End = self.on_supervisor()? {
                return Ok(());
            }
            while let Ok(report) = self.reports.try_recv() {
                self.note(report);
            }
            // What others say is about what was kept.
            if self.is_recalled {
                self.on_forwarders();
                self.on_controllers();
            }
            self.on_links();
            self.on_ends();
        }
    }

    fn wait(&self, reported: &OwnedFd) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(&self.supervisor.channel, self.supervisor.interest()),
            PollFd::new(reported, PollFlags::IN),
        ];
        for controller in self.controllers.values().filter(|_| self.is_recalled) {
            let Some(channel) = &controller.channel else {
                continue;
            };
            let unreported = |(id, port): (&PortId, &Port)| {
                (port.unreported || port.unreported_addresses) && controller.id.owns(*id)
            };
            let is_owed = controller.is_owed() && self.settles.is_none();
            // One that has sent several messages together is heard as soon as there is room for answers.
            let flags = if channel.has_received() || is_owed || self.ports.iter().any(unreported) {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            fds.push(PollFd::new(channel, flags));
        }
        for forwarder in self.forwarders.values().filter(|_| self.is_recalled) {
            fds.push(PollFd::new(
                &forwarder.outbox.channel,
                forwarder.outbox.interest(),
            ));
        }
        for watch in self.watch.iter().chain(&self.ends) {
            fds.push(PollFd::new(watch, PollFlags::IN));
        }
        let due = self
            .settles
            .map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = due.and_then(|due| Timespec::try_from(due).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            let mut events = Vec::with_capacity(1);
            let now = Timespec::default();
            // Takes the edge; the event itself says nothing new.
            let _ = epoll::wait(reported, rustix::buffer::spare_capacity(&mut events), Some(&now));
        }
        Ok(())
    }

    fn on_supervisor(&mut self) -> Result<Next, DriverError> {
        self.supervisor.flush();
        loop {
            match self.supervisor.channel.try_recv::<ToChild>() {
                Ok((ToChild::Controller(id), fds)) => self.connect(id, fds),
                Ok((ToChild::Peer(Role::Forwarder(id)), fds)) => self.connect_forwarder(id, fds),
                Ok((ToChild::HidingProgram(told), fds)) => self.take_hiding_program(told, fds),
                Ok((ToChild::SteeringProgram(told), fds)) => self.take_steering(told, fds),
                Ok((ToChild::FanOut(told), fds)) => self.take_fan_out(told, fds),
                Ok((ToChild::VethMeans(told), fds)) => self.take_veth_means(told, fds),
                Ok((ToChild::Kept(interface), fds)) => self.take_up(interface, fds),
                Ok((ToChild::Recalled(next), _)) => self.recall(next),
                Ok((ToChild::Priority(_) | ToChild::VmState(_), _)) => {}
                // The supervisor reads, or it is gone.
                Ok((ToChild::Ping(ping), _)) => self.tell_supervisor(FromChild::Pong(ping), Vec::new()),
                Ok((ToChild::Shutdown, _)) | Err(ChannelError::Closed) => return Ok(Next::End),
                Ok((other, _)) => log::debug!("not for a broker: {other:?}"),
                Err(ChannelError::WouldBlock) => return Ok(Next::GoOn),
                Err(ChannelError::Malformed(error)) => log::error!("from the supervisor: {error}"),
                Err(error) => return Err(DriverError::Supervisor(error)),
            }
        }
    }

    fn take_hiding_program(&mut self, told: Result<(), String>, mut fds: Vec<OwnedFd>) {
        let program = told.and_then(|()| fds.pop().ok_or_else(|| "its program was not sent".into()));
        match Arc::get_mut(&mut self.means) {
            Some(means) => means.hiding_program = program,
            None => log::error!("the program that hides devices comes too late"),
        }
    }

    fn take_steering(&mut self, told: Result<(), String>, fds: Vec<OwnedFd>) {
        let both = told.and_then(|()| fds.try_into().map_err(|_| "its program was not sent".into()));
        match Arc::get_mut(&mut self.means) {
            Some(means) => means.steering = both.map(Steering::of_descriptors),
            None => log::error!("the program for AF_XDP comes too late"),
        }
    }

    fn take_fan_out(&mut self, told: Result<(), String>, fds: Vec<OwnedFd>) {
        let both = told.and_then(|()| fds.try_into().map_err(|_| "its program was not sent".into()));
        let fan_out = both.and_then(|both| FanOut::of_descriptors(both).map_err(|error| error.to_string()));
        match Arc::get_mut(&mut self.means) {
            Some(means) => means.fan_out = fan_out,
            None => log::error!("the program for queues comes too late"),
        }
    }

    fn take_veth_means(&mut self, told: Result<(), String>, fds: Vec<OwnedFd>) {
        let all = told.and_then(|()| fds.try_into().map_err(|_| "they were not sent".into()));
        let Some(means) = Arc::get_mut(&mut self.means) else {
            return log::error!("what veth pairs take comes too late");
        };
        means.veth = all.map(VethMeans::of_descriptors);
        let watch = means.veth.as_ref().ok().map(VethMeans::watch);
        let watch = watch.and_then(|watch| watch.inspect_err(|error| log::warn!("{error}")).ok());
        self.ends = watch;
    }

    fn tell_supervisor(&mut self, message: FromChild, fds: Vec<OwnedFd>) {
        if self.supervisor.send(message, fds).is_err() {
            log::error!("the supervisor does not read");
        }
    }

    fn recall(&mut self, next: Option<PortId>) {
        match next {
            Some(_) => self.tell_supervisor(FromChild::Recall(next), Vec::new()),
            None => {
                self.is_recalled = true;
                self.settles = Some(Instant::now() + SETTLE);
            }
        }
    }

    /// Begins to answer controllers once all ports' states are known, or have not been told for too long.
    fn settle(&mut self) {
        let Some(due) = self.settles else { return };
        let is_known = |port: &Port| port.connection.state.is_some();
        if due > Instant::now() && !self.ports.values().all(is_known) {
            return;
        }
        self.settles = None;
        for port in self.ports.values_mut() {
            port.connection.state.get_or_insert(InterfaceState::Disconnected);
        }
    }

    fn note(&mut self, (id, generation, news): Report) {
        let current = |port: &&mut Port| port.generation == generation;
        let Some(port) = self.ports.get_mut(&id).filter(current) else {
            return;
        };
        match news {
            News::Open {
                spec,
                opened,
                descriptors,
                link,
                is_new,
            } => {
                if is_new {
                    warn_of_visibility(id, &spec.name, &opened);
                }
                let is_handed_over = !is_new && port.open.as_ref().is_some_and(|open| open.is_handed_over);
                port.open = Some(Open {
                    descriptors,
                    link,
                    opened,
                    is_handed_over,
                });
                port.trouble = None;
                if !port.connection.is_awaited {
                    port.refresh_if_told(id);
                }
                self.hand_over(id);
                self.keep(id, spec);
            }
            News::Failed(reason, link) => {
                (port.open, port.trouble) = (None, Some(reason));
                port.refresh(id);
                self.take_device_away(id);
                self.keep_hidden(id, link);
            }
            News::Stream(stream) => {
                port.connection.waiting = Some(stream);
                port.connection.is_awaited = false;
                self.hand_over(id);
            }
            News::Addresses(addresses) => {
                (port.addresses, port.unreported_addresses) = (Some(addresses), true);
            }
        }
    }

    /// Has interfaces of the host's namespace looked at whose addresses may have changed.
    fn on_links(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        while let Some(event) = watch.next_event() {
            let changed = match event {
                LinkEvent::Is(link) => Some(link.index),
                LinkEvent::Addresses { index }
                | LinkEvent::Moved { index, .. }
                | LinkEvent::Gone { index } => Some(index),
                LinkEvent::Lost => None,
            };
            let concerned = self.ports.values().filter(|port| {
                let index = port.addresses.as_ref().map(|addresses| addresses.index);
                index.is_some() && port.spec.netns().is_none() && (changed.is_none() || index == changed)
            });
            for port in concerned {
                port.send(Command::Look);
                if let Some(reason) = port.misfit(event) {
                    port.send(Command::Broken(reason.into()));
                }
            }
            let up = match event {
                LinkEvent::Is(link) if link.up => Some(link.index),
                LinkEvent::Lost => None,
                _ => continue,
            };
            let is_closed = |port: &&Port| port.open.is_none() && port.spec.netns().is_none();
            for port in self.ports.values().filter(is_closed) {
                port.send(Command::Up(up));
            }
        }
    }

    /// Has pairs made again that containers have removed.
    fn on_ends(&mut self) {
        let Some(watch) = &mut self.ends else { return };
        while let Some(event) = watch.next_event() {
            let LinkEvent::Gone { index } = event else {
                continue;
            };
            let port = VethMeans::port_of(index).and_then(|port| self.ports.get(&PortId(port)));
            if let Some(port) = port.filter(|port| port.is_veth()) {
                // The notice may be of an earlier pair.
                port.send(Command::Look);
            }
        }
    }

    /// Sends controllers the states that they have not got yet, as far as their channels have room.
    fn report(&mut self) {
        for controller in self.controllers.values_mut() {
            controller.send_refusals();
            let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
            for (id, port) in own.filter(|(_, port)| port.unreported) {
                let message = FromDriver::State {
                    port: *id,
                    state: port.state(),
                };
                if !controller.send(&message) {
                    break;
                }
                port.unreported = false;
            }
            while controller.lists > 0 && self.is_recalled && self.settles.is_none() {
                let own = self.ports.iter().filter(|(id, _)| controller.id.owns(**id));
                let all = own.map(|(id, port)| (*id, port.spec.clone(), port.state()));
                if !controller.send(&FromDriver::Interfaces(all.collect())) {
                    break;
                }
                controller.lists -= 1;
                let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
                own.for_each(|(_, port)| port.unreported_addresses = port.addresses.is_some());
            }
            devices::tell(controller, &mut self.ports);
            queues::tell(controller, &self.ports, &self.means);
            controller.send_steered();
            let own = self.ports.iter_mut().filter(|(id, _)| controller.id.owns(**id));
            for (id, port) in own.filter(|(_, port)| port.unreported_addresses) {
                let addresses = port.addresses.clone().unwrap_or_default();
                let message = FromDriver::Addresses {
                    port: *id,
                    addresses: InterfaceAddresses {
                        mac: addresses.mac,
                        addresses: addresses.addresses,
                        users: addresses.users,
                    },
                };
                if !controller.send(&message) {
                    break;
                }
                port.unreported_addresses = false;
            }
        }
    }

    fn end(&mut self) {
        for port in self.ports.values() {
            port.send(Command::Detach);
        }
        while let Some((id, port)) = self.ports.pop_first() {
            if port.thread.join().is_err() {
                log::error!("port {id}: its thread had crashed");
            }
        }
    }
}

/// Says that the host's stack sees an uplink's frames, and why.
fn warn_of_visibility(id: PortId, name: &str, opened: &Opened) {
    if let Some(Hiding::Nothing(reason)) = opened.hiding() {
        log::warn!("port {id} ({name}): the host sees its frames, too: {reason}");
    }
}
