//! P4 switches joined with the data plane, ports, the store and users.

use super::{Trial, Version};
use crate::control::Control;
use crate::intent::P4Intent;
use crate::p4_stages::stages_of;
use crate::pending::{Pending, Question};
use crate::port::PortRun;
use crate::refusal::Refusal;
use crate::sealed;
use crate::serve::Served;
use crate::state::desired;
use crate::users::Token;
use control_protocol::data_plane::{Answer, Request};
use control_protocol::p4::{
    MAX_P4_SWITCHES, MAX_PIECE, P4Array, P4Attachment, P4Binding, P4CellWrite, P4Request,
};
use controller::Answered;
use flow::{P4Id, PortId};
use management::{Hex, P4End, P4Piece, P4Place, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// Most bytes of a version; the data plane's own limit is lower.
const MAX_BYTES: u64 = 8 << 20;

impl Control {
    /// Loads a program for a user, or changes of the present one's entries, and answers when the data plane
    /// has taken or refused it.
    ///
    /// # Errors
    /// The request is refused before the data plane is asked.
    pub fn p4_load(
        &mut self,
        token: Token,
        name: &str,
        (ports, operations): (Option<Vec<P4Place>>, Option<u32>),
        (replaces, changes): (Option<u64>, bool),
        (writes, fds): (Vec<P4CellWrite>, Vec<OwnedFd>),
    ) -> Served {
        self.can_try()?;
        let only_entries = ports.is_none();
        let present = self.intent.p4.get(name);
        if replaces.is_some() && replaces != present.and_then(|own| self.p4.tag(P4Id(own.number))) {
            return Err(Refusal::P4Changed(name.into()));
        }
        let ports = match (ports, present) {
            (Some(ports), _) => self.places(name, &ports)?,
            (None, Some(present)) => present.ports.clone(),
            (None, None) => return Err(Refusal::NoP4(name.into())),
        };
        let operations = match present {
            Some(present) if only_entries => operations.or(present.operations),
            _ => operations,
        };
        let bytes = sealed::read(fds, MAX_BYTES).ok_or(Refusal::NoProgram)?;
        let version = match changes {
            true => self.p4_changed(name, &bytes, operations)?,
            false => Version::new(bytes, operations),
        };
        let version = version.with(writes);
        let number = match present {
            Some(present) => present.number,
            None => free_number(&self.p4_numbers())?,
        };
        let own = P4Intent {
            number,
            program: version.tag,
            operations,
            ports,
            ..present.cloned().unwrap_or_default()
        };
        // Other entries are no other program.
        let own = if only_entries {
            own
        } else {
            own.succeeding(present)
        };
        self.try_version((token, name), own, version)
    }

    /// The present version of a P4 switch with a batch of changes.
    fn p4_changed(&self, name: &str, batch: &[u8], operations: Option<u32>) -> Result<Version, Refusal> {
        let present = self.p4.wanted(self.p4_number(name)?);
        let present = present.ok_or_else(|| Refusal::NoP4(name.into()))?;
        let changed = present.changed(batch, operations);
        let is_bounded = changed.bytes().len() as u64 <= MAX_BYTES;
        is_bounded.then_some(changed).ok_or(Refusal::NoProgram)
    }

    /// Has the data plane try a version, for a user who is answered then.
    fn try_version(&mut self, (token, name): (Token, &str), own: P4Intent, version: Version) -> Served {
        let mut intent = self.intent.clone();
        intent.p4.insert(name.into(), own.clone());
        // Contradictions are found before the data plane is asked.
        desired(&intent, &self.options)?;
        self.p4.begin_trial((token, name.into()), own, version);
        self.advance_p4();
        Ok(None)
    }

    /// Returns to the program and the ports that were in force before the last load.
    ///
    /// # Errors
    /// There is no such P4 switch, nothing was loaded in its place, or the data plane cannot be asked.
    pub fn p4_rollback(&mut self, token: Token, name: &str) -> Served {
        self.can_try()?;
        let present = self.intent.p4.get(name);
        let present = present.ok_or_else(|| Refusal::NoP4(name.into()))?;
        let former = present.former.clone();
        let former = former.ok_or_else(|| Refusal::NoFormerP4(name.into()))?;
        let bytes = self.store.load_program(former.program);
        let bytes = bytes.map_err(|error| Refusal::Unreadable {
            path: self.store.program(former.program),
            error,
        })?;
        let version = Version::stored(former.program, bytes, former.operations);
        let own = P4Intent {
            program: former.program,
            operations: former.operations,
            ports: former.ports,
            ..present.clone()
        };
        let own = own.succeeding(Some(present));
        self.try_version((token, name), own, version)
    }

    /// Whether a version can be tried now.
    fn can_try(&self) -> Result<(), Refusal> {
        if !self.data_plane.is_numbered() {
            return Err(Refusal::NoDataPlane);
        }
        self.no_trial()
    }

    /// Refuses while a version is on trial.
    pub fn no_trial(&self) -> Result<(), Refusal> {
        if self.p4.is_trying() {
            return Err(Refusal::P4Busy);
        }
        Ok(())
    }

    /// Ports by the numbers that a program knows.
    pub(super) fn places(&self, name: &str, ports: &[P4Place]) -> Result<BTreeMap<u16, String>, Refusal> {
        let has_program = |end: &P4End| {
            let other = end.program.as_str();
            other == name || self.intent.p4.contains_key(other)
        };
        let links = ports.iter().filter_map(|place| P4End::of(&place.port));
        if let Some(end) = links.into_iter().find(|end| !has_program(end)) {
            return Err(Refusal::NoP4(end.program.to_string()));
        }
        let exists =
            |place: &&P4Place| self.state.ports.contains_key(&place.port) || P4End::of(&place.port).is_some();
        if let Some(place) = ports.iter().find(|place| !exists(place)) {
            return Err(Refusal::NoPort(place.port.clone()));
        }
        let places = ports.iter().map(|place| (place.number, place.port.clone()));
        let places: BTreeMap<_, _> = places.collect();
        if places.len() < ports.len() {
            return Err(Refusal::P4Place(name.into()));
        }
        Ok(places)
    }

    fn p4_number(&self, name: &str) -> Result<P4Id, Refusal> {
        let own = self
            .intent
            .p4
            .get(name)
            .ok_or_else(|| Refusal::NoP4(name.into()))?;
        Ok(P4Id(own.number))
    }

    /// Bytes of the program that is wanted of a P4 switch, from a place on.
    ///
    /// # Errors
    /// There is no such P4 switch, or its program is lost.
    pub fn p4_program(&self, name: &str, offset: usize) -> Result<Reply, Refusal> {
        let version = self.p4.wanted(self.p4_number(name)?);
        let version = version.ok_or_else(|| Refusal::NoP4(name.into()))?;
        let rest = version.bytes().get(offset..).unwrap_or_default();
        Ok(Reply::P4Program(P4Piece {
            tag: version.tag,
            length: version.bytes().len(),
            bytes: Hex(rest[..rest.len().min(MAX_PIECE)].to_vec()),
        }))
    }

    /// Asks for cells of an array.
    ///
    /// # Errors
    /// There is no such P4 switch, or no data plane.
    pub fn p4_read(&mut self, token: Token, name: &str, (tag, array): (u64, P4Array), from: u32) -> Served {
        let request = P4Request::Read {
            switch: self.p4_number(name)?,
            tag,
            array,
            from,
        };
        self.ask_user(token, Request::P4(request), vec![], Question::P4)
    }

    /// Sets a cell of an array.
    ///
    /// # Errors
    /// There is no such P4 switch, or no data plane.
    pub fn p4_write(
        &mut self,
        token: Token,
        name: &str,
        (tag, array): (u64, P4Array),
        (cell, words): (u32, Vec<u64>),
    ) -> Served {
        let request = P4Request::Write {
            switch: self.p4_number(name)?,
            tag,
            array,
            cell,
            words,
        };
        self.ask_user(
            token,
            Request::P4(request),
            vec![],
            Question::Barrier(Reply::Done),
        )
    }

    /// Sets cells of arrays, all at once.
    ///
    /// # Errors
    /// There is no such P4 switch, or no data plane.
    pub fn p4_write_all(&mut self, token: Token, name: &str, tag: u64, writes: Vec<P4CellWrite>) -> Served {
        let switch = self.p4_number(name)?;
        let request = P4Request::WriteAll { switch, tag, writes };
        let done = Question::Barrier(Reply::Done);
        self.ask_user(token, Request::P4(request), vec![], done)
    }

    /// Ends a P4 switch. Its ports are their switch's again.
    ///
    /// # Errors
    /// There is none of this name, one is being loaded, or the change cannot be saved.
    pub fn p4_unload(&mut self, name: &str) -> Result<Reply, Refusal> {
        self.no_trial()?;
        let mut intent = self.intent.clone();
        let gone = intent.p4.remove(name).ok_or_else(|| Refusal::NoP4(name.into()))?;
        if gone.file.is_some() {
            return Err(Refusal::P4OfFile(name.into()));
        }
        self.adopt(intent)?;
        Ok(Reply::Done)
    }

    /// Numbers of P4 switches, those included that the data plane still has: another program with such a
    /// number would inherit their state.
    pub fn p4_numbers(&self) -> BTreeSet<u32> {
        let own = self.intent.p4.values().map(|own| own.number);
        own.chain(self.p4.numbers().into_iter().map(|id| id.0)).collect()
    }

    /// Wants the programs of the intent, which the store has, and binds ports to them. The program on trial
    /// is wanted until the trial ends.
    pub fn want_programs(&mut self) {
        let on_trial = self.p4.on_trial();
        let wanted = self.intent.p4.iter();
        let wanted: BTreeMap<P4Id, (&String, &P4Intent)> = wanted
            .map(|(name, own)| (P4Id(own.number), (name, own)))
            .collect();
        let mut idle = self.p4.numbers();
        idle.retain(|id| !wanted.contains_key(id) && Some(*id) != on_trial);
        idle.into_iter().for_each(|id| self.p4.want(id, None));
        for (id, (name, own)) in wanted {
            if Some(id) == on_trial || self.p4.tag(id) == Some(own.program) {
                continue;
            }
            match self.store.load_program(own.program) {
                Ok(bytes) => {
                    let version = Version::stored(own.program, bytes, own.operations);
                    self.p4.want(id, Some(version));
                }
                Err(error) => {
                    log::error!("P4 switch {name}: its program cannot be read: {error}");
                    self.p4.want(id, None);
                }
            }
        }
        self.bind_ports();
        self.advance_p4();
    }

    /// Sends what is to be sent.
    pub fn advance_p4(&mut self) {
        if !self.data_plane.is_numbered() {
            return;
        }
        if let Some(trial) = self.p4.take_settled() {
            self.p4_loaded(trial);
        }
        for request in self.p4.next() {
            self.data_plane.ask(Request::P4(request), Vec::new(), Pending::P4);
        }
    }

    /// The data plane has answered a request about P4 switches.
    pub fn p4_answered(&mut self, result: Answered) {
        let answer = match result {
            Ok(Answer::P4(answer)) => Ok(Some(answer)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.text),
        };
        match self.p4.answered(answer) {
            Some(Ok(trial)) => self.p4_loaded(trial),
            Some(Err((token, error))) => {
                self.want_programs();
                self.answer_user(token, Err(Refusal::DataPlane(error)));
            }
            None => {}
        }
        self.bind_ports();
        self.advance_p4();
    }

    /// A program is in force: it becomes intent, and its ports are bound. Or, if that cannot be saved, the
    /// former one returns.
    fn p4_loaded(&mut self, trial: Trial) {
        let Trial {
            token,
            name,
            intent: own,
            former: _,
        } = trial;
        let version = self.p4.wanted(P4Id(own.number)).cloned();
        let mut intent = self.intent.clone();
        intent.p4.insert(name, own);
        let versions: Vec<Version> = version.into_iter().collect();
        let served = match self.adopt_with(intent, &versions) {
            Ok(_) => self.ask_user(token, Request::Barrier, vec![], Question::Barrier(Reply::Done)),
            Err(refusal) => {
                self.want_programs();
                Err(refusal)
            }
        };
        self.answer_user(token, served);
    }

    /// The data plane, and what it had, are gone.
    pub fn lose_p4(&mut self) {
        self.p4.lose();
        if let Some(token) = self.p4.give_up() {
            self.want_programs();
            self.answer_user(token, Err(Refusal::DataPlaneEnded));
        }
    }

    /// What packets of a port of a switch should meet.
    pub fn p4_attachment(&self, port: &str, switch: &str) -> P4Attachment {
        P4Attachment {
            stages: stages_of(&self.intent.p4, port, switch),
            forwarder: self.p4_binding(port),
        }
    }

    /// Where a port should be bound.
    fn p4_binding(&self, port: &str) -> Option<P4Binding> {
        self.intent.p4.values().find_map(|own| {
            let place = own.ports.iter().find(|(_, name)| *name == port);
            place.map(|(number, _)| P4Binding {
                switch: P4Id(own.number),
                port: *number,
            })
        })
    }

    /// What a port of the data plane is to be told, if that differs from what it was told. A port without
    /// forwarding program goes on so until that is in force, and one without a stage likewise.
    fn attaching(&self, name: &str, run: &PortRun) -> Option<Attaching> {
        let mut wanted = self.p4_attachment(name, &run.wanted.switch);
        let waits = |binding: &P4Binding| self.p4.is_on_its_way(binding.switch);
        if run.p4.forwarder.is_none() && wanted.forwarder.as_ref().is_some_and(waits) {
            wanted.forwarder = None;
        }
        let has = |stage: &P4Binding| run.p4.stages.iter().any(|own| own.switch == stage.switch);
        wanted.stages.retain(|stage| has(stage) || !waits(stage));
        (run.added && run.p4 != wanted).then_some(Attaching {
            name: name.to_owned(),
            port: run.id?,
            present: run.p4.clone(),
            wanted,
        })
    }

    /// Has the data plane do with packets of ports as it should. Ports that move from one program to another
    /// are freed first; their stages stay.
    pub fn bind_ports(&mut self) {
        let changes = self.ports.iter();
        let changes: Vec<Attaching> = changes
            .filter_map(|(name, run)| self.attaching(name, run))
            .collect();
        let moves = changes.iter().filter(|change| change.moves());
        let freed = |change: &Attaching| P4Attachment {
            forwarder: None,
            ..change.present.clone()
        };
        let requests = moves.map(|change| (change, freed(change)));
        let requests = requests.chain(changes.iter().map(|change| (change, change.wanted.clone())));
        for (change, attachment) in requests {
            let port = change.port;
            let request = Request::PortP4 { port, attachment };
            self.data_plane.ask_port(request, Vec::new(), &change.name);
        }
        self.join_links();
        let mut switches = BTreeSet::new();
        for change in changes {
            let (name, is_bound) = (&change.name, change.present.forwarder != change.wanted.forwarder);
            let Some(run) = self.ports.get_mut(name) else {
                continue;
            };
            run.p4 = change.wanted;
            if is_bound {
                switches.insert(run.wanted.switch.clone());
                self.update_rules(name);
            }
        }
        for switch in switches {
            self.refresh_switch(&switch);
        }
    }
}

/// A port of which the data plane is told what its packets meet.
struct Attaching {
    name: String,
    port: PortId,
    present: P4Attachment,
    wanted: P4Attachment,
}

impl Attaching {
    /// Whether the port's place at a program is free for another port then.
    fn moves(&self) -> bool {
        self.present.forwarder.is_some() && self.present.forwarder != self.wanted.forwarder
    }
}

/// The lowest number that is not taken.
pub(crate) fn free_number(taken: &BTreeSet<u32>) -> Result<u32, Refusal> {
    let most = u32::try_from(MAX_P4_SWITCHES).unwrap_or(u32::MAX);
    let mut numbers = 1..=most;
    let free = numbers.find(|number| !taken.contains(number));
    free.ok_or(Refusal::TooManyP4(most))
}
