//! P4 switches joined with the data plane, ports, the store and users.

use super::{Trial, Version};
use crate::control::Control;
use crate::intent::{Intent, P4Intent};
use crate::pending::{Pending, Question};
use crate::refusal::Refusal;
use crate::sealed;
use crate::serve::Served;
use crate::state::desired;
use crate::users::Token;
use control_protocol::data_plane::{Answer, Request};
use control_protocol::p4::{MAX_P4_SWITCHES, MAX_PIECE, P4Array, P4Binding, P4Request};
use controller::Answered;
use flow::{P4Id, PortId};
use management::{Hex, P4Piece, P4Place, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// Most bytes of a version; the data plane's own limit is lower.
const MAX_BYTES: u64 = 8 << 20;

impl Control {
    /// Loads a program for a user, who is answered when the data plane has taken or refused it.
    ///
    /// # Errors
    /// The request is refused before the data plane is asked.
    pub fn p4_load(
        &mut self,
        token: Token,
        name: &str,
        (ports, replaces): (Option<Vec<P4Place>>, Option<u64>),
        fds: Vec<OwnedFd>,
    ) -> Served {
        if !self.data_plane.is_numbered() {
            return Err(Refusal::NoDataPlane);
        }
        if self.p4.is_trying() {
            return Err(Refusal::P4Busy);
        }
        let present = self.intent.p4.get(name);
        if replaces.is_some() && replaces != present.and_then(|own| self.p4.tag(P4Id(own.number))) {
            return Err(Refusal::P4Changed(name.into()));
        }
        let ports = match (ports, present) {
            (Some(ports), _) => self.places(name, &ports)?,
            (None, Some(present)) => present.ports.clone(),
            (None, None) => return Err(Refusal::NoP4(name.into())),
        };
        let version = Version::new(sealed::read(fds, MAX_BYTES).ok_or(Refusal::NoProgram)?);
        let mut intent = self.intent.clone();
        let number = match intent.p4.get(name) {
            Some(present) => present.number,
            None => free_number(&intent)?,
        };
        let own = P4Intent { number, ports };
        intent.p4.insert(name.into(), own.clone());
        // Contradictions are found before the data plane is asked.
        desired(&intent, &self.options)?;
        self.p4.begin_trial((token, name.into()), own, version);
        self.advance_p4();
        Ok(None)
    }

    /// Ports by the numbers that a program knows.
    fn places(&self, name: &str, ports: &[P4Place]) -> Result<BTreeMap<u16, String>, Refusal> {
        let exists = |place: &&P4Place| self.state.ports.contains_key(&place.port);
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

    /// Ends a P4 switch. Its ports are their switch's again.
    ///
    /// # Errors
    /// There is none of this name, one is being loaded, or the change cannot be saved.
    pub fn p4_unload(&mut self, name: &str) -> Result<Reply, Refusal> {
        if self.p4.is_trying() {
            return Err(Refusal::P4Busy);
        }
        let mut intent = self.intent.clone();
        let gone = intent.p4.remove(name).ok_or_else(|| Refusal::NoP4(name.into()))?;
        self.adopt(intent)?;
        self.bind_ports();
        self.p4.want(P4Id(gone.number), None);
        self.store.remove_program(gone.number);
        self.advance_p4();
        Ok(Reply::Done)
    }

    /// Reads the programs of the intent, which an earlier process has saved.
    pub fn read_programs(&mut self) {
        for (name, own) in &self.intent.p4 {
            match self.store.load_program(own.number) {
                Ok(bytes) => self.p4.want(P4Id(own.number), Some(Version::new(bytes))),
                Err(error) => log::error!("P4 switch {name}: its program cannot be read: {error}"),
            }
        }
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
            Some(Err((token, error))) => self.answer_user(token, Err(Refusal::DataPlane(error))),
            None => {}
        }
        self.advance_p4();
    }

    /// A program is in force: it becomes intent, and its ports are bound. Or, if that cannot be saved, the
    /// former one returns.
    fn p4_loaded(&mut self, trial: Trial) {
        let Trial {
            token,
            name,
            intent: own,
            former,
        } = trial;
        let number = own.number;
        let mut intent = self.intent.clone();
        intent.p4.insert(name, own);
        let saved = self.save_program(number).and_then(|()| self.adopt(intent));
        let served = match saved {
            Ok(_) => {
                self.bind_ports();
                self.ask_user(token, Request::Barrier, vec![], Question::Barrier(Reply::Done))
            }
            Err(refusal) => {
                self.p4.want(P4Id(number), former);
                // The refusal is told already.
                let _ = self.save_program(number);
                Err(refusal)
            }
        };
        self.answer_user(token, served);
    }

    /// Has the store hold the program that is wanted of a P4 switch.
    fn save_program(&self, number: u32) -> Result<(), Refusal> {
        let Some(version) = self.p4.wanted(P4Id(number)) else {
            self.store.remove_program(number);
            return Ok(());
        };
        let saved = self.store.save_program(number, version.bytes());
        let path = self.store.path().to_owned();
        saved.map_err(|error| Refusal::Unsaved { path, error })
    }

    /// The data plane, and what it had, are gone.
    pub fn lose_p4(&mut self) {
        self.p4.lose();
        if let Some(token) = self.p4.give_up() {
            self.answer_user(token, Err(Refusal::DataPlaneEnded));
        }
    }

    /// Where a port should be bound.
    pub fn p4_binding(&self, port: &str) -> Option<P4Binding> {
        self.intent.p4.values().find_map(|own| {
            let place = own.ports.iter().find(|(_, name)| *name == port);
            place.map(|(number, _)| P4Binding {
                switch: P4Id(own.number),
                port: *number,
            })
        })
    }

    /// Binds ports of the data plane as they should be. Those that move are freed first.
    pub fn bind_ports(&mut self) {
        let differs = |(name, run): (&String, &crate::port::PortRun)| {
            let wanted = self.p4_binding(name);
            (run.added && run.p4 != wanted).then_some((name.clone(), run.id?, run.p4, wanted))
        };
        let changes: Vec<(String, PortId, Option<P4Binding>, Option<P4Binding>)> =
            self.ports.iter().filter_map(differs).collect();
        let frees = changes.iter().filter(|(_, _, present, _)| present.is_some());
        let binds = changes.iter().filter(|(_, _, _, wanted)| wanted.is_some());
        let requests = frees.map(|(name, port, ..)| (name, *port, None));
        let requests = requests.chain(binds.map(|(name, port, _, wanted)| (name, *port, *wanted)));
        for (name, port, binding) in requests {
            let request = Request::PortP4 { port, binding };
            self.data_plane.ask_port(request, Vec::new(), name);
        }
        let mut switches = BTreeSet::new();
        for (name, _, _, wanted) in changes {
            let Some(run) = self.ports.get_mut(&name) else {
                continue;
            };
            run.p4 = wanted;
            switches.insert(run.wanted.switch.clone());
            self.update_rules(&name);
        }
        for switch in switches {
            self.refresh_switch(&switch);
        }
    }
}

/// The lowest number that no P4 switch has.
fn free_number(intent: &Intent) -> Result<u32, Refusal> {
    let taken = |number: &u32| intent.p4.values().any(|own| own.number == *number);
    let most = u32::try_from(MAX_P4_SWITCHES).unwrap_or(u32::MAX);
    (1..=most)
        .find(|number| !taken(number))
        .ok_or(Refusal::TooManyP4(most))
}
