"""Engines and agents whose memory is written by leave only."""

from __future__ import annotations

import numpy as np
from kvferry._native import Descriptors
from kvferry.compat.mooncake.granted import GrantedEngine, Session, spans_of


def transfers(engine: GrantedEngine) -> dict[tuple[str, ...], int]:
    """Those that were counted."""
    counted = engine.engine.metrics().items()
    return {
        tuple(labels): count for (name, *labels), count in counted if name == "kvferry_transfers" and count
    }


def test_what_comes_under_a_grant_is_one_transfer_done_or_taken_back() -> None:
    memory, source = np.zeros(8192, np.uint8), np.ones(4096, np.uint8)
    owner, writer = GrantedEngine(), GrantedEngine()
    for engine in (owner, writer):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        ours = memory if engine is owner else source
        engine.batch_register_memory([ours.ctypes.data], [ours.nbytes])
    try:
        target = memory.ctypes.data
        which = spans_of([(target, 4096, 4096, [1])])
        mark = owner.grant("a", which, writer.engine.incarnation, 60.0)
        session = f"127.0.0.1{mark}:{owner.get_rpc_port()}"
        assert writer.batch_transfer_sync_write(session, [source.ctypes.data], [target + 4096], [4096]) == 0
        assert memory[4096:].all() and not memory[:4096].any()
        # What says nothing that is understood, or names no grant, counts nothing.
        peer = writer.engine.connect(owner.engine.address)
        for message in (b"\xff stray", b"stray", b"7 tcp"):
            peer.notify(message).wait()
        owner.revoke("a")
        assert transfers(owner) == {("received", "tcp", "done"): 1}
        owner.grant("b", which, writer.engine.incarnation, 60.0)
        assert len(owner.grants) == 1 and len(owner.grants.held_for("b")) == 1
        owner.revoke("b")
        owner.revoke("b")
        assert transfers(owner)["received", "none", "failed"] == 1
        assert writer.batch_transfer_sync_write(session, [source.ctypes.data], [target + 4096], [4096]) == -1
        assert writer.batch_transfer_sync_write("127.0.0.1:1", [source.ctypes.data], [target], [64]) == -1
        assert sum(count for series, count in transfers(writer).items() if "failed" in series) == 2
    finally:
        owner.close()
        writer.close()


def test_memory_that_is_registered_after_its_owner_was_met_is_written() -> None:
    memory, source = np.zeros(8192, np.uint8), np.ones(4096, np.uint8)
    owner, writer = GrantedEngine(), GrantedEngine()
    for engine in (owner, writer):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    try:
        writer.batch_register_memory([source.ctypes.data], [source.nbytes])
        for at in (0, 4096):
            target = memory.ctypes.data + at
            owner.batch_register_memory([target], [4096])
            mark = owner.grant("a", spans_of([(target, 4096, 4096, [0])]), writer.engine.incarnation, 60.0)
            session = f"127.0.0.1{mark}:{owner.get_rpc_port()}"
            assert writer.batch_transfer_sync_write(session, [source.ctypes.data], [target], [4096]) == 0
        assert memory.all()
        assert transfers(writer) == {("sent", "tcp", "done"): 2}
    finally:
        owner.close()
        writer.close()


def test_a_session_names_a_host_of_any_kind() -> None:
    assert Session.parse(f"10.1.2.3{Session.mark(17, 255)}:7001") == Session("10.1.2.3:7001", 17, 255)
    assert Session.parse(f"fd00::1{Session.mark(1, 2)}:7001") == Session("[fd00::1]:7001", 1, 2)


def test_blocks_of_views_are_where_their_strides_put_them() -> None:
    spans = spans_of([(1000, 64, 48, [2, 0]), (5000, 16, 16, [])])
    assert [spans[index] for index in range(len(spans))] == [(1128, 48, 0), (1000, 48, 0)]
    assert isinstance(spans_of([]), Descriptors)
