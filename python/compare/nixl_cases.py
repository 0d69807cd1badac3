"""What programs do with NIXL's agent."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

import numpy as np
from cases import OURS, Cases

if not OURS:
    os.environ.setdefault("UCX_TLS", "tcp,self")
package = "kvferry.compat.nixl" if OURS else "nixl"
bindings: Any = import_module(f"{package}._bindings")
api: Any = import_module(f"{package}._api")
nixl_agent, nixl_agent_config = api.nixl_agent, api.nixl_agent_config

cases = Cases()
case = cases.case
BLOCK = 4096
BLOCKS = 64
BYTES = BLOCK * BLOCKS


def agent(name: str, **config: Any) -> Any:
    return nixl_agent(name, nixl_agent_config(backends=["UCX"], **config))


def rows(base: int, blocks: int = BLOCKS, length: int = BLOCK) -> Any:
    listed = np.zeros((blocks, 3), np.uint64)
    listed[:, 0] = np.uint64(base) + np.arange(blocks, dtype=np.uint64) * np.uint64(BLOCK)
    listed[:, 1] = length
    return listed


class Pair:
    """Two agents in this process, each with memory; the first knows the second."""

    def __init__(self, **config: Any) -> None:
        config.setdefault("capture_telemetry", True)
        self.here, self.there = agent("here", **config), agent("there", **config)
        self.ours, self.theirs = np.zeros(BYTES, np.uint8), np.zeros(BYTES, np.uint8)
        self.ours[:] = 7
        self.source, self.target = self.ours.ctypes.data, self.theirs.ctypes.data
        self.descs = self.here.register_memory([(self.source, BYTES, 0, "")], "DRAM")
        self.their_descs = self.there.register_memory([(self.target, BYTES, 0, "")], "DRAM")
        self.name = self.here.add_remote_agent(self.there.get_agent_metadata())
        self.local = self.here.prep_xfer_dlist("NIXL_INIT_AGENT", rows(self.source), "DRAM")
        self.remote = self.here.prep_xfer_dlist(self.name, rows(self.target), "DRAM")

    def handle(self, operation: str = "WRITE", notification: bytes = b"") -> Any:
        return self.here.make_prepped_xfer(operation, self.local, [0, 3], self.remote, [1, 2], notification)

    def ended(self, handle: Any, notification: bytes = b"") -> str:
        state = self.here.transfer(handle, notification)
        while state == "PROC":
            state = self.here.check_xfer_state(handle)
        return str(state)

    def said(self) -> Any:
        """What the second is told within a while."""
        deadline = time.monotonic() + 2
        while not (said := self.there.get_new_notifs()) and time.monotonic() < deadline:
            time.sleep(0.001)
        return said


def text(name: Any) -> str:
    return str(name.decode())


@case("an agent without a name")
def _() -> object:
    return bool(agent(""))


@case("a backend that does not exist", "what was asked for is had, or is an error")
def _() -> object:
    return bool(nixl_agent("one", nixl_agent_config(backends=["PIGEON"])))


@case("create_backend of what does not exist", "a name that says what is missing")
def _() -> object:
    return agent("one").create_backend("PIGEON")


@case("get_plugin_list has UCX")
def _() -> object:
    return "UCX" in agent("one").get_plugin_list()


@case("get_plugin_mem_types, get_backend_mem_types of UCX have DRAM_SEG")
def _() -> object:
    one = agent("one")
    return "DRAM_SEG" in one.get_plugin_mem_types("UCX"), "DRAM_SEG" in one.get_backend_mem_types("UCX")


@case("get_plugin_mem_types of what does not exist")
def _() -> object:
    return agent("one").get_plugin_mem_types("PIGEON")


@case("get_plugin_params, get_backend_params are dictionaries")
def _() -> object:
    one = agent("one")
    return isinstance(one.get_plugin_params("UCX"), dict), isinstance(one.get_backend_params("UCX"), dict)


@case("a sync_mode of another type")
def _() -> object:
    return nixl_agent_config(sync_mode="strict")


@case("get_xfer_descs of tuples, of an array: descCount")
def _() -> object:
    one = agent("one")
    return one.get_xfer_descs([(4096, 8, 0)], "DRAM").descCount(), one.get_xfer_descs(
        rows(0), "DRAM"
    ).descCount()


@case("get_xfer_descs without a mem_type", "an error where the mistake is, not where it shows")
def _() -> object:
    return agent("one").get_xfer_descs([(4096, 8, 0)])


@case("get_xfer_descs of tuples of two", "an error where the mistake is, not where it shows")
def _() -> object:
    return agent("one").get_xfer_descs([(4096, 8)], "DRAM")


@case("get_xfer_descs with a mem_type that does not exist", "NIXL's own name for it")
def _() -> object:
    return agent("one").get_xfer_descs([(4096, 8, 0)], "PAPER")


@case("get_xfer_descs of a list to register", "an error where the mistake is, not where it shows")
def _() -> object:
    one = agent("one")
    return one.get_xfer_descs(one.get_reg_descs([(4096, 8, 0, "")], "DRAM"))


@case("lists: index, isEmpty, getType, trim, remDesc, clear")
def _() -> object:
    descs = agent("one").get_reg_descs([(4096, 8, 0, "a"), (8192, 8, 0, "b")], "DRAM")
    trimmed = descs.trim()
    found = trimmed.index((8192, 8, 0)), trimmed.isEmpty(), trimmed.getType() == bindings.DRAM_SEG
    trimmed.remDesc(0)
    left = trimmed.descCount(), trimmed[0]
    trimmed.clear()
    return found, left, trimmed.isEmpty()


@case("index of what is not in a list")
def _() -> object:
    return agent("one").get_xfer_descs([(4096, 8, 0)], "DRAM").index((1, 2, 3))


@case("get_serialized_descs, deserialize_descs give the same list")
def _() -> object:
    one = agent("one")
    descs = one.get_xfer_descs([(4096, 8, 0)], "DRAM")
    return one.deserialize_descs(one.get_serialized_descs(descs)) == descs


@case("deserialize_descs of a pickle that is something else", "nothing that is received is run")
def _() -> object:
    import pickle

    return agent("one").deserialize_descs(pickle.dumps("anything"))


@case("register_memory gives a list that can be deregistered")
def _() -> object:
    pair = Pair()
    return pair.here.deregister_memory(pair.descs)


@case("deregister_memory twice")
def _() -> object:
    pair = Pair()
    pair.here.deregister_memory(pair.descs)
    return pair.here.deregister_memory(pair.descs)


@case("register_memory of the same range again")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory([(pair.source, BYTES, 0, "")], "DRAM").descCount()


@case("register_memory of a part of what is registered")
def _() -> object:
    pair = Pair()
    return pair.here.register_memory([(pair.source + BLOCK, BLOCK, 0, "")], "DRAM").descCount()


@case("register_memory of what overlaps in part", "it would have two owners")
def _() -> object:
    memory = np.zeros(BYTES, np.uint8)
    one = agent("one")
    one.register_memory([(memory.ctypes.data, BYTES // 2, 0, "")], "DRAM")
    return one.register_memory([(memory.ctypes.data + BYTES // 4, BYTES // 2, 0, "")], "DRAM").descCount()


@case("register_memory with a backend that the agent has not", "NIXL's own name for it")
def _() -> object:
    memory = np.zeros(BYTES, np.uint8)
    return agent("one").register_memory([(memory.ctypes.data, BYTES, 0, "")], "DRAM", backends=["GDS"])


@case("query_memory of host memory")
def _() -> object:
    return agent("one").query_memory([(4096, 8, 0, "")], "UCX", "DRAM")


@case("query_memory with a backend that the agent has not")
def _() -> object:
    return agent("one").query_memory([(4096, 8, 0, "")], "GDS", "DRAM")


@case("add_remote_agent gives the name, which can be decoded")
def _() -> object:
    return text(Pair().name)


@case("add_remote_agent again")
def _() -> object:
    pair = Pair()
    return text(pair.here.add_remote_agent(pair.there.get_agent_metadata()))


@case("add_remote_agent of its own metadata")
def _() -> object:
    one = agent("one")
    return one.add_remote_agent(one.get_agent_metadata())


@case("add_remote_agent of nonsense")
def _() -> object:
    return agent("one").add_remote_agent(b"nonsense")


@case(
    "add_remote_agent of the other kind of agent's metadata", "it says that both ends have to be of one kind"
)
def _() -> object:
    other = b"nixlSerDes|Agent|" if OURS else b"KVFNIXL1{}"
    return agent("one").add_remote_agent(other)


@case("add_remote_agent of an agent that has taken the name over", "a restarted agent takes its place")
def _() -> object:
    pair = Pair()
    successor = agent("there")
    return text(pair.here.add_remote_agent(successor.get_agent_metadata()))


@case("check_remote_metadata of a known and an unknown agent")
def _() -> object:
    pair = Pair()
    return pair.here.check_remote_metadata("there"), pair.here.check_remote_metadata("nobody")


@case("check_remote_metadata with ranges that are there, and that are not")
def _() -> object:
    pair = Pair()
    known, unknown = ([(pair.target + offset, BLOCK, 0)] for offset in (0, BYTES))
    check = pair.here.check_remote_metadata
    descs = pair.here.get_xfer_descs
    return check("there", descs(known, "DRAM")), check("there", descs(unknown, "DRAM"))


@case("remove_remote_agent, then check_remote_metadata")
def _() -> object:
    pair = Pair()
    pair.here.remove_remote_agent("there")
    return pair.here.check_remote_metadata("there")


@case("remove_remote_agent of nobody")
def _() -> object:
    return agent("one").remove_remote_agent("nobody")


@case("make_connection")
def _() -> object:
    pair = Pair()
    return pair.here.make_connection("there")


@case("make_connection with nobody")
def _() -> object:
    return agent("one").make_connection("nobody")


@case("get_partial_agent_metadata without connection info, for who knows nobody")
def _() -> object:
    pair = Pair()
    return agent("one").add_remote_agent(pair.there.get_partial_agent_metadata(pair.their_descs, False))


@case("get_partial_agent_metadata with connection info: what is known then")
def _() -> object:
    pair, one = Pair(), agent("one")
    part = pair.there.get_reg_descs([(pair.target, BYTES, 0, "")], "DRAM")
    name = one.add_remote_agent(pair.there.get_partial_agent_metadata(part, True))
    return text(name), one.check_remote_metadata("there", part.trim())


@case("get_partial_agent_metadata of what is not registered", "an error where the mistake is")
def _() -> object:
    one = agent("one")
    return bool(one.get_partial_agent_metadata(one.get_reg_descs([(4096, 8, 0, "")], "DRAM"), True))


@case("memory that is registered after add_remote_agent", "agents are told at once")
def _() -> object:
    pair = Pair()
    later = np.zeros(BYTES, np.uint8)
    pair.there.register_memory([(later.ctypes.data, BYTES, 0, "")], "DRAM")
    return bool(pair.here.prep_xfer_dlist("there", rows(later.ctypes.data), "DRAM"))


def _listening(name: str) -> tuple[Any, int]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return agent(name, enable_listen_thread=True, listen_port=port), port


def _comes(what: Any) -> bool:
    deadline = time.monotonic() + 5
    while not (came := what()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(came)


@case("send_local_metadata to one that listens")
def _() -> object:
    listening, port = _listening("listening")
    one = agent("one", enable_listen_thread=True, listen_port=0)
    one.send_local_metadata("127.0.0.1", port)
    return _comes(lambda: listening.check_remote_metadata("one"))


@case("fetch_remote_metadata from one that listens")
def _() -> object:
    _keep, port = _listening("listening")
    one = agent("one", enable_listen_thread=True, listen_port=0)
    one.fetch_remote_metadata("listening", "127.0.0.1", port)
    return _comes(lambda: one.check_remote_metadata("listening"))


@case("send_local_metadata to a name, not an address", "names are resolved")
def _() -> object:
    listening, port = _listening("listening")
    one = agent("one", enable_listen_thread=True, listen_port=0)
    one.send_local_metadata("localhost", port)
    return _comes(lambda: listening.check_remote_metadata("one"))


@case("invalidate_local_metadata at one that listens")
def _() -> object:
    listening, port = _listening("listening")
    one = agent("one", enable_listen_thread=True, listen_port=0)
    one.send_local_metadata("127.0.0.1", port)
    _comes(lambda: listening.check_remote_metadata("one"))
    one.invalidate_local_metadata("127.0.0.1", port)
    return _comes(lambda: not listening.check_remote_metadata("one"))


@case("send_local_metadata without an address or a server", "NIXL's own name for it")
def _() -> object:
    return agent("one", enable_listen_thread=True, listen_port=0).send_local_metadata()


@case("prep_xfer_dlist of memory that is not registered")
def _() -> object:
    return bool(agent("one").prep_xfer_dlist("", [(4096, 8, 0)], "DRAM"))


@case("prep_xfer_dlist of remote memory that is not registered")
def _() -> object:
    pair = Pair()
    return bool(pair.here.prep_xfer_dlist("there", [(4096, 8, 0)], "DRAM"))


@case("prep_xfer_dlist of nobody's memory")
def _() -> object:
    return bool(agent("one").prep_xfer_dlist("nobody", [(4096, 8, 0)], "DRAM"))


@case("make_prepped_xfer WRITE moves the bytes")
def _() -> object:
    pair = Pair()
    return pair.ended(pair.handle("WRITE")), int((pair.theirs == 7).sum())


@case("make_prepped_xfer READ moves the bytes")
def _() -> object:
    pair = Pair()
    return pair.ended(pair.handle("READ")), int((pair.ours == 0).sum())


@case("make_prepped_xfer with indices as an array of int32")
def _() -> object:
    pair = Pair()
    every = np.arange(BLOCKS, dtype=np.int32)
    handle = pair.here.make_prepped_xfer("WRITE", pair.local, every, pair.remote, every)
    return pair.ended(handle), int((pair.theirs == 7).sum())


@case("make_prepped_xfer with a strided list")
def _() -> object:
    pair = Pair()
    strided = [
        np.array([[base, BLOCK, 0, 2 * BLOCK, BLOCKS // 2]], np.uint64) for base in (pair.source, pair.target)
    ]
    local = pair.here.prep_xfer_dlist("", strided[0], "DRAM")
    remote = pair.here.prep_xfer_dlist("there", strided[1], "DRAM")
    handle = pair.here.make_prepped_xfer("WRITE", local, [1, 2], remote, [3, 5])
    return pair.ended(handle), sorted({int(at) // BLOCK for at in np.flatnonzero(pair.theirs)})


@case("make_prepped_xfer with an operation that does not exist", "NIXL's own name for it")
def _() -> object:
    pair = Pair()
    return pair.handle("SWAP")


@case("make_prepped_xfer with fewer indices on one side")
def _() -> object:
    pair = Pair()
    return pair.here.make_prepped_xfer("WRITE", pair.local, [0], pair.remote, [0, 1])


@case("make_prepped_xfer with an index that is not in the list")
def _() -> object:
    pair = Pair()
    return pair.here.make_prepped_xfer("WRITE", pair.local, [BLOCKS], pair.remote, [0])


@case("make_prepped_xfer with lengths that differ")
def _() -> object:
    pair = Pair()
    shorter = pair.here.prep_xfer_dlist("there", rows(pair.target, 2, 8), "DRAM")
    return pair.here.make_prepped_xfer("WRITE", pair.local, [0], shorter, [0])


@case("make_prepped_xfer with a list that was released", "handles are checked")
def _() -> object:
    pair = Pair()
    if not OURS:
        return "not tried: it would use freed memory"
    pair.here.release_dlist_handle(pair.local)
    return pair.handle()


@case("initialize_xfer moves the bytes")
def _() -> object:
    pair = Pair()
    local = pair.here.get_xfer_descs([(pair.source, BYTES, 0)], "DRAM")
    remote = pair.here.get_xfer_descs([(pair.target, BYTES, 0)], "DRAM")
    handle = pair.here.initialize_xfer("WRITE", local, remote, "there", b"done")
    return pair.ended(handle), int((pair.theirs == 7).sum()), pair.said()


@case("initialize_xfer with counts that differ")
def _() -> object:
    pair = Pair()
    local = pair.here.get_xfer_descs(rows(pair.source, 2), "DRAM")
    remote = pair.here.get_xfer_descs(rows(pair.target, 3), "DRAM")
    return pair.here.initialize_xfer("WRITE", local, remote, "there")


@case("check_xfer_state before transfer")
def _() -> object:
    pair = Pair()
    return pair.here.check_xfer_state(pair.handle())


@case("a transfer is posted again when it is done")
def _() -> object:
    pair = Pair()
    handle = pair.handle()
    return [pair.ended(handle) for _ in range(3)]


@case("a notification arrives with its transfer")
def _() -> object:
    pair = Pair()
    return pair.ended(pair.handle(notification=b"told")), pair.said()


@case("a notification that is given to transfer()")
def _() -> object:
    pair = Pair()
    return pair.ended(pair.handle(), b"told"), pair.said()


@case("a notification arrives though the initiator does not poll", "the engine sends it, not who polls")
def _() -> object:
    pair = Pair()
    big = pair.here.make_prepped_xfer("WRITE", pair.local, range(BLOCKS), pair.remote, range(BLOCKS), b"told")
    pair.here.transfer(big)
    return pair.said()


@case("send_notif")
def _() -> object:
    pair = Pair()
    pair.here.send_notif("there", b"hello")
    return pair.said()


@case("send_notif to nobody")
def _() -> object:
    return agent("one").send_notif("nobody", b"hello")


@case("update_notifs keeps, check_remote_xfer_done takes one out")
def _() -> object:
    pair = Pair()
    pair.here.send_notif("there", b"tag:1")
    _comes(lambda: pair.there.update_notifs())
    return [pair.there.check_remote_xfer_done("here", b"tag") for _ in range(2)]


@case("check_remote_xfer_done with a tag that is not a prefix")
def _() -> object:
    pair = Pair()
    pair.here.send_notif("there", b"tag:1")
    _comes(lambda: pair.there.update_notifs())
    check = pair.there.check_remote_xfer_done
    return check("here", b":1"), check("here", b":1", tag_is_prefix=False)


@case("an agent transfers to itself")
def _() -> object:
    pair = Pair()
    back = pair.here.prep_xfer_dlist("here", rows(pair.source), "DRAM")
    pair.ours[BLOCK:] = 0
    handle = pair.here.make_prepped_xfer("WRITE", pair.local, [0], back, [5])
    return pair.ended(handle), int((pair.ours == 7).sum())


@case("get_xfer_telemetry of a transfer that is done: totalBytes")
def _() -> object:
    pair = Pair()
    handle = pair.handle()
    pair.ended(handle)
    telemetry = pair.here.get_xfer_telemetry(handle)
    return telemetry.totalBytes, telemetry.descCount


@case("get_xfer_telemetry where it is not captured")
def _() -> object:
    pair = Pair(capture_telemetry=False)
    handle = pair.handle()
    pair.ended(handle)
    return pair.here.get_xfer_telemetry(handle)


@case("estimate_xfer_cost: three values")
def _() -> object:
    pair = Pair()
    return len(pair.here.estimate_xfer_cost(pair.handle()))


@case("query_xfer_backend")
def _() -> object:
    pair = Pair()
    return pair.here.query_xfer_backend(pair.handle())


@case("release_xfer_handle of a transfer that is done, twice")
def _() -> object:
    pair = Pair()
    handle = pair.handle()
    pair.ended(handle)
    return [pair.here.release_xfer_handle(handle) for _ in range(2)]


@case("a transfer with an agent that was removed")
def _() -> object:
    pair = Pair()
    handle = pair.handle()
    pair.here.remove_remote_agent("there")
    return pair.here.transfer(handle)


@case("memory that is deregistered under a prepared transfer", "its owner knows, and says so")
def _() -> object:
    pair = Pair()
    if not OURS:
        return "not tried: it would touch memory that is given back"
    handle = pair.handle()
    pair.there.deregister_memory(pair.their_descs)
    return pair.ended(handle)


@case("prep_mem_view", "host memory only")
def _() -> object:
    return agent("one").prep_mem_view(None)
