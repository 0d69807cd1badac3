//! Two processes of this host, of which one dies or stops.

use rustix::process::Signal;

use crate::program::{child_of, endless, is_alive, send, until};

#[test]
fn a_target_that_dies_is_reported() {
    let run = endless(&[]);
    send(child_of(run.0.id()), Signal::KILL);
    let (code, said) = run.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains("target process ended early"), "{said}");
    assert!(said.contains("signal: 9"), "{said}");
}

#[test]
fn a_target_that_stops_is_waited_for_a_limited_time() {
    let run = endless(&["--patience=1"]);
    let target = child_of(run.0.id());
    send(target, Signal::STOP);
    let (code, said) = run.ended();
    assert_eq!(code, Some(1));
    assert!(said.contains("target process did not answer") || said.contains("lost"), "{said}");
    assert!(!is_alive(target), "the stopped target was left behind");
}

#[test]
fn a_target_dies_with_its_initiator() {
    let run = endless(&[]);
    let target = child_of(run.0.id());
    run.signal(Signal::KILL);
    run.ended();
    until("the target to follow its initiator", || !is_alive(target));
}
