//! What a change of each key does to a port: it changes in place, or is replaced, and which is said before.

use crate::rig::{Rig, wait};
use crate::{running, two_ports};
use control_protocol::Channel;
use control_protocol::driver::{FromDriver, InterfaceSpec, InterfaceState, ToDriver};
use flow::PortId;
use management::{ReloadSummary, Reply, Request as Verb};
use std::collections::BTreeMap;

const CONFIG: &str = r#"
[[switch]]
name = "s"
type = "internal"
host = { addresses = ["10.1.2.3/24"] }
[[switch.port]]
name = "web"
type = "tap"
netns = "web"
addresses = ["10.1.2.4/24"]
[[switch.port]]
name = "vm"
[[switch]]
name = "t"
"#;

/// Attaches the interfaces that the control process wants, until there are `count`.
fn attach(driver: &Channel, count: usize) -> BTreeMap<PortId, InterfaceSpec> {
    let mut attached = BTreeMap::new();
    while attached.len() < count {
        match driver.recv::<ToDriver>().unwrap().0 {
            ToDriver::List => driver.send(&FromDriver::Interfaces(vec![]), &[]).unwrap(),
            ToDriver::Attach { port, spec } => {
                let state = InterfaceState::Up;
                driver.send(&FromDriver::State { port, state }, &[]).unwrap();
                attached.insert(port, spec);
            }
            other => panic!("{other:?}"),
        }
    }
    attached
}

fn reload(rig: &Rig, verb: Verb) -> ReloadSummary {
    match rig.call(verb) {
        Reply::Reloaded(summary) => summary,
        other => panic!("{other:?}"),
    }
}

