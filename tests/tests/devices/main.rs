//! Which RDMA devices are used, with whom, and why the others are not: on every fixture host.

mod expect;
mod pairing;
mod verdicts;
mod wishes;

#[test]
fn every_fixture_host_is_looked_at_here() {
    let sources = [include_str!("pairing.rs"), include_str!("verdicts.rs")].concat();
    for name in kvferry_tests::hosts::names().expect("manifests") {
        assert!(sources.contains(&format!("\"{name}\"")), "{name} has no expectation");
    }
}
