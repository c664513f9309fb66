//! The guarded port of `docs/policies.md`, with containers: what is allowed passes, what is forbidden is
//! dropped and named, through a reload and the deaths of processes.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};
use serde_json::Value;
use std::path::Path;

impl Instance {
    /// Packets that rules of this origin and action decided about.
    fn counted(&self, list: &str, origin: &str, action: &str) -> u64 {
        let shown = self.verb(&["policy", "show", list]).unwrap_or_default();
        let rules = shown["rules"].as_array().cloned().unwrap_or_default();
        let of = rules
            .iter()
            .filter(|rule| rule["origin"] == origin && rule["action"] == action);
        of.filter_map(|rule| rule["packets"].as_u64()).sum()
    }

    fn dropped(&self, port: &str) -> u64 {
        let stats = self.verb(&["stats", port]).unwrap_or_default();
        stats["ports"][0]["counters"]["dropped"]["policy"]
            .as_u64()
            .unwrap_or(0)
    }
}

/// The configuration of the document, for these namespaces.
fn example(web: &Namespace, client: &Namespace) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/policies.md");
    let text = std::fs::read_to_string(document).unwrap();
    let example = text
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let netns = |name: &str| format!("netns = \"{name}\"");
    example
        .replace(&netns("web"), &netns(&web.0))
        .replace(&netns("client"), &netns(&client.0))
}

#[test]
fn what_is_allowed_passes_and_what_is_forbidden_is_dropped_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, config) = (directory.path().join("run"), directory.path().join("c.toml"));
    let (web, client) = (Namespace::new("web"), Namespace::new("client"));
    let text = example(&web, &client);
    std::fs::write(&config, &text).unwrap();
    let instance = Instance::start(&run_dir, &config);
    eventually("ports run", || {
        instance.is_running("web") && instance.is_running("client")
    });
    // Whether its lists are there or on their way: nothing that `web` sends unasked gets through.
    assert!(!web.pings("10.0.0.2"));
    eventually("lists are in force", || instance.is_in_force());
    eventually("a ping passes", || client.pings("10.0.0.1"));
    assert!(client.reaches("10.0.0.1", 443));
    assert!(!client.reaches("10.0.0.1", 80));
    assert!(!web.pings("10.0.0.2"));
    assert!(instance.dropped("web") > 0 && instance.dropped("client") > 0);
    assert!(instance.counted("to: groups web", "default", "drop") > 0);

    assert!(client.run("ip addr add 10.0.0.9/24 dev client").0);
    assert!(!client.pings("-I 10.0.0.9 10.0.0.1"));
    assert!(instance.counted("client", "guard spoof", "drop") > 0);

    let explain = |port: &str| {
        let ports = ["--in-port", "client", "--to", "web", "--dport", port];
        let words = [&["policy", "explain"], &ports[..]].concat();
        instance.verb(&words).unwrap()
    };
    let (allowed, forbidden) = (explain("443"), explain("80"));
    let of_group = "group web to rule 1";
    assert!(allowed["steps"].to_string().contains(of_group), "{allowed}");
    assert!(allowed["steps"].to_string().contains("delivered"), "{allowed}");
    assert!(
        allowed["lines"][of_group].as_str().unwrap().ends_with("c.toml:4"),
        "{allowed}"
    );
    assert!(
        forbidden["steps"].to_string().contains("\"reason\":\"policy\""),
        "{forbidden}"
    );
    let shown = instance.verb(&["port", "show", "web"]).unwrap();
    assert!(
        shown[0]["policies"]
            .to_string()
            .contains("to: groups web (in force)"),
        "{shown}"
    );

    // From the answer on, packets obey the new rule.
    let other = text.replace("destination-port = 443", "destination-port = 80");
    std::fs::write(&config, &other).unwrap();
    let diff = instance
        .verb(&["policy", "diff", config.to_str().unwrap()])
        .unwrap();
    let lists = diff.as_array().unwrap();
    let list = lists
        .iter()
        .find(|list| list["list"] == "to: groups web")
        .unwrap();
    let rules = list["rules"].as_array().unwrap();
    let goes = rules
        .iter()
        .find(|rule| rule["comes"] == false && rule["origin"] == of_group)
        .unwrap();
    let comes = rules
        .iter()
        .find(|rule| rule["comes"] == true && rule["origin"] == of_group)
        .unwrap();
    assert!(
        goes["packets"].as_u64().unwrap() > 0 && comes["line"] == 4,
        "{diff}"
    );
    let decisions = list["decisions"].as_array().unwrap();
    let allowed = decisions.iter().find(|it| it["origin"] == of_group).unwrap();
    let packets = allowed["packets"].to_string();
    assert!(
        packets.contains("tp_dst=443") && packets.contains("ip_proto=6"),
        "{diff}"
    );
    let told = ["from", "action", "new-action", "new-origin"].map(|key| allowed[key].clone());
    assert_eq!(told, ["client", "allow", "drop", "default"], "{diff}");
    assert!(
        decisions.iter().all(|it| it["action"] != it["new-action"]),
        "{diff}"
    );
    let plan = instance.verb(&["reload", "--dry-run"]).unwrap();
    assert!(
        plan["changes"]
            .to_string()
            .contains("policy to: groups web changed"),
        "{plan}"
    );
    assert!(client.reaches("10.0.0.1", 443));
    instance.verb(&["reload"]).unwrap();
    assert!(!client.reaches("10.0.0.1", 443));
    assert!(client.reaches("10.0.0.1", 80));

    // Nothing changes if anything is wrong.
    let wrong = text.replace("icmp-type = 8", "icmp-type = 8, connection = \"new\"");
    std::fs::write(&config, wrong).unwrap();
    let refused = instance.verb(&["reload"]).unwrap_err();
    assert!(
        refused.contains("c.toml:5:") && refused.contains("until connection tracking exists"),
        "{refused}"
    );
    assert!(client.reaches("10.0.0.1", 80) && !client.reaches("10.0.0.1", 443));

    // Lists outlive the control process, and the next one knows them.
    let before = instance.counted("to: groups web", "group web to rule 1", "allow");
    instance.kill("control");
    assert!(!client.reaches("10.0.0.1", 443) && client.reaches("10.0.0.1", 80));
    eventually("lists are known", || instance.is_in_force());
    assert!(instance.counted("to: groups web", "group web to rule 1", "allow") > before && before > 0);

    // A new data plane gets them again, and lets nothing pass before.
    instance.kill("data-plane");
    assert!(!client.reaches("10.0.0.1", 443));
    eventually("what is allowed passes again", || client.reaches("10.0.0.1", 80));
    assert!(!client.reaches("10.0.0.1", 443));
    eventually("lists are in force again", || instance.is_in_force());
}

