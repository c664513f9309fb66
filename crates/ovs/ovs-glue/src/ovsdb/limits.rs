//! Limits of ports in the database: policing of interfaces, quality of service of ports.
//!
//! Units and defaults are those of `ovs-vswitchd.conf.db(5)`. A value that is none, or beyond what a meter
//! can be set to, is left out and logged; the rest holds.

use crate::plane::{Limits, MAX_QUEUES, QUEUE_LIMIT};
use flow::{MeterBand, RateClass, RateLimit};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Burst of policing where none is said, in kilobits.
const POLICING_BURST: u32 = 8000;
/// Burst of policing in packets, where none is configured.
const POLICING_BURST_PACKETS: u32 = 16_000;
/// Least burst, in kilobits: the longest frame. One that is still to be segmented meets a meter whole, and
/// where bursts were shorter, none would ever pass.
const LEAST_BURST: u32 = 525;
/// Of a second's traffic, so many parts may pass a limit of quality of service at once where no burst is
/// said.
const BURSTS_PER_SECOND: u32 = 10;

const POLICING: [&str; 4] = [
    "ingress_policing_rate",
    "ingress_policing_burst",
    "ingress_policing_kpkts_rate",
    "ingress_policing_kpkts_burst",
];

/// Rows of a table by their identifiers.
type Rows = BTreeMap<String, Value>;

/// The rows that say something about limits, as they were told.
#[derive(Debug, Default)]
pub(super) struct Tables {
    interfaces: Rows,
    ports: Rows,
    qos: Rows,
    queues: Rows,
}

/// The columns to be watched (RFC 7047 4.1.5).
pub(super) fn columns() -> Value {
    let interface = [&["name"], &POLICING[..]].concat();
    json!({
        "Interface": {"columns": interface},
        "Port": {"columns": ["interfaces", "qos"]},
        "QoS": {"columns": ["type", "queues", "other_config"]},
        "Queue": {"columns": ["other_config"]},
    })
}

impl Tables {
    /// Takes in a `<table-updates>` (RFC 7047 4.1.6).
    pub fn take(&mut self, updates: &Value) {
        let tables = [
            ("Interface", &mut self.interfaces),
            ("Port", &mut self.ports),
            ("QoS", &mut self.qos),
            ("Queue", &mut self.queues),
        ];
        for (name, rows) in tables {
            for (id, row) in updates[name].as_object().into_iter().flatten() {
                if row["new"].is_object() {
                    super::keep(rows, id, row["new"].clone());
                } else {
                    rows.remove(id);
                }
            }
        }
    }

    /// By names of interfaces; of those alone that have any.
    pub fn limits(&self) -> BTreeMap<String, Limits> {
        let mut qos = BTreeMap::new();
        for port in self.ports.values() {
            let row = reference(&port["qos"]).and_then(|id| self.qos.get(id));
            let interfaces = references(&port["interfaces"]);
            qos.extend(interfaces.zip(std::iter::repeat(row)));
        }
        let limits = self.interfaces.iter().filter_map(|(id, interface)| {
            let name = interface["name"].as_str()?;
            let mut limits = Limits::default();
            police(name, interface, &mut limits);
            if let Some(qos) = qos.get(id.as_str()).copied().flatten() {
                self.shape(name, qos, &mut limits);
            }
            (limits != Limits::default()).then(|| (name.to_owned(), limits))
        });
        limits.collect()
    }

    fn shape(&self, name: &str, qos: &Value, limits: &mut Limits) {
        let config = Config {
            name,
            pairs: &qos["other_config"],
        };
        match qos["type"].as_str() {
            Some(kind @ ("linux-htb" | "linux-hfsc")) => {
                limits.bandwidth = config.bandwidth(0);
                let queues = self.queues(name, &qos["queues"]);
                if limits.bandwidth.is_some() {
                    limits.classes = classes(&queues, kind == "linux-htb");
                    limits.queues = queues.into_keys().map(|queue| (queue, None)).collect();
                } else {
                    let limit = |config: Option<Config>| config.and_then(|config| config.limit());
                    let queues = queues.into_iter();
                    limits.queues = queues.map(|(queue, config)| (queue, limit(config))).collect();
                }
            }
            Some("egress-policer") => limits.egress = config.policer(),
            // They share what there is, and limit nothing.
            _ => {}
        }
    }

