//! What a frame costs on its way out, by each back end and as it was sent before: a system call each. A
//! measurement, which takes root:
//!
//! ```text
//! cargo test --release -p driver-domain --lib out_cost -- --ignored --nocapture
//! ```
//!
//! Frames go into a veth pair whose other end has no address, so the pair and what the kernel does with a
//! frame that nobody wants are in all figures.

use super::BackEnd;
use super::packet::PacketDevice;
use super::xdp::XdpBackEnd;
use control_protocol::forwarder::XdpFrames;
use nic_packet::{Uplink, VNET_HEADER_LEN};
use nic_xdp::{Steering, Target, XdpDevice};
use std::process::Command;
use std::time::Instant;
use virtqueue::driver::{Messages, SharedMemory, Span};

const BATCH: usize = 64;
const BATCHES: usize = 200;
const ROUNDS: usize = 15;

fn sh(line: &str) {
    let status = Command::new("sh").args(["-c", line]).status().unwrap();
    assert!(status.success(), "{line}");
}

/// A veth pair, gone when dropped.
struct Pair(String);

impl Pair {
    fn new(number: u32) -> Pair {
        let name = format!("hsoc{number}-{}", std::process::id());
        let far = format!("{name}f");
        sh(&format!(
            "ip link add {name} type veth peer name {far} && ethtool -K {name} rxvlan off >/dev/null"
        ));
        for name in [&name, &far] {
            sh(&format!(
                "sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1; ip link set {name} up"
            ));
        }
        Pair(name)
    }

    fn packet(&self) -> PacketDevice {
        let uplink = Uplink::open(&self.0, None).unwrap();
        let header_len = uplink.header_len().try_into().unwrap();
        PacketDevice::new(uplink.descriptor().unwrap(), header_len, false).unwrap()
    }

    /// With the device that has to stay open.
    fn xdp(&self, steering: &Steering) -> (XdpDevice, XdpBackEnd) {
        let (index, mtu) = nic_packet::index_and_mtu(&self.0).unwrap();
        let target = Target {
            name: &self.0,
            index,
            mtu,
            queues: 1,
            takes_tags_out: false,
        };
        let device = XdpDevice::open(target, steering).unwrap();
        let layout = device.layout();
        let frames = XdpFrames {
            chunk: layout.chunk(),
            in_parts: layout.in_parts(),
            queues: 1,
        };
        let taken = device.descriptors().take(2);
        let descriptors = taken.map(|one| one.try_clone_to_owned().unwrap()).collect();
        let back_end = XdpBackEnd::new(descriptors, frames).unwrap();
        (device, back_end)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).status();
    }
}

/// A batch of frames of `len` bytes behind headers.
fn batch(memory: &SharedMemory, len: usize, header_len: usize) -> Messages {
    let mut frame = vec![0; VNET_HEADER_LEN + len];
    frame[VNET_HEADER_LEN..][..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5]);
    let mut messages = Messages::default();
    for number in 0..BATCH {
        let offset = number * 4096;
        memory.write(offset, &frame);
        let skipped = VNET_HEADER_LEN - header_len;
        messages.push([
            Span {
                offset,
                len: header_len,
            },
            Span {
                offset: offset + header_len + skipped,
                len,
            },
        ]);
    }
    messages
}

/// Nanoseconds a frame, of a round.
fn time(mut send_batch: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..BATCHES {
        send_batch();
    }
    begin.elapsed().as_nanos() as f64 / (BATCH * BATCHES) as f64
}

fn send_all(back_end: &mut dyn BackEnd, memory: &SharedMemory, messages: &Messages) {
    let mut done = 0;
    while done < BATCH {
        let sent = back_end.send(memory, messages, done).unwrap();
        assert_eq!(sent.refused, 0);
        done += sent.taken;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn a_frame_out() {
    let pairs = [Pair::new(0), Pair::new(1)];
    let steering = Steering::load().unwrap();
    let mut packet = pairs[0].packet();
    let (_device, mut xdp) = pairs[1].xdp(&steering);
    let memory = SharedMemory::new("out-cost", BATCH * 4096).unwrap();
    for len in [60, 1514] {
        let for_packet = batch(&memory, len, packet.header_len());
        let for_xdp = batch(&memory, len, VNET_HEADER_LEN);
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(time(|| {
                for frame in for_packet.iter() {
                    memory.write_to(std::os::fd::AsFd::as_fd(&packet), frame).unwrap();
                }
            }));
            times[1].push(time(|| send_all(&mut packet, &memory, &for_packet)));
            times[2].push(time(|| send_all(&mut xdp, &memory, &for_xdp)));
        }
        let ratios = |other: usize| {
            let both = times[0].iter().zip(&times[other]);
            median(both.map(|(before, now)| before / now).collect())
        };
        let (before, by_packet, by_xdp) = (ratios(0), ratios(1), ratios(2));
        let ns: Vec<f64> = times.iter().map(|all| median(all.clone()).round()).collect();
        println!(
            "{len} bytes: {ns:?} ns by writev, packet, AF_XDP; before / after {before:.2}, {by_packet:.2}, {by_xdp:.2}"
        );
    }
}
