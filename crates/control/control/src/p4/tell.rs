//! P4 switches as users see them.

use crate::control::Control;
use crate::intent::P4Intent;
use crate::p4_map::stated;
use crate::pending::Question;
use crate::serve::Served;
use crate::users::Token;
use control_protocol::data_plane::Request;
use control_protocol::p4::{P4Info, P4Request};
use flow::P4Id;
use management::{P4Clients, P4Place, P4Switch, Reply};
use std::collections::BTreeMap;

impl Control {
    /// Asks what P4 switches counted.
    pub fn p4_list(&mut self, token: Token) -> Served {
        if self.intent.p4.is_empty() || !self.data_plane.is_numbered() {
            return Ok(Some(self.p4_reply(&[])));
        }
        self.ask_user(token, Request::P4(P4Request::List), vec![], Question::P4)
    }

    /// All P4 switches, with what the data plane says of them.
    pub fn p4_reply(&self, infos: &[P4Info]) -> Reply {
        let switch = |(name, own): (&String, &P4Intent)| {
            let info = infos.iter().find(|info| info.switch == P4Id(own.number));
            self.p4_switch(name, own, info)
        };
        Reply::P4(self.intent.p4.iter().map(switch).collect())
    }

    fn p4_switch(&self, name: &str, own: &P4Intent, info: Option<&P4Info>) -> P4Switch {
        let counts = info.map(|info| info.counts.clone()).unwrap_or_default();
        let places = self.p4_ports_of(name, own).into_iter();
        let places = places.map(|(number, port)| P4Place { number, port });
        P4Switch {
            name: name.into(),
            ports: places.collect(),
            stage: own.stage.clone(),
            state: self.p4.state_of(P4Id(own.number)),
            operations: info.map_or(0, |info| info.operations),
            memory: info.map_or(0, |info| info.memory),
            packets: counts.packets,
            repeated: counts.repeated,
            outputs: counts.outputs,
            parser_errors: counts.parser_errors,
            digests: counts.digests,
            busy_ms: counts.busy_us / 1000,
            passed_on: counts.passed_on,
            clients: P4Clients {
                packets_in: counts.clients.packets_in,
                packets_in_lost: counts.clients.packets_in_lost,
                packets_out: counts.clients.packets_out,
                packets_out_lost: counts.clients.packets_out_lost,
                packets_out_dropped: counts.clients.packets_out_dropped,
                digests_lost: counts.clients.digests_lost,
            },
            drops: counts.drops.into_iter().collect(),
        }
    }

    /// Ports of a P4 switch, and ends of links, those included that the other end states.
    fn p4_ports_of(&self, name: &str, own: &P4Intent) -> BTreeMap<u16, String> {
        let stated = stated(&self.intent.p4);
        let back = stated.filter(|(_, end, _)| end.program.as_str() == name);
        let back = back.map(|(number, end, (other, _))| (end.number, format!("{other}:{number}")));
        back.chain(own.ports.clone()).collect()
    }

    /// What is wrong with P4 switches, for users.
    pub fn p4_warnings(&self) -> impl Iterator<Item = String> {
        self.intent.p4.iter().filter_map(|(name, own)| {
            let state = self.p4.state_of(P4Id(own.number));
            let is_wrong = state.starts_with("refused") || state.starts_with("lost");
            is_wrong.then(|| format!("P4 switch {name} is {state}; nothing passes at its ports"))
        })
    }
}
