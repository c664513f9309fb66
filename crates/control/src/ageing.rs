//! Ageing: stations that are forgotten and flows that are removed because no packet uses them.
//!
//! Stations without flows age by our clock alone. Only the data plane knows when flows were used last, and is asked for that
//! only while there are flows; so a switch that has learned nothing wakes no process.

use crate::answers::Pending;
use crate::process::{Control, SwitchRun};
use control_protocol::data_plane::{Detail, Request};
use flow::{FlowId, FlowStats, SwitchId};

/// Longest time between requests for the flows' last use, in milliseconds.
const POLL_MAX_MS: u64 = 10_000;

/// Shortest time between them.
const POLL_MIN_MS: u64 = 1_000;

impl Control {
    /// When stations or flows have to be examined next; `None` if there are none.
    pub fn ageing_deadline_ms(&self) -> Option<u64> {
        let stations = self
            .idle_switches()
            .filter_map(|(_, run)| run.l2.next_ageing_ms())
            .min();
        let flows = self
            .data_plane
            .as_ref()
            .filter(|data_plane| data_plane.polls == 0)
            .and_then(|data_plane| {
                let ageing = |name: &String| {
                    self.state
                        .switches
                        .get(name)
                        .map(|switch| switch.rules().ageing_ms)
                };
                let busy = self.switches.iter().filter(|(_, run)| run.l2.flow_count() > 0);
                let shortest = busy.filter_map(|(name, _)| ageing(name)).min()?;
                Some(data_plane.polled_ms + (shortest / 4).clamp(POLL_MIN_MS, POLL_MAX_MS))
            });
        [stations, flows].into_iter().flatten().min()
    }

    /// Switches whose stations can age without asking: no flow says that they are alive.
    fn idle_switches(&self) -> impl Iterator<Item = (&String, &SwitchRun)> {
        let alone = self.data_plane.is_none();
        self.switches
            .iter()
            .filter(move |(_, run)| alone || run.l2.flow_count() == 0)
    }

    /// Forgets stations of idle switches, and asks for the use of flows, if either is due.
    pub fn age(&mut self, now_ms: u64) {
        if self
            .ageing_deadline_ms()
            .is_none_or(|deadline_ms| deadline_ms > now_ms)
        {
            return;
        }
        let idle: Vec<String> = self
            .idle_switches()
            .filter(|(_, run)| run.l2.next_ageing_ms().is_some_and(|due| due <= now_ms))
            .map(|(name, _)| name.clone())
            .collect();
        for name in idle {
            if let Some(run) = self.switches.get_mut(&name) {
                let changes = run.l2.age(now_ms);
                self.put_flows(&name, changes);
            }
        }
        let busy: Vec<SwitchId> = self
            .switches
            .values()
            .filter(|run| run.l2.flow_count() > 0)
            .filter_map(|run| run.id)
            .collect();
        match &mut self.data_plane {
            Some(data_plane) if data_plane.polls == 0 && now_ms >= data_plane.polled_ms + POLL_MIN_MS => {
                data_plane.polled_ms = now_ms;
                data_plane.polls = busy.len();
            }
            _ => return,
        }
        for switch in busy {
            self.ask(
                Request::FlowList {
                    switch,
                    after: None,
                    detail: Detail::Terse,
                },
                Vec::new(),
                Pending::PollFlows(switch, Vec::new()),
            );
        }
    }

    pub fn polled(&mut self, switch: SwitchId, flows: Vec<(FlowId, FlowStats)>) {
        let now_ms = self.now_ms();
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.polls = data_plane.polls.saturating_sub(1);
        }
        if let Some(run) = self.switch_by_id(switch) {
            run.l2
                .observe(flows.iter().map(|(id, stats)| (*id, stats)), now_ms);
            let changes = run.l2.age(now_ms);
            self.put_flows_of(switch, changes);
        }
    }
}
