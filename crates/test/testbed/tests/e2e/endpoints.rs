//! Applications that are network cards of the switch, by the crate `endpoint`.

use crate::rig::{finish, guests, private, reaches, v4, v6};
use anyhow::{Context, Result, ensure};
use endpoint::{Endpoint as Application, EndpointError, Settings, Stream};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testbed::switch::Role;
use testbed::{Endpoint, Lab, Namespace, Switch};

const ECHO: u16 = 7;
/// Bytes that go there and back; the connections' buffers hold a part of them.
const BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// An application with the addresses of endpoint `number`.
fn application(socket: &Path, number: u8) -> Result<Application> {
    let mut settings = Settings::at(v4(number).parse()?, 24);
    settings.addresses.push((v6(number).parse()?, 64));
    Ok(Application::connect(socket, &settings)?)
}

/// Echoes what comes until it is told to stop.
fn serve(mut application: Application, stop: &AtomicBool) -> Result<Application> {
    let mut listener = application.listen(ECHO, 4)?;
    let datagrams = application.bind(ECHO)?;
    let mut streams: Vec<(Stream, Vec<u8>)> = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        application.wait(Some(Duration::from_millis(20)))?;
        streams.extend(
            application
                .accept(&mut listener)
                .map(|stream| (stream, Vec::new())),
        );
        while let Ok((length, from)) = application.receive_from(&datagrams, &mut chunk) {
            application.send_to(&datagrams, &chunk[..length], from)?;
        }
        for (stream, mut waiting) in std::mem::take(&mut streams) {
            match echo(&mut application, &stream, &mut waiting, &mut chunk) {
                Err(EndpointError::WouldBlock) => streams.push((stream, waiting)),
                _ => application.close(stream),
            }
        }
        application.poll()?;
    }
    Ok(application)
}

/// Takes what has come, and sends back what there is room for. Whoever sends need not read meanwhile, so all
/// that waits is kept. Done when the peer has sent all and it is sent back.
fn echo(
    application: &mut Application,
    stream: &Stream,
    waiting: &mut Vec<u8>,
    chunk: &mut [u8],
) -> Result<(), EndpointError> {
    let has_ended = loop {
        match application.receive(stream, chunk) {
            Ok(0) => break true,
            Ok(received) => waiting.extend_from_slice(&chunk[..received]),
            Err(EndpointError::WouldBlock) => break false,
            Err(error) => return Err(error),
        }
    };
    while !waiting.is_empty() {
        let sent = application.send(stream, waiting)?;
        waiting.drain(..sent);
    }
    has_ended.then_some(()).ok_or(EndpointError::WouldBlock)
}

