//! Promise 9: time is local. Leases carry remaining time, and every process reads its own clock.

use std::process::Command as Program;

use kvferry_tests::command::{Answer, Command, Move, Setup};
use kvferry_tests::process::{Cache, Process, over, push};
use kvferry_tests::skip;

/// Runs what follows it in a time namespace whose monotonic clock is eleven days ahead.
const AHEAD: [&str; 5] = ["--user", "--map-root-user", "--time", "--monotonic", "1000000"];

#[test]
fn processes_whose_clocks_differ_by_days_agree_on_what_is_left_of_a_grant() {
    let able = Program::new("unshare").args(AHEAD).arg("true").output();
    if !able.as_ref().is_ok_and(|output| output.status.success()) {
        return skip(&format!("this system gives no time namespace to a user ({able:?})"));
    }
    let cache = Cache { share: false, ..Cache::default() };
    for ahead_is_owner in [true, false] {
        let setup = over(super::OVER, Setup::default());
        let ahead = Process::start_wrapped("unshare", &AHEAD, setup, cache);
        let plain = super::start_with(Setup::default(), cache);
        let (mut owner, mut initiator) =
            if ahead_is_owner { (ahead, plain) } else { (plain, ahead) };
        initiator.connect(&owner);
        initiator.fill(0..256, 1);
        let ticket = owner.grant("g", 0..256, &initiator, true);
        assert!(initiator.transfer(Move { ticket: Some(ticket), ..push(&owner, 256) }).is_done());
        owner.assert_holds(0..256, 1);
        let short = Command::Grant {
            name: "short".into(),
            blocks: 0..256,
            peer: initiator.incarnation,
            write: true,
            ttl_ms: 0,
        };
        let Answer::Ticket(ticket) = owner.tell(&short) else { panic!("no ticket") };
        let end = initiator.transfer(Move { ticket: Some(ticket), ..push(&owner, 256) });
        assert_eq!(end.cause(), "Refused", "{end:?}");
    }
}