    /// The queues by number, with what is known of them.
    fn queues<'a>(&'a self, name: &'a str, queues: &'a Value) -> BTreeMap<u16, Option<Config<'a>>> {
        let mut found = BTreeMap::new();
        for pair in queues[1].as_array().into_iter().flatten() {
            let number = pair[0].as_u64().and_then(|number| u16::try_from(number).ok());
            let Some(number) = number.filter(|number| *number < QUEUE_LIMIT) else {
                ignored(name, "number of a queue", &pair[0]);
                continue;
            };
            if found.len() == MAX_QUEUES {
                telemetry::limited!(
                    log::Level::Warn,
                    "'{name}': it has more than {MAX_QUEUES} queues; others are like queue 0"
                );
                break;
            }
            let row = reference(&pair[1]).and_then(|id| self.queues.get(id));
            let config = row.map(|row| {
                let pairs = &row["other_config"];
                Config { name, pairs }
            });
            found.insert(number, config);
        }
        found
    }
}

/// What queues get of the bandwidth of their port. Those of `linux-hfsc` have no priorities.
fn classes(queues: &BTreeMap<u16, Option<Config>>, have_priorities: bool) -> BTreeMap<u16, RateClass> {
    // The least value goes first.
    let priority = |config: &Option<Config>| {
        let config = config.as_ref().filter(|_| have_priorities)?;
        config.number("priority", |priority| priority)
    };
    let priorities: BTreeMap<_, _> = queues
        .iter()
        .map(|(queue, config)| (*queue, priority(config).unwrap_or(0)))
        .collect();
    let distinct: BTreeSet<u64> = priorities.values().copied().collect();
    let highest = distinct.len().saturating_sub(1).min(RateClass::HIGHEST.into());
    let class = |queue: &u16, config: &Option<Config>| {
        let own = priorities.get(queue)?;
        let ahead = distinct.iter().filter(|other| **other < *own).count();
        let least = config
            .as_ref()
            .and_then(|config| config.number("min-rate", |bits| bits));
        let least_rate = least.unwrap_or(0).min(*RateLimit::RATES.end());
        Some(RateClass {
            number: 0,
            priority: u8::try_from(highest.saturating_sub(ahead)).unwrap_or(0),
            least_rate,
            most: config.as_ref().and_then(|config| config.bandwidth(least_rate)),
        })
    };
    let classes = queues.iter();
    classes
        .filter_map(|(queue, config)| Some((*queue, class(queue, config)?)))
        .collect()
}

fn police(name: &str, interface: &Value, limits: &mut Limits) {
    let column = |column: &str, unit: u64| {
        let value = &interface[column];
        let number = value.as_u64().map(|number| number.saturating_mul(unit));
        fit(name, column, value, number).filter(|number| *number > 0)
    };
    let burst = column("ingress_policing_burst", 1).unwrap_or(POLICING_BURST);
    limits.ingress = band(column("ingress_policing_rate", 1), burst.max(LEAST_BURST));
    let burst = column("ingress_policing_kpkts_burst", 1000).unwrap_or(POLICING_BURST_PACKETS);
    limits.ingress_packets = band(column("ingress_policing_kpkts_rate", 1000), burst);
}

/// No limit where there is no rate.
fn band(rate: Option<u32>, burst: u32) -> Option<MeterBand> {
    let rate = rate.filter(|rate| *rate > 0)?;
    Some(MeterBand { rate, burst })
}

/// The column `other_config` of a row.
struct Config<'a> {
    name: &'a str,
    pairs: &'a Value,
}

