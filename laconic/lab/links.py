"""Emulated links: one network namespace per worker, every link shaped on both ends.

    worker 0  eth0 ── p0 ┐
    worker 1  eth0 ── p1 ┤ a bridge in a namespace of its own, the switch
    worker 2  eth0 ── p2 ┘

A namespace here has no name: it lives as long as its holder, a process that waits on a pipe from us.
However the launcher ends, the pipe closes, the holder ends, and the kernel removes the namespace with
every link in it. Nothing is made in the machine's own network, so nothing can be left there.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import time
from contextlib import suppress
from decimal import Decimal
from itertools import count
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, run
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "LACONIC_LAB"
DISABLE = "LACONIC_LAB_DISABLE"
SUBNET = "10.77.0"
MOST_WORKERS = 254
SCALES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_rate(text: str) -> int | None:
    """The bits per second that `text` stands for; None for "none"."""
    word = text.strip().lower()
    if word == "none":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(kbit|mbit|gbit)", word)
    rate = int(Decimal(match[1]) * SCALES[match[2]]) if match else 0
    if not 10**3 <= rate <= 10**12:
        examples = "56kbit, 100mbit, 2.5gbit or none"
        raise ValueError(f"link rate {text!r} is not between 1kbit and 1000gbit; use one like {examples}")
    return rate


def parse_links(text: str, workers: int) -> tuple[int | None, ...]:
    """One rate per worker, from one rate for all or a list with commas."""
    rates = tuple(parse_rate(part) for part in text.split(","))
    if len(rates) == 1:
        return rates * workers
    if len(rates) != workers:
        raise ValueError(f"{len(rates)} link rates for {workers} workers; give one for all or one for each")
    return rates


def interface_counters(interface: str, table: Path = Path("/proc/self/net/dev")) -> tuple[int, int]:
    """Bytes that `interface` has sent and received, framing included, as the kernel counts them."""
    rows = (line.partition(":") for line in table.read_text().splitlines()[2:])
    columns = {name.strip(): numbers.split() for name, _, numbers in rows}
    if interface not in columns:
        raise ValueError(f"interface {interface!r} is not in {table}; use one of {', '.join(columns)}")
    return int(columns[interface][8]), int(columns[interface][0])


class Lab:
    """One link for each of `rates`, in bits per second; None leaves a link as fast as the machine.

    Where the system allows no namespaces the workers share the loopback, unshaped, and `note` says why.
    """

    def __init__(self, rates: Sequence[int | None]) -> None:
        if not 1 <= len(rates) <= MOST_WORKERS:
            raise ValueError(f"a lab cannot have {len(rates)} workers; use 1 to {MOST_WORKERS}")
        self.rates = tuple(rates)
        self.name = f"laconic-{os.getpid()}-{_start_time(os.getpid())}-{secrets.token_hex(4)}"
        self._as_user: tuple[str, ...] = ()
        self._holders: list[Popen[bytes]] = []  # the switch's, then one per worker
        self._ports = count(29500)
        self.note = self._why_not()
        self.isolated = self.note is None
        self.shaped = self.isolated and any(self.rates)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The namespaces and their links are gone; a second call changes nothing."""
        holders, self._holders = self._holders, []
        for holder in holders:
            holder.kill()
        for holder in holders:
            with holder:  # closes its pipes, then waits for it
                pass

    @property
    def interface(self) -> str:
        """The device that a worker's traffic passes through."""
        return "eth0" if self.isolated else "lo"

    def address(self, worker: int) -> str:
        """Where the other workers reach `worker`."""
        return f"{SUBNET}.{worker + 1}" if self.isolated else "127.0.0.1"

    def port(self) -> int:
        """A port for the next job, free on every worker."""
        if self.isolated:
            return next(self._ports)  # the last job's port may linger in TIME_WAIT
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def command(self, worker: int, argv: Sequence[str]) -> list[str]:
        """`argv` as it is run at the worker's end of its link."""
        return [*self._inside(self._holders[worker + 1]), *argv] if self.isolated else list(argv)

    def environment(self) -> dict[str, str]:
        """The variables that mark a process as part of this lab and keep its traffic on its link."""
        devices = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        shortcuts = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")  # NCCL would see one host and bypass the links
        return {MARK: self.name, **dict.fromkeys(devices, self.interface), **dict.fromkeys(shortcuts, "1")}

    def counters(self, worker: int) -> tuple[int, int]:
        """Bytes that the worker's interface has sent and received; without namespaces, everyone's."""
        process = self._holders[worker + 1].pid if self.isolated else os.getpid()
        return interface_counters(self.interface, Path(f"/proc/{process}/net/dev"))

    def at_switch(self, tool: str, *lines: str) -> None:
        """`ip` or `tc` has carried out these lines at the switch, where the cable of worker k ends in p<k>."""
        self._batch(self._holders[0], tool, list(lines))

    def _why_not(self) -> str | None:
        """None with every link in place, or the sentence that says why there are none."""
        if os.environ.get(DISABLE) == "1":
            return f"the workers share an unshaped loopback, because {DISABLE} is 1; unset it"
        try:
            self._build()
        except OSError as reason:
            self.close()
            remedy = "install iproute2, and run as root or allow unprivileged user namespaces"
            return f"the workers share an unshaped loopback, because of '{reason}'; {remedy}"
        except BaseException:
            self.close()
            raise
        return None

    def _build(self) -> None:
        try:
            switch = self._hold("unshare", "--net")
        except OSError:
            self._as_user = ("--user", "--preserve-credentials")
            switch = self._hold("unshare", "--user", "--map-root-user", "--net")
        workers = [self._hold(*self._inside(switch), "unshare", "--net") for _ in self.rates]
        self._wire(switch, workers)
        for worker, (holder, rate) in enumerate(zip(workers, self.rates, strict=True)):
            address = f"address add {SUBNET}.{worker + 1}/24 dev eth0"
            self._batch(holder, "ip", ["link set lo up", "link set eth0 addrgenmode none up", address])
            self._batch(holder, "tc", [_limit("eth0", rate)] if rate else [])

    def _wire(self, switch: Popen[bytes], workers: list[Popen[bytes]]) -> None:
        """Every worker has a cable to the bridge, and the bridge's end of it is shaped."""
        lines = ["link add switch type bridge", "link set switch addrgenmode none up"]
        for worker, holder in enumerate(workers):
            lines.append(f"link add p{worker} type veth peer name eth0 netns {holder.pid}")
            lines.append(f"link set p{worker} master switch addrgenmode none up")
        self._batch(switch, "ip", lines)
        self._batch(switch, "tc", [_limit(f"p{w}", rate) for w, rate in enumerate(self.rates) if rate])

    def _hold(self, *unshare: str) -> Popen[bytes]:
        """A process that keeps its new namespace until its pipe from us closes."""
        # In a session of its own: Ctrl-C is for the launcher, which ends the workers before their links.
        command, environment = [*unshare, "cat"], self._tool_environment()
        holder = Popen(
            command, 0, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=environment, start_new_session=True
        )
        assert holder.stdin
        assert holder.stdout
        with suppress(BrokenPipeError):
            holder.stdin.write(b"\n")
        reply = holder.stdout.readline()
        if reply != b"\n":
            with holder:  # closes its pipes, then waits for it
                raise OSError(reply.decode().strip())
        self._holders.append(holder)
        return holder

    def _inside(self, holder: Popen[bytes]) -> list[str]:
        return ["nsenter", *self._as_user, "--net", "--target", str(holder.pid)]

    def _batch(self, holder: Popen[bytes], tool: str, lines: list[str]) -> None:
        """`ip` or `tc` has carried out all `lines` in the holder's namespace."""
        command = [*self._inside(holder), tool, "-batch", "-"]
        script = "\n".join([*lines, ""])
        done = run(command, input=script, text=True, capture_output=True, env=self._tool_environment())
        if done.returncode:
            raise OSError(done.stderr.strip())

    def _tool_environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, MARK: self.name, "PATH": f"{path}:/usr/sbin:/sbin"}


