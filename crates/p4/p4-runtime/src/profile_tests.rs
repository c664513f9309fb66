use super::*;
use crate::proto::{
    Action, FieldMatch, FieldMatchType, Param, TableAction, TableActionType, TableEntry, update_type,
};
use crate::testing::{self, read_as, update};
use crate::uses::Uses;
use tonic::Code::{
    AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Ok as Fine, ResourceExhausted,
    Unimplemented,
};
use update_type::{DELETE, INSERT, MODIFY};

/// The profile's number in P4Info of the load balancer.
const SERVERS: u32 = 301_258_078;

fn balancer() -> Pipeline {
    Pipeline::load(Some(&testing::program("load_balancer").0)).unwrap()
}

fn to_server(pipeline: &Pipeline, port: u8) -> Action {
    let values: [&[u8]; 4] = [&[2, 0, 0, 0, 0, port], &[10, 0, 0, port], &[80], &[port]];
    let param = |(value, param_id): (&[u8], u32)| Param {
        param_id,
        value: value.to_vec(),
    };
    Action {
        action_id: testing::action(&pipeline.program, "to_server"),
        params: values.into_iter().zip(1..).map(param).collect(),
    }
}

fn member(pipeline: &Pipeline, member_id: u32) -> Kind {
    Kind::ActionProfileMember(Box::new(ActionProfileMember {
        action_profile_id: SERVERS,
        member_id,
        action: Some(to_server(pipeline, member_id as u8)),
    }))
}

fn weighted(members: &[(u32, i32)]) -> Vec<GroupMember> {
    let member = |&(member_id, weight): &(u32, i32)| GroupMember {
        member_id,
        weight,
        watch_kind: None,
    };
    members.iter().map(member).collect()
}

fn group_of(group_id: u32, members: Vec<GroupMember>, max_size: i32) -> Kind {
    Kind::ActionProfileGroup(Box::new(ActionProfileGroup {
        action_profile_id: SERVERS,
        group_id,
        members,
        max_size,
    }))
}

fn group(group_id: u32, members: &[(u32, i32)]) -> Kind {
    group_of(group_id, weighted(members), 0)
}

