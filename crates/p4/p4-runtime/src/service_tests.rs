use super::*;
use crate::proto::{
    Any, CounterData, DigestConfig, DigestEntry, DigestListAck, DirectCounterEntry, ExactMatch, FieldMatch,
    FieldMatchType, Index, MulticastGroupEntry, P4Data, PacketMetadata, PacketOut,
    PacketReplicationEngineEntry, RegisterEntry, Replication, Role, RoleConfig, TableEntry, Uint128, Update,
    atomicity, pipeline_action, response_type, update_type,
};
use crate::testing::{self, Shared, route, update};
use Code::{Aborted, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unimplemented};
use control_protocol::ChannelError;
use control_protocol::p4::ToP4;
use update_type::{DELETE, INSERT, MODIFY};

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

/// A service, its instance, and a client that is primary with number 1.
fn service() -> (Service<Shared>, Shared) {
    let instance = Shared::default();
    let mut service = Service::new(instance.clone());
    arbitrate(&mut service, A, 1, None).unwrap();
    (service, instance)
}

fn arbitrate(
    service: &mut Service<Shared>,
    stream: StreamId,
    low: u64,
    role: Option<Role>,
) -> Done<Messages> {
    let update = MasterArbitrationUpdate {
        device_id: 1,
        role,
        election_id: Some(Uint128 { high: 0, low }),
        status: None,
    };
    let update = Some(stream_request::Update::Arbitration(update));
    service.on_message(stream, StreamMessageRequest { update })
}

fn pipeline(name: &str, action: i32) -> SetForwardingPipelineConfigRequest {
    SetForwardingPipelineConfigRequest {
        device_id: 1,
        election_id: Some(Uint128 { high: 0, low: 1 }),
        action,
        config: (action != pipeline_action::COMMIT).then(|| testing::program(name).0),
        ..Default::default()
    }
}

/// A service whose device runs a program.
fn running(name: &str) -> (Service<Shared>, Shared) {
    let (mut service, instance) = service();
    service
        .set_pipeline(pipeline(name, pipeline_action::VERIFY_AND_COMMIT))
        .unwrap();
    (service, instance)
}

fn batch(updates: Vec<Update>, atomicity: i32) -> WriteRequest {
    WriteRequest {
        device_id: 1,
        election_id: Some(Uint128 { high: 0, low: 1 }),
        updates,
        atomicity,
        ..WriteRequest::default()
    }
}

fn entry(verb: i32, net: u8) -> Update {
    let (_, program) = testing::program("router");
    update(
        verb,
        Kind::TableEntry(Box::new(route(&program, [10, net, 0, 0], 16, net))),
    )
}

fn codes(refused: &Refused) -> Vec<Code> {
    let code = |part: &Done<()>| part.as_ref().map_or_else(|failure| failure.code, |()| Code::Ok);
    refused.parts.iter().map(code).collect()
}

fn all_entries() -> ReadRequest {
    let kind = Some(Kind::TableEntry(Box::default()));
    ReadRequest {
        device_id: 1,
        entities: vec![Entity { kind }],
        role: String::new(),
    }
}

/// Numbers of entries that a client finds.
fn found(service: &mut Service<Shared>) -> usize {
    let (answers, ended) = service.read(&all_entries());
    ended.unwrap();
    let count = |answer: &Vec<u8>| ReadResponse::decode(&answer[..]).unwrap().entities.len();
    answers.iter().map(count).sum()
}

#[test]
fn a_client_sets_a_pipeline_writes_reads_and_deletes() {
    let (mut service, instance) = service();
    let early = service.write(&batch(vec![entry(INSERT, 1)], 0)).unwrap_err();
    assert_eq!(early.failure.code, FailedPrecondition);
    assert_eq!(
        service.read(&all_entries()).1.unwrap_err().failure.code,
        FailedPrecondition
    );
    let get = |kind| GetForwardingPipelineConfigRequest {
        device_id: 1,
        response_type: kind,
    };
    assert_eq!(
        service.get_pipeline(get(response_type::ALL)).unwrap().config,
        None
    );
    let set = pipeline("router", pipeline_action::VERIFY_AND_COMMIT);
    service.set_pipeline(set.clone()).unwrap();
    assert_eq!(
        service.get_pipeline(get(response_type::ALL)).unwrap().config,
        set.config
    );
    let cookie = service
        .get_pipeline(get(response_type::COOKIE_ONLY))
        .unwrap()
        .config
        .unwrap();
    assert_eq!((cookie.p4info, cookie.cookie.unwrap().cookie), (None, 5));
    service
        .write(&batch((1..=3).map(|net| entry(INSERT, net)).collect(), 0))
        .unwrap();
    assert_eq!(instance.borrow().puts, 2, "a batch is one version");
    assert_eq!(found(&mut service), 3);
    service.write(&batch(vec![entry(DELETE, 2)], 0)).unwrap();
    assert_eq!(found(&mut service), 2);
    // Whoever starts anew finds all but the compiler's JSON.
    let mut next = Service::new(instance);
    assert_eq!(found(&mut next), 2);
    let config = next
        .get_pipeline(get(response_type::ALL))
        .unwrap()
        .config
        .unwrap();
    assert_eq!(config.p4info, set.config.unwrap().p4info);
    assert!(config.p4_device_config.is_empty());
}