/// Sends numbered bytes to an echo server and compares what comes back. `midway` is called once.
fn compare(application: &mut Application, to: SocketAddr, midway: impl FnOnce() -> Result<()>) -> Result<()> {
    let stream = application.connect_to(to)?;
    let byte = |at: usize| (at * 7 + at / 251) as u8;
    let (mut sent, mut received, mut midway) = (0, 0, Some(midway));
    let mut chunk = vec![0; 64 << 10];
    let end = Instant::now() + PATIENCE;
    while received < BYTES {
        ensure!(
            Instant::now() < end,
            "{received} of {BYTES} bytes came back from {to}"
        );
        let part: Vec<u8> = (sent..BYTES.min(sent + (16 << 10))).map(byte).collect();
        match application.send(&stream, &part) {
            Ok(length) => sent += length,
            Err(EndpointError::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        match application.receive(&stream, &mut chunk) {
            Ok(length) => {
                ensure!(length > 0, "the server ended the connection");
                let is_same = (received..)
                    .zip(&chunk[..length])
                    .all(|(at, got)| byte(at) == *got);
                ensure!(is_same, "other bytes than were sent, from {received} on");
                received += length;
            }
            Err(EndpointError::WouldBlock) => drop(application.wait(Some(Duration::from_millis(10)))?),
            Err(error) => return Err(error.into()),
        }
        if received > BYTES / 2
            && let Some(midway) = midway.take()
        {
            midway()?;
        }
    }
    application.close(stream);
    application.poll()?;
    Ok(())
}

/// A datagram comes back. One of them may be lost to the resolution of the address.
fn exchanges_datagrams(application: &mut Application, to: SocketAddr) -> Result<()> {
    let datagrams = application.bind(4000)?;
    let mut chunk = [0; 2000];
    for _ in 0..20 {
        application.send_to(&datagrams, b"a datagram", to)?;
        application.wait(Some(Duration::from_millis(200)))?;
        application.wait(Some(Duration::from_millis(200)))?;
        if let Ok((length, from)) = application.receive_from(&datagrams, &mut chunk) {
            ensure!(
                from == to && &chunk[..length] == b"a datagram",
                "{from}: {:?}",
                &chunk[..length]
            );
            application.unbind(datagrams);
            return Ok(());
        }
    }
    anyhow::bail!("no datagram came back from {to}")
}

/// The kernel's TCP sends random bytes to an echo server, and gets them back.
fn comes_back(from: &dyn Endpoint, to: &str) -> Result<()> {
    let file = format!("/tmp/echo-{}", from.name());
    let sums = from.must(&format!(
        "dd if=/dev/urandom of={file} bs=64k count=64 2>/dev/null; sha256sum < {file}; \
         timeout 30 busybox nc {to} {ECHO} < {file} | sha256sum; rm {file}"
    ))?;
    let sums: Vec<&str> = sums.lines().collect();
    ensure!(
        sums.len() == 2 && sums[0] == sums[1],
        "{} to {to}: {sums:?}",
        from.name()
    );
    Ok(())
}

/// Kernels and another application talk to the one that serves.
fn talk(switch: &Switch, kernels: &[&dyn Endpoint], client: &mut Application) -> Result<()> {
    for kernel in kernels {
        reaches(*kernel, &v4(10))?;
        comes_back(*kernel, &v4(10))?;
    }
    let address: IpAddr = v6(10).parse()?;
    compare(client, SocketAddr::new(address, ECHO), || Ok(()))?;
    let to = SocketAddr::new(v4(10).parse()?, ECHO);
    exchanges_datagrams(client, to)?;
    // The connection outlives the data plane.
    compare(client, to, || {
        let old = switch.kill(Role::DataPlane)?;
        switch.wait_replaced(Role::DataPlane, old)
    })
}

#[test]
fn an_application_talks_to_kernels_and_to_another_one() -> Result<()> {
    let Some(_lab) = Lab::enter("an_application_talks_to_kernels_and_to_another_one") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let config = private(&["vm1", "app1", "app2"], "")
        + &format!(
            "[[switch.port]]\nname = \"ct\"\ntype = \"tap\"\nnetns = \"{}\"\ninterface = \"eth0\"\n\
             addresses = [\"{}/24\"]\n",
            container.netns(),
            v4(50)
        );
    let switch = Switch::start(&config)?;
    let stop = AtomicBool::new(false);
    let server = application(&switch.socket("app1"), 10)?;
    let mut client = application(&switch.socket("app2"), 11)?;
    let [vm] = guests(&switch, ["vm1"])?;
    let server = std::thread::scope(|scope| -> Result<Application> {
        let server = scope.spawn(|| serve(server, &stop));
        let result = talk(&switch, &[&vm, &container], &mut client);
        stop.store(true, Ordering::Relaxed);
        let server = server.join().ok().context("the server panicked")??;
        result
            .with_context(|| format!("server: {:?}, client: {:?}", server.counters(), client.counters()))?;
        Ok(server)
    })?;
    for (application, name) in [(&server, "server"), (&client, "client")] {
        let counters = application.counters();
        ensure!(
            counters.lost == 1 && counters.malformed == 0,
            "{name}: {counters:?}"
        );
    }
    drop((server, client));
    finish(switch, [vm]).map(drop)
}

#[test]
fn an_application_gets_its_address_by_dhcp() -> Result<()> {
    let Some(_lab) = Lab::enter("an_application_gets_its_address_by_dhcp") else {
        return Ok(());
    };
    let container = Namespace::new("container")?;
    let address = v4(50);
    let config = private(&["app1"], "")
        + &format!(
            "[[switch.port]]\nname = \"ct\"\ntype = \"tap\"\nnetns = \"{}\"\ninterface = \"eth0\"\n\
             addresses = [\"{address}/24\"]\n",
            container.netns()
        );
    let switch = Switch::start(&config)?;
    let (first, last) = (v4(60), v4(61));
    let directory = tempfile::tempdir()?;
    let place = directory.path().display();
    let server = container.start(&format!(
        "printf 'start {first}\\nend {last}\\ninterface eth0\\noption subnet 255.255.255.0\\noption router {address}\\n\
         lease_file {place}/leases\\npidfile {place}/pid\\n' > {place}/conf; touch {place}/leases; \
         exec busybox udhcpd -f {place}/conf"
    ))?;
    let settings = Settings::by_dhcp([2, 0, 0, 0, 0, 7]);
    let mut application = Application::connect(&switch.socket("app1"), &settings)?;
    let end = Instant::now() + PATIENCE;
    while application.addresses().next().is_none() {
        ensure!(Instant::now() < end, "no address came");
        application.wait(Some(Duration::from_millis(50)))?;
    }
    let leased: Vec<IpAddr> = application.addresses().map(|(address, _)| address).collect();
    ensure!(
        leased == [first.parse::<IpAddr>()?] || leased == [last.parse::<IpAddr>()?],
        "{leased:?}"
    );
    drop((server, application));
    finish(switch, []).map(drop)
}