fn pool(pipeline: &Pipeline, service: u8, target: TableActionType) -> Kind {
    let exact = FieldMatchType::Exact(proto::ExactMatch { value: vec![service] });
    let field = FieldMatch {
        field_id: 1,
        field_match_type: Some(exact),
    };
    Kind::TableEntry(Box::new(TableEntry {
        table_id: testing::table_id(&pipeline.program, "pools"),
        r#match: vec![field],
        action: Some(TableAction { r#type: Some(target) }),
        ..TableEntry::default()
    }))
}

fn one_shot(pipeline: &Pipeline, weights: &[i32]) -> ActionProfileActionSet {
    let action = |(&weight, port): (&i32, u8)| ActionProfileAction {
        action: Some(to_server(pipeline, port)),
        weight,
        watch_kind: Some(WatchKind::WatchPort(vec![port])),
    };
    ActionProfileActionSet {
        action_profile_actions: weights.iter().zip(1..).map(action).collect(),
        ..ActionProfileActionSet::default()
    }
}

fn code(pipeline: &mut Pipeline, verb: i32, kind: Kind) -> Code {
    let before = (pipeline.program.clone(), pipeline.uses.clone());
    let code = pipeline
        .apply(&update(verb, kind), &Scope::Full)
        .map_or_else(|failure| failure.code, |_| Fine);
    if code != Fine {
        assert!(
            before == (pipeline.program.clone(), pipeline.uses.clone()),
            "{code:?}"
        );
    }
    assert_eq!(
        pipeline.uses,
        Uses::of(&pipeline.program),
        "what is counted is what is there"
    );
    code
}

fn read(pipeline: &Pipeline, kind: Kind, scope: &Scope) -> Vec<Kind> {
    read_as(pipeline, kind, scope).unwrap()
}

#[test]
fn what_is_in_use_is_not_deleted_and_what_is_not_there_is_not_used() {
    let mut balancer = balancer();
    let [one, two, three] = [1, 2, 3].map(|id| member(&balancer, id));
    let by_group = pool(&balancer, 1, TableActionType::ActionProfileGroupId(9));
    let by_member = pool(&balancer, 2, TableActionType::ActionProfileMemberId(3));
    let steps = [
        (MODIFY, one.clone(), NotFound),
        (DELETE, one.clone(), NotFound),
        (INSERT, group(9, &[(1, 1)]), NotFound),
        (INSERT, by_group.clone(), NotFound),
        (INSERT, by_member.clone(), NotFound),
        (INSERT, one.clone(), Fine),
        (INSERT, one.clone(), AlreadyExists),
        (INSERT, two.clone(), Fine),
        (INSERT, three.clone(), Fine),
        (MODIFY, one.clone(), Fine),
        (MODIFY, group(9, &[(1, 1)]), NotFound),
        (INSERT, group(9, &[(1, 1), (2, 3)]), Fine),
        (INSERT, group(9, &[]), AlreadyExists),
        (INSERT, by_group.clone(), Fine),
        (INSERT, by_member.clone(), Fine),
        (DELETE, one.clone(), FailedPrecondition),
        (DELETE, three.clone(), FailedPrecondition),
        (DELETE, group(9, &[]), FailedPrecondition),
        (MODIFY, group(9, &[(2, 1)]), Fine),
        (DELETE, one, Fine),
        (DELETE, by_group, Fine),
        (DELETE, group(9, &[]), Fine),
        (DELETE, two, Fine),
        (DELETE, by_member, Fine),
        (DELETE, three, Fine),
    ];
    for (verb, kind, expected) in steps {
        assert_eq!(
            code(&mut balancer, verb, kind.clone()),
            expected,
            "{verb} {kind:?}"
        );
    }
    assert_eq!(balancer.uses, [Uses::default()]);
}

#[test]
fn wrong_members_and_groups_are_refused() {
    let mut balancer = balancer();
    assert_eq!(code(&mut balancer, INSERT, member(&testing_balancer(), 1)), Fine);
    let changed = |change: &dyn Fn(&mut ActionProfileMember)| {
        let Kind::ActionProfileMember(mut wrong) = member(&testing_balancer(), 5) else {
            panic!("it is a member");
        };
        change(&mut wrong);
        Kind::ActionProfileMember(wrong)
    };
    let watching = |watch: WatchKind, weight: i32| {
        let mut members = weighted(&[(1, weight)]);
        members[0].watch_kind = Some(watch);
        group_of(9, members, 0)
    };
    let cases = [
        (changed(&|wrong| wrong.action_profile_id = 7), NotFound),
        (changed(&|wrong| wrong.member_id = 0), InvalidArgument),
        (changed(&|wrong| wrong.action = None), InvalidArgument),
        (
            changed(&|wrong| wrong.action = Some(Action::default())),
            InvalidArgument,
        ),
        (
            changed(&|wrong| drop(wrong.action.as_mut().unwrap().params.pop())),
            InvalidArgument,
        ),
        (group(0, &[(1, 1)]), InvalidArgument),
        (group(9, &[(1, 0)]), InvalidArgument),
        (group(9, &[(1, -1)]), InvalidArgument),
        (group(9, &[(1, 1), (1, 1)]), InvalidArgument),
        (group(9, &[(2, 1)]), NotFound),
        (group_of(9, Vec::new(), -1), InvalidArgument),
        (group_of(9, Vec::new(), 1025), ResourceExhausted),
        (group_of(9, weighted(&[(1, 3)]), 2), ResourceExhausted),
        (group(9, &[(1, 1025)]), ResourceExhausted),
        (group(9, &[(1, i32::MAX)]), ResourceExhausted),
        (watching(WatchKind::WatchPort(vec![1, 255]), 1), InvalidArgument),
        (watching(WatchKind::WatchPort(vec![2, 0]), 1), InvalidArgument),
        (watching(WatchKind::Watch(-1), 1), InvalidArgument),
        (watching(WatchKind::Watch(600), 1), InvalidArgument),
        (watching(WatchKind::Watch(5), 513), ResourceExhausted),
    ];
    for (wrong, expected) in cases {
        assert_eq!(code(&mut balancer, INSERT, wrong.clone()), expected, "{wrong:?}");
    }
    assert_eq!(code(&mut balancer, INSERT, group_of(9, Vec::new(), 2)), Fine);
    assert_eq!(
        code(&mut balancer, MODIFY, group_of(9, Vec::new(), 3)),
        InvalidArgument
    );
    balancer.program.profiles[0].max_group_size = 4;
    assert_eq!(
        code(&mut balancer, INSERT, group_of(8, Vec::new(), 5)),
        InvalidArgument
    );
    balancer.program.profiles[0].groups.clear();
    balancer.program.profiles[0].selector = None;
    assert_eq!(code(&mut balancer, INSERT, group(9, &[])), InvalidArgument);
}

fn testing_balancer() -> Pipeline {
    balancer()
}

#[test]
fn a_profile_takes_what_it_has_room_for() {
    let mut balancer = balancer();
    balancer.program.profiles[0].size = 3;
    let shot =
        |weights: &[i32]| TableActionType::ActionProfileActionSet(one_shot(&testing_balancer(), weights));
    for id in [1, 2] {
        let kind = member(&balancer, id);
        assert_eq!(code(&mut balancer, INSERT, kind), Fine);
    }
    assert_eq!(code(&mut balancer, INSERT, group(1, &[(1, 1), (2, 1)])), Fine);
    let two = pool(&balancer, 1, shot(&[1, 1]));
    assert_eq!(
        code(&mut balancer, INSERT, two.clone()),
        ResourceExhausted,
        "four members"
    );
    let one = pool(&balancer, 1, shot(&[1]));
    assert_eq!(code(&mut balancer, INSERT, one), Fine);
    assert_eq!(code(&mut balancer, MODIFY, two), ResourceExhausted);
    let third = member(&balancer, 3);
    assert_eq!(code(&mut balancer, INSERT, third.clone()), ResourceExhausted);
    assert_eq!(
        code(&mut balancer, INSERT, group(2, &[(1, 1)])),
        ResourceExhausted,
        "weights"
    );
    let by_member = pool(&balancer, 1, TableActionType::ActionProfileMemberId(1));
    assert_eq!(code(&mut balancer, MODIFY, by_member), Fine);
    assert_eq!(code(&mut balancer, INSERT, third), Fine);
    balancer.encode().unwrap();
}

#[test]
fn one_shots_come_back_as_they_were_given_and_wrong_ones_are_refused() {
    let mut balancer = balancer();
    let right = one_shot(&balancer, &[1, 2, 3]);
    let entry = |set: &ActionProfileActionSet| {
        pool(
            &testing_balancer(),
            1,
            TableActionType::ActionProfileActionSet(set.clone()),
        )
    };
    type Change = fn(&mut ActionProfileActionSet);
    let cases: [(Change, Code); 8] = [
        (|set| set.action_profile_actions.clear(), InvalidArgument),
        (|set| set.action_profile_actions[1].action = None, InvalidArgument),
        (|set| set.action_profile_actions[1].weight = 0, InvalidArgument),
        (
            |set| set.action_profile_actions[1].weight = 9999,
            ResourceExhausted,
        ),
        (
            |set| set.action_profile_actions[1].weight = 600,
            ResourceExhausted,
        ),
        (|set| set.action_selection_mode = 2, Unimplemented),
        (|set| set.size_semantics = 2, Unimplemented),
        (|set| set.group_action = Some(Action::default()), Unimplemented),
    ];
    for (change, expected) in cases {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert_eq!(code(&mut balancer, INSERT, entry(&wrong)), expected, "{wrong:?}");
    }
    assert_eq!(code(&mut balancer, INSERT, entry(&right)), Fine);
    let table_id = testing::table_id(&balancer.program, "pools");
    let all = Kind::TableEntry(Box::new(TableEntry {
        table_id,
        ..TableEntry::default()
    }));
    assert_eq!(read(&balancer, all, &Scope::Full), [entry(&right)]);
    let direct = pool(&balancer, 2, TableActionType::Action(to_server(&balancer, 1)));
    assert_eq!(code(&mut balancer, INSERT, direct), InvalidArgument);
    let mut elsewhere = testing::route(&testing::program("router").1, [10, 1, 0, 0], 16, 1);
    elsewhere.action = Some(TableAction {
        r#type: Some(TableActionType::ActionProfileMemberId(1)),
    });
    let mut router = Pipeline::load(Some(&testing::program("router").0)).unwrap();
    let kind = Kind::TableEntry(Box::new(elsewhere));
    assert_eq!(code(&mut router, INSERT, kind), InvalidArgument);
}

#[test]
fn members_and_groups_are_read_by_number_or_all_and_by_roles_that_may() {
    let mut balancer = balancer();
    let members = [1, 2, 3].map(|id| member(&balancer, id));
    let mut watched = weighted(&[(1, 2), (3, 1)]);
    watched[1].watch_kind = Some(WatchKind::WatchPort(vec![7]));
    let groups = [group(4, &[(2, 1)]), group_of(5, watched, 8)];
    for kind in members.iter().chain(&groups) {
        assert_eq!(code(&mut balancer, INSERT, kind.clone()), Fine);
    }
    let wanted = |action_profile_id, id| {
        let member = ActionProfileMember {
            action_profile_id,
            member_id: id,
            action: None,
        };
        let group = ActionProfileGroup {
            action_profile_id,
            group_id: id,
            ..ActionProfileGroup::default()
        };
        [
            Kind::ActionProfileMember(Box::new(member)),
            Kind::ActionProfileGroup(Box::new(group)),
        ]
    };
    let found = |(profile, id): (u32, u32), scope: &Scope| {
        wanted(profile, id).map(|kind| read(&balancer, kind, scope))
    };
    assert_eq!(found((0, 0), &Scope::Full), [members.to_vec(), groups.to_vec()]);
    assert_eq!(
        found((SERVERS, 0), &Scope::Full),
        [members.to_vec(), groups.to_vec()]
    );
    assert_eq!(
        found((SERVERS, 5), &Scope::Full),
        [vec![], vec![groups[1].clone()]]
    );
    assert_eq!(
        found((SERVERS, 2), &Scope::Full),
        [vec![members[1].clone()], vec![]]
    );
    let other = Scope::Part {
        writes: [1].into(),
        reads: Default::default(),
        replicates: true,
        sets_pipeline: true,
        has_packets: true,
    };
    assert_eq!(found((0, 0), &other), [vec![], vec![]]);
    let denied = balancer
        .apply(&update(DELETE, groups[1].clone()), &other)
        .unwrap_err();
    assert_eq!(denied.code, Code::PermissionDenied);
}

#[test]
fn a_pipeline_that_is_reconciled_keeps_members_groups_and_one_shots() {
    let mut former = balancer();
    let one_shot = TableActionType::ActionProfileActionSet(one_shot(&former, &[1, 2]));
    let kinds = [
        member(&former, 1),
        group(4, &[(1, 2)]),
        pool(&former, 1, TableActionType::ActionProfileGroupId(4)),
        pool(&former, 2, one_shot),
    ];
    for kind in kinds {
        assert_eq!(code(&mut former, INSERT, kind), Fine);
    }
    let mut next = balancer();
    next.inherit(&former).unwrap();
    assert_eq!((&next.program, &next.uses), (&former.program, &former.uses));
    let mut smaller = balancer();
    smaller.program.profiles[0].size = 2;
    assert!(smaller.inherit(&former).unwrap_err().text.contains("servers"));
    let mut without = balancer();
    without.program.profiles[0].selector = None;
    assert!(without.inherit(&former).unwrap_err().text.contains("selector"));
    // A version has it all.
    let bytes = former.encode().unwrap();
    let read = Pipeline::decode(&bytes).unwrap().unwrap();
    assert_eq!((&read.program, &read.uses), (&former.program, &former.uses));
}
