//! One question of ovs-vswitchd's to the process `ovs`, asked here: its flows. In the words of `ovs-netlink`,
//! in datagrams as `ovs-frame` has them.

use anyhow::{Context, Result, bail, ensure};
use ovs_frame::{DATA, Header, OPEN, REQUEST, WELCOME};
use ovs_netlink::attribute::Writer;
use ovs_netlink::flow::Omit;
use ovs_netlink::message::{self, Flags, Status, messages};
use ovs_netlink::{Reply, Request, datapath, flow};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::path::Path;
use std::time::Duration;

/// `NETLINK_GENERIC`.
const GENERIC: u32 = 16;
/// More than a datagram has.
const BUFFER: usize = 1 << 17;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to the process `ovs`, as if it were a netlink socket of ovs-vswitchd.
pub(super) struct Client {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Client {
    pub(super) fn connect(path: &Path) -> Result<Client> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        connect(&socket, &SocketAddrUnix::new(path)?)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        let mut client = Client {
            socket,
            buffer: vec![0; BUFFER],
        };
        client.send(OPEN, GENERIC, &[])?;
        let (header, _) = client.receive()?;
        ensure!(header.kind == WELCOME, "not welcome: {header:?}");
        Ok(client)
    }

    /// How many flows the datapath has, told without keys, masks and actions.
    pub(super) fn count_flows(&mut self) -> Result<usize> {
        let mut datapath = None;
        self.dump(&Request::Datapath(datapath::Request::Dump), |reply| {
            if let Reply::Datapath(told) = reply {
                datapath = Some(told.datapath);
            }
        })?;
        let omit = Omit {
            key: true,
            mask: true,
            actions: true,
        };
        let request = Request::Flow(
            datapath.context("there is no datapath")?,
            flow::Request::Dump { omit },
        );
        let mut count = 0;
        self.dump(&request, |reply| {
            count += usize::from(matches!(reply, Reply::Flow(..)));
        })?;
        Ok(count)
    }

    /// Shows each message of the answer to `take`, up to the end of the dump.
    fn dump(&mut self, request: &Request<'_>, mut take: impl FnMut(Reply<'_>)) -> Result<()> {
        let mut writer = Writer::new();
        let header = message::Header {
            flags: Flags::REQUEST,
            sequence: 1,
            ..message::Header::default()
        };
        request.write(header, &mut writer);
        self.send(REQUEST, 0, &writer.finish()?)?;
        loop {
            let (header, datagram) = self.receive()?;
            if header.kind != DATA {
                continue;
            }
            for message in messages(datagram) {
                let message = message?;
                match message.status()? {
                    None => take(Reply::read(&message)?),
                    Some(Status::Done(None)) => return Ok(()),
                    Some(status) => bail!("the dump ended early: {status:?}"),
                }
            }
        }
    }

    fn send(&self, kind: u32, number: u32, contents: &[u8]) -> Result<()> {
        let datagram = [&Header { kind, number }.to_bytes(), contents].concat();
        send(&self.socket, &datagram, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(Header, &[u8])> {
        let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())
            .context("the process `ovs` does not answer")?;
        Header::split(&self.buffer[..length]).context("the process `ovs` has closed the connection")
    }
}