/// What `acl-from` and `acl-to` say, and what a rule on trial would do.
#[test]
fn access_lists_hold_in_both_directions_and_trials_only_count() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, config) = (directory.path().join("run"), directory.path().join("c.toml"));
    let (web, client) = (Namespace::new("acl-web"), Namespace::new("acl-client"));
    let port = |name: &str, namespace: &Namespace, last: u8, acls: &str| {
        let Namespace(netns) = namespace;
        format!(
            "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{netns}\"\n\
             mac = \"52:54:00:00:01:0{last}\"\naddresses = [\"10.0.1.{last}/24\"]\n{acls}\n"
        )
    };
    let rule = |name: &str, trial: bool, port: u16| {
        format!(
            "[[acl]]\nname = \"{name}\"\ndefault = \"allow\"\nrule = [\n  {{ action = \"drop\", protocol = \"tcp\", \
             destination-port = {port}, trial = {trial} }},\n]\n"
        )
    };
    let text = |trial: bool| {
        [
            rule("no-81", false, 81),
            rule("no-82", trial, 82),
            "[[switch]]\nname = \"lan\"\n".into(),
            port("web", &web, 1, "acl-to = \"no-81\""),
            port("client", &client, 2, "acl-from = \"no-82\""),
        ]
        .concat()
    };
    std::fs::write(&config, text(true)).unwrap();
    let instance = Instance::start(&run_dir, &config);
    eventually("ports run", || {
        instance.is_running("web") && instance.is_running("client")
    });
    eventually("lists are in force", || instance.is_in_force());
    eventually("a ping passes", || client.pings("10.0.1.1"));
    assert!(!client.reaches("10.0.1.1", 81), "what goes to web");
    assert!(client.reaches("10.0.1.1", 82), "the rule is on trial");
    assert!(instance.counted("to: acl no-81", "acl no-81 rule 1", "drop") > 0);
    assert!(instance.counted("from: acl no-82", "acl no-82 rule 1", "drop") > 0);
    let (src, dst) = ("52:54:00:00:01:02", "52:54:00:00:01:01");
    let packet = [
        "--src",
        src,
        "--dst",
        dst,
        "--ip",
        "10.0.1.2,10.0.1.1",
        "--proto",
        "tcp",
        "--dport",
        "82",
    ];
    let words = [&["trace", "--in-port", "client"], &packet[..]].concat();
    let traced = instance.verb(&words).unwrap().to_string();
    assert!(
        traced.contains("\"trial\":true") && traced.contains("acl no-82 rule 1"),
        "{traced}"
    );

    std::fs::write(&config, text(false)).unwrap();
    instance.verb(&["reload"]).unwrap();
    assert!(!client.reaches("10.0.1.1", 82));
    assert!(web.reaches("10.0.1.2", 81), "the other direction is free");
}

