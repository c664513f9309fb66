//! ovsdb-server, ovs-vswitchd and glue process in a directory and a network namespace of their own.

use crate::glue::ANSWER;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Set for the part of the test that runs in the namespace.
pub const INSIDE: &str = "HYPERSWITCH_TEST_INSIDE";
/// Set for the glue process: its socket.
pub const GLUE: &str = "HYPERSWITCH_TEST_GLUE";

/// Set for a program that uses netlink.
pub const CLIENT: &str = "HYPERSWITCH_TEST_CLIENT";

/// How long anything may take on a machine that is busy.
const TIMEOUT: Duration = Duration::from_secs(60);
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const PROGRAMS: [&str; 9] = [
    "/usr/sbin/ovs-vswitchd",
    "/usr/sbin/ovsdb-server",
    "/usr/bin/ovsdb-tool",
    "/usr/bin/ovs-vsctl",
    "/usr/bin/ovs-appctl",
    "/usr/bin/ovs-ofctl",
    "/usr/bin/unshare",
    "/usr/sbin/ip",
    SCHEMA,
];

/// What is needed and not there.
pub fn missing() -> Option<String> {
    // SAFETY: `geteuid` has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root may make namespaces and TAPs".into());
    }
    let missing = PROGRAMS
        .iter()
        .chain(&["/dev/net/tun"])
        .find(|path| !Path::new(path).exists());
    missing.map(|path| format!("{path} is not there"))
}

/// A process that lives as long as this.
pub struct Bystander(Child);

impl Bystander {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct World {
    directory: tempfile::TempDir,
    database: Child,
    vswitchd: Option<Child>,
    product: Option<Product>,
    glue: Option<RefCell<GlueProcess>>,
}

/// The product, all of it.
struct Product {
    program: PathBuf,
    supervisor: Child,
}

struct GlueProcess {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl World {
    /// `None` unless this is the part inside the namespace.
    pub fn new() -> Option<World> {
        std::env::var_os(INSIDE)?;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(path.join("conf.db"))
            .arg(SCHEMA));
        let database = bound_to_us(Command::new("ovsdb-server"))
            .arg(path.join("conf.db"))
            .arg(format!("--remote=punix:{}", path.join("db.sock").display()))
            .args(["--no-chdir", "-vconsole:off"])
            .arg(format!("--unixctl={}", path.join("db.ctl").display()))
            .env("OVS_RUNDIR", path)
            .spawn()
            .unwrap();
        let world = World {
            directory,
            database,
            vswitchd: None,
            product: None,
            glue: None,
        };
        world.until("the database is there", |world| world.path("db.sock").exists());
        world.client("ovs-vsctl", &["--no-wait", "init"]);
        Some(world)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn start_vswitchd(&mut self) {
        self.start_vswitchd_with(&[]);
    }

    /// Starts ovs-vswitchd with these variables in its environment.
    pub fn start_vswitchd_with(&mut self, variables: &[(&str, &str)]) {
        let output = std::fs::File::create(self.path("vswitchd.output")).unwrap();
        let child = bound_to_us(Command::new("ovs-vswitchd"))
            .arg(format!("unix:{}", self.path("db.sock").display()))
            .args(["--no-chdir", "-vconsole:off", "--pidfile"])
            .arg(format!("--log-file={}", self.path("vswitchd.log").display()))
            .arg(format!("--unixctl={}", self.path("vswitchd.ctl").display()))
            .env("OVS_RUNDIR", self.directory.path())
            .env("LD_PRELOAD", library())
            .env("HYPERSWITCH_OVS_SOCKET", self.glue_socket())
            .envs(variables.iter().copied())
            .stderr(output)
            .spawn();
        self.vswitchd = Some(child.unwrap());
    }

    fn glue_socket(&self) -> PathBuf {
        match self.product {
            Some(_) => self.path("run/ovs.sock"),
            None => self.path("glue.sock"),
        }
    }

    /// Where the guest behind a port connects.
    pub fn guest_socket(&self, port: &str) -> PathBuf {
        match self.product {
            Some(_) => self.path(&format!("run/ovs/{port}.sock")),
            None => self.path(&format!("{port}.sock")),
        }
    }

    /// Starts the product, with Open vSwitch's process.
    pub fn start_product(&mut self, program: PathBuf) {
        let database = self.path("db.sock").display().to_string();
        self.start_product_with(
            program,
            &format!("[ovs]\nenabled = true\ndatabase = \"{database}\"\n"),
        );
        self.until("the process for Open vSwitch listens", |world| {
            world.glue_socket().exists()
        });
    }