#[test]
fn batches_of_entries_are_changes_of_the_version_before() {
    let (mut service, instance) = running("router");
    let counts = |instance: &Shared| (instance.borrow().puts, instance.borrow().batches);
    service
        .write(&batch((0..200).map(|net| entry(INSERT, net)).collect(), 0))
        .unwrap();
    assert_eq!(counts(&instance), (2, 1));
    // What is removed, changed and added again, in an order in which positions move.
    let mixed = vec![
        entry(DELETE, 0),
        entry(MODIFY, 7),
        entry(INSERT, 250),
        entry(DELETE, 250),
        entry(INSERT, 0),
        entry(DELETE, 199),
    ];
    service
        .write(&batch(mixed, atomicity::ROLLBACK_ON_ERROR))
        .unwrap();
    assert_eq!(counts(&instance), (3, 2));
    // A batch that fails has changed nothing, and the next one is about the version that is in force.
    let wrong = vec![entry(DELETE, 5), entry(DELETE, 251)];
    service
        .write(&batch(wrong, atomicity::ROLLBACK_ON_ERROR))
        .unwrap_err();
    service.write(&batch(vec![entry(DELETE, 6)], 0)).unwrap();
    assert_eq!(counts(&instance), (4, 3));
    // What is no change of entries alone is a whole version, and so is a batch that no longer pays.
    let (_, program) = testing::program("router");
    let noted = TableEntry {
        metadata: vec![1],
        ..route(&program, [10, 9, 0, 0], 16, 9)
    };
    let noted = update(MODIFY, Kind::TableEntry(Box::new(noted)));
    service.write(&batch(vec![noted], 0)).unwrap();
    assert_eq!(counts(&instance), (5, 3));
    let length = || instance.borrow().version.as_ref().unwrap().1.len();
    let whole = length();
    for round in 0..1000 {
        let verb = [DELETE, INSERT][round % 2];
        service.write(&batch(vec![entry(verb, 8)], 0)).unwrap();
        assert!(length() <= 2 * whole + 200, "a version does not grow for ever");
    }
    let (puts, batches) = counts(&instance);
    assert_eq!(puts, 1005);
    assert!(batches > 950 && batches < 1003, "{batches}");
    // Whoever starts anew finds the same entries, in the same order.
    let answers = service.read(&all_entries()).0;
    assert_eq!(Service::new(instance).read(&all_entries()).0, answers);
    assert_eq!(found(&mut service), 198);
}

#[test]
fn errors_are_told_per_update_and_the_others_are_made() {
    let (mut service, _) = running("router");
    let updates = vec![
        entry(INSERT, 1),
        entry(INSERT, 1),
        entry(INSERT, 2),
        entry(MODIFY, 9),
    ];
    let refused = service
        .write(&batch(updates, atomicity::CONTINUE_ON_ERROR))
        .unwrap_err();
    assert_eq!(
        codes(&refused),
        [Code::Ok, Code::AlreadyExists, Code::Ok, NotFound]
    );
    assert_eq!(found(&mut service), 2);
    let status = refused.into_status();
    assert_eq!(status.code(), Code::Unknown);
    let details = proto::Status::decode(status.details()).unwrap();
    assert_eq!((details.code, &details.message[..]), (2, status.message()));
    let error = |any: &Any| {
        assert_eq!(any.type_url, proto::Error::TYPE_URL);
        proto::Error::decode(&any.value[..]).unwrap().canonical_code
    };
    assert_eq!(
        details.details.iter().map(error).collect::<Vec<_>>(),
        [0, 6, 0, 5]
    );
}

#[test]
fn a_batch_is_made_as_a_whole_or_not_at_all() {
    for atomicity in [atomicity::ROLLBACK_ON_ERROR, atomicity::DATAPLANE_ATOMIC] {
        let (mut service, instance) = running("router");
        service.write(&batch(vec![entry(INSERT, 1)], atomicity)).unwrap();
        let puts = instance.borrow().puts;
        let updates = vec![
            entry(INSERT, 2),
            entry(DELETE, 1),
            entry(MODIFY, 9),
            entry(INSERT, 3),
        ];
        let refused = service.write(&batch(updates, atomicity)).unwrap_err();
        assert_eq!(codes(&refused), [Aborted, Aborted, NotFound, Aborted]);
        assert_eq!(instance.borrow().puts, puts, "nothing was put in force");
        assert_eq!(found(&mut service), 1);
        service
            .write(&batch(vec![entry(MODIFY, 1), entry(INSERT, 2)], atomicity))
            .unwrap();
        assert_eq!(instance.borrow().puts, puts + 1);
    }
    let (mut service, _) = running("router");
    let unknown = service.write(&batch(vec![entry(INSERT, 1)], 3)).unwrap_err();
    assert_eq!(unknown.failure.code, InvalidArgument);
}

#[test]
fn what_the_data_plane_refuses_is_as_if_it_had_not_been_asked() {
    let (mut service, instance) = running("router");
    service.write(&batch(vec![entry(INSERT, 1)], 0)).unwrap();
    instance.borrow_mut().refusal = Some(Failure::exhausted("too many operations"));
    let refused = service
        .write(&batch(vec![entry(INSERT, 2), entry(INSERT, 1)], 0))
        .unwrap_err();
    assert_eq!(codes(&refused), [Code::ResourceExhausted, Code::AlreadyExists]);
    assert_eq!(found(&mut service), 1);
    service.write(&batch(vec![entry(INSERT, 2)], 0)).unwrap();
    instance.borrow_mut().refusal = Some(Failure::exhausted("too many operations"));
    let set = pipeline("firewall", pipeline_action::VERIFY_AND_COMMIT);
    assert_eq!(
        service.set_pipeline(set).unwrap_err().failure.code,
        InvalidArgument
    );
    assert_eq!(found(&mut service), 2, "the former one goes on");
}

