//! One side is earlier than the other: D asks before P exists, P is through before D asks, P never
//! comes, P goes in between, and what was asked for is unknown to who was asked.
//!
//! A peer that is stopped or silent stands in `promises/ending`.

use std::time::{Duration, Instant};

use kvferry_tests::command::{Answer, Command, End, Move, Setup};
use kvferry_tests::process::{Cache, Process, pull, push};
use kvferry_tests::proxy::Proxy;

/// How much later than promised something may be seen: these machines are busy.
const SLACK: Duration = Duration::from_millis(700);

fn private() -> Cache {
    Cache { share: false, ..Cache::default() }
}

fn next(process: &mut Process, patience_ms: u64) -> Answer {
    process.tell(&Command::NextNotification { patience_ms, seed: None })
}

#[test]
fn who_asks_before_the_other_exists_is_told_at_once_and_finds_it_when_it_does() {
    // The address is there before the process, as a service's is.
    let service = Proxy::start();
    let mut d = Process::start();
    for _ in 0..3 {
        let began = Instant::now();
        match d.tell(&Command::Connect { address: service.address() }) {
            Answer::Error { cause, retryable, .. } => {
                assert_eq!((cause.as_str(), retryable), ("Unreachable", true));
            }
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", began.elapsed());
    }
    let mut p = Process::start();
    p.fill(0..256, 1);
    let port = p.address.rsplit_once(':').unwrap().1.parse().unwrap();
    service.lead_to(port);
    d.ok(&Command::Connect { address: service.address() });
    assert!(d.transfer(Move { with: service.address(), ..pull(&p, 256) }).is_done());
    d.assert_holds(0..256, 1);
}

#[test]
fn what_was_finished_before_anybody_asked_is_there_for_who_does() {
    let mut d = Process::start_with(Setup::default(), private());
    let mut p = Process::start();
    p.fill(0..256, 1);
    // P pushes into what D granted, and goes; D has not looked at anything yet.
    let ticket = Some(d.grant("g", 0..256, &p, true));
    p.connect(&d);
    let notify = Some("finished".to_owned());
    assert!(p.transfer(Move { ticket, notify, ..push(&d, 256) }).is_done());
    p.kill();
    d.await_held("left", |held| held.lanes_accepted == 0);
    match next(&mut d, 0) {
        Answer::Notification { text, from, .. } => {
            assert_eq!((text.as_str(), from), ("finished", p.incarnation));
        }
        other => panic!("{other:?}"),
    }
    d.assert_holds(0..256, 1);
    assert!(d.revoke("g") < SLACK);
    assert_eq!(d.held().grants, 0);
}

#[test]
fn a_grant_is_good_from_its_creation_on_and_its_time_runs_from_then() {
    let mut d = Process::start_with(Setup::default(), private());
    let mut p = Process::start();
    p.fill(0..256, 1);
    // Nothing has ever been said between the two.
    let ttl = Duration::from_millis(1500);
    let created = Instant::now();
    let ticket = d.grant_to("g", 0..256, p.incarnation, true, ttl);
    p.connect(&d);
    let what = Move { ticket: Some(ticket), ..push(&d, 256) };
    let end = p.transfer(what.clone());
    assert!(end.is_done() || created.elapsed() > ttl, "{end:?}");
    d.fill(0..256, 2);
    // It ends by the clock, with nothing to remind anybody of it.
    std::thread::sleep((ttl + Duration::from_millis(10)).saturating_sub(created.elapsed()));
    let end = p.transfer(what);
    assert_eq!((end.cause(), end.remote()), ("Refused", "fenced"), "{end:?}");
    d.assert_holds(0..256, 2);
}

#[test]
fn who_is_waited_for_and_never_comes_costs_no_more_than_the_time_given() {
    let mut d = Process::start_with(Setup::default(), private());
    let before = d.held();
    for round in 0..20 {
        let (name, peer) = (round.to_string(), 1000 + round);
        let grant = Command::Grant { name, blocks: 0..256, peer, write: true, ttl_ms: 60_000 };
        assert!(matches!(d.tell(&grant), Answer::Ticket(_)));
    }
    let began = Instant::now();
    assert!(matches!(next(&mut d, 300), Answer::Nothing));
    assert!(began.elapsed() < Duration::from_millis(300) + SLACK, "{:?}", began.elapsed());
    for round in 0..20 {
        assert!(d.revoke(&round.to_string()) < SLACK);
    }
    let after = d.held();
    assert_eq!((after.grants, after.descriptors), (0, before.descriptors));
}

#[test]
fn who_goes_in_between_is_noticed_and_the_next_one_serves() {
    let mut d = Process::start();
    let mut gone = Process::start();
    d.connect(&gone);
    gone.kill();
    // Between its being looked up and its being asked.
    let began = Instant::now();
    let end = d.transfer(Move { deadline_ms: Some(3000), ..pull(&gone, 256) });
    assert_eq!(end.cause(), "Unreachable", "{end:?}");
    assert!(end.is_retryable());
    assert!(began.elapsed() < Duration::from_secs(3) + SLACK, "{:?}", began.elapsed());
    let mut p = Process::start();
    p.fill(0..256, 1);
    d.connect(&p);
    assert!(d.transfer(pull(&p, 256)).is_done());
    d.assert_holds(0..256, 1);
    assert_eq!(d.held().transfers, 0);
}

#[test]
fn a_request_that_is_not_processed_any_more_is_refused_by_name_and_touches_nothing() {
    let mut d = Process::start();
    let mut p = Process::start_with(Setup::default(), private());
    p.fill(0..256, 1);
    d.fill(0..256, 2);
    d.connect(&p);
    let grant = |name: &str, peer| Command::Grant {
        name: name.into(),
        blocks: 0..256,
        peer,
        write: false,
        ttl_ms: 60_000,
    };
    let grants = [grant("stale", d.incarnation), grant("another", p.incarnation)];
    let mut tickets = grants.map(|grant| match p.tell(&grant) {
        Answer::Ticket(ticket) => ticket,
        other => panic!("{other:?}"),
    });
    p.revoke("stale");
    for (ticket, why) in tickets.iter().zip(["unknown or revoked", "another incarnation"]) {
        match d.transfer(Move { ticket: Some(ticket.clone()), ..pull(&p, 256) }) {
            End::Failed { cause, message, .. } => {
                assert_eq!(cause, "Refused");
                assert!(message.contains(why), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Of another process altogether, and damaged on the way.
    let mut other = Process::start();
    let elsewhere = other.grant("g", 0..256, &d, false);
    tickets[0].truncate(9);
    for (ticket, cause) in [(elsewhere, "StaleHandle"), (tickets[0].clone(), "Ticket")] {
        let end = d.transfer(Move { ticket: Some(ticket), ..pull(&p, 256) });
        assert_eq!((end.cause(), end.remote()), (cause, "untouched"), "{end:?}");
    }
    d.assert_holds(0..256, 2);
}
