//! `make demo`: real guests talk through the switch, in one table.
//!
//! One internal switch with two User Mode Linux guests, a QEMU guest, a container's namespace and the host's
//! own interface. Every pair is pinged over IPv4 and IPv6 and measured with iperf3 both ways; then the switch
//! is asked what it saw. "The host" is a namespace as well, so that nothing about the machine's network
//! changes.
//!
//! ```text
//! demo              run, print, clean up; exit status 1 if any row failed
//! demo --keep       run, print, leave everything running in the background
//! demo exec A CMD   run a command in guest A of a demonstration that was kept
//! demo stop         end it
//! ```

#![forbid(unsafe_code)]

mod keep;
mod measure;
mod table;

use anyhow::{Context, Result, bail};
use std::process::ExitCode;
use std::time::Instant;
use testbed::{Endpoint, Guest, GuestOptions, Namespace, QemuGuest, QemuOptions, Switch, UmlGuest};

/// One participant.
struct Party {
    name: &'static str,
    what: String,
    number: u8,
}

/// The running demonstration. Guests end before the switch, and that before the namespaces.
struct Demo {
    guests: Vec<Guest>,
    qemu: QemuGuest,
    switch: Switch,
    container: Namespace,
}

fn v4(number: u8) -> String {
    format!("10.99.0.{number}")
}

fn v6(number: u8) -> String {
    format!("fd00:99::{number}")
}

const HOST: u8 = 254;
const CONTAINER: u8 = 50;
const QEMU: u8 = 3;

fn config(netns: &str) -> String {
    let (host4, host6, ct4, ct6) = (v4(HOST), v6(HOST), v4(CONTAINER), v6(CONTAINER));
    format!(
        r#"# One switch that joins guests, a container and the host.
[[switch]]
name = "demo"
type = "internal"
host = {{ interface = "demo0", addresses = ["{host4}/24", "{host6}/64"] }}

[[switch.port]]
name = "uml1"

[[switch.port]]
name = "uml2"

[[switch.port]]
name = "qemu"

[[switch.port]]
name = "container"
type = "tap"
interface = "eth0"
netns = "{netns}"
addresses = ["{ct4}/24", "{ct6}/64"]
"#
    )
}

impl Demo {
    fn start(say: &impl Fn(&str)) -> Result<Demo> {
        say("starting the switch");
        let container = Namespace::new("container")?;
        let directory = tempfile::Builder::new().prefix("hs-demo-").tempdir()?;
        let switch = Switch::start_at(&config(container.netns()), directory)?;
        say("booting two User Mode Linux guests and a QEMU guest");
        let options = |name: &str, number| {
            GuestOptions::new(name)
                .vhost_user(switch.socket(name))
                .address(&format!("{}/24", v4(number)))
                .address(&format!("{}/64", v6(number)))
        };
        let mut guests = vec![
            UmlGuest::start(options("uml1", 1))?,
            UmlGuest::start(options("uml2", 2))?,
        ];
        let mut qemu = QemuGuest::start(options("qemu", QEMU), &QemuOptions::default())?;
        for guest in guests.iter_mut().chain([&mut *qemu]) {
            guest.wait_ready()?;
            let seconds = guest.boot_time().unwrap_or_default().as_secs_f64();
            say(&format!("{} is up after {seconds:.1} s", guest.name()));
        }
        let demo = Demo {
            guests,
            qemu,
            switch,
            container,
        };
        for name in ["uml1", "uml2", "qemu", "container"] {
            demo.switch.wait_port(name, "running")?;
        }
        demo.wait_for_addresses()?;
        Ok(demo)
    }

    /// Fresh IPv6 addresses of the host's kernel cannot be used until duplicate address detection has lasted
    /// a second.
    fn wait_for_addresses(&self) -> Result<()> {
        for endpoint in [self.switch.host(), &self.container] {
            self.switch
                .wait(|| Ok(!endpoint.must("ip -6 addr")?.contains("tentative")))?;
        }
        Ok(())
    }

    fn endpoint(&self, name: &str) -> Result<&dyn Endpoint> {
        Ok(match name {
            "uml1" => &self.guests[0],
            "uml2" => &self.guests[1],
            "qemu" => &*self.qemu,
            "container" => &self.container,
            "host" => self.switch.host(),
            _ => bail!("no {name} here; there are uml1, uml2, qemu, container and host"),
        })
    }

    fn parties(&self) -> Vec<Party> {
        let uml = || "User Mode Linux".to_owned();
        let machine = match self.qemu.accelerator() {
            "kvm" => "QEMU, KVM",
            _ => "QEMU, emulated",
        };
        let party = |name, number, what| Party { name, what, number };
        vec![
            party("uml1", 1, uml()),
            party("uml2", 2, uml()),
            party("qemu", QEMU, machine.into()),
            party("container", CONTAINER, "namespace, TAP".into()),
            party("host", HOST, "TAP".into()),
        ]
    }

    /// Measures, prints the table; whether every row passed.
    fn show(&self, say: &impl Fn(&str)) -> Result<bool> {
        let parties = self.parties();
        let rows = measure::all_pairs(self, &parties, say)?;
        say("asking the switch what it saw");
        let stats = self.switch.wait_until_accounted();
        let ports = self.switch.ports()?;
        println!("\n{}", table::results(&parties, &rows));
        let conserved = match &stats {
            Ok(stats) => {
                println!("{}", table::ports(&ports, stats));
                true
            }
            Err(error) => {
                println!("FAILED: {error:#}\n");
                false
            }
        };
        let failed = rows.iter().filter(|row| !row.passed()).count();
        let verdict = match (failed, conserved) {
            (0, true) => format!("All {} rows passed; every packet is accounted for.", rows.len()),
            (0, false) => "All rows passed, but packets are not accounted for.".into(),
            (failed, _) => format!("{failed} of {} rows FAILED.", rows.len()),
        };
        println!("{verdict}");
        Ok(failed == 0 && conserved)
    }

    fn stop(self) -> Result<()> {
        let Demo {
            guests,
            qemu,
            switch,
            container,
        } = self;
        drop((guests, qemu));
        switch.stop()?;
        drop(container);
        Ok(())
    }
}

/// Runs the demonstration; when `keep` is given, serves it until a stop is requested.
fn demonstrate(keep: Option<keep::Server>) -> Result<bool> {
    if let Some(obstacle) = testbed::lab::obstacle() {
        bail!("the demonstration {obstacle}");
    }
    let begin = Instant::now();
    let say = |text: &str| println!("[{:5.1} s] {text}", begin.elapsed().as_secs_f64());
    let demo = Demo::start(&say)?;
    let passed = demo.show(&say)?;
    if let Some(server) = keep {
        keep::explain(&demo);
        server.serve(&demo, passed)?;
    }
    say("cleaning up");
    demo.stop()?;
    println!("[{:5.1} s] done", begin.elapsed().as_secs_f64());
    Ok(passed)
}

fn run(arguments: &[&str]) -> Result<bool> {
    match arguments {
        [] => demonstrate(None),
        ["--keep"] => keep::in_background(),
        ["serve"] => demonstrate(Some(keep::Server::bind()?)),
        ["stop"] => keep::stop().map(|()| true),
        ["exec", name, command @ ..] if !command.is_empty() => keep::exec(name, &command.join(" ")),
        _ => bail!("usage: demo [--keep] | demo exec NAME COMMAND... | demo stop"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments).context("demo") {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