impl Config<'_> {
    /// Limit of a queue of `linux-htb` and `linux-hfsc`, in bits and bits per second.
    fn limit(&self) -> Option<MeterBand> {
        let kilobits = |bits: u64| bits.div_ceil(1000);
        let rate = self.metered("max-rate", kilobits).filter(|rate| *rate > 0)?;
        let least = self.metered("min-rate", kilobits).unwrap_or(0);
        self.band(rate.max(least), self.metered("burst", kilobits))
    }

    /// Bandwidth of a port or queue by `linux-htb` and `linux-hfsc`, in bits and bits per second, and not
    /// less than `least`. The nearest that the data plane can keep, if it is slower or faster than that.
    fn bandwidth(&self, least: u64) -> Option<RateLimit> {
        let rate = self.number("max-rate", |bits| bits)?;
        let rate = if rate > 0 { rate.max(least) } else { 0 };
        let bits_per_second = rate.clamp(*RateLimit::RATES.start(), *RateLimit::RATES.end());
        let burst = self.number("burst", |bits| bits.div_ceil(8).min(u32::MAX.into()));
        let burst = burst.and_then(|bytes| u32::try_from(bytes).ok());
        let burst = burst.unwrap_or_else(|| RateLimit::usual_burst(bits_per_second));
        (rate > 0).then_some(RateLimit {
            bits_per_second,
            burst: burst.max(RateLimit::LEAST_BURST),
        })
    }

    /// Limit of `egress-policer`, in bytes and bytes per second.
    fn policer(&self) -> Option<MeterBand> {
        let kilobits = |bytes: u64| bytes.saturating_mul(8).div_ceil(1000);
        self.band(self.metered("cir", kilobits)?, self.metered("cbs", kilobits))
    }

    fn band(&self, rate: u32, burst: Option<u32>) -> Option<MeterBand> {
        let burst = burst.unwrap_or(rate / BURSTS_PER_SECOND);
        band(Some(rate), burst.max(LEAST_BURST))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let pairs = self.pairs[1].as_array()?;
        Some(&pairs.iter().find(|pair| pair[0] == key)?[1])
    }

    /// A number of a meter, in another unit.
    fn metered(&self, key: &str, unit: fn(u64) -> u64) -> Option<u32> {
        let value = self.value(key)?;
        fit(self.name, key, value, parsed(value).map(unit))
    }

    /// A number in another unit.
    fn number(&self, key: &str, unit: fn(u64) -> u64) -> Option<u64> {
        let value = self.value(key)?;
        let number = parsed(value);
        if number.is_none() {
            ignored(self.name, key, value);
        }
        number.map(unit)
    }
}

