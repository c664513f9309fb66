//! A server for echo and discard (RFC 862, RFC 863), and clients that measure: over a port of the switch, or
//! over the kernel's sockets to compare.
//!
//! ```text
//! endpoint serve --port /run/hyperswitch/a.sock --address 10.0.0.1/24
//! endpoint ask   --port /run/hyperswitch/b.sock --address 10.0.0.2/24 10.0.0.1
//! endpoint send  --port /run/hyperswitch/b.sock --address 10.0.0.2/24 10.0.0.1
//! endpoint ask 10.0.0.1                                # the kernel's sockets
//! ```

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use endpoint::{Endpoint, EndpointError, Settings, Stream};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
/// Bytes that are sent or received at a time.
const CHUNK: usize = 64 << 10;

#[derive(Parser)]
enum Command {
    /// Answers at port 7, and takes what comes at port 9, until it is ended.
    Serve(Card),
    /// Sends a request when the one before was answered, and says how long answers took.
    Ask {
        #[command(flatten)]
        card: Card,
        /// The server.
        to: IpAddr,
        /// Number of requests.
        #[arg(long, default_value_t = 20_000)]
        count: usize,
        /// Bytes of a request and of its answer, which the buffers have to hold.
        #[arg(long, default_value_t = 64)]
        size: usize,
    },
    /// Sends as much as the server takes, and says how much that was.
    Send {
        #[command(flatten)]
        card: Card,
        /// The server.
        to: IpAddr,
        /// For how long, in seconds.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
}

#[derive(Args)]
struct Card {
    /// Socket of a port of the switch; without it, the kernel's sockets are used.
    #[arg(long, requires = "address")]
    port: Option<PathBuf>,
    /// Address and prefix, as 10.0.0.1/24.
    #[arg(long)]
    address: Option<String>,
    /// Microseconds for which the rings are looked at before the program sleeps.
    #[arg(long, default_value_t = 0)]
    spin: u64,
}

impl Card {
    fn endpoint(&self) -> Result<Option<Endpoint>> {
        let Some(port) = &self.port else {
            return Ok(None);
        };
        let address = self.address.as_deref().unwrap_or_default();
        let (address, prefix) = address.split_once('/').context("--address is as 10.0.0.1/24")?;
        let settings = Settings {
            spin: Duration::from_micros(self.spin),
            ..Settings::at(address.parse()?, prefix.parse()?)
        };
        Ok(Some(Endpoint::connect(port, &settings)?))
    }
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Serve(card) => match card.endpoint()? {
            Some(endpoint) => serve(endpoint),
            None => serve_by_kernel(),
        },
        Command::Ask {
            card,
            to,
            count,
            size,
        } => {
            let mut connection = Connection::to(card.endpoint()?, SocketAddr::new(to, ECHO))?;
            let mut times = Vec::with_capacity(count);
            let (request, mut answer) = (vec![b'?'; size], vec![0; size]);
            for _ in 0..count {
                let begin = Instant::now();
                connection.write(&request)?;
                connection.read(&mut answer)?;
                times.push(begin.elapsed());
            }
            times.sort_unstable();
            let at = |share: f64| times[((count - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
            println!("{count} answers: p50 {:.1} us, p99 {:.1} us", at(0.5), at(0.99));
            Ok(())
        }
        Command::Send { card, to, seconds } => {
            let mut connection = Connection::to(card.endpoint()?, SocketAddr::new(to, DISCARD))?;
            let (begin, data) = (Instant::now(), vec![0; CHUNK]);
            let mut sent = 0;
            while begin.elapsed().as_secs_f64() < seconds {
                connection.write(&data)?;
                sent += data.len();
            }
            let rate = sent as f64 * 8e-9 / begin.elapsed().as_secs_f64();
            println!("{sent} bytes, {rate:.2} Gb/s");
            Ok(())
        }
    }
}

/// A connection of either kind.
enum Connection {
    Endpoint(Box<Endpoint>, Stream),
    Kernel(TcpStream),
}

impl Connection {
    fn to(endpoint: Option<Endpoint>, server: SocketAddr) -> Result<Connection> {
        Ok(match endpoint {
            Some(mut endpoint) => {
                let stream = endpoint.connect_to(server)?;
                Connection::Endpoint(Box::new(endpoint), stream)
            }
            None => {
                let stream = TcpStream::connect(server)?;
                stream.set_nodelay(true)?;
                Connection::Kernel(stream)
            }
        })
    }

    fn write(&mut self, mut data: &[u8]) -> Result<()> {
        let (endpoint, stream) = match self {
            Connection::Kernel(stream) => return Ok(stream.write_all(data)?),
            Connection::Endpoint(endpoint, stream) => (endpoint, stream),
        };
        while !data.is_empty() {
            match endpoint.send(stream, data) {
                Ok(sent) => data = &data[sent..],
                Err(EndpointError::WouldBlock) => drop(endpoint.wait(None)?),
                Err(error) => return Err(error.into()),
            }
        }
        endpoint.poll()?;
        Ok(())
    }

    fn read(&mut self, data: &mut [u8]) -> Result<()> {
        let (endpoint, stream) = match self {
            Connection::Kernel(stream) => return Ok(stream.read_exact(data)?),
            Connection::Endpoint(endpoint, stream) => (endpoint, stream),
        };
        let mut at = 0;
        while at < data.len() {
            match endpoint.receive(stream, &mut data[at..]) {
                Ok(0) => bail!("the server has ended the connection"),
                Ok(received) => at += received,
                Err(EndpointError::WouldBlock) => drop(endpoint.wait(None)?),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A connection that is served, and what waits to be echoed.
struct Served {
    stream: Stream,
    echoes: bool,
    waiting: Vec<u8>,
}

fn serve(mut endpoint: Endpoint) -> Result<()> {
    let mut listeners = [
        (endpoint.listen(ECHO, 16)?, true),
        (endpoint.listen(DISCARD, 16)?, false),
    ];
    let mut served: Vec<Served> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        endpoint.wait(None)?;
        for (listener, echoes) in &mut listeners {
            while let Some(stream) = endpoint.accept(listener) {
                let (echoes, waiting) = (*echoes, Vec::new());
                served.push(Served {
                    stream,
                    echoes,
                    waiting,
                });
            }
        }
        let mut at = 0;
        while at < served.len() {
            if is_served(&mut endpoint, &mut served[at], &mut chunk) {
                at += 1;
            } else {
                endpoint.close(served.swap_remove(at).stream);
            }
        }
        // Answers leave at once.
        endpoint.poll()?;
    }
}

/// Takes what has come. Returns whether more may come.
fn is_served(endpoint: &mut Endpoint, served: &mut Served, chunk: &mut [u8]) -> bool {
    loop {
        if !served.waiting.is_empty() {
            match endpoint.send(&served.stream, &served.waiting) {
                Ok(sent) => drop(served.waiting.drain(..sent)),
                Err(EndpointError::WouldBlock) => return true,
                Err(_) => return false,
            }
            continue;
        }
        match endpoint.receive(&served.stream, chunk) {
            Ok(0) => return false,
            Ok(received) if served.echoes => served.waiting.extend_from_slice(&chunk[..received]),
            Ok(_) => {}
            Err(EndpointError::WouldBlock) => return true,
            Err(_) => return false,
        }
    }
}

fn serve_by_kernel() -> Result<()> {
    let listen = |port: u16| TcpListener::bind(("::", port)).with_context(|| format!("port {port}"));
    let (echo, discard) = (listen(ECHO)?, listen(DISCARD)?);
    std::thread::scope(|scope| {
        for (listener, echoes) in [(&echo, true), (&discard, false)] {
            scope.spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    // A client that goes away ends its own thread only.
                    std::thread::spawn(move || {
                        let mut chunk = vec![0; CHUNK];
                        let _ = stream.set_nodelay(true);
                        while let Ok(received) = stream.read(&mut chunk)
                            && received > 0
                            && (!echoes || stream.write_all(&chunk[..received]).is_ok())
                        {
                        }
                    });
                }
            });
        }
    });
    Ok(())
}
