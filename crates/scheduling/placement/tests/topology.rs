//! Trees of `/sys/devices/system` as kernels show them on several machines, and what is made of them.

#![allow(clippy::unwrap_used)]

use placement::{Cpu, Reach, Shape, Topology};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A machine in the numbers by which kernels describe one.
#[derive(Clone, Copy)]
struct Machine {
    cpus: u16,
    /// CPUs of one core: neighbours in number, or `cpus / 2` apart as on Intel and AMD with SMT.
    siblings: fn(u16) -> Vec<u16>,
    l2: fn(u16) -> Vec<u16>,
    l3: fn(u16) -> Vec<u16>,
    node: fn(u16) -> u16,
    /// Rows of ACPI's SLIT.
    distances: &'static [&'static str],
}

/// The paper's: 2 packages of 2 dies, each a node with one L3; pairs of cores share an L2. Distances as a
/// board with two links per die shows them.
const OPTERON_6274: Machine = Machine {
    cpus: 32,
    siblings: pair,
    l2: pair,
    l3: |cpu| around(cpu, 8),
    node: |cpu| cpu / 8,
    distances: &["10 16 16 22", "16 10 22 16", "16 22 10 16", "22 16 16 10"],
};

/// One package of 64 cores in complexes of 8, without SMT.
const SINGLE_64: Machine = Machine {
    cpus: 64,
    siblings: |cpu| vec![cpu],
    l2: |cpu| vec![cpu],
    l3: |cpu| around(cpu, 8),
    node: |_| 0,
    distances: &["10"],
};

/// Two packages of 32 cores with SMT, one L3 each; packages alternate in numbering halves as Linux does.
const DUAL_32_SMT: Machine = Machine {
    cpus: 128,
    siblings: across,
    l2: across,
    l3: |cpu| {
        let first = cpu % 64 / 32 * 32;
        (first..first + 32).chain(first + 64..first + 96).collect()
    },
    node: |cpu| cpu % 64 / 32,
    distances: &["10 32", "32 10"],
};

/// A virtual machine with two cores, as found.
const VIRTUAL_2: Machine = Machine {
    cpus: 2,
    siblings: |cpu| vec![cpu],
    l2: |cpu| vec![cpu],
    l3: |_| vec![0, 1],
    node: |_| 0,
    distances: &["10"],
};

const SINGLE_1: Machine = Machine {
    cpus: 1,
    l3: |_| vec![0],
    ..VIRTUAL_2
};

fn pair(cpu: u16) -> Vec<u16> {
    around(cpu, 2)
}

fn across(cpu: u16) -> Vec<u16> {
    vec![cpu % 64, cpu % 64 + 64]
}

fn around(cpu: u16, size: u16) -> Vec<u16> {
    let first = cpu / size * size;
    (first..first + size).collect()
}

fn list(cpus: &[u16]) -> String {
    let texts: Vec<String> = cpus.iter().map(u16::to_string).collect();
    texts.join(",") + "\n"
}

fn write(root: &Path, file: String, text: impl AsRef<str>) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text.as_ref()).unwrap();
}

impl Machine {
    fn tree(self) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "cpu/online".into(), format!("0-{}\n", self.cpus - 1));
        for cpu in 0..self.cpus {
            let at = format!("cpu/cpu{cpu}");
            write(
                root,
                format!("{at}/topology/thread_siblings_list"),
                list(&(self.siblings)(cpu)),
            );
            fs::create_dir_all(root.join(format!("{at}/node{}", (self.node)(cpu)))).unwrap();
            let caches = [
                ("1", "Data", (self.siblings)(cpu)),
                ("1", "Instruction", (self.siblings)(cpu)),
                ("2", "Unified", (self.l2)(cpu)),
                ("3", "Unified", (self.l3)(cpu)),
            ];
            for (index, (level, kind, shared)) in caches.into_iter().enumerate() {
                let at = format!("{at}/cache/index{index}");
                write(root, format!("{at}/level"), format!("{level}\n"));
                write(root, format!("{at}/type"), format!("{kind}\n"));
                write(root, format!("{at}/shared_cpu_list"), list(&shared));
            }
        }
        write(
            root,
            "node/online".into(),
            format!("0-{}\n", self.distances.len() - 1),
        );
        for (node, row) in self.distances.iter().enumerate() {
            write(root, format!("node/node{node}/distance"), format!("{row}\n"));
        }
        directory
    }

    fn topology(self) -> Topology {
        Topology::read(self.tree().path()).unwrap()
    }
}

fn helpers(topology: &Topology, cpu: u16) -> Vec<Vec<u16>> {
    let modules = topology.helpers(Cpu(cpu), 0);
    modules
        .map(|(_, module)| module.iter().map(|cpu| cpu.0).collect())
        .collect()
}

#[test]
fn opteron_looks_on_its_die_then_by_distance() {
    let order = helpers(&OPTERON_6274.topology(), 8);
    let firsts: Vec<u16> = order.iter().map(|module| module[0]).collect();
    // Node 1: its own die, its own module, then nodes 0 and 3 at distance 16, equally near, then node 2.
    assert_eq!(
        firsts,
        [10, 12, 14, 8, 0, 2, 4, 6, 24, 26, 28, 30, 16, 18, 20, 22]
    );
    assert!(
        order
            .iter()
            .all(|module| module.len() == 2 && module[0] + 1 == module[1])
    );
}

#[test]
fn complexes_of_one_package_are_near_before_far() {
    let order = helpers(&SINGLE_64.topology(), 20);
    assert_eq!(order.len(), 64);
    let near: Vec<u16> = order[..8].iter().map(|module| module[0]).collect();
    assert_eq!(near, [16, 17, 18, 19, 21, 22, 23, 20]);
    assert_eq!(order[8], [0]);
}

