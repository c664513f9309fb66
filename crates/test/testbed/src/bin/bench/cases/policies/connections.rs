//! TCP connections per second between two containers: one is made, accepted and reset after the other,
//! each between ports that no connection of the round had before. Without policies, with guards and
//! 1,000 rules at both ports, and with these while the control process is stopped.

use super::text::{PORT, policies};
use super::{CONNECTIONS, NAME, POLICIES, STOPPED, is_wanted};
use crate::Effort;
use crate::record::Record;
use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testbed::switch::Role;
use testbed::{Endpoint as _, Namespace, Switch};

const LABEL: &str = "TCP connections between containers";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT_OF_SERVER: u16 = 443;
const LATE: Duration = Duration::from_secs(5);
const NAMES: [&str; 2] = ["server", "client"];

/// A switch with two containers.
struct Pair {
    switch: Switch,
    containers: [Namespace; 2],
}

pub fn run(effort: &Effort, record: &mut Record) -> Result<()> {
    if !is_wanted(record, LABEL) {
        return Ok(());
    }
    let without = Pair::start("", "", record.rounds)?;
    let with = Pair::start(&policies(), PORT, record.rounds)?;
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        let mut turns = [
            (NAME, &without, 0, false),
            (POLICIES, &with, 0, false),
            (STOPPED, &with, 1, true),
        ];
        // Nobody is always the first.
        turns.rotate_left(round % 3);
        for (name, pair, half, is_stopped) in turns {
            let address = client(2 * round + half);
            // The server asks for the address by flooded frames, which may need the control process.
            pair.connections(address, Duration::ZERO)?;
            let rate = pair.switch_alone(is_stopped, || pair.connections(address, effort.long))?;
            record.add(LABEL, name, CONNECTIONS, rate)?;
        }
    }
    [without, with]
        .into_iter()
        .try_for_each(|pair| pair.switch.stop())
}

/// An address of the client that no connection has had: the list tells connections by sender and port.
fn client(turn: usize) -> Ipv4Addr {
    let turn = u8::try_from(turn % 250).unwrap_or(0);
    Ipv4Addr::new(10, 0, 1, 1 + turn)
}

impl Pair {
    fn start(tables: &str, of_each: &str, rounds: usize) -> Result<Pair> {
        let containers = [Namespace::new(NAMES[0])?, Namespace::new(NAMES[1])?];
        let mut text = format!("{tables}\n[[switch]]\nname = \"sw0\"\n");
        for (name, container) in NAMES.iter().zip(&containers) {
            text += &format!(
                "[[switch.port]]\nname = \"{name}\"\ntype = \"tap\"\nnetns = \"{}\"\ninterface = \"eth0\"\n{of_each}",
                container.netns()
            );
        }
        let switch = Switch::start(&text)?;
        for name in NAMES {
            switch.wait_port(name, "running")?;
        }
        let [server, client_space] = &containers;
        server.must(&format!(
            "ip addr add {SERVER}/16 dev eth0 && ip link set eth0 up"
        ))?;
        client_space.must("ip link set eth0 up")?;
        for turn in 0..2 * rounds.min(125) {
            client_space.must(&format!("ip addr add {}/16 dev eth0", client(turn)))?;
        }
        Ok(Pair { switch, containers })
    }

    /// Runs `work` with the control process stopped, or not.
    fn switch_alone<T>(&self, is_stopped: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !is_stopped {
            return work();
        }
        // The supervisor would replace a process that was stopped.
        let (supervisor, control) = (self.switch.supervisor(), self.switch.pid(Role::Control)?);
        let send = |pid: u32, signal| {
            let pid = Pid::from_raw(pid.cast_signed()).context("process identifiers are positive")?;
            Ok::<_, anyhow::Error>(kill_process(pid, signal)?)
        };
        send(supervisor, Signal::STOP)?;
        send(control, Signal::STOP)?;
        let result = work();
        send(control, Signal::CONT)?;
        send(supervisor, Signal::CONT)?;
        result
    }

    /// Connections per second from this address.
    fn connections(&self, from: Ipv4Addr, time: Duration) -> Result<f64> {
        let [server, client] = &self.containers;
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let listener = scope.spawn(|| within(server, || TcpListener::bind((SERVER, PORT_OF_SERVER))));
            let listener = listener.join().expect("the server does not panic")??;
            sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(LATE))?;
            let ends = &ends;
            let accepting = scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    // One that was reset already is none.
                    let _ = listener.accept();
                }
            });
            let connecting = scope.spawn(|| {
                within(client, || {
                    let (begin, mut count) = (Instant::now(), 0_u32);
                    while begin.elapsed() < time {
                        if let Err(error) = connect(from) {
                            ends.store(true, Ordering::Relaxed);
                            let _ = connect(from);
                            return Err(error);
                        }
                        count += 1;
                    }
                    let rate = f64::from(count) / begin.elapsed().as_secs_f64();
                    ends.store(true, Ordering::Relaxed);
                    // For the server to look again, if it has not ended already.
                    let _ = connect(from);
                    Ok::<_, anyhow::Error>(rate)
                })
            });
            let rate = connecting.join().expect("the client does not panic")?;
            accepting.join().expect("the server does not panic");
            rate
        })
    }
}

/// Makes a connection, and resets it: none waits for late packets then, and ports do not run out.
fn connect(from: Ipv4Addr) -> Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    // Bounds how long the connection may take.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(LATE))?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
    rustix::net::connect(&socket, &SocketAddrV4::new(SERVER, PORT_OF_SERVER))?;
    Ok(())
}

/// Runs `work` in a container's name space. The thread ends with it.
fn within<T>(container: &Namespace, work: impl FnOnce() -> T) -> Result<T> {
    let space = File::open(format!("/run/netns/{}", container.netns()))?;
    move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(work())
}