fn edit(rig: &Rig, from: &str, to: &str) {
    let file = rig.config.as_ref().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

/// Reloads, after a plan that said the same and changed nothing; returns the messages to the driver domain.
fn planned(rig: &Rig, driver: &Channel) -> (ReloadSummary, Vec<ToDriver>) {
    let plan = reload(rig, Verb::ReloadPlan);
    assert_eq!(reload(rig, Verb::ReloadPlan), plan);
    assert!(driver.try_recv::<ToDriver>().is_err());
    let summary = reload(rig, Verb::Reload);
    assert_eq!(summary, plan);
    assert_eq!(reload(rig, Verb::ReloadPlan), ReloadSummary::default());
    // What the driver domain is told leaves before the answer, or when its channel has room.
    let messages = std::iter::from_fn(|| driver.try_recv::<ToDriver>().ok().map(|(message, _)| message));
    (summary, messages.collect())
}

#[test]
fn settings_of_an_interface_change_in_place() {
    let rig = Rig::start(Some(CONFIG));
    let driver = rig.connect_driver();
    let before = attach(&driver, 2);
    let (host, web) = (rig.number("s:host"), rig.number("web"));
    edit(
        &rig,
        "host = { ",
        "mtu = 4000\nhost = { mac = \"02:00:00:00:00:07\", ",
    );
    edit(&rig, "10.1.2.4/24", "10.1.2.5/24\", \"fd00::1/64");
    let (summary, messages) = planned(&rig, &driver);
    assert_eq!(summary.replaced, []);
    let mut changed = BTreeMap::new();
    for message in messages {
        let ToDriver::Change { port, spec } = message else {
            panic!("{message:?}")
        };
        assert!(spec.is_same_device(&before[&port]));
        assert!(changed.insert(port, spec).is_none());
    }
    assert_eq!(changed.len(), 2);
    assert_eq!((changed[&host].mtu, changed[&web].mtu), (Some(4000), Some(4000)));
    assert_eq!(changed[&web].addresses().len(), 2);
    assert_ne!(changed[&host].kind, before[&host].kind);
    assert_eq!(rig.plane.lock().unwrap().port("web").unwrap().spec.mtu, 4000);
    assert_eq!((rig.number("s:host"), rig.number("web")), (host, web));
}

#[test]
fn ports_that_must_be_replaced_are_named_before() {
    let rig = Rig::start(Some(CONFIG));
    let driver = rig.connect_driver();
    attach(&driver, 2);
    rig.number("vm");
    let replaced = |from: &str, to: &str| {
        edit(&rig, from, to);
        let (summary, _) = planned(&rig, &driver);
        let [replaced] = &summary.replaced[..] else {
            panic!("{summary:?}")
        };
        assert!(summary.changes.contains(&replaced.to_string()), "{summary:?}");
        assert!(summary.changes.contains(&format!("port {} added", replaced.port)));
        (
            replaced.port.clone(),
            replaced.keys.join(","),
            replaced.loss.clone(),
        )
    };
    let port = |port: &str, keys: &str, loss: &str| (port.to_owned(), keys.to_owned(), loss.to_owned());
    let routes = |name| format!("interface {name} goes, with its routes and whatever else was set on it");
    let guest = "its virtual machine is disconnected";
    assert_eq!(
        replaced("netns = \"web\"", "netns = \"www\""),
        port("web", "netns", &routes("web"))
    );
    assert_eq!(
        replaced("netns = \"www\"", "interface = \"eth0\""),
        port("web", "interface,netns", &routes("web"))
    );
    assert_eq!(
        replaced("host = { ", "host = { interface = \"lan\", "),
        port("s:host", "interface", &routes("s"))
    );
    assert_eq!(
        replaced("\"vm\"\n", "\"vm\"\nmac = \"02:00:00:00:00:01\"\n"),
        port("vm", "mac", guest)
    );
    assert_eq!(
        replaced("\"vm\"\n", "\"vm\"\nmode = \"client\"\n"),
        port("vm", "mode", guest)
    );
    let socket = rig.dir.path().join("other.sock");
    assert_eq!(
        replaced(
            "\"vm\"\n",
            &format!("\"vm\"\nsocket = \"{}\"\n", socket.display())
        ),
        port("vm", "socket", guest)
    );
    let text = std::fs::read_to_string(rig.config.as_ref().unwrap()).unwrap();
    let (vm, rest) = text.split_once("[[switch.port]]\nname = \"vm\"").unwrap();
    let (settings, t) = rest.split_once("[[switch]]").unwrap();
    let moved = format!("{vm}[[switch]]{t}[[switch.port]]\nname = \"vm\"{settings}");
    assert_eq!(replaced(&text, &moved), port("vm", "switch", guest));
}

#[test]
fn an_interface_that_was_to_change_when_the_process_died_changes_in_place() {
    let mut rig = Rig::start(Some(CONFIG));
    let driver = rig.connect_driver();
    let listed = attach(&driver, 2);
    edit(&rig, "10.1.2.4/24", "10.1.2.5/24");
    reload(&rig, Verb::Reload);
    // As if the driver domain had not heard of it.
    drop(driver);
    rig.restart_control();
    let driver = rig.connect_driver();
    assert_eq!(driver.recv::<ToDriver>().unwrap().0, ToDriver::List);
    let web = rig.number("web");
    let list = listed
        .iter()
        .map(|(port, spec)| (*port, spec.clone(), InterfaceState::Up));
    driver.send(&FromDriver::Interfaces(list.collect()), &[]).unwrap();
    let told = wait("a message", || driver.try_recv::<ToDriver>().ok()).0;
    let ToDriver::Change { port, spec } = told else {
        panic!("{told:?}")
    };
    assert_eq!(port, web);
    assert_eq!(spec.addresses(), [("10.1.2.5".parse().unwrap(), 24)]);
}

/// What is right in a file half of which is wrong, before the fault and behind it, changes nothing either.
#[test]
fn a_file_half_of_which_is_wrong_changes_nothing() {
    const SWITCH: &str = "[[switch]]\nname = \"s\"\n";
    const RIGHT: &str =
        "[[switch.port]]\nname = \"a\"\nmax-rate-to = \"100M\"\nmtu = 4000\nstorm-control = 5\n";
    const NEW: &str = "[[switch.port]]\nname = \"new\"\n";
    let (rig, a, b) = two_ports();
    running(&rig, 2);
    let file = rig.config.clone().unwrap();
    let changes = || {
        let plane = rig.plane.lock().unwrap();
        let state = (plane.rates.clone(), plane.meters.clone());
        let specs: Vec<_> = plane.ports.values().map(|info| info.spec.clone()).collect();
        (specs, state)
    };
    let before = changes();
    for wrong in [
        "acl-to = \"nobody\"",
        "security-groups = [\"web\"]",
        "max-rate-from = \"1\"",
        "guards = [\"spoof\"]\nmac = \"none\"",
        "vlan = { access = 4095 }",
        "colour = 1",
        "max-rate-to = ",
    ] {
        let wrong = format!("[[switch.port]]\nname = \"b\"\n{wrong}\n");
        for ports in [[RIGHT, &wrong, NEW], [NEW, &wrong, RIGHT]] {
            std::fs::write(&file, [&[SWITCH][..], &ports].concat().concat()).unwrap();
            let said = rig.refused(Verb::Reload);
            assert!(said.contains("config.toml:"), "{said}");
            assert_eq!(changes(), before, "{wrong}");
        }
    }
    // Without the fault the rest is changed.
    std::fs::write(
        &file,
        [SWITCH, RIGHT, "[[switch.port]]\nname = \"b\"\n", NEW].concat(),
    )
    .unwrap();
    assert_eq!(reload(&rig, Verb::Reload).changes.len(), 2);
    assert_eq!((rig.number("a"), rig.number("b")), (a, b));
    rig.number("new");
    wait("the changes", || {
        let plane = rig.plane.lock().unwrap();
        (plane.rates.contains_key(&a) && plane.port("a")?.spec.mtu == 4000).then_some(())
    });
}
