//! Containers whose ports are veth pairs: `c0`, `c1` and so on, at one switch of a running instance.

use super::{Instance, Namespace, eventually};

/// An instance with containers, in a host of its own. Container N has the address 10.66.0.N+1.
pub struct Site {
    pub instance: Instance,
    pub spaces: Vec<Namespace>,
    pub host: Namespace,
    directory: tempfile::TempDir,
}

impl Site {
    /// With so many containers, of which the first one is in the configuration.
    pub fn start(count: usize) -> Site {
        let (directory, host) = (tempfile::tempdir().unwrap(), Namespace::new("veth"));
        let spaces: Vec<_> = (0..count).map(|_| Namespace::new("veth")).collect();
        // Nothing is sent that no test sends.
        let quiet = |space: &Namespace| space.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").0;
        assert!(spaces.iter().all(quiet));
        let (file, run_dir) = (directory.path().join("x.toml"), directory.path().join("run"));
        std::fs::write(&file, Site::config(&spaces)).unwrap();
        let instance = Instance::start_in(&host, &run_dir, &file);
        eventually("it is running", || instance.is_running("c0"));
        let site = Site {
            instance,
            spaces,
            host,
            directory,
        };
        (1..count).for_each(|number| site.add(number, "veth"));
        site
    }

    fn config(spaces: &[Namespace]) -> String {
        format!(
            "[[switch]]\nname = \"lan\"\ntype = \"private\"\n[[switch.port]]\nname = \"c0\"\ntype = \"veth\"\n\
             interface = \"eth0\"\nnetns = \"{}\"\naddresses = [\"10.66.0.1/24\"]\n",
            spaces[0].0
        )
    }

    /// Has the configuration end with this.
    pub fn reload_with(&self, more: &str) {
        let text = Site::config(&self.spaces) + more;
        std::fs::write(self.directory.path().join("x.toml"), text).unwrap();
        self.instance.verb(&["reload"]).unwrap();
    }

    /// Adds a container's port.
    pub fn add(&self, number: usize, kind: &str) {
        let line = format!(
            "port add lan c{number} --type {kind} --netns {} --interface eth0 --address 10.66.0.{}/24",
            self.spaces[number].0,
            number + 1
        );
        self.say(&line);
        let name = format!("c{number}");
        eventually("the port is running", || self.instance.is_running(&name));
    }

    /// A command that succeeds.
    pub fn say(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.instance.verb(&words).unwrap();
    }

    pub fn pings(&self) -> bool {
        self.spaces[0].pings("10.66.0.2") && self.spaces[1].pings("10.66.0.1")
    }

    pub fn has(&self, space: usize) -> bool {
        self.spaces[space].run("ip link show eth0").0
    }

    /// What the kernel forwards of a port's packets: flows, and why none.
    pub fn kernel_path(&self, port: &str) -> (u64, String) {
        let shown = self.instance.verb(&["port", "show", port]).unwrap_or_default();
        let path = &shown[0]["kernel-path"];
        let obstacle = path["obstacle"].as_str().unwrap_or_default();
        (path["flows"].as_u64().unwrap_or(0), obstacle.into())
    }

    /// Waits until the kernel forwards pings of the first two containers both ways.
    pub fn on_kernel_path(&self) {
        eventually("the kernel forwards", || {
            self.pings() && self.kernel_path("c0").0 > 0 && self.kernel_path("c1").0 > 0
        });
    }

    /// Packets of a port that the kernel has forwarded.
    pub fn by_kernel(&self, port: &str) -> u64 {
        self.instance.counter(port, "kernel-path")
    }

    /// Pings of the first container to the second one that are answered, of so many.
    pub fn answered(&self, count: u32, options: &str) -> u64 {
        let line = format!("ping -q -i 0.01 -c {count} -W 1{options} 10.66.0.2");
        let said = self.spaces[0].run(&line).1;
        let received = said.split(", ").find(|part| part.ends_with(" received"));
        let number = received.and_then(|part| part.split(' ').next());
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// The Ethernet address of a container, in hexadecimal digits.
    pub fn mac(&self, space: usize) -> String {
        let said = self.spaces[space].run("cat /sys/class/net/eth0/address").1;
        said.trim().replace(':', "")
    }
}
