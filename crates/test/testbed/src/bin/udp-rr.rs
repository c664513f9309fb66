//! UDP request and response, for guests: how many round trips of one datagram fit into a second.
//!
//! ```text
//! udp-rr serve PORT
//! udp-rr run ADDRESS PORT BYTES SECONDS
//! udp-rr sink PORT
//! udp-rr pace ADDRESS PORT BYTES RATE SECONDS [TRAIN]
//! ```
//!
//! The client sends a request of so many bytes and waits for an answer as long, one at a time, as netperf's
//! UDP_RR does. Requests carry a number, so that a late answer is not taken for the current one's. It prints
//! one line: transactions, requests without an answer, seconds, and the median and the 99th percentile of a
//! round trip in seconds.
//!
//! Besides, a source sends so many datagrams per second at an even pace, sleeping between them, to a sink; it
//! prints how many it sent, how many could not be sent, and seconds. With a length of trains so many are sent
//! at once.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use testbed::percentile;

/// An answer that takes longer is lost.
const TIMEOUT: Duration = Duration::from_millis(200);
const NUMBER_LEN: usize = 8;

fn serve(port: u16) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let mut buffer = vec![0; 65_536];
    loop {
        let (length, client) = socket.recv_from(&mut buffer)?;
        // A client that has gone away is no reason to stop.
        let _ = socket.send_to(&buffer[..length], client);
    }
}

fn sink(port: u16) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let mut buffer = vec![0; 65_536];
    loop {
        socket.recv(&mut buffer)?;
    }
}

fn pace(to: (&str, u16), bytes: usize, rate: f64, seconds: f64, train: u32) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    let datagram = vec![0x5a; bytes];
    let begin = Instant::now();
    let (mut sent, mut lost) = (0_u32, 0_u32);
    loop {
        let due = f64::from(sent + lost) / rate;
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed >= seconds {
            break;
        }
        if due > elapsed {
            std::thread::sleep(Duration::from_secs_f64(due - elapsed));
            continue;
        }
        for _ in 0..train {
            match socket.send(&datagram) {
                Ok(_) => sent += 1,
                Err(_) => lost += 1,
            }
        }
    }
    println!("{sent} {lost} {}", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Waits for the answer to request `number`. Returns whether it came.
fn answered(socket: &UdpSocket, buffer: &mut [u8], number: &[u8]) -> std::io::Result<bool> {
    loop {
        match socket.recv(buffer) {
            Ok(length) if buffer[..length].starts_with(number) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // The peer does not listen yet, or not any more.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn run(address: &str, port: u16, bytes: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((address, port))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut request = vec![0x5a; bytes];
    let mut buffer = vec![0; 65_536];
    let time = Duration::from_secs_f64(seconds);
    let (begin, mut times, mut lost) = (Instant::now(), Vec::new(), 0_u64);
    while begin.elapsed() < time {
        let number = (u64::try_from(times.len())? + lost).to_le_bytes();
        // Requests shorter than the number carry its low bytes.
        let carried = bytes.min(NUMBER_LEN);
        request[..carried].copy_from_slice(&number[..carried]);
        let sent = Instant::now();
        socket.send(&request)?;
        if answered(&socket, &mut buffer, &number[..carried])? {
            times.push(sent.elapsed().as_secs_f64());
        } else {
            lost += 1;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    println!(
        "{} {lost} {seconds} {} {}",
        times.len(),
        percentile(&times, 0.5),
        percentile(&times, 0.99)
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", port] => serve(port.parse()?),
        ["run", address, port, bytes, seconds] => {
            run(address, port.parse()?, bytes.parse()?, seconds.parse()?)
        }
        ["sink", port] => sink(port.parse()?),
        ["pace", address, port, bytes, rate, seconds, ref train @ ..] if train.len() < 2 => pace(
            (address, port.parse()?),
            bytes.parse()?,
            rate.parse()?,
            seconds.parse()?,
            train.first().map_or(Ok(1), |train| train.parse())?,
        ),
        _ => Err(
            "usage: udp-rr serve PORT | udp-rr run ADDRESS PORT BYTES SECONDS | udp-rr sink PORT | \
                  udp-rr pace ADDRESS PORT BYTES RATE SECONDS [TRAIN]"
                .into(),
        ),
    }
}