    /// Starts the product with that configuration.
    pub fn start_product_with(&mut self, program: PathBuf, config: &str) {
        std::fs::write(self.path("config.toml"), config).unwrap();
        let output = std::fs::File::create(self.path("product.output")).unwrap();
        let supervisor = bound_to_us(Command::new(&program))
            .arg("--run-dir")
            .arg(self.path("run"))
            .args(["run", "--config"])
            .arg(self.path("config.toml"))
            .env("HYPERSWITCH_SECCOMP", "report")
            .stderr(output)
            .spawn()
            .unwrap();
        self.product = Some(Product { program, supervisor });
        self.until("the product answers", |world| {
            world.product_command("status").output().unwrap().status.success()
        });
    }

    /// Ends the product, and all of its processes.
    pub fn stop_product(&mut self) {
        let supervisor = &mut self.product.as_mut().unwrap().supervisor;
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }

    pub fn program(&self) -> &Path {
        &self.product.as_ref().unwrap().program
    }

    fn product_command(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.program());
        command
            .arg("--run-dir")
            .arg(self.path("run"))
            .args(arguments.split(' '));
        command
    }

    /// What `hyperswitch` answers.
    pub fn product(&self, arguments: &str) -> String {
        run(&mut self.product_command(arguments))
    }

    /// Why `hyperswitch` does not do it.
    pub fn product_refuses(&self, arguments: &str) -> String {
        let output = self.product_command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn start_glue(&mut self) {
        self.start_glue_with(None);
    }

    /// Starts the glue with a variable set in its environment.
    pub fn start_glue_with(&mut self, variable: Option<&str>) {
        let mut child = bound_to_us(Command::new(std::env::current_exe().unwrap()))
            .args(["--exact", "glue_process", "--ignored", "--nocapture"])
            .env(GLUE, self.path("glue.sock"))
            .envs(variable.map(|variable| (variable, "1")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        self.glue = Some(RefCell::new(GlueProcess { child, answers }));
        self.until("the glue listens", |world| world.path("glue.sock").exists());
    }

    /// Runs a test of this executable with the library in front of it.
    pub fn run_preloaded(&self, name: &str) {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env(CLIENT, "1")
            .env("LD_PRELOAD", library())
            .env("HYPERSWITCH_OVS_SOCKET", self.path("glue.sock"))
            .status();
        assert!(status.unwrap().success(), "{name}");
    }

    /// Has the glue process do something.
    pub fn glue(&self, command: &str) -> String {
        let mut glue = self.glue.as_ref().unwrap().borrow_mut();
        writeln!(glue.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut line = String::new();
        while !line.starts_with(ANSWER) {
            line.clear();
            assert_ne!(
                glue.answers.read_line(&mut line).unwrap(),
                0,
                "the glue has ended"
            );
        }
        line.trim_start_matches(ANSWER).trim_end_matches('\n').to_owned()
    }

    /// Names of the ports of the data plane.
    pub fn ports(&self) -> Vec<String> {
        self.glue("ports").split_whitespace().map(str::to_owned).collect()
    }

    /// How many packets ovs-vswitchd has sent.
    pub fn sent(&self) -> usize {
        self.glue("sent").parse().unwrap()
    }

    /// How many flows ovs-vswitchd has installed.
    pub fn flows(&self) -> usize {
        let shown = self.appctl("dpctl/show");
        let count = shown.lines().find_map(|line| line.trim().strip_prefix("flows: "));
        count.unwrap().parse().unwrap()
    }

    pub fn has_device(&self, name: &str) -> bool {
        let devices = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        devices
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{name}:")))
    }

    /// Says something to the database and waits until ovs-vswitchd has done it. What it says on standard
    /// error is a failure.
    pub fn vsctl(&self, arguments: &str) -> String {
        self.client("ovs-vsctl", &arguments.split(' ').collect::<Vec<_>>())
    }

    /// Adds `br0` with internal ports of these names.
    pub fn add_bridge(&self, ports: &[&str]) {
        self.vsctl("add-br br0");
        for port in ports {
            self.vsctl(&format!(
                "add-port br0 {port} -- set Interface {port} type=internal"
            ));
        }
    }

    /// A process in a network namespace of its own.
    pub fn other_namespace(&self) -> Bystander {
        let child = bound_to_us(Command::new("unshare"))
            .args(["--net", "--", "sleep", "1000"])
            .spawn();
        let bystander = Bystander(child.unwrap());
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let id = bystander.id().to_string();
        self.until("there is another namespace", |_| {
            namespace(&id) != namespace("self")
        });
        bystander
    }

    /// Runs a program in a bystander's namespace; whether it succeeded, and what it said.
    pub fn run_at(&self, there: &Bystander, arguments: &str) -> (bool, String) {
        let output = Command::new("nsenter")
            .args(["-t", &there.id().to_string(), "-n", "--"])
            .args(arguments.split(' '))
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    pub fn ip(&self, arguments: &str) -> String {
        run(Command::new("ip").args(arguments.split(' ')))
    }

    pub fn ofctl(&self, arguments: &str) -> String {
        let arguments = format!("-O OpenFlow13 {arguments}");
        self.client("ovs-ofctl", &arguments.split(' ').collect::<Vec<_>>())
    }

    pub fn appctl(&self, arguments: &str) -> String {
        let target = self.path("vswitchd.ctl").display().to_string();
        let arguments = [vec!["-t", &target], arguments.split(' ').collect()].concat();
        self.client("ovs-appctl", &arguments)
    }

    fn client(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.arg("--timeout=60");
        if program == "ovs-vsctl" {
            command.arg(format!("--db=unix:{}", self.path("db.sock").display()));
        }
        run(command.args(arguments).env("OVS_RUNDIR", self.directory.path()))
    }

    /// Waits until ovs-vswitchd has done all that the database wants.
    pub fn wait_until_configured(&self) {
        self.until("ovs-vswitchd answers", |world| {
            world.path("vswitchd.ctl").exists()
        });
        // Any change makes `ovs-vsctl` wait until it is done.
        self.vsctl("set Open_vSwitch . external_ids:waited=1 -- remove Open_vSwitch . external_ids waited");
        self.vsctl("set Open_vSwitch . external_ids:waited=2");
    }

    pub fn kill_vswitchd(&mut self) {
        let mut child = self.vswitchd.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let _ = std::fs::remove_file(self.path("vswitchd.ctl"));
    }

    /// Waits for ovs-vswitchd's end and says by which signal.
    pub fn vswitchd_signal(&mut self) -> Option<i32> {
        let signal = self.vswitchd.take().unwrap().wait().unwrap().signal();
        let _ = std::fs::remove_file(self.path("vswitchd.ctl"));
        signal
    }

    pub fn kill_glue(&mut self) {
        let mut glue = self.glue.take().unwrap().into_inner();
        glue.child.kill().unwrap();
        glue.child.wait().unwrap();
        // As a new process finds it: the file of the socket is still there.
        assert!(self.path("glue.sock").exists());
    }

    /// Stops the glue process, which goes on living.
    pub fn stop_glue(&self) {
        let glue = self.glue.as_ref().unwrap().borrow();
        let id = glue.child.id().cast_signed();
        // SAFETY: plain integers; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGSTOP) }, 0);
    }

    /// Waits until the library has said something on ovs-vswitchd's standard error.
    pub fn wait_for_output(&self, text: &str) {
        self.until(text, |world| {
            std::fs::read_to_string(world.path("vswitchd.output"))
                .unwrap()
                .contains(text)
        });
    }

    pub fn until(&self, what: &str, mut condition: impl FnMut(&World) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !condition(self) {
            assert!(
                Instant::now() < end,
                "not within {TIMEOUT:?}: {what}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("vswitchd.log")).unwrap_or_default()
    }

    /// No warnings, but those that are not about the datapath.
    pub fn check_log(&self) {
        let log = self.log();
        let suspicious = |line: &&str| {
            ["|WARN|", "|ERR|", "|EMER|"]
                .iter()
                .any(|level| line.contains(level))
                && !HARMLESS.iter().any(|harmless| line.contains(harmless))
        };
        let found: Vec<_> = log.lines().filter(suspicious).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

/// Warnings that ovs-vswitchd writes over a kernel's datapath as well.
const HARMLESS: [&str; 6] = [
    // A device sends before ovs-vswitchd, which has just added it, looks packets of it up.
    "received packet on unknown port",
    // A test sends what is to be dropped.
    "which is reserved exclusively for mirroring",
    // `options:vhost-server-path` of a port that is internal to it.
    "arguments provided to device that is not configurable",
    // `mtu_request` of a port whose device is not made yet.
    "failed to set MTU for network device",
    // A busy machine.
    "|timeval|WARN|",
    "|poll_loop|WARN|",
];

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let tail: Vec<_> = self.log().lines().rev().take(60).map(str::to_owned).collect();
            for line in tail.iter().rev() {
                eprintln!("vswitchd: {line}");
            }
            for name in ["vswitchd.output", "product.output"] {
                eprintln!("{}", std::fs::read_to_string(self.path(name)).unwrap_or_default());
            }
        }
        let children = [
            self.vswitchd.take(),
            self.glue.take().map(|glue| glue.into_inner().child),
            self.product.take().map(|product| product.supervisor),
        ];
        for mut child in children.into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.database.kill();
        let _ = self.database.wait();
    }
}

/// The library that is tested, as cargo has built it beside this executable.
pub fn library() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [
        directory.join("libovs_shim.so"),
        directory.join("../libovs_shim.so"),
    ];
    let found = places.iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("none of {places:?}")).clone()
}

/// Runs a program and returns its output. It must succeed, and be silent on standard error.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A program that ends when the test ends, however that ends.
fn bound_to_us(mut command: Command) -> Command {
    // SAFETY: between `fork` and `exec` only `prctl` is called, which is safe there.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}