#[test]
fn another_users_change_is_found_and_kept() {
    let (mut service, instance) = running("router");
    service.write(&batch(vec![entry(INSERT, 1)], 0)).unwrap();
    let with_one = instance.borrow().version.clone().unwrap().1;
    service.write(&batch(vec![entry(INSERT, 2)], 0)).unwrap();
    // Somebody else puts another version, at the very moment at which a client writes.
    instance.borrow_mut().other = Some(with_one);
    service.write(&batch(vec![entry(INSERT, 3)], 0)).unwrap();
    assert_eq!(found(&mut service), 2);
    service.write(&batch(vec![entry(MODIFY, 3)], 0)).unwrap();
    // A program that no client has set is no pipeline.
    let (_, program) = testing::program("router");
    let checked = p4_ir::Checked::new(program).unwrap();
    instance.borrow_mut().version = Some((99, p4_ir::setup::encode(&checked, &Default::default())));
    let refused = service.write(&batch(vec![entry(INSERT, 3)], 0)).unwrap_err();
    assert_eq!(refused.failure.code, FailedPrecondition);
}

#[test]
fn whoever_is_not_the_primary_reads_only() {
    let (mut service, _) = running("router");
    let notices = arbitrate(&mut service, B, 2, None).unwrap();
    assert_eq!(
        notices.iter().map(|(stream, _)| *stream).collect::<Vec<_>>(),
        [A, B]
    );
    let refused = service.write(&batch(vec![entry(INSERT, 1)], 0)).unwrap_err();
    assert_eq!((refused.failure.code, refused.parts.len()), (PermissionDenied, 0));
    let set = pipeline("router", pipeline_action::VERIFY);
    assert_eq!(
        service.set_pipeline(set).unwrap_err().failure.code,
        PermissionDenied
    );
    assert_eq!(found(&mut service), 0);
    let mut of_nobody = batch(vec![entry(INSERT, 1)], 0);
    of_nobody.role = "who".into();
    assert_eq!(service.write(&of_nobody).unwrap_err().failure.code, NotFound);
    of_nobody.device_id = 2;
    assert_eq!(service.write(&of_nobody).unwrap_err().failure.code, NotFound);
    let told = service.on_end(B);
    assert_eq!(told.len(), 1, "the one that is left");
    assert!(service.on_end(B).is_empty());
}

#[test]
fn a_pipeline_is_verified_saved_and_committed() {
    let (mut service, instance) = service();
    let verify = pipeline("router", pipeline_action::VERIFY);
    service.set_pipeline(verify.clone()).unwrap();
    assert_eq!(instance.borrow().puts, 0);
    let commit = || pipeline("router", pipeline_action::COMMIT);
    assert_eq!(service.set_pipeline(commit()).unwrap_err().failure.code, NotFound);
    service
        .set_pipeline(pipeline("router", pipeline_action::VERIFY_AND_SAVE))
        .unwrap();
    // Entries of the saved pipeline wait for it.
    service
        .write(&batch(vec![entry(INSERT, 1), entry(INSERT, 2)], 0))
        .unwrap();
    let wrong = vec![entry(DELETE, 1), entry(DELETE, 9)];
    service
        .write(&batch(wrong, atomicity::ROLLBACK_ON_ERROR))
        .unwrap_err();
    assert_eq!((instance.borrow().puts, found(&mut service)), (0, 2));
    let with_config = SetForwardingPipelineConfigRequest {
        config: verify.config,
        ..commit()
    };
    assert_eq!(
        service.set_pipeline(with_config).unwrap_err().failure.code,
        InvalidArgument
    );
    service.set_pipeline(commit()).unwrap();
    assert_eq!((instance.borrow().puts, found(&mut service)), (1, 2));
    assert_eq!(service.set_pipeline(commit()).unwrap_err().failure.code, NotFound);
    let unknown = SetForwardingPipelineConfigRequest {
        action: 9,
        ..pipeline("router", pipeline_action::VERIFY)
    };
    assert_eq!(
        service.set_pipeline(unknown).unwrap_err().failure.code,
        InvalidArgument
    );
}

#[test]
fn a_pipeline_that_reconciles_keeps_entries_and_one_that_does_not_clears_them() {
    let (mut service, instance) = running("router");
    let lineage = |instance: &Shared| {
        let bytes = instance.borrow().version.clone().unwrap().1;
        p4_ir::setup::decode(&bytes).unwrap().1.lineage
    };
    service
        .write(&batch((1..=3).map(|net| entry(INSERT, net)).collect(), 0))
        .unwrap();
    let first = lineage(&instance);
    service
        .set_pipeline(pipeline("router", pipeline_action::RECONCILE_AND_COMMIT))
        .unwrap();
    assert_eq!((found(&mut service), lineage(&instance)), (3, first));
    service
        .write(&batch(vec![entry(DELETE, 3), entry(MODIFY, 1)], 0))
        .unwrap();
    let other = pipeline("firewall", pipeline_action::RECONCILE_AND_COMMIT);
    let refused = service.set_pipeline(other).unwrap_err().failure;
    assert_eq!(refused.code, InvalidArgument);
    assert!(refused.text.contains("RouterIngress.routes"), "{refused}");
    assert_eq!(found(&mut service), 2);
    service
        .set_pipeline(pipeline("router", pipeline_action::VERIFY_AND_COMMIT))
        .unwrap();
    assert_eq!(found(&mut service), 0);
    assert_ne!(lineage(&instance), first, "registers and counters begin anew");
}

