"""The ways by which vLLM comes to kvferry's connectors, and what keeps their halves together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvferry.vllm
import kvferry_plugin
import pytest
import vllm
from kvferry.vllm import mooncake, nixl, seal, store, versions
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as in_tree
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    """vLLM's registry of connectors, as it was before and is again afterwards."""
    before = dict(KVConnectorFactory._registry)
    yield KVConnectorFactory._registry
    KVConnectorFactory._registry.clear()
    KVConnectorFactory._registry.update(before)


@pytest.mark.parametrize(
    "name",
    [
        "MooncakeConnector",
        "MooncakeStoreConnector",
        "NixlConnector",
        "NixlPullConnector",
        "NixlPushConnector",
    ],
)
def test_a_module_path_finds_ours_by_vllms_names(name: str) -> None:
    settings = KVTransferConfig(kv_connector=name, kv_connector_module_path="kvferry.vllm", kv_role="kv_both")
    found = KVConnectorFactory.get_connector_class(settings)
    assert found.__name__ == name
    assert found.__module__.startswith("kvferry.vllm.")
    assert KVConnectorFactory.supports_hma_config(settings)


def test_a_module_path_finds_vllms_multi_connector() -> None:
    settings = KVTransferConfig(
        kv_connector="MultiConnector", kv_connector_module_path="kvferry.vllm", kv_role="kv_both"
    )
    assert KVConnectorFactory.get_connector_class(settings) is MultiConnector


def test_a_name_that_is_none_of_ours_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(AttributeError, match="NixlPullConnector"):
        _ = kvferry.vllm.NoSuchConnector


def test_own_names_are_registered_and_vllms_left_alone(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVFERRY_REPLACE", raising=False)
    kvferry_plugin.register()
    kvferry_plugin.register()
    assert registry["KvferryMooncakeConnector"]() is mooncake.KvferryMooncakeConnector
    assert registry["KvferryMooncakeStoreConnector"]() is store.KvferryMooncakeStoreConnector
    assert registry["KvferryNixlPullConnector"]() is nixl.KvferryNixlPullConnector
    assert registry["KvferryNixlPushConnector"]() is nixl.KvferryNixlPushConnector
    assert registry["MooncakeConnector"]() is in_tree.MooncakeConnector


def test_replacing_puts_ours_behind_vllms_names(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_REPLACE", "1")
    kvferry_plugin.register()
    kvferry_plugin.register()
    assert registry["MooncakeConnector"]() is mooncake.MooncakeConnector
    assert registry["MooncakeStoreConnector"]() is store.MooncakeStoreConnector
    assert registry["NixlConnector"]() is nixl.NixlConnector
    assert registry["NixlPushConnector"]() is nixl.NixlPushConnector


def test_a_value_of_kvferry_replace_that_may_mean_anything_is_an_error(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_REPLACE", "yes")
    with pytest.raises(ValueError, match="set it to 1"):
        kvferry_plugin.register()


def test_another_vllm_is_an_error_where_kvferry_is_asked_for_and_nothing_where_it_is_only_there(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    before = dict(registry)
    kvferry_plugin.register()
    assert registry == before
    monkeypatch.setenv("KVFERRY_REPLACE", "1")
    for asked in (kvferry_plugin.register, lambda: kvferry.vllm.MooncakeConnector):
        with pytest.raises(versions.UnsupportedVersionError, match=r"0\.33\.1.*install vllm"):
            asked()


def test_the_plug_in_is_there_for_vllm_to_find_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, importlib.metadata as m;"
        "(e,) = [e for e in m.entry_points(group='vllm.general_plugins') if e.name == 'kvferry'];"
        "e.load();"
        "assert 'torch' not in sys.modules and 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("replace", "ends"), [("1", True), ("", False)])
def test_a_kvferry_that_cannot_be_imported_ends_a_server_that_asks_for_it_and_no_other(
    replace: str, ends: bool, tmp_path: Path
) -> None:
    (tmp_path / "kvferry").mkdir()
    (tmp_path / "kvferry/__init__.py").write_text("raise ImportError('a symbol is missing')")
    code = "from vllm.plugins import load_general_plugins; load_general_plugins(); print('goes on')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "KVFERRY_REPLACE": replace}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (run.returncode != 0) is ends, run.stderr[-2000:]
    assert ("goes on" in run.stdout) is not ends
    assert "a symbol is missing" in run.stderr + run.stdout
    assert ("install its wheel again" in run.stderr) is ends


def test_importing_our_nixl_connectors_loads_no_nixl_and_leaves_vllms_to_load_it() -> None:
    code = (
        "import sys, kvferry.vllm.nixl as ours;"
        "from vllm.distributed import nixl_utils;"
        "assert 'nixl' not in sys.modules, 'NIXL was loaded';"
        "assert 'NixlWrapper' not in vars(nixl_utils);"
        "nixl_utils.NixlWrapper = lambda name, config: (name, config);"
        "nixl_utils.nixl_agent_config = dict;"
        "agent = ours.base_worker.NixlWrapper('a', ours.base_worker.nixl_agent_config(num_threads=0));"
        "assert agent == ('a', {'num_threads': 0})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]


class Scheduler:
    """The part of a connector that a scheduler calls each step."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return in_tree.MooncakeConnectorMetadata()


class Worker:
    """The part of a connector that a worker calls each step."""

    bound: Any = None

    def bind_connector_metadata(self, metadata: Any) -> None:
        self.bound = metadata


class OurScheduler(seal.SealedConnector, Scheduler):
    pass


class OurWorker(seal.SealedConnector, Worker):
    pass


def test_a_worker_of_ours_takes_what_a_scheduler_of_ours_says_and_refuses_vllms() -> None:
    worker = OurWorker()
    worker.bind_connector_metadata(OurScheduler().build_connector_meta(None))
    assert isinstance(worker.bound, in_tree.MooncakeConnectorMetadata)
    with pytest.raises(RuntimeError, match="KVFERRY_REPLACE"):
        worker.bind_connector_metadata(Scheduler().build_connector_meta(None))


def test_a_worker_of_vllms_does_not_take_what_a_scheduler_of_ours_says() -> None:
    assert not isinstance(OurScheduler().build_connector_meta(None), in_tree.MooncakeConnectorMetadata)
