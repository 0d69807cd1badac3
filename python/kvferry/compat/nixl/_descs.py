"""Descriptor lists: addresses, lengths and devices, of a kind of memory."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

from ..._native import Descriptors
from ._errors import nixlInvalidParamError, nixlNotFoundError, nixlNotSupportedError

_MAGIC = b"KVFDESC1"


class nixl_mem_t(enum.IntEnum):
    """Kinds of memory."""

    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


MEMORY = {
    "DRAM": nixl_mem_t.DRAM_SEG,
    "VRAM": nixl_mem_t.VRAM_SEG,
    "FILE": nixl_mem_t.FILE_SEG,
    "BLOCK": nixl_mem_t.BLK_SEG,
    "OBJ": nixl_mem_t.OBJ_SEG,
    "cpu": nixl_mem_t.DRAM_SEG,
    "cuda": nixl_mem_t.VRAM_SEG,
}


class _List:
    """What the lists have in common."""

    def __init__(self, mem_type: nixl_mem_t, descs: Any = None) -> None:
        self._type = mem_type
        self._list = Descriptors() if descs is None else Descriptors.from_rows(descs)

    @classmethod
    def _of(cls, mem_type: nixl_mem_t, descs: Descriptors) -> Any:
        made = cls(mem_type)
        made._list = descs
        return made

    @property
    def descriptors(self) -> Descriptors:
        """The list as the engine takes it."""
        return self._list

    def getType(self) -> nixl_mem_t:
        return self._type

    def descCount(self) -> int:
        return len(self._list)

    def isEmpty(self) -> bool:
        return len(self._list) == 0

    def clear(self) -> None:
        self._list.clear()

    def remDesc(self, index: int) -> None:
        self._list.remove(index)

    def print(self) -> None:
        """Writes them to standard output, one a line."""
        import sys

        for row in self._rows():
            sys.stdout.write(f"{self._type.name} {row}\n")

    def _find(self, desc: Sequence[Any]) -> int:
        found = self._list.index(desc[0], desc[1], desc[2])
        if found is None:
            raise nixlNotFoundError(f"{tuple(desc)} is not in the list")
        return found

    def _rows(self) -> list[tuple[Any, ...]]:
        return [self._list[index] for index in range(len(self._list))]

    def __len__(self) -> int:
        return len(self._list)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[Any, ...]:
        return (self._type, self._list.to_bytes())


class nixlXferDList(_List):
    """Ranges to transfer: (address, length, device)."""

    def addDesc(self, desc: Sequence[int]) -> None:
        self._list.append(desc[0], desc[1], desc[2])

    append = addDesc

    def index(self, desc: Sequence[int]) -> int:
        """Where it is."""
        return self._find(desc)

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return self._list[index]


class nixlRegDList(_List):
    """Ranges to register: (address, length, device, what belongs to it)."""

    def __init__(self, mem_type: nixl_mem_t, descs: Any = None) -> None:
        super().__init__(mem_type, descs)
        has_meta = isinstance(descs, list | tuple) and bool(descs) and len(descs[0]) > 3
        self._meta: list[Any] = [row[3] for row in descs] if has_meta else [""] * len(self._list)

    def addDesc(self, desc: Sequence[Any]) -> None:
        self._list.append(desc[0], desc[1], desc[2])
        self._meta.append(desc[3] if len(desc) > 3 else "")

    append = addDesc

    def index(self, desc: Sequence[Any]) -> int:
        """Where it is. What belongs to it does not count."""
        return self._find(desc)

    def __getitem__(self, index: int) -> tuple[int, int, int, Any]:
        return (*self._list[index], self._meta[index])

    def _rows(self) -> list[tuple[Any, ...]]:
        return [self[index] for index in range(len(self))]

    def clear(self) -> None:
        super().clear()
        self._meta.clear()

    def remDesc(self, index: int) -> None:
        super().remDesc(index)
        del self._meta[index]

    def trim(self) -> nixlXferDList:
        """The same ranges, to transfer."""
        made: nixlXferDList = nixlXferDList._of(self._type, Descriptors.from_bytes(self._list.to_bytes()))
        return made


class nixlRemoteDList(_List):
    """Ranges of several agents: (address, length, device, agent)."""

    def __init__(self, mem_type: nixl_mem_t, descs: Iterable[Sequence[Any]] | None = None) -> None:
        rows = list(descs or [])
        super().__init__(mem_type, rows)
        self._agents = [str(row[3]) for row in rows]

    def addDesc(self, desc: Sequence[Any]) -> None:
        self._list.append(desc[0], desc[1], desc[2])
        self._agents.append(str(desc[3]))

    append = addDesc

    def __getitem__(self, index: int) -> tuple[int, int, int, str]:
        return (*self._list[index], self._agents[index])

    def _rows(self) -> list[tuple[Any, ...]]:
        return [self[index] for index in range(len(self))]

    def clear(self) -> None:
        super().clear()
        self._agents.clear()

    def remDesc(self, index: int) -> None:
        super().remDesc(index)
        del self._agents[index]


def memory_type(name: str | None) -> nixl_mem_t:
    """The kind of memory of a name."""
    if name is None:
        raise nixlInvalidParamError('a list of addresses needs a mem_type, as "DRAM"')
    kind = MEMORY.get(name)
    if kind is None:
        raise nixlInvalidParamError(f"there is no mem_type {name!r}: {', '.join(MEMORY)}")
    return kind


def check_host(kind: nixl_mem_t) -> None:
    """Only host memory is carried yet."""
    if kind is not nixl_mem_t.DRAM_SEG:
        raise nixlNotSupportedError(f"{kind.name}: this version of kvferry carries host memory (DRAM) only")


def _of_tensors(tensors: Sequence[Any]) -> tuple[nixl_mem_t, list[tuple[int, int, int]]]:
    rows = []
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            raise nixlInvalidParamError("the tensors live on different devices")
        if not tensor.is_contiguous():
            raise nixlInvalidParamError("the tensors have to be contiguous")
        device = max(tensor.get_device(), 0)
        rows.append((tensor.data_ptr(), tensor.numel() * tensor.element_size(), device))
    on_host = tensors[0].get_device() == -1
    return (nixl_mem_t.DRAM_SEG if on_host else nixl_mem_t.VRAM_SEG), rows


def _is_tensor(value: object) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "element_size")


def _build(kind: type[Any], width: int, descs: Any, mem_type: str | None) -> Any:
    if isinstance(descs, kind):
        return descs
    if isinstance(descs, _List):
        raise nixlInvalidParamError(f"a {type(descs).__name__} was given where a {kind.__name__} is needed")
    if _is_tensor(descs):
        descs = [descs]
    if not hasattr(descs, "ndim"):
        if len(descs) == 0:
            return kind(memory_type(mem_type))
        if _is_tensor(descs[0]):
            return kind(*_of_tensors(descs))
        if len(descs[0]) != width:
            raise nixlInvalidParamError(f"tuples of {width} are needed, these have {len(descs[0])}")
    try:
        return kind(memory_type(mem_type), descs)
    except (TypeError, ValueError, OverflowError) as error:
        raise nixlInvalidParamError(str(error)) from error


def xfer_descs(descs: Any, mem_type: str | None) -> nixlXferDList:
    """A list to transfer, of tuples of three, an array of three columns, or tensors."""
    made: nixlXferDList = _build(nixlXferDList, 3, descs, mem_type)
    return made


def reg_descs(descs: Any, mem_type: str | None) -> nixlRegDList:
    """A list to register, of tuples of four, an array of three columns, or tensors."""
    made: nixlRegDList = _build(nixlRegDList, 4, descs, mem_type)
    return made


def strided(descs: Any, mem_type: str | None) -> nixlXferDList | None:
    """The list that an array of five columns stands for; None where it is no such array."""
    if getattr(descs, "ndim", 0) != 2 or descs.shape[1] != 5:
        return None
    kind = memory_type(mem_type)
    try:
        made: nixlXferDList = nixlXferDList._of(kind, Descriptors.from_strided(descs))
    except (TypeError, ValueError) as error:
        raise nixlInvalidParamError(str(error)) from error
    return made


def serialize(descs: nixlXferDList | nixlRegDList) -> bytes:
    """Its bytes, for another agent. What belongs to a registration stays behind."""
    kind = b"R" if isinstance(descs, nixlRegDList) else b"X"
    return _MAGIC + kind + bytes([descs.getType()]) + descs.descriptors.to_bytes()


def deserialize(data: bytes) -> nixlXferDList | nixlRegDList:
    """The list of such bytes. What NIXL's own agent writes is code to be run, and is not read."""
    head = len(_MAGIC) + 2
    if data[: len(_MAGIC)] != _MAGIC or len(data) < head:
        raise nixlInvalidParamError(
            "these are no descriptors of kvferry's agent: both ends have to use kvferry.compat.nixl"
        )
    kind, memory = data[len(_MAGIC) : head]
    made_of: type[Any] = nixlRegDList if kind == ord("R") else nixlXferDList
    try:
        descriptors = Descriptors.from_bytes(data[head:])
        made: nixlXferDList | nixlRegDList = made_of._of(nixl_mem_t(memory), descriptors)
    except ValueError as error:
        raise nixlInvalidParamError(str(error)) from error
    if isinstance(made, nixlRegDList):
        made._meta = [""] * len(made)
    return made
