//! The processes that the supervisor starts: each takes its channel, gives up the rights that it does not
//! need, reports those that it could not give up, and calls its crate.

use anyhow::{Context, Result};
use control_protocol::Channel;
use control_protocol::supervisor::{ForwarderId, FromChild, Role};
use driver_domain::Owner;
use management::{Group, ListenAddress, Place, SocketMode};
use p4_runtime::process::Options;
use p4_runtime::server::Tls;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use sandbox::{Kept, Missing, Violation};
use socket_path::Access;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Environment variable: `report` makes a process say which forbidden system call it made.
pub const SECCOMP_VARIABLE: &str = "HYPERSWITCH_SECCOMP";

/// Environment variable, set by the supervisor: forwarding threads need `CAP_SYS_NICE` for the class that was
/// granted.
pub const NICE_VARIABLE: &str = "HYPERSWITCH_NICE";

/// Environment variable, set by the supervisor: the data plane sends by queues of devices.
pub const QUEUES_VARIABLE: &str = "HYPERSWITCH_QUEUES";

/// Environment variable: with `leave` no process is replaced because it hangs, so that it can be looked at.
pub const HANGS_VARIABLE: &str = "HYPERSWITCH_HANGS";

/// The data plane: isolated before it receives a message from any process but the supervisor.
pub fn data_plane() -> Result<ExitCode> {
    let supervisor = begin(Role::DataPlane)?;
    process::return_freed_memory();
    let topology = placement::Topology::of_machine();
    let queues =
        std::env::var_os(QUEUES_VARIABLE).map_or(datapath::Queues::Refused, |_| datapath::Queues::Allowed);
    let sends = queues == datapath::Queues::Allowed;
    isolated(
        &supervisor,
        sandbox::isolate_data_plane(violation(), kept(), sends)?,
    )?;
    end(datapath::run(supervisor, topology, queues).map_err(Into::into))
}

/// The rights that the supervisor found to be needed to raise threads.
fn kept() -> Kept {
    if std::env::var_os(NICE_VARIABLE).is_some() {
        Kept::Nice
    } else {
        Kept::Nothing
    }
}

/// A forwarder of the driver domain.
pub fn forwarder(number: u8) -> Result<ExitCode> {
    let supervisor = begin(Role::Forwarder(ForwarderId(number)))?;
    process::return_freed_memory();
    isolated(
        &supervisor,
        sandbox::isolate_forwarder(violation(), kept(), number)?,
    )?;
    end(driver_domain::forward(supervisor).map_err(Into::into))
}

/// The broker of the driver domain.
pub fn driver(run_dir: &Path) -> Result<ExitCode> {
    let supervisor = begin(Role::Driver)?;
    let owner = Owner::new(run_dir);
    isolated(&supervisor, sandbox::isolate_driver(violation())?)?;
    end(driver_domain::run(supervisor, owner).map_err(Into::into))
}

/// The control process.
pub fn control(run_dir: PathBuf, config: Option<PathBuf>) -> Result<ExitCode> {
    let supervisor = begin(Role::Control)?;
    let machine = machine();
    let cores = placement::Topology::of_machine()
        .usable()
        .map(|core| core.0)
        .collect();
    let groups = control::Groups::of_machine();
    let missing = sandbox::isolate_control(violation(), &run_dir, config.as_deref())?;
    isolated(&supervisor, missing)?;
    let options = control::Options {
        run_dir,
        config,
        machine,
        cores,
        groups,
        p4: crate::p4::FILES,
    };
    end(control::run(supervisor, options).map_err(Into::into))
}

/// The machine's number (machine-id(5)). A machine that boots for the first time may have none yet.
fn machine() -> Option<u128> {
    let text = std::fs::read_to_string("/etc/machine-id").ok()?;
    u128::from_str_radix(text.trim(), 16).ok()
}

