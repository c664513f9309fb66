//! Policing and quality of service, as ovs-vswitchd's database has them. The real ovs-vswitchd reads them as
//! well, and has the kernel limit the devices that stand for the ports, where no packet passes.

use crate::forwarding::{Guest, SIZE, all_arrive, process, reach_changed};
use crate::rates::Rate;
use crate::world::World;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const GUESTS: [(&str, u32); 2] = [("vm1", 1), ("vm2", 2)];
/// Of what comes from `vm1`.
const POLICED: Rate = kilobits(2000, 800);
/// Of what is sent to `vm2`, in all and in two of its queues. What may come at once in a queue is a tenth of
/// a second's, but the longest frame.
const ALL: Rate = kilobits(4000, 525);
const FIRST: Rate = kilobits(400, 525);
const SECOND: Rate = kilobits(1600, 525);

/// The rate of frames of [`SIZE`].
const fn kilobits(per_second: u32, burst: u32) -> Rate {
    let frame = 8 * SIZE as u32;
    Rate {
        per_second: per_second * 1000 / frame,
        burst: burst * 1000 / frame,
    }
}

pub fn ports_are_limited(world: &mut World, program: PathBuf) {
    world.start_product(program);
    world.start_vswitchd();
    world.vsctl("add-br br0");
    for (name, _) in GUESTS {
        world.vsctl(&format!(
            "add-port br0 {name} -- set Interface {name} type=internal external_ids:vhost-user=server"
        ));
    }
    let [mut a, mut b] = connect(world);
    a.reach(&mut b);
    b.reach(&mut a);
    policed(world, &mut a, &mut b);
    shaped(world, &mut a, &mut b);
    let [mut a, mut b] = deaths(world, [a, b]);
    // What is no more in the database ends.
    world.vsctl("set Interface vm1 ingress_policing_rate=0 -- clear Port vm2 qos");
    SECOND.exceeded(&mut a, &mut b);
    ALL.exceeded(&mut a, &mut b);
    world.vsctl("del-port vm2");
    world.until("its socket is gone", |world| !world.guest_socket("vm2").exists());
    let restarts = ["ovs", "data-plane"].map(|role| process(world, role)["restarts"].clone());
    assert_eq!(restarts, [1, 1], "those that were killed");
}

fn connect(world: &World) -> [Guest; 2] {
    GUESTS.map(|(name, station)| Guest::connect(world, name, station))
}

fn policed(world: &World, a: &mut Guest, b: &mut Guest) {
    POLICED.exceeded(a, b);
    world.vsctl("set Interface vm1 ingress_policing_rate=2000 ingress_policing_burst=800");
    POLICED.limits(a, b);
    POLICED.exceeded(b, a);
    world.until("what is dropped is counted", |world| {
        world.vsctl("get Interface vm1 statistics:rx_dropped") != "0"
    });
    assert_eq!(world.vsctl("get Interface vm2 statistics:rx_dropped"), "0");
    // ovs-vswitchd's flows go and come; the limit stays.
    world.appctl("dpctl/del-flows");
    POLICED.limits(a, b);
    // Values that nobody can mean, and none.
    for rate in [i64::MAX, 1 << 32, 0] {
        world.vsctl(&format!("set Interface vm1 ingress_policing_rate={rate}"));
        POLICED.exceeded(a, b);
    }
    world.vsctl("set Interface vm1 ingress_policing_kpkts_rate=1 ingress_policing_kpkts_burst=1");
    let thousand = Rate {
        per_second: 1000,
        burst: 1000,
    };
    thousand.limits(a, b);
    world.vsctl("set Interface vm1 ingress_policing_kpkts_rate=0");
    thousand.exceeded(a, b);
}

