//! The connection to the control process: lines of JSON ([`management`]), one request at a time.
//!
//! The supervisor sends an end of it, and another one when either process was started again. A request that
//! changes nothing is made again then; of others it is not known whether they were carried out.

use crate::failure::{Done, Failure};
use crate::switches::{DeviceInfo, Switches};
use control_protocol::Channel;
use control_protocol::p4::{P4Array, P4CellWrite};
use management::{Reply, Request, Response};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tonic::Code;

/// How long an answer may take. The control process gives a request up earlier by itself.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a control process may take to be started again.
const RESTART: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug)]
pub struct ControlLink {
    sockets: Receiver<UnixStream>,
    stream: Option<BufReader<UnixStream>>,
}

impl ControlLink {
    /// A connection over the sockets that will come.
    #[must_use]
    pub fn new(sockets: Receiver<UnixStream>) -> ControlLink {
        ControlLink {
            sockets,
            stream: None,
        }
    }

    /// Asks and waits for the answer.
    fn call(&mut self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Done<Reply> {
        let deadline = Instant::now() + RESTART;
        loop {
            let stream = self.stream(deadline)?;
            match exchange(stream, request, fd) {
                Ok(Response::Ok(reply)) => return Ok(reply),
                Ok(Response::Error(report)) => return Err(Failure::exhausted(report.error)),
                Err(error) => {
                    self.stream = None;
                    if !request.changes_nothing() {
                        let text = format!("it is not known whether this was done: {error}");
                        return Err(Failure::new(Code::Unavailable, text));
                    }
                }
            }
        }
    }

    /// Loads a program, or changes of the present one.
    fn load(
        &mut self,
        name: &str,
        bytes: &[u8],
        (replaces, changes): (Option<u64>, bool),
        writes: &[P4CellWrite],
    ) -> Done<()> {
        let internal = |text: String| Failure::new(Code::Internal, text);
        let request = Request::P4Load {
            name: name.parse().map_err(|error| internal(format!("{error}")))?,
            ports: None,
            operations: None,
            replaces,
            changes,
            writes: writes.to_vec(),
        };
        let memory = management::sealed(bytes).map_err(|error| internal(error.to_string()))?;
        self.call(&request, Some(memory.as_fd())).map(drop)
    }

    /// The latest connection, which may have to come yet.
    fn stream(&mut self, deadline: Instant) -> Done<&mut BufReader<UnixStream>> {
        while let Ok(socket) = self.sockets.try_recv() {
            self.stream = Some(BufReader::new(socket));
        }
        if self.stream.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let socket = self.sockets.recv_timeout(left);
            let socket =
                socket.map_err(|_| Failure::new(Code::Unavailable, "the control process does not answer"))?;
            self.stream = Some(BufReader::new(socket));
        }
        Ok(self.stream.as_mut().expect("there is one by now"))
    }
}

fn exchange(
    stream: &mut BufReader<UnixStream>,
    request: &Request,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<Response> {
    stream.get_ref().set_nonblocking(false)?;
    stream.get_ref().set_read_timeout(Some(ANSWER))?;
    stream.get_ref().set_write_timeout(Some(ANSWER))?;
    let line = request.to_line()?;
    let fds: Vec<_> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::NOSIGNAL;
    let sent = sendmsg(stream.get_ref(), &[IoSlice::new(&line)], &mut control, flags)?;
    stream.get_mut().write_all(&line[sent..])?;
    let mut answer = Vec::new();
    stream.read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Response::from_json(&answer)?)
}

/// An answer of another kind than was asked for.
fn strange() -> Failure {
    Failure::new(Code::Internal, "the control process gave a strange answer")
}

fn unavailable(failure: Failure) -> Failure {
    match failure.code {
        Code::ResourceExhausted => Failure::new(Code::Unavailable, failure.text),
        _ => failure,
    }
}

impl Switches for ControlLink {
    fn devices(&mut self) -> Done<Vec<DeviceInfo>> {
        let reply = self.call(&Request::P4Devices, None).map_err(unavailable)?;
        let Reply::P4Devices(devices) = reply else {
            return Err(strange());
        };
        let info = |device: management::P4Device| DeviceInfo {
            id: device.id,
            name: device.name,
            tag: device.tag,
        };
        Ok(devices.into_iter().map(info).collect())
    }