def _limit(device: str, rate: int) -> str:
    # A burst is data that passes at once after a pause, so it must be small; 5 ms of the rate is the
    # least that reached the whole rate from 10 Mbit/s to 2.5 Gbit/s while every core was busy.
    burst = max(16384, rate // 8 // 200)
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst}b latency 100ms"


def clean() -> list[str]:
    """What killed launchers left running has ended: one sentence for each process."""
    found = _orphans()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _orphans():
            with suppress(ProcessLookupError):
                os.kill(process, number)
        deadline = time.monotonic() + 3
        while _orphans() and time.monotonic() < deadline:
            time.sleep(0.05)
    left = _orphans()
    return [f"ended process {pid} of {lab}" for pid, lab in found.items() if pid not in left]


def _orphans() -> dict[int, str]:
    """The lab of every process whose launcher is gone."""
    processes = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    labs = {process: _lab_of(process) for process in processes if process != os.getpid()}
    return {process: lab for process, lab in labs.items() if lab and not _has_launcher(lab)}


def _lab_of(process: int) -> str | None:
    """The mark in the process's environment, or None where there is none or it is not ours to read."""
    try:
        # A container's process numbers are not ours, so its labs cannot be judged from here.
        if Path(f"/proc/{process}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
            return None
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    match = re.search(rf"(?:^|\0){MARK}=(laconic-\d+-\d+-[0-9a-f]+)\0".encode(), environment)
    return match[1].decode() if match else None


def _has_launcher(lab: str) -> bool:
    _, launcher, start, _ = lab.split("-")
    return _start_time(int(launcher)) == int(start)


def _start_time(process: int) -> int | None:
    """When the process started, in ticks since boot, so that a reused number is told apart; None if dead."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
