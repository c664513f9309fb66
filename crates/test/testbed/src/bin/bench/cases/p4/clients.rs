//! A client of P4Runtime that adds routes to a router in batches, over TCP: from the first batch's request to
//! the last one's answer, by which every packet meets the entries.

use super::{NAME, RATE, is_wanted, program};
use crate::Effort;
use crate::record::Record;
use anyhow::{Context, Result, ensure};
use p4_runtime::proto::{
    Action, Entity, FieldMatch, FieldMatchType, ForwardingPipelineConfig, Kind, LpmMatch,
    MasterArbitrationUpdate, Param, SetForwardingPipelineConfigRequest, StreamMessageRequest, TableAction,
    TableActionType, TableEntry, Uint128, Update, WriteRequest, pipeline_action, stream_request, update_type,
};
use p4_runtime::wire::{Method, Raw};
use prost::Message;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Endpoint as _, Switch};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

/// Entries that there are at the end.
const POINTS: [(&str, u32); 3] = [
    ("P4Runtime, one batch of 1,000", 1_000),
    ("P4Runtime, batches of 1,000 up to 10,000", 10_000),
    ("P4Runtime, batches of 1,000 up to 60,000", 60_000),
];
const BATCH: u32 = 1_000;
const DEVICE: u64 = 1;
const ADDRESS: &str = "127.0.0.1:9559";
/// Numbers of the router's table and action, as its P4Info has them.
const ROUTES: u32 = 48_351_477;
const VIA: u32 = 31_319_916;
const LONGEST: Duration = Duration::from_secs(60);

pub fn run(_: &Effort, record: &mut Record) -> Result<()> {
    if !POINTS.iter().any(|(label, _)| is_wanted(record, label)) {
        return Ok(());
    }
    for round in 0..record.rounds {
        println!("  round {} of {}", round + 1, record.rounds);
        for (label, entries) in POINTS {
            if is_wanted(record, label) {
                record.add(label, NAME, RATE, rate(entries)?)?;
            }
        }
    }
    Ok(())
}

/// Adds so many entries to a router without any, of a switch of its own; returns how many of them a second.
fn rate(entries: u32) -> Result<f64> {
    let switch = Switch::start(&format!(
        "[p4runtime]\nlisten = \"{ADDRESS}\"\n[[p4runtime.device]]\nid = {DEVICE}\nname = \"router\"\n\
         ports = [\"1=p1\", \"2=p2\"]\n[[switch]]\nname = \"sw0\"\n[[switch.port]]\nname = \"p1\"\n\
         [[switch.port]]\nname = \"p2\"\n"
    ))?;
    switch.host().must("ip link set lo up")?;
    let space = File::open(format!("/run/netns/{}", switch.host().netns()))?;
    let client = || {
        // A thread of its own has a network of its own.
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        runtime.block_on(async { tokio::time::timeout(LONGEST, add(entries)).await? })
    };
    let rate = thread::scope(|scope| scope.spawn(client).join().expect("the client does not panic"))?;
    switch.stop()?;
    Ok(rate)
}

async fn add(entries: u32) -> Result<f64> {
    let channel = Endpoint::try_from(format!("http://{ADDRESS}"))?.connect().await?;
    let election = Some(Uint128 { high: 0, low: 1 });
    // The first client's stream, while it is open, makes it the one that writes.
    let (stream, requests) = mpsc::channel(1);
    let update = MasterArbitrationUpdate {
        device_id: DEVICE,
        election_id: election,
        ..MasterArbitrationUpdate::default()
    };
    let update = Some(stream_request::Update::Arbitration(update));
    stream
        .send(StreamMessageRequest { update }.encode_to_vec())
        .await?;
    let mut grpc = ready(&channel).await?;
    let path = Method::StreamChannel.path().parse()?;
    let answers = grpc
        .streaming(Request::new(ReceiverStream::new(requests)), path, Raw)
        .await?;
    let first = answers.into_inner().message().await?;
    ensure!(first.is_some(), "the stream ended");

    ask(&channel, Method::SetForwardingPipelineConfig, pipeline(election)?).await?;
    let batches: Vec<Vec<u8>> = (0..entries / BATCH)
        .map(|batch| updates(election, batch))
        .collect();
    let begin = Instant::now();
    for batch in batches {
        ask(&channel, Method::Write, batch).await?;
    }
    let rate = f64::from(entries) / begin.elapsed().as_secs_f64();
    drop(stream);
    Ok(rate)
}

async fn ready(channel: &Channel) -> Result<Grpc<Channel>> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    Ok(grpc)
}

async fn ask(channel: &Channel, method: Method, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let mut grpc = ready(channel).await?;
    let answer = grpc.unary(Request::new(bytes), method.path().parse()?, Raw).await;
    Ok(answer.with_context(|| format!("{method:?}"))?.into_inner())
}

/// Sets the router, with a table of routes that has room.
fn pipeline(election_id: Option<Uint128>) -> Result<Vec<u8>> {
    let file = program("router")?;
    let (before, after) = ("\"max_size\" : 16384", "\"max_size\" : 131072");
    let text = std::fs::read_to_string(&file)?;
    ensure!(text.matches(before).count() == 1, "the router has another size");
    let info = std::fs::read_to_string(file.with_extension("p4info.txtpb"))?;
    let config = ForwardingPipelineConfig {
        p4info: Some(info.replace("size: 16384", "size: 131072").into_bytes()),
        p4_device_config: text.replace(before, after).into_bytes(),
        cookie: None,
    };
    let request = SetForwardingPipelineConfigRequest {
        device_id: DEVICE,
        election_id,
        action: pipeline_action::VERIFY_AND_COMMIT,
        config: Some(config),
        ..SetForwardingPipelineConfigRequest::default()
    };
    Ok(request.encode_to_vec())
}

/// Adds a batch of routes to single addresses.
fn updates(election_id: Option<Uint128>, batch: u32) -> Vec<u8> {
    let update = |number: u32| {
        let lpm = LpmMatch {
            value: (0x0b00_0000 + number).to_be_bytes().to_vec(),
            prefix_len: 32,
        };
        let action = Action {
            action_id: VIA,
            params: vec![Param {
                param_id: 1,
                value: vec![1],
            }],
        };
        let entry = TableEntry {
            table_id: ROUTES,
            r#match: vec![FieldMatch {
                field_id: 1,
                field_match_type: Some(FieldMatchType::Lpm(lpm)),
            }],
            action: Some(TableAction {
                r#type: Some(TableActionType::Action(action)),
            }),
            ..TableEntry::default()
        };
        let kind = Some(Kind::TableEntry(Box::new(entry)));
        Update {
            r#type: update_type::INSERT,
            entity: Some(Entity { kind }),
        }
    };
    let request = WriteRequest {
        device_id: DEVICE,
        election_id,
        updates: (batch * BATCH..(batch + 1) * BATCH).map(update).collect(),
        ..WriteRequest::default()
    };
    request.encode_to_vec()
}
