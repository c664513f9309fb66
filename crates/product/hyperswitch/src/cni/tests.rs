use super::attachment::{Namespace, port_name};
use super::result::{Interface, added};
use super::*;
use std::collections::BTreeMap;

/// A request that reaches no instance: what it says before it needs one.
fn ask(command: &str, variables: &[(&str, &str)], input: &str) -> Result<Option<Value>, CniError> {
    let mut environment: BTreeMap<&str, &str> = [
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/c1"),
    ]
    .into();
    environment.insert("CNI_COMMAND", command);
    environment.extend(variables.iter().copied());
    let look_up = |name: &str| environment.get(name).map(|value| (*value).to_owned());
    let nowhere = Path::new("/nonexistent/run");
    answer(&look_up, &mut input.as_bytes(), nowhere, Duration::from_secs(1))
}

fn refusal(command: &str, variables: &[(&str, &str)], input: &str) -> (u64, String) {
    let error = ask(command, variables, input).unwrap_err();
    (error.code, error.message)
}

const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "net", "type": "hyperswitch-cni", "switch": "lan"}"#;

fn with(more: &str) -> String {
    NETWORK.replace("\"switch\"", &format!("{more}, \"switch\""))
}

#[test]
fn versions_are_told_without_a_configuration() {
    let told = ask("VERSION", &[], "").unwrap().unwrap();
    assert_eq!(
        told["supportedVersions"],
        json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
    );
    let told = ask("VERSION", &[], r#"{"cniVersion": "1.0.0"}"#)
        .unwrap()
        .unwrap();
    assert_eq!(told["cniVersion"], "1.0.0");
}

/// A command, variables besides, the configuration, and the code and words of the refusal.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, u64, &'a str);

#[test]
fn each_wrong_request_has_the_code_of_the_specification() {
    let newer = NETWORK.replace("1.0.0", "2.0.0");
    let nameless = NETWORK.replace("\"net\"", "\"\"");
    let gc = "\"cni.dev/valid-attachments\": [7]";
    let cases: &[Case<'_>] = &[
        ("ADD", &[], "{", 6, "no JSON"),
        ("ADD", &[], "[]", 7, "configuration"),
        ("ADD", &[], &newer, 1, "0.3.1, 0.4.0, 1.0.0, 1.1.0"),
        ("ADD", &[], &with("\"isolatd\": true"), 2, "isolatd is not known"),
        ("ADD", &[], &with("\"port\": {\"netns\": \"x\"}"), 2, "port.netns"),
        (
            "ADD",
            &[],
            &with("\"port\": {\"gard\": 1}"),
            7,
            "unknown field `gard`",
        ),
        ("ADD", &[], &with("\"vlan\": 4095"), 7, "1 to 4094"),
        ("ADD", &[], &with("\"mtu\": 67"), 7, "68 to 65535"),
        ("ADD", &[], &with("\"interface\": \"tun\""), 7, "`tap` or `veth`"),
        (
            "ADD",
            &[],
            &with("\"interface\": \"veth\", \"vhostUser\": {}"),
            7,
            "vhostUser have none",
        ),
        (
            "ADD",
            &[],
            &with("\"vhostUser\": {\"x\": 1}"),
            7,
            "unknown field `x`",
        ),
        ("ADD", &[], &nameless, 7, "no name"),
        (
            "ADD",
            &[],
            &NETWORK.replace("switch", "cni.dev/x"),
            7,
            "`switch` is missing",
        ),
        ("ADD", &[("CNI_CONTAINERID", "")], NETWORK, 4, "CNI_CONTAINERID"),
        (
            "ADD",
            &[("CNI_CONTAINERID", "../x")],
            NETWORK,
            4,
            "CNI_CONTAINERID",
        ),
        (
            "ADD",
            &[("CNI_IFNAME", "sixteen-bytes-xx")],
            NETWORK,
            4,
            "CNI_IFNAME",
        ),
        ("ADD", &[("CNI_NETNS", "")], NETWORK, 4, "CNI_NETNS"),
        ("ADD", &[("CNI_ARGS", "MAC=01:00:5e:00:00:01")], NETWORK, 4, "MAC"),
        (
            "ADD",
            &[("CNI_ARGS", "K8S_POD_UID=../..")],
            NETWORK,
            4,
            "K8S_POD_UID",
        ),
        (
            "ADD",
            &[],
            &with("\"ipam\": {\"type\": \"../x\"}"),
            7,
            "no name of a program",
        ),
        (
            "ADD",
            &[("CNI_PATH", "/nonexistent")],
            &with("\"ipam\": {\"type\": \"x\"}"),
            7,
            "CNI_PATH",
        ),
        ("ADD", &[], NETWORK, 11, "cannot reach hyperswitch"),
        ("CHECK", &[], NETWORK, 7, "prevResult"),
        ("STATUS", &[], NETWORK, 50, "cannot reach hyperswitch"),
        ("GC", &[], NETWORK, 7, "valid-attachments"),
        ("GC", &[], &with(gc), 7, "expected struct Valid"),
        ("UPDATE", &[], NETWORK, 4, "UPDATE is not known"),
    ];
    for (command, variables, input, code, words) in cases {
        let (found, message) = refusal(command, variables, input);
        assert_eq!(found, *code, "{command} {variables:?} {input}: {message}");
        assert!(message.contains(words), "{message}");
    }
    let long = " ".repeat(usize::try_from(MAX_INPUT).unwrap() + 1);
    assert_eq!(refusal("ADD", &[], &long).0, 6);
}

#[test]
fn errors_have_the_form_and_the_version_of_the_request() {
    let error = ask("ADD", &[], &with("\"cniVersions\": []").replace("1.0.0", "0.4.0")).unwrap_err();
    let error = serde_json::to_value(&error).unwrap();
    assert_eq!(
        (&error["cniVersion"], &error["code"]),
        (&json!("0.4.0"), &json!(11))
    );
    assert!(error["msg"].as_str().unwrap().contains("cannot reach"), "{error}");
}

/// DEL and GC end well where no instance is: its ports have gone with it.
#[test]
fn what_is_gone_with_the_instance_is_deleted() {
    assert_eq!(ask("DEL", &[("CNI_NETNS", "")], NETWORK), Ok(None));
    let nothing = with("\"cni.dev/valid-attachments\": []");
    assert_eq!(ask("GC", &[], &nothing), Ok(None));
}

#[test]
fn names_of_ports_are_as_distinct_as_attachments() {
    let name = |network, container, ifname| port_name(network, container, ifname).unwrap().to_string();
    assert_eq!(
        name("net", "c1", "eth0"),
        "cni-a08a0fcbdeafd3c1-ec43057c07aaa51f882664a6"
    );
    let long = "f".repeat(255);
    let all = [
        name("net", "c1", "eth0"),
        name("net2", "c1", "eth0"),
        name("net", "c1e", "th0"),
        name("net", "c1", "eth1"),
        name(&long, &long, "eth0"),
    ];
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(all[0][..21], all[3][..21], "GC finds the ports of a network");
}

#[test]
fn the_answer_is_of_the_version_that_was_asked_for() {
    let interface = Interface {
        name: "eth0".into(),
        mac: Some("52:54:00:00:00:01".into()),
        mtu: 1400,
        sandbox: "/run/netns/c1".into(),
        socket: Some("/run/x.sock".into()),
    };
    let assigned = json!({
        "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.1.0.1"] },
    });
    let expected = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{
            "name": "eth0", "mac": "52:54:00:00:00:01", "mtu": 1400, "sandbox": "/run/netns/c1",
            "socketPath": "/run/x.sock",
        }],
        "ips": [{ "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.1.0.1"] },
    });
    assert_eq!(added("1.1.0", &interface, &assigned, None), expected);
    let older = added("1.0.0", &interface, &Value::Null, Some(&json!({ "domain": "x" })));
    assert_eq!(older["interfaces"][0].get("socketPath"), None);
    assert_eq!(
        (&older["ips"], &older["dns"]),
        (&json!([]), &json!({ "domain": "x" }))
    );
}

