#!/usr/bin/env python3
"""Runs a command on RDMA adapters that this machine does not have.

A virtual machine boots an unmodified Debian kernel over a copy-on-write view of this machine's
files, with Soft-RoCE adapters in it (rdma_rxe): verbs as applications see them, carried by
Ethernet between them, where links can be cut, held up and emptied. Programs built here run there.

    tests/rdma/guest.py COMMAND [ARGUMENT ...]     run a command, in this directory
    tests/rdma/guest.py --check                    see that packets get through, and end

Rail i has two ends, a network interface and an adapter each: ai (10.77.i.1) with rxe_ai, and bi
(10.77.i.2) with rxe_bi. The command's output and status come back, and what it writes is gone.
Its environment is what begins with RUST, CARGO or KVFERRY, the usual few, and KVFERRY_GUEST=1.

Status 124: the command took too long. 125: the machine did not work; its console is shown.

Missing programs are named, or installed where SETUP=1 is set. The kernel is fetched once, and kept
in $KVFERRY_GUEST_CACHE, or target/guest.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent

#: Which program comes from which package of Debian. The command runs with this machine's files,
#: so the libraries of the adapters are among them.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "rdma": "iproute2",
    "tc": "iproute2",
    "ibv_rc_pingpong": "ibverbs-utils",
    "ib_write_bw": "perftest",
    "xz": "xz-utils",
    "setpriv": "util-linux",
}
LIBRARIES = ("libibverbs1", "ibverbs-providers", "librdmacm1")

#: What is loaded, each after what it depends on. crc32_generic is asked for by rdma_rxe by a way
#: that a machine without modprobe does not have.
MODULES = (
    *("virtio_pci", "virtio_rng", "9pnet_virtio", "9p", "overlay", "veth"),
    *("crc32_generic", "crc32c_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"),
    *("sch_netem", "sch_ingress", "cls_matchall", "act_gact", "act_mirred"),
)

#: Changes with what is put into the initial file system, so that an older one is not used.
RECIPE = "1"

BOOT_S = 180
#: How long the machine may need to end, and to answer for a command that has overrun.
GRACE_S = 60


class Broken(Exception):
    """The machine cannot be had: not the command's fault."""


def main() -> int:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rails", type=int, default=2, help="pairs of adapters (2)")
    parser.add_argument("--memory", type=int, default=3072, metavar="MIB", help="of the machine (3072)")
    parser.add_argument("--seconds", type=int, default=600, help="the command may take (600)")
    parser.add_argument("--check", action="store_true", help="ping between two adapters")
    parser.add_argument("--console", action="store_true", help="show the kernel's messages at the end")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wishes = parser.parse_args()
    if wishes.check:
        wishes.command = ["bash", str(HERE / "guest-check.sh")]
    if not wishes.command:
        parser.error("a command is missing; --help tells more")
    # So that what is undone at the end is undone, whoever stops this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        provide_programs()
        kernel = Kernel(cache())
        with tempfile.TemporaryDirectory(prefix="kvferry-guest-") as folder:
            return Machine(kernel, Path(folder), wishes).run()
    except Broken as why:
        print(f"guest: {why}", file=sys.stderr)
        return 125


def cache() -> Path:
    """Where the kernel is kept."""
    target = os.environ.get("CARGO_TARGET_DIR") or str(PROJECT / "target")
    return Path(os.environ.get("KVFERRY_GUEST_CACHE") or Path(target) / "guest").resolve()


