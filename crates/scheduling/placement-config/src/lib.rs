//! The `[placement]` table of the configuration: every mechanism has a switch or a number of its own, so that
//! each can be measured on and off. Defaults are the product's. Crate `placement` makes the decisions.

#![forbid(unsafe_code)]

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

/// The architecture of virtual switches that the data plane follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No core is dedicated: work is done on the guests' own cores and on idle ones.
    #[default]
    Hyperswitch,
    /// Dedicated cores poll all rings and never sleep, as DPDK switches do.
    Poll,
    /// Each vNIC has a thread that switches what it sends and copies what it receives, as vhost-net does.
    ThreadPerVnic,
    /// Each vNIC belongs to one of a fixed set of workers, which copies twice, as Xen's netback does.
    DriverDomain,
}

/// How forwarding threads are scheduled beside other tasks of their cores. The classes are described in crate
/// `priority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "ThreadPriority")]
pub enum Priority {
    /// The first of the following that the kernel grants.
    #[default]
    Auto,
    /// Real-time, for a bounded share of a core's time.
    Realtime,
    /// Nice -20, for a bounded share of a core's time.
    Nice,
    /// The normal class, with a short time slice.
    Slice,
    /// The normal class.
    Normal,
}

impl Priority {
    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Auto => "auto",
            Priority::Realtime => "realtime",
            Priority::Nice => "nice",
            Priority::Slice => "slice",
            Priority::Normal => "normal",
        }
    }
}

/// How work is placed. The mechanisms from `vm-state` on are those of [`Mode::Hyperswitch`]; other modes
/// ignore them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[schemars(rename = "PlacementConfig")]
pub struct Config {
    /// The architecture.
    pub mode: Mode,
    /// The CPUs of `poll` and `driver-domain`; empty: the last CPU of each NUMA node.
    pub dedicated_cores: Vec<u16>,
    /// How forwarding threads are scheduled beside other tasks.
    pub priority: Priority,
    /// Use the known state of cores and vCPUs; without it only hints in the rings are used.
    pub vm_state: bool,
    /// Notify a running receiver less often than a blocked one (section 3.3).
    pub state_aware_batching: bool,
    /// Time in microseconds, 0 to 10000, between two notifications of a running receiver: the longest by
    /// which state-aware batching delays one.
    #[serde(deserialize_with = "within::<0, 10_000, _>")]
    pub notify_interval_us: u32,
    /// Time in microseconds, 0 to 10000, for which a running sender that receives as well is not notified of
    /// frames that it sent, if it has a worker to itself: Linux frees them when it receives. 0: it is
    /// notified at once.
    #[serde(deserialize_with = "within::<0, 10_000, _>")]
    pub completion_interval_us: u32,
    /// Time in microseconds, 0 to 10000, for which a sender whose vCPU runs need not kick: the longest by
    /// which state-aware batching delays its packets.
    #[serde(deserialize_with = "within::<0, 10_000, _>")]
    pub kick_interval_us: u32,
    /// Copy packets before their receiver is notified (section 3.2). Without it, the worker on the receiver's
    /// core is woken to copy.
    pub preemptive_copy: bool,
    /// Packets that are copied at once for a blocked receiver before the others are offloaded, 1 to 1024
    /// (section 3.4).
    #[serde(deserialize_with = "within::<1, 1024, _>")]
    pub copy_limit: u32,
    /// Let idle cores copy and switch (section 3.4).
    pub offload: bool,
    /// When there are no better helpers, take idle cores whose cache siblings are busy, or to which a vCPU is
    /// expected back (section 5.2.3 advises against it).
    pub busy_modules: bool,
    /// When there are no better helpers, take cores of other nodes than the receiver's (section 5.2.3 does).
    pub other_nodes: bool,
    /// Let helpers that are awake look at all transmit rings, not only at those that they were asked to serve
    /// (section 3.4).
    pub poll_transmit: bool,
    /// Time in microseconds, 0 to 10000, for which a worker stays awake after its last packet (section 3.4,
    /// "Hysteresis").
    #[serde(deserialize_with = "within::<0, 10_000, _>")]
    pub hysteresis_us: u32,
    /// Time in microseconds, 0 to 10000, for which the idle loop of a core polls instead of halting after its
    /// worker's last packet, while guests there receive answers and go on within that time most of the time.
    /// 0: never.
    #[serde(deserialize_with = "within::<0, 10_000, _>")]
    pub idle_poll_us: u32,
    /// Let helpers stop as soon as another task wants their core (section 3.4).
    pub give_way: bool,
    /// Serve the rings of a vCPU as soon as it blocks, on its core and before other rings (section 3.5), and
    /// do not take the core from the vCPU before, unless it keeps the core for long.
    pub serve_on_block: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Hyperswitch,
            dedicated_cores: Vec::new(),
            priority: Priority::Auto,
            vm_state: true,
            state_aware_batching: true,
            notify_interval_us: 50,
            completion_interval_us: 500,
            kick_interval_us: 100,
            preemptive_copy: true,
            copy_limit: 8,
            offload: true,
            busy_modules: true,
            other_nodes: false,
            poll_transmit: true,
            hysteresis_us: 50,
            idle_poll_us: 500,
            give_way: true,
            serve_on_block: true,
        }
    }
}

impl Config {
    /// Whether idle loops may have to poll, where the states of cores and vCPUs are known.
    pub fn may_idle_poll(&self) -> bool {
        self.mode == Mode::Hyperswitch && self.vm_state && self.idle_poll_us > 0
    }
}

fn within<'de, const MIN: u32, const MAX: u32, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    let number = u32::deserialize(input)?;
    if (MIN..=MAX).contains(&number) {
        Ok(number)
    } else {
        Err(de::Error::custom(format_args!(
            "{number} is not a number from {MIN} to {MAX}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_is_the_default() {
        assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
    }

    #[test]
    fn every_key_is_kebab_case_and_survives() {
        let changed = "mode = \"thread-per-vnic\"\ndedicated-cores = [3, 7]\npriority = \"nice\"\nvm-state = false\n\
            state-aware-batching = false\nnotify-interval-us = 7\ncompletion-interval-us = 6\nkick-interval-us = 8\npreemptive-copy = false\ncopy-limit = 3\n\
            offload = false\nbusy-modules = false\nother-nodes = true\npoll-transmit = false\nhysteresis-us = 9\nidle-poll-us = 10\ngive-way = false\n\
            serve-on-block = false\n";
        let config: Config = toml::from_str(changed).unwrap();
        assert_eq!(config.mode, Mode::ThreadPerVnic);
        assert_eq!(toml::to_string(&config).unwrap(), changed);
    }

    #[test]
    fn what_is_out_of_range_or_unknown_is_refused() {
        for wrong in [
            "hysteresis-us = 10001",
            "idle-poll-us = 10001",
            "notify-interval-us = -1",
            "completion-interval-us = 10001",
            "copy-limit = 0",
            "copy_limit = 8",
            "mode = \"fast\"",
        ] {
            let error = toml::from_str::<Config>(wrong).unwrap_err();
            assert!(error.span().is_some(), "{wrong}: {error}");
        }
        let error = toml::from_str::<Config>("copy-limit = 2000").unwrap_err();
        assert!(
            error.message().contains("2000 is not a number from 1 to 1024"),
            "{error}"
        );
    }
}