    fn fetch(&mut self, name: &str) -> Done<(u64, Vec<u8>)> {
        let (mut bytes, mut first) = (Vec::new(), None);
        loop {
            let request = Request::P4Program {
                name: name.into(),
                offset: bytes.len(),
            };
            let Reply::P4Program(piece) = self.call(&request, None).map_err(unavailable)? else {
                return Err(strange());
            };
            if *first.get_or_insert(piece.tag) != piece.tag || piece.bytes.0.is_empty() {
                return Err(Failure::new(Code::Aborted, "another user changes the program"));
            }
            bytes.extend(piece.bytes.0);
            if bytes.len() >= piece.length {
                return Ok((piece.tag, bytes));
            }
        }
    }

    fn put(&mut self, name: &str, bytes: &[u8], replaces: Option<u64>, writes: &[P4CellWrite]) -> Done<()> {
        self.load(name, bytes, (replaces, false), writes)
    }

    fn change(&mut self, name: &str, batch: &[u8], replaces: u64, writes: &[P4CellWrite]) -> Done<()> {
        self.load(name, batch, (Some(replaces), true), writes)
    }

    fn cells(&mut self, version: (&str, u64), array: P4Array, from: u32) -> Done<(Vec<u64>, usize)> {
        let request = Request::P4Read {
            name: version.0.into(),
            tag: version.1,
            array,
            from,
        };
        match self.call(&request, None).map_err(unavailable)? {
            Reply::P4Cells(page) => Ok((page.words, usize::try_from(page.stride).unwrap_or(1))),
            _ => Err(strange()),
        }
    }

    fn set_cell(&mut self, version: (&str, u64), array: P4Array, cell: u32, words: Vec<u64>) -> Done<()> {
        let request = Request::P4Write {
            name: version.0.into(),
            tag: version.1,
            array,
            cell,
            words,
        };
        self.call(&request, None).map(drop)
    }

    fn set_cells(&mut self, version: (&str, u64), writes: Vec<P4CellWrite>) -> Done<()> {
        let request = Request::P4WriteAll {
            name: version.0.into(),
            tag: version.1,
            writes,
        };
        self.call(&request, None).map(drop)
    }

    fn connect(&mut self, name: &str) -> Done<Channel> {
        let (ours, theirs) = Channel::pair().map_err(Failure::exhausted)?;
        let request = Request::P4Connect { name: name.into() };
        self.call(&request, Some(theirs.as_fd()))?;
        Ok(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Answers so many requests, and hangs up.
    fn control(answers: &'static [&'static str]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut stream = BufReader::new(theirs);
            for answer in answers {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        ours
    }

    const DEVICES: &str = "{\"ok\":{\"p4-devices\":[{\"id\":1,\"name\":\"one\",\"tag\":7}]}}\n";
    const DONE: &str = "{\"ok\":\"done\"}\n";

    #[test]
    fn a_request_that_changes_nothing_is_made_again_at_the_next_control_process() {
        let (sender, sockets) = mpsc::channel();
        let mut link = ControlLink::new(sockets);
        sender.send(control(&[])).unwrap();
        sender.send(control(&[DEVICES])).unwrap();
        let expected = DeviceInfo {
            id: 1,
            name: "one".into(),
            tag: Some(7),
        };
        assert_eq!(link.devices().unwrap(), std::slice::from_ref(&expected));
        // The one that has hung up is found out by the next request.
        sender.send(control(&[DEVICES])).unwrap();
        assert_eq!(link.devices().unwrap(), [expected]);
    }

    #[test]
    fn of_a_change_it_may_not_be_known_whether_it_was_made() {
        let (sender, sockets) = mpsc::channel();
        let mut link = ControlLink::new(sockets);
        sender.send(control(&[DONE])).unwrap();
        link.put("one", &[1], None, &[]).unwrap();
        assert_eq!(
            link.put("one", &[1], None, &[]).unwrap_err().code,
            Code::Unavailable
        );
        sender
            .send(control(&[
                "{\"error\":{\"error\":\"too much\",\"code\":\"limit\",\"place\":null}}\n",
                DONE,
            ]))
            .unwrap();
        let refused = link.put("one", &[1], None, &[]).unwrap_err();
        assert_eq!(
            (refused.code, &refused.text[..]),
            (Code::ResourceExhausted, "too much")
        );
        assert_eq!(
            link.devices().unwrap_err().code,
            Code::Internal,
            "another answer than asked for"
        );
    }
}