fn shaped(world: &World, a: &mut Guest, b: &mut Guest) {
    world.vsctl("set Port vm2 qos=@q -- --id=@q create QoS type=linux-htb other-config:max-rate=4000000");
    // ovs-vswitchd believes in the flows that were deleted, and packets without a flow hold no sender.
    world.appctl("revalidator/purge");
    ALL.holds(a, b);
    ALL.exceeded(b, a);
    let queue =
        |number: u32, rate: u32| format!("-- --id=@q{number} create Queue other-config:max-rate={rate}");
    world.vsctl(&format!(
        "set QoS . queues:1=@q1 queues:5=@q5 {} {}",
        queue(1, 400_000),
        queue(5, 1_600_000)
    ));
    // What waits for a queue has a bounded room, and is dropped beyond it.
    for (number, rate) in [(1, FIRST), (5, SECOND), (7, ALL), (0, ALL)] {
        world.ofctl(&format!(
            "add-flow br0 priority=7,in_port=vm1,actions=set_queue:{number},output:vm2"
        ));
        // So that it is obeyed before anything is counted.
        reach_changed(a, b, |_| {
            world
                .appctl("dpctl/dump-flows --names")
                .contains(&format!("skb_priority(0x{:x}", 0x10001 + number))
        });
        rate.limits(a, b);
    }
    // What ovs-vswitchd reads from the kernel's queues, where no packet passes.
    for queue in [1, 5] {
        let [packets, bytes, errors] = queue_stats(world, queue);
        assert!(
            packets > 0 && bytes == packets * SIZE as u64,
            "queue {queue}: {packets} {bytes}"
        );
        assert_eq!(errors, 0, "what has no room is an error of the port");
    }
}

/// Packets, bytes and errors of a queue of `vm2`, as OpenFlow has them.
fn queue_stats(world: &World, queue: u32) -> [u64; 3] {
    let told = world.ofctl("queue-stats br0 vm2");
    let line = told
        .lines()
        .find(|line| line.contains(&format!("queue {queue}:")));
    let line = line.unwrap_or_else(|| panic!("queue {queue}: {told}"));
    ["pkts=", "bytes=", "errors="].map(|key| {
        let value = line.split(key).nth(1).unwrap().split(',').next().unwrap();
        value.parse().unwrap_or_else(|_| panic!("{line}"))
    })
}

/// The second queue is limited, whoever dies.
fn deaths(world: &mut World, [mut a, mut b]: [Guest; 2]) -> [Guest; 2] {
    world.ofctl("add-flow br0 priority=7,in_port=vm1,actions=set_queue:5,output:vm2");
    SECOND.limits(&mut a, &mut b);
    world.kill_vswitchd();
    SECOND.limits(&mut a, &mut b);
    world.start_vswitchd();
    world.wait_until_configured();
    // NORMAL, as OpenFlow's flows died with it.
    b.reach(&mut a);
    ALL.limits(&mut a, &mut b);
    kill(world, "ovs");
    assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
    ALL.limits(&mut a, &mut b);
    // What changes while nobody is there to see it holds as well.
    world.vsctl("--no-wait set QoS . other_config:max-rate=1600000");
    world.start_vswitchd();
    world.wait_until_configured();
    b.reach(&mut a);
    SECOND.limits(&mut a, &mut b);
    let made =
        || GUESTS.map(|(name, _)| Some(std::fs::metadata(world.guest_socket(name)).ok()?.ctime_nsec()));
    let old = made();
    kill(world, "data-plane");
    world.until("the next data plane listens", |_| {
        let mut both = made().into_iter().zip(old);
        both.all(|(new, old)| new.is_some() && new != old)
    });
    let [mut a, mut b] = connect(world);
    b.reach(&mut a);
    SECOND.limits(&mut a, &mut b);
    all_arrive(100, &mut b, &mut a);
    [a, b]
}

pub fn kill(world: &World, role: &str) {
    let pid = process(world, role)["pid"].as_u64().unwrap();
    // SAFETY: plain integers; the process is one of the product under test.
    let killed = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(killed, 0);
}
