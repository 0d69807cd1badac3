//! Processes that die, stop, come back or let go while adapters read their memory: the others end
//! everything in time, serve the next, and every object of the adapters is given back
//! (vllm#35943, TensorRT-LLM#12313, smg#2491, dynamo#9343).

use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, Farewell, Move, Setup, Way};
use kvferry_tests::death::{CASES, Death};
use kvferry_tests::process::{Process, bare, blocks, pull, push};

use super::rails::{
    COUNT, FAR, NEAR, OWN, PATIENCE, SHARED, assert_done, await_first, await_resources, patient,
    resources, side, side_with,
};

/// What a request may take when its peer is dead.
const DEADLINE: Duration = Duration::from_secs(4);

/// How much later that may be seen: this machine is emulated.
const SLACK: Duration = Duration::from_secs(2);

fn watchful() -> Setup {
    Setup { liveness_ms: Some((300, 1200)), ..Setup::default() }
}

/// A request that is in its middle.
fn begin(way: Way, owner: &mut Process, initiator: &mut Process) {
    initiator.fill(0..COUNT, 1);
    owner.fill(0..COUNT, 2);
    initiator.connect(owner);
    let ticket = Some(owner.grant("g", 0..COUNT, initiator, way == Way::Push));
    let deadline_ms = u64::try_from(DEADLINE.as_millis()).ok();
    initiator.submit("t", Move { ticket, deadline_ms, ..blocks(way, owner, 0..COUNT) });
    match way {
        Way::Push => await_first(owner, 1),
        Way::Pull => await_first(initiator, 2),
    }
}

#[test]
fn an_owner_whose_initiator_dies_takes_its_memory_back_and_serves_the_next() {
    let before = resources();
    for (way, death) in CASES {
        let mut owner = side_with(FAR, watchful(), OWN);
        let mut initiator = side_with(NEAR, watchful(), OWN);
        begin(way, &mut owner, &mut initiator);
        death.befall(&mut initiator);
        owner.await_held("rid of its lanes", |held| held.lanes_accepted == 0);
        assert!(owner.revoke("g") < SLACK, "{way:?} {death:?}");
        assert_eq!(owner.held().grants, 0);
        owner.fill(0..COUNT, 3);
        let mut next = side_with(NEAR, watchful(), SHARED);
        next.fill(0..COUNT, 4);
        next.connect(&owner);
        let write = Some(owner.grant("w", 0..COUNT, &next, true));
        assert_done(&next.transfer(patient(Move { ticket: write, ..push(&owner, COUNT) })));
        if death == Death::Stopped {
            initiator.wake();
            let end = initiator.wait("t", PATIENCE);
            // Its target was through before it heard of it.
            assert!(!end.is_done() || way == Way::Push, "{way:?}: {end:?}");
        }
        owner.assert_holds(0..COUNT, 4);
    }
    await_resources(&before);
}

#[test]
fn an_initiator_whose_owner_dies_ends_in_time_and_goes_on_with_the_next() {
    let before = resources();
    for (way, death) in CASES {
        let mut owner = side_with(FAR, watchful(), OWN);
        let mut initiator = side_with(NEAR, watchful(), OWN);
        begin(way, &mut owner, &mut initiator);
        let began = Instant::now();
        death.befall(&mut owner);
        let end = initiator.wait("t", DEADLINE + SLACK);
        assert!(["Unreachable", "Deadline"].contains(&end.cause()), "{way:?} {death:?}: {end:?}");
        assert!(end.is_retryable());
        assert!(began.elapsed() < DEADLINE + SLACK, "{:?}", began.elapsed());
        initiator
            .await_held("rid of its lanes", |held| (held.transfers, held.lanes_opened) == (0, 0));
        initiator.fill(0..COUNT, 5);
        let mut next = side_with(FAR, watchful(), OWN);
        next.fill(0..COUNT, 6);
        initiator.connect(&next);
        let read = Some(next.grant("r", 0..COUNT, &initiator, false));
        assert_done(&initiator.transfer(patient(Move { ticket: read, ..pull(&next, COUNT) })));
        if death == Death::Stopped {
            owner.wake();
        }
        initiator.assert_holds(0..COUNT, 6);
    }
    await_resources(&before);
}

#[test]
fn a_peer_that_is_killed_and_comes_back_at_its_address_in_mid_transfer_serves_again_and_again() {
    let mut owner = side(FAR, SHARED);
    let mut bystander = side(FAR, SHARED);
    let mut initiator = side(NEAR, SHARED);
    let address = owner.address.clone();
    initiator.connect(&bystander);
    initiator.connect(&owner);
    // Two for what is large and one for what is small, with each.
    initiator.await_held("connected", |held| held.lanes_opened == 6);
    let at_rest = resources();
    for round in 1..4 {
        initiator.fill(0..COUNT, round);
        initiator.submit("t", patient(push(&owner, COUNT)));
        await_first(&mut owner, round);
        owner.kill();
        let setup = Setup { listen: Some(address.clone()), ..Setup::default() };
        owner = side_with(FAR, setup, SHARED);
        owner.fill(0..COUNT, 9);
        let end = initiator.wait("t", PATIENCE);
        let causes = ["PeerRestarted", "Unreachable", "StaleHandle", "LaneRefused"];
        assert!(causes.contains(&end.cause()) && end.is_retryable(), "round {round}: {end:?}");
        // What was meant for the former one has not touched this one.
        owner.assert_holds(0..COUNT, 9);
        initiator.connect(&owner);
        assert_done(&initiator.transfer(patient(push(&owner, COUNT))));
        owner.assert_holds(0..COUNT, round);
        assert_done(&initiator.transfer(patient(push(&bystander, 64))));
    }
    bystander.assert_holds(0..64, 3);
    initiator.await_held("connected", |held| held.lanes_opened == 6);
    await_resources(&at_rest);
}

#[test]
fn an_engine_that_goes_while_adapters_read_its_memory_gives_everything_back() {
    let (before, nothing) = (bare(), resources());
    for how in [Farewell::EngineFirst, Farewell::EngineLast, Farewell::Panic] {
        for requests in [0, 1, 4] {
            let mut target = side(FAR, SHARED);
            let mut initiator = side(NEAR, SHARED);
            initiator.connect(&target);
            assert_done(&initiator.transfer(patient(push(&target, 16))));
            for index in 0..requests {
                let build = if index % 2 == 0 { push } else { pull };
                initiator.submit(&index.to_string(), patient(build(&target, COUNT)));
            }
            let began = Instant::now();
            initiator.ok(&Command::Drop { how });
            let took = began.elapsed();
            assert!(took < DEADLINE, "{how:?} with {requests} under way: {took:?}");
            initiator.await_held(&format!("{how:?} with {requests} under way"), |held| {
                (held.descriptors, held.threads, held.memfds)
                    == (before.descriptors, before.threads, before.memfds)
            });
            target.await_held("left", |held| held.lanes_accepted == 0);
            assert!(matches!(target.tell(&Command::Shutdown { patience_ms: 500 }), Answer::Ok));
            await_resources(&nothing);
        }
    }
}
