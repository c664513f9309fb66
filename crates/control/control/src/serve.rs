//! Users' requests, one function per kind.
//!
//! Requests that need the data plane are answered when it has answered; meanwhile a [`Question`] keeps the
//! request. Requests that change something are done completely or not at all.

use crate::control::Control;
use crate::describe;
use crate::order::natural;
use crate::pending::{Gathered, Listing, Question};
use crate::port::PortRun;
use crate::provider::actions_of;
use crate::refusal::Refusal;
use crate::sealed;
use crate::snapshot::by_port;
use crate::switches::SwitchRun;
use crate::users::Token;
use control_protocol::data_plane::{
    self, Answer, Detail, PortInfo as DataPlanePort, TraceStep as Step, VERSION,
};
use control_protocol::p4::P4Answer;
use control_protocol::port_counts::{PortCount, PortCounts};
use control_protocol::rules::RuleAnswer;
use controller::Welcome;
use flow::{Flow, FlowId, FlowStats, PortId, Stage};
use management::Request::{
    P4Connect, P4Devices, P4List, P4Load, P4Ports, P4Program, P4Read, P4Rollback, P4Stages, P4Unload,
    P4Write, P4WriteAll,
};
use management::{
    ContestedMacs, Counters, DataPlaneStatus, MAX_CONFIGURATION, MacInfo, P4Cells, PortStats, Process, Reply,
    Request, Response, Stats, Status, SwitchInfo, TraceReport, VersionInfo,
};
use rustix::net::{SocketType, sockopt};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// Version of the product.
pub const PRODUCT: &str = env!("CARGO_PKG_VERSION");

/// Shortest and longest frame that can be traced.
const FRAME: std::ops::RangeInclusive<usize> = 14..=65_553;

/// Stations of a switch about which `status` warns one by one.
const MAX_WARNINGS: usize = 8;

/// The reply to a request; `None` when it will come later.
pub(crate) type Served = Result<Option<Reply>, Refusal>;

impl Control {
    /// Answers a user, unless the reply comes later.
    pub fn answer_user(&mut self, token: Token, served: Served) {
        let response = match served {
            Ok(None) => return,
            Ok(Some(reply)) => Response::Ok(reply),
            Err(refusal) => Response::Error(refusal.report()),
        };
        self.users.answer(token, &response);
    }

    /// Serves a request.
    pub fn serve(&mut self, token: Token, request: Request, fds: Vec<OwnedFd>) -> Served {
        let reply = match request {
            Request::Version => Reply::Version(version()),
            Request::Status => {
                self.save_at_last();
                Reply::Status(self.status())
            }
            request @ (Request::SwitchAdd { .. }
            | Request::SwitchDel { .. }
            | Request::PortAdd { .. }
            | Request::PortDel { .. }
            | Request::PortSet { .. }
            | Request::MacFlush { .. }
            | Request::FlowFlush { .. }) => {
                let done = self.edit(request)?;
                return self.reply_when_made(token, done);
            }
            Request::SwitchList => Reply::Switches(self.switch_list()),
            Request::PortShow { port } => {
                let names = self.selected(Some(&port), None)?;
                return self.list_with_devices(token, Listing::Ports(names));
            }
            Request::PortList { switch } => {
                let names = self.selected(None, switch.as_deref())?;
                return self.list_with_devices(token, Listing::Ports(names));
            }
            Request::MacList { switch } => self.mac_list(switch.as_deref())?,
            Request::FlowList { switch } => return self.flow_list(token, switch.as_deref()),
            Request::Stats { port } => {
                let question = Question::Stats(self.selected(port.as_deref(), None)?);
                return self.ask_user(token, data_plane::Request::Counters, vec![], question);
            }
            Request::Events { after } => Reply::Events(self.events.after(after)),
            Request::Snapshot => return self.list_with_devices(token, Listing::Snapshot),
            Request::Placement => {
                return self.ask_user(token, data_plane::Request::Work, vec![], Question::Work);
            }
            Request::Trace { port, frame } => return self.trace(token, &port, frame.0),
            Request::Capture { port, snap_length } => return self.capture(token, &port, snap_length, fds),
            Request::Timeout { seconds } => {
                self.users.set_timeout(token, seconds);
                Reply::Done
            }
            request @ (Request::Reload
            | Request::ReloadPlan
            | Request::Apply { .. }
            | Request::ApplyPlan { .. }
            | Request::Unconfirmed
            | Request::Confirm { .. }
            | Request::ConfigShow) => return self.serve_configuration(token, request, fds),
            Request::PolicyList => Reply::Policies(self.policy_list()),
            Request::PolicyShow { policy } => return self.policy_show(token, &policy),
            Request::PolicyJudged { policy, from } => return self.policy_judged(token, &policy, from),
            Request::PolicyLog { after } => Reply::PolicyLog(self.rule_log.page(after)),
            own @ (P4List
            | P4Connect { .. }
            | P4Devices
            | P4Load { .. }
            | P4Ports { .. }
            | P4Stages { .. }
            | P4Program { .. }
            | P4Read { .. }
            | P4Rollback { .. }
            | P4Unload { .. }
            | P4Write { .. }
            | P4WriteAll { .. }) => {
                return self.serve_p4(token, own, fds);
            }
        };
        Ok(Some(reply))
    }