/// A cell of the firewall's first register, with a value.
fn register_cell(index: i64, value: &[u8]) -> Kind {
    let (_, program) = testing::program("stateful_firewall");
    Kind::RegisterEntry(Box::new(RegisterEntry {
        register_id: program.registers[0].identity.id.unwrap(),
        index: Some(Index { index }),
        data: Some(P4Data {
            bitstring: Some(value.to_vec()),
            r#struct: None,
        }),
    }))
}

#[test]
fn cells_are_set_and_read() {
    let (mut service, instance) = running("stateful_firewall");
    let cell = register_cell;
    service
        .write(&batch(vec![update(MODIFY, cell(4, &[1]))], 0))
        .unwrap();
    assert_eq!(instance.borrow().cells.get(&(0, 4)), Some(&vec![1]));
    instance.borrow_mut().cells.insert((0, 4), vec![1, 0]);
    let kind = Some(cell(4, &[]));
    let mut request = all_entries();
    request.entities = vec![Entity { kind }];
    let (answers, ended) = service.read(&request);
    ended.unwrap();
    let answer = ReadResponse::decode(&answers[0][..]).unwrap();
    assert_eq!(answer.entities[0].kind, Some(cell(4, &[1])));
    let many = vec![update(MODIFY, cell(0, &[1])); 5000];
    let refused = service.write(&batch(many, 0)).unwrap_err();
    assert_eq!(
        codes(&refused).iter().filter(|code| **code == Code::Ok).count(),
        4096
    );
}

