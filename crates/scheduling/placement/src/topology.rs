//! How cores relate to each other, and the order in which to look for helpers.
//!
//! Three things decide how well a core serves a receiver on another one: whether the data lands in a cache
//! that the receiver shares, whether both are on one NUMA node, and whether the helper disturbs a core that
//! is busy. Cores that share execution units or their second-level cache form a *module*; the paper found
//! (section 5.2.3) that a helper should be in a module that is idle as a whole, first on the receiver's node,
//! then elsewhere. Hence modules are ordered: the others with the receiver's last-level cache, its own, those
//! on its node, those of other nodes by distance. Modules that are equally near form a tier; a hash decides
//! where in a tier a search begins, so that different receivers find different helpers. All orders are
//! computed beforehand; going through one allocates nothing.

use std::collections::BTreeMap;

/// Number of a logical CPU, as the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(pub u16);

/// The place of a CPU. The numbers have no meaning but that equal ones are the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// CPUs that share a core (SMT) or a second-level cache that is not the last level.
    pub module: u16,
    /// CPUs that share the last-level cache.
    pub llc: u16,
    /// NUMA node.
    pub node: u16,
}

/// What two CPUs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The last-level cache.
    SharedCache,
    /// The NUMA node.
    SameNode,
    /// Nothing.
    OtherNode,
}

/// A machine all of whose parts are alike, with CPUs numbered module by module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// NUMA nodes.
    pub nodes: u16,
    /// Last-level caches per node.
    pub llcs: u16,
    /// Modules per last-level cache.
    pub modules: u16,
    /// CPUs per module.
    pub cpus: u16,
}

/// The CPUs, their places, the order in which each would look for helpers, and which CPUs may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By number; `None` for CPUs that do not exist.
    sites: Vec<Option<Site>>,
    /// CPUs of each module, ascending.
    modules: Vec<Vec<Cpu>>,
}

/// A CPU's place, and the modules from near to far.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Site {
    location: Location,
    /// Whether work may be done there.
    usable: bool,
    /// Index in `Topology::modules`.
    module: usize,
    /// From near to far.
    tiers: Vec<Tier>,
}

/// Modules that are equally near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tier {
    pub reach: Reach,
    /// Indices in `Topology::modules`.
    modules: Vec<usize>,
    /// The first CPU of each of them.
    firsts: Vec<Cpu>,
    /// CPUs of the modules that may be used, as bits: number of a word and 64 bits, ascending.
    words: Vec<(usize, u64)>,
}

impl Tier {
    /// Calls `f` with each CPU of the tier whose bit `state` sets, until `f` returns false; then returns
    /// false. CPUs come by number, from `start` on and then from the first. `state` gets the number of a word
    /// of 64 CPUs and the bits in question.
    pub fn visit(
        &self,
        start: Cpu,
        state: impl Fn(usize, u64) -> u64,
        mut f: impl FnMut(Cpu) -> bool,
    ) -> bool {
        let (word, bit) = (usize::from(start.0) / 64, start.0 % 64);
        let first = self.words.partition_point(|(number, _)| *number < word);
        let (low, high) = self.words.split_at(first);
        let from_start = |number: usize| if number == word { u64::MAX << bit } else { u64::MAX };
        let rest = high.first().filter(|(number, _)| *number == word);
        let parts = (high
            .iter()
            .map(|(number, mask)| (*number, mask & from_start(*number))))
        .chain(low.iter().copied())
        .chain(rest.map(|(number, mask)| (*number, mask & !from_start(*number))));
        for (number, mask) in parts {
            if mask == 0 {
                continue;
            }
            let mut left = state(number, mask) & mask;
            while left != 0 {
                let cpu = number * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                // The number is that of a CPU of the topology, so it fits.
                if !f(Cpu(cpu as u16)) {
                    return false;
                }
            }
        }
        true
    }

    /// The CPU at which a search with this hash begins.
    pub fn start(&self, hash: u32) -> Cpu {
        self.firsts[start(self, hash)]
    }

    fn select(&mut self, modules: &[Vec<Cpu>], usable: impl Fn(Cpu) -> bool) {
        let mut words: BTreeMap<usize, u64> = BTreeMap::new();
        let cpus = self.modules.iter().flat_map(|module| &modules[*module]);
        for cpu in cpus.copied().filter(|cpu| usable(*cpu)) {
            *words.entry(usize::from(cpu.0) / 64).or_default() |= 1 << (cpu.0 % 64);
        }
        self.words = words.into_iter().collect();
    }
}

impl Topology {
    /// A machine with these CPUs. `distance` is that between two nodes, as in ACPI's SLIT: 10 on the same
    /// one, more the farther away.
    pub fn new(cpus: &BTreeMap<Cpu, Location>, distance: impl Fn(u16, u16) -> u32) -> Self {
        let mut numbers: BTreeMap<u16, usize> = BTreeMap::new();
        let mut modules: Vec<Vec<Cpu>> = Vec::new();
        for (cpu, location) in cpus {
            let number = *numbers.entry(location.module).or_insert(modules.len());
            if number == modules.len() {
                modules.push(Vec::new());
            }
            modules[number].push(*cpu);
        }
        let site = |location: &Location| {
            let module = numbers[&location.module];
            let mut tiers: BTreeMap<Nearness, Vec<usize>> = BTreeMap::new();
            for (other, cpus_of) in modules.iter().enumerate() {
                let nearness = Nearness::between(location, &cpus[&cpus_of[0]], &distance);
                tiers.entry(nearness).or_default().push(other);
            }
            Site {
                location: *location,
                usable: true,
                module,
                tiers: tiers
                    .into_iter()
                    .map(|(nearness, tier)| {
                        let mut tier = Tier {
                            reach: nearness.reach,
                            firsts: tier.iter().map(|module| modules[*module][0]).collect(),
                            modules: tier,
                            words: Vec::new(),
                        };
                        tier.select(&modules, |_| true);
                        tier
                    })
                    .collect(),
            }
        };
        let end = cpus.last_key_value().map_or(0, |(cpu, _)| cpu.0 + 1);
        let sites = (0..end).map(|cpu| cpus.get(&Cpu(cpu)).map(site)).collect();
        Topology { sites, modules }
    }