    /// Serves a request about P4 programs.
    fn serve_p4(&mut self, token: Token, request: Request, fds: Vec<OwnedFd>) -> Served {
        match request {
            Request::P4Load {
                name,
                ports,
                operations,
                replaces,
                changes,
                writes,
            } => self.p4_load(
                token,
                name.as_str(),
                (ports, operations),
                (replaces, changes),
                (writes, fds),
            ),
            Request::P4Program { name, offset } => self.p4_program(&name, offset).map(Some),
            Request::P4Read {
                name,
                tag,
                array,
                from,
            } => self.p4_read(token, &name, (tag, array), from),
            Request::P4Write {
                name,
                tag,
                array,
                cell,
                words,
            } => self.p4_write(token, &name, (tag, array), (cell, words)),
            P4WriteAll { name, tag, writes } => self.p4_write_all(token, &name, tag, writes),
            Request::P4Rollback { name } => self.p4_rollback(token, &name),
            Request::P4Unload { name } => {
                (self.p4_unload(&name)).and_then(|done| self.reply_when_made(token, done))
            }
            P4Ports { name, set, remove } => {
                let done = self.p4_ports(&name, &set, &remove)?;
                self.reply_when_made(token, done)
            }
            P4Stages { set } => {
                let done = self.p4_stages(set)?;
                self.ask_user(
                    token,
                    data_plane::Request::Barrier,
                    vec![],
                    Question::Barrier(done),
                )
            }
            P4Connect { name } => self.p4_connect(token, &name, fds),
            P4Devices => Ok(Some(self.p4_devices())),
            _ => self.p4_list(token),
        }
    }

    /// Serves a request about the configuration as a whole.
    fn serve_configuration(&mut self, token: Token, request: Request, fds: Vec<OwnedFd>) -> Served {
        let text = || sealed::read(fds, MAX_CONFIGURATION);
        let reply = match request {
            Request::Reload => {
                let done = Reply::Reloaded(self.reload()?);
                return self.reply_when_made(token, done);
            }
            Request::Apply { file, confirm } => {
                let done = Reply::Reloaded(self.apply_text(file, text(), confirm)?);
                return self.reply_when_made(token, done);
            }
            Request::ApplyPlan { file } => Reply::Reloaded(self.apply_plan(file, text())?),
            Request::Unconfirmed => Reply::Unconfirmed(self.unconfirmed()),
            Request::Confirm { number } => {
                self.confirm(number)?;
                Reply::Done
            }
            Request::ConfigShow => Reply::Config(Box::new(self.shown_configuration()?)),
            _ => Reply::Reloaded(self.reload_plan()?),
        };
        Ok(Some(reply))
    }

    /// Replies to a change when the data plane has made it.
    fn reply_when_made(&mut self, token: Token, done: Reply) -> Served {
        if !self.data_plane.is_numbered() {
            return Ok(Some(done));
        }
        if self.unsettle(token, &done) {
            return Ok(None);
        }
        let barrier = data_plane::Request::Barrier;
        self.ask_user(token, barrier, vec![], Question::Barrier(done))
    }