def provide_programs() -> None:
    """Sees that everything is there that is used, and installs the rest where that is wished."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    if shutil.which("dpkg-query") is None:
        raise Broken("the kernel and the programs come as packages of Debian, which this is not")
    for library in LIBRARIES:
        query = ["dpkg-query", "-W", "-f", "${Status}", library]
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        if "install ok installed" not in found:
            missing.add(library)
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *sorted(missing)]
    if os.environ.get("SETUP") != "1":
        raise Broken(f"missing: {' '.join(sorted(missing))}; SETUP=1 runs `{shlex.join(command)}`")
    print(f"guest: {shlex.join(command)}", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (["apt-get", "update"], command):
        if subprocess.run(attempt, env=quiet, stdout=sys.stderr, check=False).returncode != 0:
            raise Broken(f"`{shlex.join(attempt)}` failed")


class Kernel:
    """A kernel with its modules, and an initial file system that loads them."""

    def __init__(self, folder: Path) -> None:
        """Fetches and makes what is not in the folder yet."""
        self.root = folder / "kernel"
        self.initial = folder / "initial.cpio"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            # Of two that start at once, one fetches.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.root.exists():
                fetch_kernel(self.root)
            self.version = next((self.root / "lib/modules").iterdir()).name
            made_by = folder / "initial.recipe"
            recipe = f"{RECIPE} {self.version} {(HERE / 'guest-init.sh').stat().st_mtime_ns}"
            if not made_by.exists() or made_by.read_text() != recipe:
                self.make_initial()
                made_by.write_text(recipe)

    @property
    def image(self) -> Path:
        """What is booted."""
        return self.root / "boot" / f"vmlinuz-{self.version}"

    @property
    def modules(self) -> Path:
        """Where its modules lie."""
        return self.root / "lib/modules" / self.version

    def make_initial(self) -> None:
        """Packs busybox, the modules in the order of loading, and the first program."""
        needs: dict[str, list[str]] = {}
        for line in (self.modules / "modules.dep").read_text().splitlines():
            module, _, others = line.partition(":")
            needs[module] = others.split()
        paths = {Path(module).stem.replace("-", "_"): module for module in needs}
        order: list[str] = []

        def visit(module: str) -> None:
            for other in needs[module]:
                visit(other)
            if module not in order:
                order.append(module)

        for name in MODULES:
            # What is not a module is built in; what is neither is missed by what needs it.
            if name in paths:
                visit(paths[name])
        if not any("rdma_rxe" in module for module in order):
            raise Broken(f"the kernel {self.version} has no rdma_rxe")
        busybox = shutil.which("busybox")
        assert busybox is not None, "it is among the programs that were looked for"
        with self.initial.open("wb") as file:
            archive = Archive(file)
            for folder in ("bin", "mod", "proc", "sys", "dev", "lower", "upper", "new", "job"):
                archive.folder(folder)
            archive.file("bin/busybox", Path(busybox).read_bytes())
            archive.file("init", (HERE / "guest-init.sh").read_bytes())
            for number, module in enumerate(order, start=100):
                archive.file(f"mod/{number}-{Path(module).name}", (self.modules / module).read_bytes())
            archive.end()


def known_kernels() -> list[str]:
    """The packages of kernels that can be had. Those for clouds have no rdma_rxe."""
    listed = subprocess.run(
        ["apt-cache", "pkgnames", "linux-image-6."], capture_output=True, text=True, check=False
    ).stdout.split()
    pattern = r"linux-image-6\.(1|12)\.[\w.+]*(-\d+)?-amd64"
    return [name for name in listed if re.fullmatch(pattern, name)]


def fetch_kernel(into: Path) -> None:
    """Fetches a kernel of a series that is known to work, the newest of it, and unpacks it."""
    kernels = known_kernels()
    if not kernels and os.environ.get("SETUP") == "1":
        print("guest: apt-get update", file=sys.stderr)
        subprocess.run(["apt-get", "update"], stdout=sys.stderr, check=False)
        kernels = known_kernels()
    if not kernels:
        raise Broken("no package linux-image-6.1.* or linux-image-6.12.* is known; `apt-get update`?")

    def preference(name: str) -> tuple[bool, list[int]]:
        """6.1 before others, and the newest of a series."""
        return name.startswith("linux-image-6.1."), [int(part) for part in re.findall(r"\d+", name)]

    package = max(kernels, key=preference)
    print(f"guest: fetching {package}, about 110 MB", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        fetched = subprocess.run(
            ["apt-get", "download", package], cwd=folder, capture_output=True, text=True, check=False
        )
        archives = list(Path(folder).glob("*.deb"))
        if fetched.returncode != 0 or not archives:
            raise Broken(f"`apt-get download {package}` failed: {fetched.stderr.strip()}")
        unpacked = Path(folder) / "kernel"
        subprocess.run(["dpkg-deb", "--extract", str(archives[0]), str(unpacked)], check=True)
        # busybox loads no compressed modules.
        compressed = [str(path) for path in unpacked.rglob("*.ko.xz")]
        for start in range(0, len(compressed), 500):
            subprocess.run(["xz", "--decompress", *compressed[start : start + 500]], check=True)
        version = next((unpacked / "lib/modules").iterdir()).name
        subprocess.run(["busybox", "depmod", "-b", str(unpacked), version], check=True)
        unpacked.rename(into)


class Archive:
    """Writes the format in which kernels take their initial file system: cpio, "newc"."""

    def __init__(self, file: BinaryIO) -> None:
        """Starts with nothing in it."""
        self.out = file
        self.entries = 0

    def folder(self, name: str) -> None:
        """Adds an empty folder."""
        self.entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, content: bytes) -> None:
        """Adds a file that can be run."""
        self.entry(name, stat.S_IFREG | 0o755, content)

    def end(self) -> None:
        """Writes the entry that says that there are no more."""
        self.entry("TRAILER!!!", 0, b"")

    def entry(self, name: str, mode: int, content: bytes) -> None:
        """Writes a head of 110 bytes, the name, and the content, each filled up to four bytes."""
        self.entries += 1
        path = name.encode() + b"\0"
        numbers = [self.entries, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0]
        self.padded(b"070701" + b"".join(b"%08x" % number for number in numbers) + path)
        self.padded(content)

    def padded(self, part: bytes) -> None:
        """Writes a part, and zeros up to a multiple of four bytes."""
        self.out.write(part + bytes(-len(part) % 4))


class Machine:
    """One run of the virtual machine."""

    def __init__(self, kernel: Kernel, folder: Path, wishes: argparse.Namespace) -> None:
        """Writes down what the machine is to do."""
        self.kernel = kernel
        self.wishes = wishes
        self.console = folder / "console"
        #: Shared with the machine: what it is to do, and what came of it.
        self.job = folder / "job"
        self.job.mkdir()
        for name in ("out", "err"):
            (self.job / name).touch()
        shutil.copy(HERE / "guest-setup.sh", self.job / "setup.sh")
        settings = {
            "RAILS": wishes.rails,
            "SECONDS_AT_MOST": wishes.seconds,
            "MODULES": kernel.modules,
        }
        lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items()]
        (self.job / "settings").write_text("".join(lines))
        (self.job / "command.sh").write_text(self.command())

    def command(self) -> str:
        """A shell script that is the command, with its environment."""
        passed = re.compile(r"(RUST|CARGO|KVFERRY).*|PATH|HOME|USER|LANG|LC_ALL|LD_LIBRARY_PATH|CI")
        secret = re.compile(r".*(TOKEN|SECRET|PASSWORD).*")
        lines = [
            f"export {name}={shlex.quote(value)}"
            for name, value in os.environ.items()
            if passed.fullmatch(name) and not secret.fullmatch(name)
        ]
        lines += [
            "export KVFERRY_GUEST=1 TERM=dumb",
            "ulimit -l unlimited",
            f"cd {shlex.quote(str(Path.cwd()))}",
            f"exec {shlex.join(self.wishes.command)}",
        ]
        return "\n".join(lines) + "\n"

    def program(self) -> list[str]:
        """The virtual machine's command line."""
        flags = Path("/proc/cpuinfo").read_text()
        # Some hosts have the device and not what a stock kernel needs of it.
        is_fast = re.search(r"\b(vmx|svm)\b", flags) is not None and os.access("/dev/kvm", os.W_OK)
        # Emulated, `rep movsb` copies a byte at a time: without it the kernel copies by words.
        processor = ["-accel", "kvm", "-cpu", "host"] if is_fast else [
            "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-erms,-fsrm,-la57",
        ]  # fmt: skip
        boot = (
            "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr nowatchdog "
            "rcupdate.rcu_cpu_stall_suppress=1 tsc=reliable random.trust_cpu=on audit=0"
        )

        def share(name: str, path: Path, option: str) -> list[str]:
            local = f"local,id={name},path={path},security_model=none,multidevs=remap{option}"
            return ["-fsdev", local, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]

        return [
            "qemu-system-x86_64", "-machine", "q35", *processor, "-m", str(self.wishes.memory),
            "-smp", "2", "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none",
            "-no-reboot", "-nic", "none", "-device", "virtio-rng-pci",
            "-serial", f"file:{self.console}",
            "-kernel", str(self.kernel.image), "-initrd", str(self.kernel.initial), "-append", boot,
            *share("root", Path("/"), ",readonly=on"), *share("job", self.job, ""),
        ]  # fmt: skip

    def run(self) -> int:
        """Boots, passes on what the command says, and returns its status."""
        # In a group of its own: an interrupt from the keyboard reaches this program only.
        machine = subprocess.Popen(
            self.program(), stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
        try:
            with (self.job / "out").open("rb") as out, (self.job / "err").open("rb") as err:
                self.follow(machine, [(out, sys.stdout.buffer), (err, sys.stderr.buffer)])
        finally:
            machine.kill()
            machine.wait()
        status = self.job / "status"
        worked = status.exists()
        if self.wishes.console or not worked:
            print(self.console.read_text(errors="replace")[-4000:], file=sys.stderr)
        if not worked:
            raise Broken("the machine did not boot, or ended before the command did")
        return int(status.read_text())

    def follow(self, machine: subprocess.Popen[bytes], streams: list[tuple[BinaryIO, BinaryIO]]) -> None:
        """Passes output on until the machine is off, or has had its time."""
        began = time.monotonic()
        limit_s = BOOT_S
        started = False
        while True:
            off = machine.poll() is not None
            for source, into in streams:
                if part := source.read():
                    into.write(part)
                    into.flush()
            if off:
                return
            if not started and (self.job / "started").exists():
                started = True
                began, limit_s = time.monotonic(), self.wishes.seconds + GRACE_S
            if time.monotonic() - began > limit_s:
                return
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