#[test]
fn routes_lead_over_the_gateway_of_their_family() {
    let assigned = json!({
        "ips": [{ "address": "fd00::2/64", "gateway": "fd00::1" }, { "address": "10.1.0.2/24", "gateway": "10.1.0.1" }],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0", "priority": 7 }, { "dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400 }],
    });
    let routes = ipam::routes(&assigned).unwrap();
    let gateways: Vec<_> = routes
        .iter()
        .map(|route| route.gateway.unwrap().to_string())
        .collect();
    assert_eq!(gateways, ["10.1.0.1", "fd00::1", "10.1.0.9"]);
    assert_eq!((routes[1].priority, routes[2].mtu), (Some(7), Some(1400)));
    for wrong in [
        json!({ "dst": "10.0.0.0/33" }),
        json!({ "dst": "x" }),
        json!({}),
        json!({ "dst": "::/0", "gw": 7 }),
    ] {
        assert!(ipam::routes(&json!({ "routes": [wrong] })).is_err());
    }
    assert!(ipam::addresses(&json!({ "ips": [{ "address": "10.1.0.2" }] })).is_err());
}

#[test]
fn namespaces_of_processes_get_a_name() {
    let port = "cni-x".parse().unwrap();
    assert_eq!(
        Namespace::of("/var/run/netns/c1", &port).name,
        "/var/run/netns/c1"
    );
    assert_eq!(Namespace::of("/proc/7/ns/net", &port).name, "cni-x");
}