    pub fn ask_user(
        &mut self,
        token: Token,
        request: data_plane::Request,
        fds: Vec<OwnedFd>,
        question: Question,
    ) -> Served {
        let listing = matches!(
            request,
            data_plane::Request::PortList
                | data_plane::Request::Counters
                | data_plane::Request::FlowList { .. }
        );
        if listing && !matches!(question, Question::Flows) && self.data_plane.is_listing(self.gathered.len())
        {
            return Err(Refusal::TooManyLists);
        }
        let numbered = self.data_plane.numbered;
        if !numbered || !self.data_plane.ask_for_user(request, fds, token, question) {
            return Err(Refusal::NoDataPlane);
        }
        Ok(None)
    }

    /// Conditions that need attention, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.data_plane.client.is_connected() {
            warnings.push("there is no data plane at the moment".to_owned());
        }
        if !self.driver.is_connected() {
            warnings.push("there is no driver domain at the moment".to_owned());
        }
        warnings.extend(self.unsaved.clone());
        warnings.extend(
            self.nothing_unconfirmed()
                .err()
                .map(|waiting| waiting.to_string()),
        );
        for (name, run) in &self.ports {
            warnings.extend(run.trouble().map(|trouble| format!("port {name}: {trouble}")));
        }
        warnings.extend(self.policies.refused());
        warnings.extend(self.p4_warnings());
        warnings.extend(self.contested_stations());
        warnings.extend(self.configuration_warnings());
        for name in self.intent.overrides.keys() {
            warnings.push(format!(
                "port {name} was changed at run time and differs from the configuration file"
            ));
        }
        warnings
    }

    fn status(&self) -> Status {
        let running = |run: &&PortRun| run.state == data_plane::PortState::Running;
        let runs = self.switches.runs.values();
        Status {
            version: PRODUCT.into(),
            uptime_seconds: self.now_ms() / 1000,
            run_dir: self.options.run_dir.clone(),
            config: self.options.config.clone(),
            processes: self.reported.processes.iter().map(Process::from).collect(),
            data_plane: self
                .data_plane
                .client
                .welcome()
                .map(|Welcome { pid, workers }| DataPlaneStatus { pid, workers }),
            vm_state: Box::new(self.vcpus.status()),
            priority: self
                .reported
                .priority
                .as_ref()
                .map(|status| Box::new(status.into())),
            idle_poll: self
                .reported
                .idle_poll
                .as_ref()
                .map(|status| Box::new(status.into())),
            driver_connected: self.driver.is_connected(),
            switches: self.switches.runs.len(),
            ports: self.ports.len(),
            ports_running: self.ports.values().filter(running).count(),
            macs: runs.clone().map(|run| run.l2().mac_count()).sum(),
            flows: runs.map(|run| run.chain.flow_count()).sum(),
            warnings: self.warnings(),
        }
    }

    /// Warnings about addresses that several ports use, a few of each kind per switch.
    fn contested_stations(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, run) in self.switches.runs.iter() {
            let fate = match run.l2().rules().contested {
                ContestedMacs::Deliver => "go to all of them",
                ContestedMacs::Drop => "are dropped",
            };
            for (station, ports) in run.l2().contested().take(MAX_WARNINGS) {
                let (mac, ports) = (mac_text(station.mac), self.port_names(&ports));
                let vlan = match station.vlan {
                    0 => String::new(),
                    vlan => format!(" in VLAN {vlan}"),
                };
                warnings.push(format!(
                    "switch {name}: {mac} is used on {ports}{vlan}, so frames for it {fate}; `mac` or `static-macs` of a port \
                     says whose it is, or there is a loop"
                ));
            }
            let more = run.l2().contested().count().saturating_sub(MAX_WARNINGS);
            if more > 0 {
                warnings.push(format!("switch {name}: so are {more} more MAC addresses"));
            }
            for (station, owner, from) in run.l2().impostors().into_iter().take(MAX_WARNINGS) {
                let mac = mac_text(station.mac);
                let [owner, from] = [owner, from].map(|port| self.port_name(port));
                warnings.push(format!(
                    "switch {name}: {from} sends from {mac}, which is the `mac` of {owner} and stays there"
                ));
            }
        }
        warnings
    }

    pub fn switch_list(&self) -> Vec<SwitchInfo> {
        let info = |(name, switch): (&String, &crate::state::DesiredSwitch)| {
            let run = self.switches.runs.get(name);
            let moves = run.map(|run| run.l2().move_counts()).unwrap_or_default();
            SwitchInfo {
                origin: switch.origin,
                config: switch.config.clone(),
                ports: self
                    .state
                    .ports
                    .values()
                    .filter(|port| port.switch == *name)
                    .count(),
                macs: run.map_or(0, |run| run.l2().mac_count()),
                flows: run.map_or(0, |run| run.chain.flow_count()),
                mac_moves: moves.made,
                contested_macs: run.map_or(0, |run| run.l2().contested().count()),
                deferred_flows: moves.deferred,
            }
        };
        let mut switches: Vec<_> = self.state.switches.iter().map(info).collect();
        switches.sort_by(|a, b| natural(a.config.name.as_str(), b.config.name.as_str()));
        switches
    }

    /// Names of the ports that a request is about.
    fn selected(&self, port: Option<&str>, switch: Option<&str>) -> Result<Vec<String>, Refusal> {
        if let Some(name) = port {
            let known = self.ports.contains_key(name);
            return known
                .then(|| vec![name.to_owned()])
                .ok_or_else(|| Refusal::NoPort(name.into()));
        }
        self.runs_of(switch)?;
        let wanted = |run: &PortRun| switch.is_none_or(|switch| run.wanted.switch == switch);
        Ok(self
            .ports
            .iter()
            .filter(|(_, run)| wanted(run))
            .map(|(name, _)| name.clone())
            .collect())
    }

    /// The switches that a request is about: the one that it names, or all.
    pub fn runs_of(&self, switch: Option<&str>) -> Result<Vec<(&String, &SwitchRun)>, Refusal> {
        if let Some(name) = switch.filter(|name| !self.switches.runs.contains_key(*name)) {
            return Err(Refusal::NoSwitch(name.into()));
        }
        let runs = self.switches.runs.iter();
        let wanted = runs.filter(|(name, _)| switch.is_none_or(|wanted| wanted == *name));
        Ok(wanted.collect())
    }

    pub fn port_list(&mut self, token: Token, names: Vec<String>) -> Served {
        if self.data_plane.is_numbered() {
            let request = data_plane::Request::PortList;
            return self.ask_user(token, request, vec![], Question::Ports(names));
        }
        Ok(Some(self.ports_reply(&names, &[])))
    }

    fn ports_reply(&self, names: &[String], listed: &[DataPlanePort]) -> Reply {
        let listed: HashMap<&str, &DataPlanePort> = listed
            .iter()
            .map(|info| (info.spec.name.as_str(), info))
            .collect();
        let found = names
            .iter()
            .filter_map(|name| Some((name, self.ports.get(name)?)));
        let mut ports: Vec<_> = found
            .map(|(name, run)| self.port_info(name, run, listed.get(name.as_str()).copied()))
            .collect();
        ports.sort_by(|a, b| natural(&a.name, &b.name));
        Reply::Ports(ports)
    }

    fn stats_reply(&self, names: &[String], listed: &[PortCount]) -> Reply {
        let listed = by_port(listed);
        let mut stats = Stats {
            ports: Vec::new(),
            total: Box::default(),
        };
        let found = names.iter().filter_map(|name| {
            let run = self.ports.get(name)?;
            Some((name, &run.wanted.switch, &listed.get(&run.id?)?.counters))
        });
        for (port, switch, counters) in found {
            let counters = Counters::from(counters);
            stats.total.add(&counters);
            stats.ports.push(PortStats {
                port: port.clone(),
                switch: switch.clone(),
                counters,
            });
        }
        stats.ports.sort_by(|a, b| natural(&a.port, &b.port));
        Reply::Stats(stats)
    }

    fn mac_list(&self, switch: Option<&str>) -> Result<Reply, Refusal> {
        let now_ms = self.now_ms();
        let mut macs = Vec::new();
        for (name, run) in self.runs_of(switch)? {
            macs.extend(run.l2().mac_entries(now_ms).into_iter().map(|entry| MacInfo {
                switch: name.clone(),
                vlan: entry.vlan,
                mac: mac_text(entry.mac),
                port: self.port_name(entry.port),
                is_static: entry.vlan.is_none(),
                contested: entry.contested,
                age_seconds: entry.age_ms.map(|age| age / 1000),
            }));
        }
        Ok(Reply::Macs(macs))
    }

    fn flow_list(&mut self, token: Token, switch: Option<&str>) -> Served {
        let wanted = self.runs_of(switch)?.into_iter();
        let ids: Vec<_> = wanted.filter_map(|(_, run)| run.id).collect();
        if ids.is_empty() && self.switches.runs.is_empty() {
            return Ok(Some(Reply::Flows(Vec::new())));
        }
        if ids.is_empty() {
            return Err(Refusal::NoDataPlane);
        }
        if self.data_plane.is_listing(self.gathered.len()) {
            return Err(Refusal::TooManyLists);
        }
        self.gathered.insert(
            token,
            Gathered {
                left: ids.len(),
                flows: Vec::new(),
            },
        );
        for switch in ids {
            let request = data_plane::Request::FlowList {
                switch,
                after: None,
                detail: Detail::Full,
            };
            let asked = self.ask_user(token, request, vec![], Question::Flows);
            asked.inspect_err(|_| drop(self.gathered.remove(&token)))?;
        }
        Ok(None)
    }

    /// The data plane has listed the flows of one switch for a user.
    fn flows_reply(
        &mut self,
        token: Token,
        flows: Vec<(Flow, FlowStats)>,
        ways: Vec<(FlowId, data_plane::Way)>,
    ) -> Option<Reply> {
        let gathered = self.gathered.get_mut(&token)?;
        let mut ways: HashMap<_, _> = ways.into_iter().collect();
        let with_ways = flows.into_iter().map(|(flow, stats)| {
            let way = ways.remove(&flow.id);
            (flow, stats, way)
        });
        gathered.flows.extend(with_ways);
        gathered.left -= 1;
        if gathered.left > 0 {
            return None;
        }
        let all = self.gathered.remove(&token).unwrap_or_default().flows;
        let mut flows: Vec<_> = all
            .iter()
            .map(|(flow, stats, way)| self.flow_info(flow, stats, way.as_ref().map(describe::way)))
            .collect();
        flows.sort_by(|a, b| (&a.switch, &a.matches).cmp(&(&b.switch, &b.matches)));
        Some(Reply::Flows(flows))
    }

    fn port_number(&self, name: &str) -> Result<PortId, Refusal> {
        let run = self.ports.get(name).ok_or_else(|| Refusal::NoPort(name.into()))?;
        run.id.ok_or(Refusal::NoDataPlane)
    }

    fn trace(&mut self, token: Token, port: &str, frame: Vec<u8>) -> Served {
        if !FRAME.contains(&frame.len()) {
            let (min, max) = FRAME.into_inner();
            let length = frame.len();
            return Err(Refusal::FrameLength { length, min, max });
        }
        let in_port = self.port_number(port)?;
        let request = data_plane::Request::Trace {
            in_port,
            frame: frame.clone(),
        };
        self.ask_user(token, request, vec![], Question::Trace { in_port, frame })
    }

    fn capture(&mut self, token: Token, port: &str, snap_length: u32, mut fds: Vec<OwnedFd>) -> Served {
        let port = self.port_number(port)?;
        let fd = match (fds.pop(), fds.is_empty()) {
            (Some(fd), true) => fd,
            _ => return Err(Refusal::NoCaptureSocket),
        };
        if !matches!(
            sockopt::socket_type(&fd),
            Ok(SocketType::SEQPACKET | SocketType::DGRAM)
        ) {
            return Err(Refusal::CaptureSocketType);
        }
        let request = data_plane::Request::Capture {
            port,
            snap_length: snap_length.min(65_553),
        };
        self.ask_user(token, request, vec![fd], Question::Capture)
    }

    /// The data plane has answered a user's question.
    pub fn answer_for_user(&mut self, token: Token, question: Question, answer: Answer) {
        let served = match (question, answer) {
            (Question::Barrier(done), Answer::Done) => Ok(Some(done)),
            (Question::Ports(names), Answer::Ports { ports, .. }) => {
                Ok(Some(self.ports_reply(&names, &ports)))
            }
            (Question::Stats(names), Answer::Counters { ports, .. }) => {
                counted(&ports).map(|ports| Some(self.stats_reply(&names, &ports)))
            }
            (Question::Flows, Answer::Flows { flows, ways, .. }) => Ok(self.flows_reply(token, flows, ways)),
            (Question::Policy(shown), Answer::Rules(page)) => self.policy_page(token, *shown, page),
            (
                Question::Judged(list),
                Answer::Rules(RuleAnswer::Judged {
                    packets,
                    further,
                    next,
                }),
            ) => Ok(Some(self.judged_reply(list, packets, (further, next)))),
            (Question::P4, Answer::P4(P4Answer::Switches(infos))) => Ok(Some(self.p4_reply(&infos))),
            (Question::P4, Answer::P4(P4Answer::Cells { words, stride, more })) => {
                Ok(Some(Reply::P4Cells(P4Cells { words, stride, more })))
            }
            (Question::Snapshot(None), Answer::Counters { ports, .. }) => {
                counted(&ports).and_then(|ports| self.snapshot_of_ports(token, &ports))
            }
            (Question::Snapshot(Some(mut snapshot)), Answer::Work(report)) => {
                snapshot.work = Some(report);
                Ok(Some(Reply::Snapshot(snapshot)))
            }
            (Question::Capture, Answer::Done) => Ok(Some(Reply::Done)),
            (Question::Work, Answer::Work(report)) => Ok(Some(Reply::Placement(report))),
            (Question::Trace { in_port, frame }, Answer::Trace(steps)) => {
                self.traced(token, in_port, frame, &steps)
            }
            (Question::TraceActions { in_port, mut steps }, Answer::Trace(more)) => {
                let new = more.iter().filter(|step| !matches!(step, Step::Parsed(_)));
                steps.extend(new.map(|step| self.trace_step(step)));
                Ok(Some(self.trace_report(in_port, steps)))
            }
            _ => Err(Refusal::WrongAnswer),
        };
        self.answer_user(token, served);
    }

    fn trace_report(&self, in_port: PortId, steps: Vec<management::TraceStep>) -> Reply {
        let port = self.port_name(in_port);
        let switch = self
            .ports
            .get(&port)
            .map(|run| run.wanted.switch.clone())
            .unwrap_or_default();
        Reply::Trace(TraceReport { switch, port, steps })
    }

    /// After a miss, a trace goes on with the decision that would be made, without learning anything.
    fn traced(&mut self, token: Token, in_port: PortId, frame: Vec<u8>, steps: &[Step]) -> Served {
        let mut told: Vec<_> = steps.iter().map(|step| self.trace_step(step)).collect();
        let key = steps.iter().find_map(|step| match step {
            Step::Parsed(key) => Some(*key),
            _ => None,
        });
        let port = self.port_name(in_port);
        let switch = self
            .ports
            .get(&port)
            .and_then(|run| self.switches.runs.get(&run.wanted.switch));
        let missed = steps.iter().find_map(|step| match step {
            Step::Miss { stage, key } => Some((*stage, *key)),
            _ => None,
        });
        // Behind a change, the packet is another than the frame that we could have traced further.
        let unchanged = missed.filter(|(_, now)| key == Some(*now));
        let (Some((stage, key)), Some(switch)) = (unchanged, switch) else {
            return Ok(Some(self.trace_report(in_port, told)));
        };
        let outcome = switch.chain.preview(stage, &key);
        let actions = actions_of(&outcome.verdict);
        told.push(match outcome.stage {
            Stage::Forward => self.decided_step(&outcome.key, &switch.l2().decide(&outcome.key)),
            stage => self.filtered_step(stage, &actions),
        });
        let request = data_plane::Request::TraceActions {
            in_port,
            stage: outcome.stage,
            frame,
            actions,
        };
        let question = Question::TraceActions { in_port, steps: told };
        self.ask_user(token, request, vec![], question)
    }
}

/// What ports have counted, as the data plane has sent it.
fn counted(ports: &PortCounts) -> Result<Vec<PortCount>, Refusal> {
    ports.ports().map_err(|_| Refusal::WrongAnswer)
}

fn version() -> VersionInfo {
    VersionInfo {
        version: PRODUCT.into(),
        data_plane_protocol: VERSION,
    }
}

/// A hardware address as users write it.
pub(crate) fn mac_text(mac: u64) -> String {
    let bytes = mac.to_be_bytes();
    bytes[2..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}
