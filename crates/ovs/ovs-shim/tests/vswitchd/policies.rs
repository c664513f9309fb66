//! Policies of ports by `external_ids:policy`, over the real ovs-vswitchd: what a policy forbids does not
//! pass, whatever OpenFlow says and whoever dies.

use crate::forwarding::{Guest, process};
use crate::limits::kill;
use crate::world::World;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GUESTS: [(&str, u32); 2] = [("vm1", 1), ("vm2", 2)];
/// Frames that are sent to show that none arrives.
const IN_VAIN: usize = 20;
/// Flow of the guests that policies forbid, and one that they allow.
const FORBIDDEN: u32 = 7;
const ALLOWED: u32 = 7 + (1 << 16);

/// The configuration, with a list for packets from ports that has this rule.
fn config(world: &World, rule: &str) -> String {
    format!(
        "[ovs]\nenabled = true\ndatabase = \"{}\"\n\
         [[acl]]\nname = \"some\"\ndefault = \"allow\"\nrule = [{rule}]\n\
         [[port-policy]]\nname = \"from-some\"\nacl-from = \"some\"\n\
         [[port-policy]]\nname = \"to-some\"\nacl-to = \"some\"\n\
         [[port-policy]]\nname = \"own\"\nguards = [\"spoof\"]\n\
         allowed-pairs = [{{ mac = \"02:50:00:00:00:09\", address = \"10.0.0.9\" }}]\n",
        world.path("db.sock").display()
    )
}

/// A rule about the frames of a flow between guests.
fn forbidding(a: &mut Guest, b: &mut Guest) -> String {
    a.flow = FORBIDDEN;
    let frame = a.reach(b);
    let port = u16::from_be_bytes([frame[36], frame[37]]);
    format!("{{ action = \"drop\", protocol = \"udp\", destination-port = {port} }}")
}

fn reload(world: &World, rule: &str) {
    std::fs::write(world.path("config.toml"), config(world, rule)).unwrap();
    world.product("reload");
}

fn set(world: &World, port: &str, policy: &str) {
    world.vsctl(&format!("set Interface {port} external_ids:policy={policy}"));
}

/// Not one of the frames that are sent now arrives.
fn is_closed(a: &mut Guest, b: &mut Guest) {
    b.take();
    (0..IN_VAIN).for_each(|_| a.send(b));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(b.take().len(), 0);
}

/// The policy holds: one flow passes, the other one does not.
fn hold(a: &mut Guest, b: &mut Guest) {
    a.flow = ALLOWED;
    a.reach(b);
    std::thread::sleep(Duration::from_millis(50));
    a.flow = FORBIDDEN;
    is_closed(a, b);
}

/// Sends what is forbidden all the time while something happens; nothing of it arrives.
fn while_closed(a: &mut Guest, b: &mut Guest, happens: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                is_closed(a, b);
            }
        });
        happens();
        is_over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
    });
}

pub fn ports_have_the_policies_that_the_database_names(world: &mut World, program: PathBuf) {
    let open = config(world, "");
    world.start_product_with(program, &open);
    world.start_vswitchd();
    world.vsctl("add-br br0");
    for (name, _) in GUESTS {
        world.vsctl(&format!(
            "add-port br0 {name} -- set Interface {name} type=internal external_ids:vhost-user=server"
        ));
    }
    let [mut a, mut b] = GUESTS.map(|(name, station)| Guest::connect(world, name, station));
    a.reach(&mut b);
    b.reach(&mut a);
    let rule = forbidding(&mut a, &mut b);
    named(world, &rule, &mut a, &mut b);
    deaths(world, &rule, [a, b]);
}

/// Names of policies come, change and go, and so do their rules.
fn named(world: &World, rule: &str, a: &mut Guest, b: &mut Guest) {
    for (port, policy) in [("vm1", "from-some"), ("vm2", "to-some")] {
        set(world, port, policy);
        a.reach(b);
        // From the answer on, and not a frame before that is known to the cache passes.
        reload(world, rule);
        a.loses(b);
        hold(a, b);
        b.reach(a);
        // Whatever OpenFlow says.
        world.ofctl("add-flow br0 priority=100,in_port=vm1,actions=output:vm2");
        hold(a, b);
        world.ofctl("del-flows br0 in_port=vm1");
        reload(world, "");
        a.reach(b);
        world.vsctl(&format!("remove Interface {port} external_ids policy"));
        reload(world, rule);
        a.reach(b);
        reload(world, "");
    }
    let stats: serde_json::Value = serde_json::from_str(&world.product("stats vm1 --json")).unwrap();
    let dropped = stats["ports"][0]["counters"]["dropped"]["policy"].as_u64();
    assert!(dropped > Some(0), "{stats}");
    // One that no configuration has.
    set(world, "vm1", "none");
    a.loses(b);
    b.loses(a);
    a.flow = ALLOWED;
    is_closed(a, b);
    // A guest that is not who the policy says.
    set(world, "vm1", "own");
    b.reach(a);
    is_closed(a, b);
    world.vsctl("remove Interface vm1 external_ids policy");
    a.reach(b);
}

/// Not a frame that is forbidden passes, whoever dies.
fn deaths(world: &mut World, rule: &str, [mut a, mut b]: [Guest; 2]) {
    reload(world, rule);
    set(world, "vm1", "from-some");
    a.flow = FORBIDDEN;
    a.loses(&mut b);
    hold(&mut a, &mut b);
    while_closed(&mut a, &mut b, || {
        world.kill_vswitchd();
        world.start_vswitchd();
        world.wait_until_configured();
    });
    b.reach(&mut a);
    hold(&mut a, &mut b);
    while_closed(&mut a, &mut b, || {
        kill(world, "ovs");
        assert_eq!(world.vswitchd_signal(), Some(libc::SIGABRT));
        world.start_vswitchd();
        world.wait_until_configured();
    });
    b.reach(&mut a);
    hold(&mut a, &mut b);
    while_closed(&mut a, &mut b, || {
        kill(world, "control");
        world.until("the control process is back", |world| {
            process(world, "control")["restarts"] == 1
        });
    });
    hold(&mut a, &mut b);
    let made =
        || GUESTS.map(|(name, _)| Some(std::fs::metadata(world.guest_socket(name)).ok()?.ctime_nsec()));
    let old = made();
    kill(world, "data-plane");
    world.until("the next data plane listens", |_| {
        let mut both = made().into_iter().zip(old);
        both.all(|(new, old)| new.is_some() && new != old)
    });
    let [mut a, mut b] = GUESTS.map(|(name, station)| Guest::connect(world, name, station));
    is_closed(&mut a, &mut b);
    b.reach(&mut a);
    hold(&mut a, &mut b);
    // A port that is made anew has it from its first packet on.
    world.vsctl("del-port vm1");
    world.until("its socket is gone", |world| !world.guest_socket("vm1").exists());
    world.vsctl(
        "add-port br0 vm1 -- set Interface vm1 type=internal external_ids:vhost-user=server external_ids:policy=from-some",
    );
    let mut a = Guest::connect(world, "vm1", 1);
    is_closed(&mut a, &mut b);
    hold(&mut a, &mut b);
}