#[test]
fn hyperthreads_are_one_module() {
    let topology = DUAL_32_SMT.topology();
    assert_eq!(topology.module(Cpu(70)), [Cpu(6), Cpu(70)]);
    let order = helpers(&topology, 70);
    assert_eq!(order.len(), 64);
    assert!(order[..32].iter().all(|module| module[0] < 32));
    assert_eq!(order[31], [6, 70]);
    assert!(order[32..].iter().all(|module| (32..64).contains(&module[0])));
    assert_eq!(topology.last_of_each_node(), [Cpu(95), Cpu(127)]);
}

#[test]
fn small_machines() {
    assert_eq!(helpers(&VIRTUAL_2.topology(), 0), [[1], [0]]);
    assert_eq!(helpers(&SINGLE_1.topology(), 0), [[0]]);
    assert_eq!(
        helpers(&VIRTUAL_2.topology(), 7),
        [[0; 0]; 0],
        "a CPU that there is not"
    );
}

#[test]
fn a_hash_rotates_within_tiers_only() {
    let topology = OPTERON_6274.topology();
    for (hash, near) in [
        (0, [10, 12, 14]),
        (1 << 31, [12, 14, 10]),
        (u32::MAX, [14, 10, 12]),
    ] {
        let order: Vec<u16> = topology
            .helpers(Cpu(8), hash)
            .map(|(_, module)| module[0].0)
            .collect();
        assert_eq!(order[..3], near);
        assert_eq!(order[3], 8);
        let mut next = order[4..12].to_vec();
        next.sort_unstable();
        assert_eq!(next, [0, 2, 4, 6, 24, 26, 28, 30]);
    }
}

#[test]
fn what_is_missing_is_replaced_by_something_coarser() {
    let tree = SINGLE_64.tree();
    let root = tree.path();
    for cpu in 0..64 {
        fs::remove_dir_all(root.join(format!("cpu/cpu{cpu}/cache"))).unwrap();
        fs::remove_dir_all(root.join(format!("cpu/cpu{cpu}/topology"))).unwrap();
        fs::remove_dir_all(root.join(format!("cpu/cpu{cpu}/node0"))).unwrap();
    }
    fs::remove_dir_all(root.join("node")).unwrap();
    fs::write(root.join("cpu/online"), "0,2-5\n").unwrap();
    let topology = Topology::read(root).unwrap();
    assert_eq!(
        topology.usable().map(|cpu| cpu.0).collect::<Vec<_>>(),
        [0, 2, 3, 4, 5]
    );
    assert_eq!(helpers(&topology, 3), [[0], [2], [4], [5], [3]]);
    assert_eq!(topology.reach(Cpu(3), Cpu(4)), Reach::SharedCache);
    assert_eq!(
        topology.reach(Cpu(3), Cpu(1)),
        Reach::OtherNode,
        "a CPU that is offline"
    );
}

#[test]
fn offline_siblings_do_not_matter() {
    let tree = OPTERON_6274.tree();
    // The kernel removes the topology of a CPU that goes offline, and its number from others' lists.
    fs::write(tree.path().join("cpu/online"), "0-8,10-31\n").unwrap();
    fs::remove_dir_all(tree.path().join("cpu/cpu9/topology")).unwrap();
    fs::remove_dir_all(tree.path().join("cpu/cpu9/cache")).unwrap();
    let topology = Topology::read(tree.path()).unwrap();
    assert_eq!(topology.module(Cpu(8)), [Cpu(8)]);
    assert_eq!(topology.location(Cpu(9)), None);
}

#[test]
fn nonsense_is_no_machine() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(Topology::read(directory.path()), None);
    write(directory.path(), "cpu/online".into(), "0-65535\n");
    assert_eq!(Topology::read(directory.path()), None);
}

#[test]
fn a_shared_last_level_is_no_module() {
    // Four cores around one L2, which is all there is.
    let tree = VIRTUAL_2.tree();
    for cpu in 0..2 {
        fs::remove_dir_all(tree.path().join(format!("cpu/cpu{cpu}/cache/index3"))).unwrap();
        write(
            tree.path(),
            format!("cpu/cpu{cpu}/cache/index2/shared_cpu_list"),
            "0-1\n",
        );
    }
    let topology = Topology::read(tree.path()).unwrap();
    assert_eq!(topology.module(Cpu(0)), [Cpu(0)]);
    assert_eq!(topology.reach(Cpu(0), Cpu(1)), Reach::SharedCache);
}

#[test]
fn a_regular_machine_is_what_sysfs_would_show() {
    let opteron = Machine {
        distances: &["10 20 20 20", "20 10 20 20", "20 20 10 20", "20 20 20 10"],
        ..OPTERON_6274
    };
    let built = Topology::regular(Shape {
        nodes: 4,
        llcs: 1,
        modules: 4,
        cpus: 2,
    });
    let read = opteron.topology();
    for cpu in 0..32 {
        assert_eq!(helpers(&built, cpu), helpers(&read, cpu));
        assert_eq!(
            built.location(Cpu(cpu)).unwrap().node,
            read.location(Cpu(cpu)).unwrap().node
        );
    }
}

#[test]
fn cpus_that_may_not_be_used_are_still_neighbours() {
    let topology = OPTERON_6274.topology().restricted(|cpu| cpu.0 % 2 == 0);
    assert_eq!(topology.usable().count(), 16);
    assert!(topology.may_use(Cpu(0)) && !topology.may_use(Cpu(1)));
    assert_eq!(topology.reach(Cpu(0), Cpu(1)), Reach::SharedCache);
    assert_eq!(topology.last_of_each_node()[0], Cpu(6));
    assert_eq!(topology.module(Cpu(0)), [Cpu(0), Cpu(1)]);
}