    /// A regular machine, whose nodes are all equally far from each other.
    pub fn regular(shape: Shape) -> Self {
        let modules = shape.nodes * shape.llcs * shape.modules;
        let cpus = (0..modules * shape.cpus).map(|cpu| {
            let module = cpu / shape.cpus;
            let llc = module / shape.modules;
            (
                Cpu(cpu),
                Location {
                    module,
                    llc,
                    node: llc / shape.llcs,
                },
            )
        });
        Topology::new(&cpus.collect(), |a, b| if a == b { 10 } else { 20 })
    }

    /// A copy of the machine on which only those CPUs may be used that `allowed` admits, for example because
    /// of the process's affinity. The others keep their places: guests may run there.
    pub fn restricted(mut self, allowed: impl Fn(Cpu) -> bool) -> Self {
        for (cpu, site) in (0..).map(Cpu).zip(&mut self.sites) {
            if let Some(site) = site {
                site.usable &= allowed(cpu);
            }
        }
        let usable: Vec<bool> = (0..)
            .map(Cpu)
            .take(self.sites.len())
            .map(|cpu| self.may_use(cpu))
            .collect();
        let tiers = self.sites.iter_mut().flatten().flat_map(|site| &mut site.tiers);
        for tier in tiers {
            tier.select(&self.modules, |cpu| usable[usize::from(cpu.0)]);
        }
        self
    }

    /// The CPUs that may be used, ascending.
    pub fn usable(&self) -> impl Iterator<Item = Cpu> {
        (0..)
            .map(Cpu)
            .take(self.sites.len())
            .filter(|cpu| self.may_use(*cpu))
    }

    /// Whether the CPU may be used.
    pub fn may_use(&self, cpu: Cpu) -> bool {
        self.site(cpu).is_some_and(|site| site.usable)
    }

    /// The CPU's place; `None` if it does not exist.
    pub fn location(&self, cpu: Cpu) -> Option<Location> {
        self.site(cpu).map(|site| site.location)
    }

    fn site(&self, cpu: Cpu) -> Option<&Site> {
        self.sites.get(usize::from(cpu.0))?.as_ref()
    }

    /// How near two CPUs are; CPUs that do not exist are far from all.
    pub fn reach(&self, one: Cpu, other: Cpu) -> Reach {
        match (self.location(one), self.location(other)) {
            (Some(one), Some(other)) => Reach::between(&one, &other),
            _ => Reach::OtherNode,
        }
    }

    /// The CPUs of the CPU's module, itself among them.
    pub fn module(&self, cpu: Cpu) -> &[Cpu] {
        self.site(cpu).map_or(&[], |site| &self.modules[site.module])
    }

    /// The modules that could help the CPU, from near to far, each with its nearness; the CPU's own is among
    /// them. `hash`, a fraction of 2^32, says where in each tier to begin. Empty for an unknown CPU.
    pub fn helpers(&self, cpu: Cpu, hash: u32) -> impl Iterator<Item = (Reach, &[Cpu])> {
        self.tiers(cpu).iter().flat_map(move |tier| {
            let start = start(tier, hash);
            let rotated = tier.modules[start..].iter().chain(&tier.modules[..start]);
            rotated.map(|module| (tier.reach, self.modules[*module].as_slice()))
        })
    }

    /// The tiers of modules that could help the CPU, from near to far. Empty for an unknown CPU.
    pub(crate) fn tiers(&self, cpu: Cpu) -> &[Tier] {
        self.site(cpu).map_or(&[], |site| &site.tiers)
    }

    /// The last usable CPU of each node. Dedicated workers disturb least there, since most programs are bound
    /// to the first CPUs.
    pub fn last_of_each_node(&self) -> Vec<Cpu> {
        let node = |cpu| self.location(cpu).map(|location| (location.node, cpu));
        let last: BTreeMap<u16, Cpu> = self.usable().filter_map(node).collect();
        last.into_values().collect()
    }
}

/// An index among the modules of a tier, which has at least one.
fn start(tier: &Tier, hash: u32) -> usize {
    ((u64::from(hash) * tier.modules.len() as u64) >> 32) as usize
}

impl Reach {
    fn between(one: &Location, other: &Location) -> Reach {
        match () {
            () if one.llc == other.llc => Reach::SharedCache,
            () if one.node == other.node => Reach::SameNode,
            () => Reach::OtherNode,
        }
    }
}

/// Sorts near modules before far ones. A CPU's own module comes after the others with its last-level cache,
/// since a helper there would slow down the CPU that it helps.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Nearness {
    reach: Reach,
    own: bool,
    distance: u32,
}

impl Nearness {
    fn between(one: &Location, other: &Location, distance: &impl Fn(u16, u16) -> u32) -> Nearness {
        let reach = Reach::between(one, other);
        let far = reach == Reach::OtherNode;
        Nearness {
            reach,
            own: one.module == other.module,
            distance: if far { distance(one.node, other.node) } else { 0 },
        }
    }
}