/// Open vSwitch's control plane. The sockets of its virtual machines are in a directory of its own.
pub fn ovs(run_dir: &Path, database: Option<PathBuf>, claim_connections: bool) -> Result<ExitCode> {
    let supervisor = begin(Role::Ovs)?;
    let directory = run_dir.join("ovs");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let owner = Owner::new(run_dir);
    isolated(&supervisor, sandbox::isolate_ovs(violation(), run_dir)?)?;
    let usual = || {
        crate::ovs::places(run_dir)
            .map(|place| place.join("db.sock"))
            .into()
    };
    let options = ovs_glue::process::Options {
        socket: run_dir.join("ovs.sock"),
        directory,
        databases: database.map_or_else(usual, |path| vec![path]),
        claim_connections,
        owner,
    };
    end(ovs_glue::process::run(supervisor, &options).map_err(Into::into))
}

/// Metrics. The socket is there before rights to make one are given up.
pub fn view(listen: &ListenAddress, group: Option<&Group>, mode: SocketMode) -> Result<ExitCode> {
    let supervisor = begin(Role::View)?;
    match listener(listen, group, mode).with_context(|| format!("cannot listen at {listen}")) {
        Ok(listener) => {
            isolated(&supervisor, sandbox::isolate_view(violation())?)?;
            let hosts = match listen.place() {
                Place::Tcp(address) => view::Hosts::at(address.ip()),
                Place::Unix(_) => view::Hosts::Any,
            };
            end(view::run(supervisor, listener, hosts).map_err(Into::into))
        }
        Err(error) => end(Err(error)),
    }
}

fn listener(listen: &ListenAddress, group: Option<&Group>, mode: SocketMode) -> Result<OwnedFd> {
    match listen.place() {
        Place::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener.into())
        }
        Place::Unix(path) => {
            let groups = control::Groups::of_machine();
            let access = Access {
                mode: Mode::from_raw_mode(mode.bits()),
                group: group.map(|group| groups.number(group)).transpose()?,
            };
            Ok(socket_path::listen_at(&path.clone().into(), access)?)
        }
    }
}

/// Clients of P4Runtime. What is to be opened is opened before the rights to do so are given up.
pub fn p4runtime(
    listen: SocketAddr,
    identity: Option<(PathBuf, PathBuf)>,
    client_authorities: Option<PathBuf>,
) -> Result<ExitCode> {
    let supervisor = begin(Role::P4Runtime)?;
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let tls = match identity {
        Some((certificate, key)) => Some(Tls {
            certificate: read(certificate)?,
            key: read(key)?,
            client_authorities: client_authorities.map(read).transpose()?,
        }),
        None => None,
    };
    isolated(&supervisor, sandbox::isolate_p4runtime(violation())?)?;
    end(p4_runtime::process::run(supervisor, Options { listener, tls }).map_err(Into::into))
}

fn begin(role: Role) -> Result<Channel> {
    let channel = process::supervisor_channel().with_context(|| format!("cannot run as {role}"))?;
    telemetry::init_child();
    // While the supervisor does not read, lines are lost, and the process does not wait.
    let stderr = std::io::stderr();
    fcntl_setfl(&stderr, fcntl_getfl(&stderr)? | OFlags::NONBLOCK)?;
    process::name_process(&format!("hs-{role}"));
    // The first look at the clock finds out how to look at it, by a system call that is not allowed later.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Ok(Channel::from(channel))
}

fn violation() -> Violation {
    match std::env::var_os(SECCOMP_VARIABLE) {
        Some(value) if value == "report" => Violation::Report,
        _ => Violation::Kill,
    }
}

/// Reports the rights that could not be given up, for the log and for `hyperswitch status`.
fn isolated(supervisor: &Channel, missing: Missing) -> Result<()> {
    if !missing.is_empty() {
        log::warn!("isolation is not complete: {}", missing.join("; "));
    }
    supervisor.send(&FromChild::Isolated(missing), &[])?;
    Ok(())
}

/// Logs the error that ended a child, with its role; `main` would print it without the role.
fn end(result: Result<()>) -> Result<ExitCode> {
    Ok(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error:#}");
            ExitCode::FAILURE
        }
    })
}
