//! The guarded port of `docs/policies.md`, with containers: what is allowed passes, what is forbidden is
//! dropped and named, through a reload and the deaths of processes.

#![allow(clippy::unwrap_used)]

mod containers;

use containers::{Instance, Namespace, eventually};
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

    // From the answer on, packets obey the new rule.
    let other = text.replace("destination-port = 443", "destination-port = 80");
    std::fs::write(&config, &other).unwrap();
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
