//! Writes by reference that are spoken by hand, and processes in namespaces of their own.

use std::process::Command as Program;

use kvferry_proto::frame::{Descriptor, Reply, SliceHead, Status};
use kvferry_proto::{GrantId, RegionId, TransferId};
use kvferry_tests::command::Setup;
use kvferry_tests::process::{Cache, Process};
use kvferry_tests::wire::grant;

use super::start_with;

/// What `unshare` is told, to give a user a pid namespace.
pub(super) const OWN_PIDS: [&str; 6] =
    ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Runs what follows it in namespaces of its own, as a container runtime does.
pub(super) fn contained(arguments: &[&str]) -> Result<(), String> {
    let able = Program::new("unshare").args(arguments).arg("true").output();
    match able {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// A process of which everything is granted to a made-up initiator, and what that needs to write.
pub(super) fn granted_to(initiator: u64) -> (Process, GrantId, RegionId) {
    let cache = Cache { blocks: 8, block_bytes: 4096, share: false };
    let mut target = start_with(Setup::default(), cache);
    target.fill(0..8, 5);
    let ticket = grant(&mut target, "g", initiator, 0..8);
    (target, ticket.grant, ticket.spans[0].region)
}

/// A write of a block from a region of the initiator's, at an offset there.
pub(super) fn write_lent(
    transfer: u64,
    (grant, region): (GrantId, RegionId),
    (source, offset): (RegionId, u64),
) -> Vec<u8> {
    let head = SliceHead {
        transfer: TransferId(transfer),
        floor: TransferId(1),
        slice: 0,
        remaining_us: 10_000_000,
        crc32c: 0,
    };
    let span = |offset| Descriptor { offset, bytes: 4096, count: 1, stride: 0 };
    let mut frame = Vec::new();
    head.encode_by_reference(
        &mut frame,
        true,
        |writer| writer.push(grant, region, span(0)),
        |writer| writer.push(GrantId(0), source, span(offset)),
    );
    frame
}

pub(super) const LENT: RegionId = RegionId { slot: 4, generation: 2 };

pub(super) fn ack(transfer: u64, status: Status) -> Reply {
    Reply::Ack { transfer: TransferId(transfer), slice: 0, status }
}