fn parsed(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

/// A number that a meter can have, unless the value is none or beyond that. Nothing is wrong where no value
/// is.
fn fit(name: &str, what: &str, value: &Value, number: Option<u64>) -> Option<u32> {
    let fits = number.and_then(|number| u32::try_from(number).ok());
    if fits.is_none() && !value.is_null() {
        ignored(name, what, value);
    }
    fits
}

fn ignored(name: &str, what: &str, value: &Value) {
    telemetry::limited!(log::Level::Warn, "'{name}': {what} is ignored: {value:.40}");
}

/// The row that a column refers to (RFC 7047 5.1): `["uuid", ...]`, or a set of at most one.
fn reference(value: &Value) -> Option<&str> {
    references(value).next()
}

/// The rows that a column refers to: one, or a set `["set", [...]]`.
fn references(value: &Value) -> impl Iterator<Item = &str> {
    let set = value[1].as_array().filter(|_| value[0] == "set");
    let atoms = set.map_or(std::slice::from_ref(value), Vec::as_slice);
    atoms
        .iter()
        .filter(|atom| atom[0] == "uuid")
        .filter_map(|atom| atom[1].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uuid(id: &str) -> Value {
        json!(["uuid", id])
    }

    fn map(pairs: &[(&str, &str)]) -> Value {
        json!(["map", pairs])
    }

    fn interface(name: &str, [rate, burst, packets, packets_burst]: [Value; 4]) -> Value {
        json!({"new": {
            "name": name,
            "ingress_policing_rate": rate,
            "ingress_policing_burst": burst,
            "ingress_policing_kpkts_rate": packets,
            "ingress_policing_kpkts_burst": packets_burst,
        }})
    }

    fn numbers(numbers: [i64; 4]) -> [Value; 4] {
        numbers.map(Value::from)
    }

    fn made(rate: u32, burst: u32) -> Option<MeterBand> {
        Some(MeterBand { rate, burst })
    }

    fn bandwidth(bits_per_second: u64, burst: u32) -> Option<RateLimit> {
        Some(RateLimit {
            bits_per_second,
            burst,
        })
    }

    fn policed(values: [Value; 4]) -> [Option<MeterBand>; 2] {
        let mut tables = Tables::default();
        tables.take(&json!({"Interface": {"i": interface("vm1", values)}}));
        let limits = tables.limits().remove("vm1").unwrap_or_default();
        [limits.ingress, limits.ingress_packets]
    }

    #[test]
    fn policing_has_the_units_and_defaults_of_open_vswitch() {
        assert_eq!(policed(numbers([0, 1000, 0, 5])), [None; 2]);
        assert_eq!(
            policed(numbers([1000, 0, 2, 0])),
            [made(1000, 8000), made(2000, 16_000)]
        );
        assert_eq!(policed(numbers([1, 900, 1, 3])), [made(1, 900), made(1000, 3000)]);
        // The longest frame passes after a pause.
        assert_eq!(policed(numbers([1, 10, 0, 0])), [made(1, 525), None]);
        let most = i64::from(u32::MAX);
        assert_eq!(
            policed(numbers([most, most, 0, 0])),
            [made(u32::MAX, u32::MAX), None]
        );
    }

    #[test]
    fn what_is_no_number_or_too_large_is_left_out() {
        for bad in [
            json!(-1),
            json!("9"),
            json!(1.5),
            json!(u64::MAX),
            json!(["set", []]),
            Value::Null,
        ] {
            let zero = || json!(0);
            assert_eq!(
                policed([bad.clone(), zero(), bad.clone(), zero()]),
                [None; 2],
                "{bad}"
            );
            assert_eq!(
                policed([json!(7), bad.clone(), json!(7), bad]),
                [made(7, 8000), made(7000, 16_000)]
            );
        }
        assert_eq!(policed(numbers([1 << 32, 0, 4_294_968, 0])), [None; 2]);
    }

    /// An interface `vm1` of a port with that quality of service, and queues by number with their maps.
    fn shaped(kind: &str, config: Value, queues: &[(i64, Value)]) -> Limits {
        let mut tables = Tables::default();
        let rows = queues.iter().map(|(number, config)| {
            let row = json!({"new": {"other_config": config}});
            (number.to_string(), row)
        });
        let references: Vec<_> = queues
            .iter()
            .map(|(number, _)| json!([number, uuid(&number.to_string())]))
            .collect();
        tables.take(&json!({
            "Interface": {"i": interface("vm1", numbers([0; 4])), "j": interface("vm2", numbers([0; 4]))},
            "Port": {"p": {"new": {"interfaces": uuid("i"), "qos": uuid("q")}},
                "o": {"new": {"interfaces": uuid("j"), "qos": ["set", []]}}},
            "QoS": {"q": {"new": {"type": kind, "queues": ["map", references], "other_config": config}}},
            "Queue": rows.collect::<serde_json::Map<_, _>>(),
        }));
        let mut limits = tables.limits();
        assert_eq!(limits.remove("vm2"), None);
        limits.remove("vm1").unwrap_or_default()
    }

    #[test]
    fn quality_of_service_is_that_of_its_type() {
        let queues = [
            (0, map(&[])),
            (
                3,
                map(&[("max-rate", "2000000"), ("min-rate", "5000000"), ("burst", "1")]),
            ),
            (0xefff, map(&[("max-rate", "40000001")])),
            (0xf000, map(&[("max-rate", "1")])),
            (-1, map(&[])),
        ];
        for kind in ["linux-htb", "linux-hfsc"] {
            let limits = shaped(kind, map(&[("max-rate", "10000000")]), &queues);
            let class = |least_rate, most| RateClass {
                least_rate,
                most,
                ..RateClass::default()
            };
            let classes = [
                (0, class(0, None)),
                (3, class(5_000_000, bandwidth(5_000_000, 1600))),
                (0xefff, class(0, bandwidth(40_000_001, 50_000))),
            ];
            let wanted = Limits {
                bandwidth: bandwidth(10_000_000, 12_500),
                classes: classes.into(),
                queues: [(0, None), (3, None), (0xefff, None)].into(),
                ..Limits::default()
            };
            assert_eq!(limits, wanted);
            // Without a bandwidth, there is nothing to be shared.
            let wanted = Limits {
                queues: [(0, None), (3, made(5000, 525)), (0xefff, made(40_001, 4000))].into(),
                ..Limits::default()
            };
            assert_eq!(shaped(kind, map(&[]), &queues), wanted);
        }
    }

    #[test]
    fn policers_police_and_odd_values_are_left_out() {
        let queues = [(0, map(&[]))];
        let config = map(&[("cir", "1250000"), ("cbs", "250000"), ("max-rate", "7")]);
        let limits = shaped("egress-policer", config.clone(), &queues);
        let egress = made(10_000, 2000);
        assert_eq!(
            limits,
            Limits {
                egress,
                ..Limits::default()
            }
        );
        assert_eq!(shaped("linux-fq_codel", config, &queues), Limits::default());
        for bad in ["-1", "", "x", "99999999999999999999", "5000000000000", "0"] {
            let queues = [(1, map(&[("max-rate", bad)]))];
            let limits = shaped("linux-htb", map(&[]), &queues);
            assert_eq!(
                (limits.egress, limits.bandwidth, limits.queues),
                (None, None, [(1, None)].into()),
                "{bad}"
            );
        }
    }

    #[test]
    fn bandwidths_are_what_the_data_plane_can_keep() {
        for bad in ["-1", "", "x", "99999999999999999999", "0"] {
            assert_eq!(
                shaped("linux-htb", map(&[("max-rate", bad)]), &[]),
                Limits::default()
            );
        }
        for (rate, burst, wanted) in [
            ("1", "x", bandwidth(100_000, 1600)),
            ("8000000", "1", bandwidth(8_000_000, 1600)),
            ("8000000", "100000", bandwidth(8_000_000, 12_500)),
            (
                "5000000000000",
                "99999999999999",
                bandwidth(100_000_000_000, u32::MAX),
            ),
        ] {
            let limits = shaped("linux-hfsc", map(&[("max-rate", rate), ("burst", burst)]), &[]);
            assert_eq!(
                limits,
                Limits {
                    bandwidth: wanted,
                    ..Limits::default()
                }
            );
        }
    }

    #[test]
    fn priorities_of_queues_are_ranks() {
        let ranks = |kind: &str, priorities: &[&str]| -> Vec<u8> {
            let queues: Vec<_> = (0..)
                .zip(priorities)
                .map(|(queue, priority)| (queue, map(&[("priority", priority)])))
                .collect();
            let limits = shaped(kind, map(&[("max-rate", "1000000")]), &queues);
            limits.classes.values().map(|class| class.priority).collect()
        };
        assert_eq!(ranks("linux-htb", &["5", "5"]), [0, 0]);
        assert_eq!(
            ranks("linux-htb", &["5", "0", "x", "7", "18446744073709551615"]),
            [2, 3, 3, 1, 0]
        );
        assert_eq!(ranks("linux-hfsc", &["5", "0"]), [0, 0]);
        let many = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
        assert_eq!(ranks("linux-htb", &many), [7, 6, 5, 4, 3, 2, 1, 0, 0, 0]);
    }

    #[test]
    fn queues_are_bounded() {
        let queues: Vec<_> = (0..100).map(|number| (number, map(&[]))).collect();
        assert_eq!(shaped("linux-htb", map(&[]), &queues).queues.len(), MAX_QUEUES);
    }

    #[test]
    fn bonds_have_the_limits_of_their_port_and_all_ends_with_their_rows() {
        let mut tables = Tables::default();
        let zero = || numbers([0; 4]);
        tables.take(&json!({
            "Interface": {"i": interface("vm1", zero()), "j": interface("vm2", zero())},
            "Port": {"p": {"new": {"interfaces": ["set", [uuid("i"), uuid("j")]], "qos": uuid("q")}}},
            "QoS": {"q": {"new": {"type": "linux-htb", "other_config": map(&[("max-rate", "8000000")])}}},
        }));
        assert_eq!(tables.limits().into_keys().collect::<Vec<_>>(), ["vm1", "vm2"]);
        tables.take(&json!({"Interface": {"j": {"old": {}}}}));
        assert_eq!(tables.limits().into_keys().collect::<Vec<_>>(), ["vm1"]);
        tables.take(&json!({"QoS": {"q": {"old": {}}}}));
        assert!(tables.limits().is_empty());
    }

    /// Values of any shape, of words that mean something.
    fn value() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "set",
            "map",
            "uuid",
            "i",
            "q",
            "linux-htb",
            "max-rate",
            "1000000",
            "name",
            "new",
            "-1",
        ]);
        let leaf = prop_oneof![
            word.prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            Just(Value::Null),
            any::<f64>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let columns = [
                &["name", "interfaces", "qos", "type", "queues", "other_config"],
                &POLICING[..],
            ]
            .concat();
            let row = prop::collection::btree_map(prop::sample::select(columns), inner.clone(), 0..6);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::from),
                row.prop_map(|row| json!(row)),
            ]
        })
    }

    proptest! {
        #[test]
        fn rows_of_any_shape_are_survived(
            rows in prop::collection::vec((prop::sample::select(vec!["Interface", "Port", "QoS", "Queue"]), value()), 1..8),
        ) {
            let mut tables = Tables::default();
            for (table, row) in rows {
                for id in ["i", "q"] {
                    tables.take(&json!({table: {id: {"new": &row}}}));
                    tables.take(&json!({table: &row}));
                }
                tables.limits();
            }
        }
    }
}