#[test]
fn cells_are_set_at_once_or_not_at_all() {
    let (mut service, instance) = running("stateful_firewall");
    let cell = register_cell;
    let cells = |range: std::ops::Range<i64>| -> Vec<_> {
        range.map(|index| update(MODIFY, cell(index, &[1]))).collect()
    };
    let atomic = |updates| batch(updates, atomicity::DATAPLANE_ATOMIC);
    service.write(&atomic(cells(4..6))).unwrap();
    assert_eq!(instance.borrow().at_once, 1);
    assert_eq!(instance.borrow().cells.get(&(0, 5)), Some(&vec![1]));
    let mut mixed = cells(0..2);
    let group = Replication::Group(MulticastGroupEntry {
        multicast_group_id: 7,
        ..MulticastGroupEntry::default()
    });
    let group = PacketReplicationEngineEntry { r#type: Some(group) };
    mixed.push(update(INSERT, Kind::Replication(Box::new(group))));
    // Together with another entity, in the moment in which the version comes into force, or not at all.
    instance.borrow_mut().refused_cell = Some(1);
    let refused = service.write(&atomic(mixed.clone())).unwrap_err();
    assert_eq!(codes(&refused), [Aborted, Aborted, Code::ResourceExhausted]);
    let puts = instance.borrow().puts;
    assert_eq!(instance.borrow().cells.get(&(0, 0)), None);
    instance.borrow_mut().refused_cell = None;
    service.write(&atomic(mixed)).unwrap();
    let now = (instance.borrow().puts, instance.borrow().at_once);
    assert_eq!(now, (puts + 1, 2), "one version with the cells");
    assert_eq!(instance.borrow().cells.get(&(0, 1)), Some(&vec![1]));
    instance.borrow_mut().cells.clear();
    let too_many = service.write(&atomic(cells(0..1025))).unwrap_err();
    assert_eq!(codes(&too_many)[..2], [Code::ResourceExhausted, Aborted]);
    instance.borrow_mut().refused_cell = Some(1);
    let refused = service.write(&atomic(cells(0..2))).unwrap_err();
    assert_eq!(codes(&refused), [Code::Unavailable, Aborted]);
    assert_eq!(instance.borrow().cells.get(&(0, 0)), None);
    instance.borrow_mut().refused_cell = None;
    let mut beyond = cells(0..1);
    beyond.push(update(MODIFY, cell(1 << 40, &[1])));
    assert!(service.write(&atomic(beyond)).is_err());
    assert_eq!(instance.borrow().cells.get(&(0, 0)), None);
}

#[test]
fn a_batch_with_cells_is_taken_back_if_one_cannot_be_set() {
    let (mut service, instance) = running("stateful_firewall");
    let (_, program) = testing::program("stateful_firewall");
    let cell = |index| {
        let value = P4Data {
            bitstring: Some(vec![1]),
            r#struct: None,
        };
        let register = RegisterEntry {
            register_id: program.registers[0].identity.id.unwrap(),
            index: Some(Index { index }),
            data: Some(value),
        };
        update(MODIFY, Kind::RegisterEntry(Box::new(register)))
    };
    let group = |multicast_group_id| {
        let group = MulticastGroupEntry {
            multicast_group_id,
            ..MulticastGroupEntry::default()
        };
        let r#type = Some(Replication::Group(group));
        update(
            INSERT,
            Kind::Replication(Box::new(PacketReplicationEngineEntry { r#type })),
        )
    };
    let whole = |updates| batch(updates, atomicity::ROLLBACK_ON_ERROR);
    let version = || instance.borrow().version.clone().unwrap().1;
    let cells = |number| instance.borrow().cells.get(&(0, number)).cloned();
    service.write(&whole(vec![cell(4), group(1), cell(5)])).unwrap();
    assert_eq!((cells(4), cells(5)), (Some(vec![1]), Some(vec![1])));
    let before = version();
    instance.borrow_mut().cells = [((0, 4), vec![7, 0]), ((0, 5), vec![8, 0])].into();
    instance.borrow_mut().refused_cell = Some(6);
    let updates = vec![cell(4), group(2), cell(5), cell(6), cell(4)];
    let refused = service.write(&whole(updates)).unwrap_err();
    assert_eq!(
        codes(&refused),
        [Aborted, Aborted, Aborted, Code::Unavailable, Aborted]
    );
    assert_eq!((cells(4), cells(5)), (Some(vec![7, 0]), Some(vec![8, 0])));
    assert_eq!(version(), before, "the former version returns");
    // What cannot be made at all is refused before anything is done.
    let puts = instance.borrow().puts;
    let too_many = std::iter::repeat_with(|| cell(4)).take(5000);
    let refused = service
        .write(&whole(too_many.chain([group(3)]).collect()))
        .unwrap_err();
    assert_eq!(codes(&refused)[4999..], [Code::ResourceExhausted, Aborted]);
    let refused = service.write(&whole(vec![cell(4), group(1)])).unwrap_err();
    assert_eq!(codes(&refused), [Aborted, Code::AlreadyExists]);
    assert_eq!((instance.borrow().puts, cells(4)), (puts, Some(vec![7, 0])));
    // A version that the data plane refuses leaves the cells alone.
    instance.borrow_mut().refusal = Some(Failure::exhausted("too much"));
    let refused = service.write(&whole(vec![cell(4), group(3)])).unwrap_err();
    assert_eq!(codes(&refused), [Aborted, Code::ResourceExhausted]);
    assert_eq!((version(), cells(4)), (before, Some(vec![7, 0])));
    service.write(&whole(vec![group(3), cell(4)])).unwrap();
}

#[test]
fn a_read_tells_errors_per_request_behind_what_it_found() {
    let (mut service, _) = running("router");
    service.write(&batch(vec![entry(INSERT, 1)], 0)).unwrap();
    let mut request = all_entries();
    let kind = Some(Kind::TableEntry(Box::new(TableEntry {
        table_id: 7,
        ..TableEntry::default()
    })));
    request.entities.push(Entity { kind });
    let (answers, ended) = service.read(&request);
    assert_eq!(answers.len(), 1);
    assert_eq!(codes(&ended.unwrap_err()), [Code::Ok, NotFound]);
}

#[test]
fn many_entries_come_in_several_answers() {
    let (mut service, _) = running("router");
    let (_, program) = testing::program("router");
    let route = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let mut entry = route(&program, [10, high, low, 0], 24, 1);
        entry.metadata = vec![7; 64];
        update(INSERT, Kind::TableEntry(Box::new(entry)))
    };
    service.write(&batch((0..5000).map(route).collect(), 0)).unwrap();
    let (answers, ended) = service.read(&all_entries());
    ended.unwrap();
    assert!(answers.len() > 1 && answers.iter().all(|answer| answer.len() < 2 * ANSWER));
    assert_eq!(found(&mut service), 5000);
}

#[test]
fn a_role_does_what_its_configuration_says() {
    let (mut service, _) = running("router");
    let (_, program) = testing::program("router");
    let config = RoleConfig {
        p4_ids: vec![testing::table_id(&program, "routes")],
        ..RoleConfig::default()
    };
    let role = Role {
        name: "routes".into(),
        config: Some(Any {
            type_url: RoleConfig::TYPE_URL.into(),
            value: config.encode_to_vec(),
        }),
        ..Role::default()
    };
    arbitrate(&mut service, B, 1, Some(role)).unwrap();
    let mut own = batch(vec![entry(INSERT, 1)], 0);
    own.role = "routes".into();
    service.write(&own).unwrap();
    let group = Kind::Replication(Box::default());
    own.updates = vec![entry(DELETE, 1), update(INSERT, group)];
    assert_eq!(
        codes(&service.write(&own).unwrap_err()),
        [Code::Ok, PermissionDenied]
    );
    let mut set = pipeline("router", pipeline_action::VERIFY);
    set.role = "routes".into();
    assert_eq!(
        service.set_pipeline(set).unwrap_err().failure.code,
        PermissionDenied
    );
}

#[test]
fn what_a_stream_may_not_send_is_answered_there() {
    let (mut service, _) = running("router");
    arbitrate(&mut service, B, 0, None).unwrap();
    let packet = || stream_request::Update::Packet(PacketOut::default());
    let error = |service: &mut Service<Shared>, stream, update| {
        let update = Some(update);
        let messages = service
            .on_message(stream, StreamMessageRequest { update })
            .unwrap();
        match &messages[..] {
            [
                (
                    to,
                    StreamMessageResponse {
                        update: Some(stream_response::Update::Error(error)),
                    },
                ),
            ] => {
                assert_eq!(*to, stream);
                assert!(error.details.is_some());
                Code::from(error.canonical_code)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error(&mut service, A, packet()), InvalidArgument);
    let whole = PacketOut {
        payload: vec![0; 60],
        ..PacketOut::default()
    };
    let whole = stream_request::Update::Packet(whole);
    assert_eq!(error(&mut service, A, whole), Code::Unavailable, "not connected");
    assert_eq!(error(&mut service, B, packet()), PermissionDenied);
    assert_eq!(error(&mut service, StreamId(9), packet()), PermissionDenied);
    let ack = stream_request::Update::DigestAck(Default::default());
    assert_eq!(error(&mut service, A, ack), InvalidArgument);
    let other = stream_request::Update::Other(Any::default());
    assert_eq!(error(&mut service, A, other), Unimplemented);
    let empty = service
        .on_message(A, StreamMessageRequest::default())
        .unwrap_err();
    assert_eq!(empty.code, InvalidArgument);
}

#[test]
fn a_stream_is_for_one_device_that_exists() {
    let (mut service, _) = service();
    let other = MasterArbitrationUpdate {
        device_id: 2,
        ..MasterArbitrationUpdate::default()
    };
    let asks = |service: &mut Service<Shared>, stream| {
        let update = Some(stream_request::Update::Arbitration(other.clone()));
        service
            .on_message(stream, StreamMessageRequest { update })
            .unwrap_err()
            .code
    };
    assert_eq!(asks(&mut service, A), FailedPrecondition);
    assert_eq!(asks(&mut service, B), NotFound);
    let version = service.capabilities(CapabilitiesRequest::default()).unwrap();
    assert_eq!(version.p4runtime_api_version, "1.5.0");
    let missing = service
        .capabilities(CapabilitiesRequest { device_id: 2 })
        .unwrap_err();
    assert_eq!(missing.failure.code, NotFound);
}

/// Packets of clients have a header of two bytes, and so have those of the program.
fn with_packets() -> (Service<Shared>, Shared) {
    let (mut service, instance) = service();
    let mut set = pipeline("l2_switch", pipeline_action::VERIFY_AND_COMMIT);
    let p4info = set.config.as_mut().unwrap().p4info.as_mut().unwrap();
    for (id, name) in [(1, "packet_in"), (2, "packet_out")] {
        let header = format!(
            "controller_packet_metadata {{ preamble {{ id: {id} name: \"{name}\" alias: \"{name}\" }} \
             metadata {{ id: 1 name: \"port\" bitwidth: 9 }} \
             metadata {{ id: 2 name: \"fill\" annotations: \"@padding\" bitwidth: 7 }} }}\n"
        );
        p4info.extend(header.into_bytes());
    }
    service.set_pipeline(set).unwrap();
    (service, instance)
}

fn packet_out(port: u8) -> StreamMessageRequest {
    let packet = PacketOut {
        payload: vec![7; 60],
        metadata: vec![PacketMetadata {
            metadata_id: 1,
            value: vec![port],
        }],
    };
    let update = Some(stream_request::Update::Packet(packet));
    StreamMessageRequest { update }
}

/// The streams that a message goes to, and the packet's port.
fn packets_in(messages: &Messages) -> Vec<(StreamId, Vec<u8>)> {
    let packet = |(stream, message): &(StreamId, StreamMessageResponse)| match &message.update {
        Some(stream_response::Update::Packet(packet)) => {
            assert_eq!((packet.payload.len(), packet.metadata.len()), (60, 1));
            (*stream, packet.metadata[0].value.clone())
        }
        other => panic!("{other:?}"),
    };
    messages.iter().map(packet).collect()
}

#[test]
fn packets_go_to_the_data_plane_and_come_from_it_for_primaries() {
    let (mut service, instance) = with_packets();
    let watched = service.connect();
    assert_eq!((watched.len(), watched[0].0), (1, 1));
    assert!(service.connect().is_empty(), "once");
    assert_eq!(service.on_message(A, packet_out(3)).unwrap(), []);
    let data_plane = instance.borrow_mut().data_plane.take().unwrap();
    let ToP4::PacketOut(sent) = data_plane.try_recv().unwrap().0 else {
        panic!("a packet")
    };
    assert_eq!((&sent[..3], sent.len()), (&[1, 0x80, 7][..], 62));
    // A backup gets nothing, the primary of a role what its role may have.
    let role = |has_packets: bool| {
        let config = RoleConfig {
            has_packets,
            ..RoleConfig::default()
        };
        Some(Role {
            name: format!("role {has_packets}"),
            config: Some(Any {
                type_url: RoleConfig::TYPE_URL.into(),
                value: config.encode_to_vec(),
            }),
            ..Role::default()
        })
    };
    arbitrate(&mut service, B, 0, None).unwrap();
    arbitrate(&mut service, StreamId(3), 1, role(true)).unwrap();
    arbitrate(&mut service, StreamId(4), 1, role(false)).unwrap();
    let messages = service.on_data_plane(1, FromP4::PacketIn(sent));
    assert_eq!(packets_in(&messages), [(A, vec![3]), (StreamId(3), vec![3])]);
    let refused = service.on_message(StreamId(4), packet_out(3)).unwrap();
    assert!(matches!(
        refused[0].1.update,
        Some(stream_response::Update::Error(StreamError { canonical_code, .. })) if canonical_code == PermissionDenied as i32
    ));
}

#[test]
fn connections_to_the_data_plane_last_as_long_as_there_are_clients() {
    let (mut service, instance) = with_packets();
    assert_eq!(service.connect().len(), 1);
    let data_plane = instance.borrow_mut().data_plane.take().unwrap();
    // Whatever the data plane sends is no reason to end.
    assert!(service.on_data_plane(1, FromP4::PacketIn(vec![1])).is_empty());
    assert!(service.on_data_plane(2, FromP4::PacketIn(vec![1; 60])).is_empty());
    // Without clients there is no connection, and the next one takes a moment.
    service.on_end(A);
    assert!(matches!(data_plane.try_recv::<ToP4>(), Err(ChannelError::Closed)));
    arbitrate(&mut service, A, 2, None).unwrap();
    assert!(service.connect().is_empty());
    service.on_link(1, Link::Apart);
    assert_eq!(service.connect().len(), 1);
}

/// The number of the switch's digest, and its entry.
fn digest(verb: i32, max_list_size: i32) -> (u32, Update) {
    let (_, program) = testing::program("l2_switch");
    let digest_id = program.digests[0].identity.id.unwrap();
    let config = Some(DigestConfig {
        max_timeout_ns: 1_000_000_000_000,
        max_list_size,
        ack_timeout_ns: 1_000_000_000_000,
    });
    let entry = DigestEntry { digest_id, config };
    (digest_id, update(verb, Kind::Digest(entry)))
}

/// A digest of the data plane: a station at port 1. With another number, that of another program.
fn digest_of(instance: &Shared, other: u64, station: u8) -> FromP4 {
    let bytes = instance.borrow().version.clone().unwrap().1;
    let lineage = p4_ir::setup::decode(&bytes).unwrap().1.lineage.0;
    FromP4::Digest {
        lineage: lineage ^ other,
        digest: 0,
        values: vec![2, 0, 0, 0, 0, station, 0, 0x80],
    }
}

#[test]
fn digests_come_in_lists_that_clients_acknowledge() {
    let (mut service, instance) = running("l2_switch");
    let seen = |station| digest_of(&instance, 0, station);
    assert!(service.on_data_plane(1, seen(1)).is_empty(), "nobody has asked");
    let (id, entry) = digest(INSERT, 2);
    service.write(&batch(vec![entry], 0)).unwrap();
    assert!(service.on_data_plane(1, seen(1)).is_empty());
    assert!(
        service.next_due().is_some() && service.due().is_empty(),
        "not yet"
    );
    assert!(service.on_data_plane(1, seen(1)).is_empty(), "known");
    let messages = service.on_data_plane(1, seen(2));
    let [
        (
            A,
            StreamMessageResponse {
                update: Some(stream_response::Update::Digest(list)),
            },
        ),
    ] = &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((list.digest_id, list.list_id, list.data.len()), (id, 1, 2));
    assert!(service.next_due().is_none());
    let ack = |digest_id| {
        let ack = DigestListAck {
            digest_id,
            list_id: 1,
        };
        let update = Some(stream_request::Update::DigestAck(ack));
        StreamMessageRequest { update }
    };
    assert!(service.on_message(A, ack(id)).unwrap().is_empty());
    assert_eq!(service.on_message(A, ack(id + 1)).unwrap().len(), 1, "an error");
    assert!(service.on_data_plane(1, seen(1)).is_empty());
    assert!(service.next_due().is_some(), "acknowledged, and so news again");
}

#[test]
fn entries_of_digests_are_read_changed_and_deleted() {
    let (mut service, instance) = running("l2_switch");
    let (_, entry) = digest(INSERT, 2);
    service.write(&batch(vec![entry], 0)).unwrap();
    // A digest of another program is nothing.
    let other = digest_of(&instance, 1, 1);
    assert!(service.on_data_plane(1, other).is_empty() && service.next_due().is_none());
    let own = digest_of(&instance, 0, 1);
    assert!(service.on_data_plane(1, own).is_empty() && service.next_due().is_some());
    let asked = ReadRequest {
        device_id: 1,
        entities: vec![Entity {
            kind: Some(Kind::Digest(DigestEntry::default())),
        }],
        ..ReadRequest::default()
    };
    assert_eq!(service.read(&asked).0.len(), 1);
    let wrong = vec![
        digest(INSERT, 1).1,
        digest(MODIFY, -1).1,
        digest(DELETE, 0).1,
        digest(DELETE, 0).1,
    ];
    let refused = service.write(&batch(wrong, 0)).unwrap_err();
    assert_eq!(
        codes(&refused),
        [Code::AlreadyExists, InvalidArgument, Code::Ok, NotFound]
    );
    assert!(service.read(&asked).0.is_empty() && service.next_due().is_none());
}

/// An entry of the firewall's services, for a port of TCP.
fn service_entry(port: u8) -> TableEntry {
    let (_, program) = testing::program("firewall");
    let exact = |field_id, value| FieldMatch {
        field_id,
        field_match_type: Some(FieldMatchType::Exact(ExactMatch { value })),
    };
    TableEntry {
        table_id: testing::table_id(&program, "services"),
        r#match: vec![exact(1, vec![6]), exact(2, vec![port])],
        action: Some(testing::direct(testing::action(&program, "service_deny"), vec![])),
        ..TableEntry::default()
    }
}

#[test]
fn counts_of_entries_are_set_wherever_a_batch_moves_them() {
    let (mut service, instance) = running("firewall");
    let entry = |verb, port| update(verb, Kind::TableEntry(Box::new(service_entry(port))));
    let insert = (1..=3).map(|port| entry(INSERT, port)).collect();
    service.write(&batch(insert, 0)).unwrap();
    let count = |table_entry, packet_count| {
        let data = Some(CounterData {
            packet_count,
            byte_count: 7,
        });
        let entry = DirectCounterEntry { table_entry, data };
        update(MODIFY, Kind::DirectCounterEntry(Box::new(entry)))
    };
    let default = TableEntry {
        r#match: vec![],
        is_default_action: true,
        ..service_entry(0)
    };
    let updates = vec![
        count(Some(service_entry(3)), 5),
        entry(DELETE, 1),
        count(Some(default), 6),
        count(Some(service_entry(2)), -1),
        count(Some(service_entry(9)), 1),
        count(None, 1),
    ];
    let refused = service.write(&batch(updates, 0)).unwrap_err();
    let ends = [
        Code::Ok,
        Code::Ok,
        Code::Ok,
        InvalidArgument,
        NotFound,
        InvalidArgument,
    ];
    assert_eq!(codes(&refused), ends);
    let bytes = instance.borrow().version.clone().unwrap().1;
    let (program, _) = p4_ir::setup::decode(&bytes).unwrap();
    let table = program
        .tables
        .iter()
        .position(|table| table.identity.alias == "services")
        .unwrap();
    let number = u16::try_from(table).unwrap();
    let is_third =
        |entry: &p4_ir::Entry| entry.keys[1] == p4_ir::KeyMatch::Exact(p4_ir::Bits::from_bytes(16, &[3]));
    let third = program.tables[table].entries.iter().position(is_third).unwrap() as u32;
    let cells = &instance.borrow().cells;
    assert_eq!((cells.len(), program.tables[table].entries.len()), (2, 2));
    assert_eq!(
        (&cells[&(number, third)], &cells[&(number, 2)]),
        (&vec![5, 7], &vec![6, 7])
    );
}

#[test]
fn primaries_that_may_read_a_table_hear_of_its_idle_entries() {
    let (mut service, instance) = running("l2_switch");
    let (_, program) = testing::program("l2_switch");
    assert!(service.next_due().is_none());
    let entry = |number, timeout| {
        let entry = crate::idle::tests::station(&program, number, timeout);
        update(INSERT, Kind::TableEntry(Box::new(entry)))
    };
    service
        .write(&batch(vec![entry(1, 1000), entry(2, 2000), entry(3, 0)], 0))
        .unwrap();
    instance.borrow_mut().idle = [(0, 1500), (1, 1500), (2, 1500)].into();
    assert!(service.next_due().is_some());
    let messages = service.due();
    let [
        (
            A,
            StreamMessageResponse {
                update: Some(stream_response::Update::Idle(news)),
            },
        ),
    ] = &messages[..]
    else {
        panic!("{messages:?}")
    };
    let timeouts = news.table_entry.iter().map(|entry| entry.idle_timeout_ns);
    assert_eq!(timeouts.collect::<Vec<_>>(), [1000]);
    assert!(
        news.timestamp > 0 && service.due().is_empty(),
        "not so soon again"
    );
    service.on_end(A);
    assert!(service.next_due().is_none(), "nobody is there");
}

#[test]
fn what_is_lost_on_the_way_to_clients_is_told_to_the_data_plane() {
    let (mut service, instance) = running("l2_switch");
    assert_eq!(service.connect().len(), 1);
    let data_plane = instance.borrow_mut().data_plane.take().unwrap();
    let (_, entry) = digest(INSERT, 0);
    service.write(&batch(vec![entry], 0)).unwrap();
    let bytes = instance.borrow().version.clone().unwrap().1;
    let lineage = p4_ir::setup::decode(&bytes).unwrap().1.lineage.0;
    // None is acknowledged: 4,096 are kept.
    for number in 0..4100_u32 {
        let values = [&[2, 0][..], &number.to_be_bytes(), &[0, 0x80]].concat();
        let message = FromP4::Digest {
            lineage,
            digest: 0,
            values,
        };
        let _ = service.on_data_plane(1, message);
    }
    let list = DigestList {
        data: vec![P4Data::default(); 3],
        ..DigestList::default()
    };
    let lost = |update| StreamMessageResponse { update: Some(update) };
    service.on_lost(A, &lost(stream_response::Update::Digest(list)));
    service.on_lost(A, &lost(stream_response::Update::Packet(Default::default())));
    service.on_lost(B, &lost(stream_response::Update::Packet(Default::default())));
    assert!(service.next_due().is_some_and(|due| due <= Instant::now()));
    let _ = service.due();
    let told = ToP4::Lost {
        packets: 1,
        digests: 4 + 3,
    };
    assert_eq!(data_plane.try_recv::<ToP4>().unwrap().0, told);
    let _ = service.due();
    assert!(matches!(
        data_plane.try_recv::<ToP4>(),
        Err(ChannelError::WouldBlock)
    ));
}