/// Packets that rules and ports note, in the log and by command: also what a rule on trial would do.
#[test]
fn what_rules_note_is_shown_and_logged() {
    let directory = tempfile::tempdir().unwrap();
    let (run_dir, config) = (directory.path().join("run"), directory.path().join("c.toml"));
    let (web, client) = (Namespace::new("log-web"), Namespace::new("log-client"));
    let text = format!(
        "[[acl]]
name = \"office\"
default = \"allow\"
rule = [
  {{ action = \"drop\", protocol = \"tcp\", destination-port = 81, log = true }},
  {{ action = \"drop\", protocol = \"tcp\", destination-port = 82, log = true, trial = true }},
  {{ action = \"drop\", protocol = \"tcp\", destination-port = 83 }},
]
[[switch]]
name = \"lan\"
[[switch.port]]
name = \"web\"
type = \"tap\"
netns = \"{}\"
mac = \"52:54:00:00:02:01\"
addresses = [\"10.0.2.1/24\"]
acl-to = \"office\"
[[switch.port]]
name = \"client\"
type = \"tap\"
netns = \"{}\"
mac = \"52:54:00:00:02:02\"
addresses = [\"10.0.2.2/24\"]
guards = [\"spoof\"]
log-drops = true
",
        web.0, client.0
    );
    std::fs::write(&config, text).unwrap();
    let instance = Instance::start(&run_dir, &config);
    eventually("ports run", || {
        instance.is_running("web") && instance.is_running("client")
    });
    eventually("lists are in force", || instance.is_in_force());
    eventually("a ping passes", || client.pings("10.0.2.1"));
    for port in 81..=83 {
        assert_eq!(client.reaches("10.0.2.1", port), port == 82);
    }
    assert!(client.run("ip addr add 10.0.2.9/24 dev client").0);
    assert!(!client.pings("-I 10.0.2.9 10.0.2.1"));

    let noted = |origin: &str, source: &str| {
        let records = instance.verb(&["policy", "log"]).unwrap_or_default();
        let records = records.as_array().cloned().unwrap_or_default();
        let from = |record: &Value| record["source"].as_str().is_some_and(|it| it.starts_with(source));
        records
            .into_iter()
            .find(|record| record["origin"] == origin && from(record))
    };
    let told = |record: &Value| {
        let keys = ["action", "trial", "port", "direction", "sender", "destination"];
        keys.map(|key| record[key].to_string().replace('"', "")).join(" ")
    };
    for (origin, source, expected) in [
        (
            "acl office rule 1",
            "10.0.2.2:",
            "drop false web to client 10.0.2.1:81",
        ),
        (
            "acl office rule 2",
            "10.0.2.2:",
            "drop true web to client 10.0.2.1:82",
        ),
        (
            "guard spoof",
            "10.0.2.9",
            "drop false client from client 10.0.2.1",
        ),
    ] {
        eventually("the rule's packet is shown", || noted(origin, source).is_some());
        assert_eq!(told(&noted(origin, source).unwrap()), expected);
    }
    assert!(noted("acl office rule 3", "").is_none());
    let of_web = instance.verb(&["policy", "log", "--port", "web"]).unwrap();
    assert!(!of_web.to_string().contains("guard spoof"), "{of_web}");
    let log = std::fs::read_to_string(config.with_extension("log")).unwrap();
    let expected = "policy: drop (trial) to web: acl office rule 2: sender=client,";
    assert!(log.contains(expected), "{log}");
    let shown = instance.verb(&["policy", "show", "to: acl office"]).unwrap();
    assert_eq!(shown["rules"][0]["log"], true, "{shown}");
}
