//! The machine's topology as the kernel shows it in `/sys/devices/system` (Documentation/ABI,
//! sysfs-devices-system-cpu).
//!
//! Virtual machines and odd processors leave files out, so each piece has a fallback: without SMT siblings a
//! CPU is a core of its own; without caches, the CPUs of a node count as sharing the last level; without
//! nodes there is one. An answer that is too coarse costs only some throughput. CPUs that are offline are
//! left out.

use crate::topology::{Cpu, Location, Topology};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the kernel shows CPUs and nodes.
const ROOT: &str = "/sys/devices/system";

/// More CPUs than any kernel is built for; longer lists are taken for garbage.
const MOST_CPUS: u16 = 8192;

impl Topology {
    /// Topology of this machine. On one without sysfs, the CPUs that the standard library counts, all alike.
    pub fn of_machine() -> Self {
        Topology::read(Path::new(ROOT)).unwrap_or_else(|| {
            let count = std::thread::available_parallelism().map_or(1, |count| count.get());
            let alike = |cpu| {
                (
                    Cpu(cpu),
                    Location {
                        module: cpu,
                        llc: 0,
                        node: 0,
                    },
                )
            };
            let count = u16::try_from(count).unwrap_or(MOST_CPUS);
            Topology::new(&(0..count).map(alike).collect(), |_, _| 10)
        })
    }

    /// The machine under `root`, which has the form of `/sys/devices/system`; `None` if it shows no CPU.
    pub fn read(root: &Path) -> Option<Self> {
        let tree = Tree(root.to_owned());
        let cpus: BTreeMap<Cpu, Location> = tree
            .online()
            .into_iter()
            .map(|cpu| (Cpu(cpu), tree.location(cpu)))
            .collect();
        let nodes: BTreeMap<u16, Vec<u32>> = cpus
            .values()
            .map(|location| (location.node, tree.distances(location.node)))
            .collect();
        let known: Vec<u16> = tree.list("node/online").unwrap_or_default();
        let distance = |a: u16, b: u16| {
            let column = known.iter().position(|node| *node == b).unwrap_or(usize::from(b));
            nodes
                .get(&a)
                .and_then(|row| row.get(column))
                .copied()
                .unwrap_or(20)
        };
        (!cpus.is_empty()).then(|| Topology::new(&cpus, distance))
    }
}

struct Tree(PathBuf);

impl Tree {
    fn text(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(file)).ok()
    }

    fn list(&self, file: &str) -> Option<Vec<u16>> {
        parse_list(&self.text(file)?)
    }

    /// Names of directory entries `<prefix><number>`, as numbers in ascending order.
    fn numbered(&self, directory: &str, prefix: &str) -> Vec<u16> {
        let entries = std::fs::read_dir(self.0.join(directory))
            .into_iter()
            .flatten()
            .flatten();
        let number =
            |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u16> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn online(&self) -> Vec<u16> {
        self.list("cpu/online")
            .unwrap_or_else(|| self.numbered("cpu", "cpu"))
    }

    /// Groups are named after their first CPU.
    fn location(&self, cpu: u16) -> Location {
        let node = self
            .numbered(&format!("cpu/cpu{cpu}"), "node")
            .first()
            .copied()
            .unwrap_or(0);
        let siblings = ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|file| self.list(&format!("cpu/cpu{cpu}/topology/{file}")));
        let core = siblings.and_then(|cpus| cpus.first().copied()).unwrap_or(cpu);
        let caches = self.caches(cpu);
        let last = caches.last_key_value();
        let second = caches
            .get(&2)
            .filter(|_| last.is_some_and(|(level, _)| *level > 2));
        Location {
            module: second.map_or(core, |second| core.min(*second)),
            // Cache groups and nodes have separate numbers, lest a node be taken for a cache.
            llc: last.map_or(MOST_CPUS + node, |(_, first)| *first),
            node,
        }
    }

    /// Per level of data cache, the first CPU that shares it.
    fn caches(&self, cpu: u16) -> BTreeMap<u8, u16> {
        let directory = format!("cpu/cpu{cpu}/cache");
        let cache = |index: u16| {
            let file = |name: &str| format!("{directory}/index{index}/{name}");
            let level = self.text(&file("level"))?.trim().parse().ok()?;
            let holds_data = self.text(&file("type"))?.trim() != "Instruction";
            let first = self.list(&file("shared_cpu_list"))?.first().copied()?;
            (holds_data && level > 1).then_some((level, first))
        };
        self.numbered(&directory, "index")
            .into_iter()
            .filter_map(cache)
            .collect()
    }

    fn distances(&self, node: u16) -> Vec<u32> {
        let row = self
            .text(&format!("node/node{node}/distance"))
            .unwrap_or_default();
        row.split_whitespace()
            .map_while(|distance| distance.parse().ok())
            .collect()
    }
}

/// Parses the kernel's list format, `0-3,8`; `None` if it is something else or too long.
fn parse_list(text: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST_CPUS {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("0-99999"), None);
        assert_eq!(parse_list("0-8192"), None);
        assert_eq!(parse_list("a"), None);
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(Topology::of_machine().usable().next().is_some());
    }
}
