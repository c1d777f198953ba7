"""Emulated links: that they are as slow as they say, and that they leave nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from laconic.lab import links
from laconic.lab.links import DISABLE, MARK, Lab, clean, interface_counters, parse_links, parse_rate
from tests.support.processes import members

PACKAGE = Path(links.__file__).parent
MBIT = 10**6
RATE = 20 * MBIT
PAYLOAD = RATE // 8  # one second's worth
BURST = 16384
STRAY = (
    2000  # bytes that a namespace may see without being asked: neighbour discovery, a late acknowledgement
)

# TCP carries at most 1448 bytes in a frame of 1514, and the burst passes at once.
MOST = 1448 / 1514 / (1 - BURST / PAYLOAD)
LEAST = 0.85  # a busy machine, and TCP's first round trips

RECEIVE = """
import socket, struct, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
stream = server.accept()[0].makefile("rb")
start, = struct.unpack("d", stream.read(8))  # by the clock that all processes share
print(len(stream.read()) * 8 / (time.monotonic() - start))
"""
SEND = """
import socket, struct, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
connection.sendall(struct.pack("d", time.monotonic()) + bytes(int(sys.argv[2])))
"""
HOLD_A_LAB = """
import json, sys
from laconic.lab.links import Lab
lab = Lab([None, int(sys.argv[1])])
print(json.dumps([lab.name, lab.shaped, lab.note, lab.command(0, []), lab.command(1, [])]), flush=True)
sys.stdin.read()
"""

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    with ExitStack() as stack:

        def make(*rates: int | None) -> Lab:
            lab = stack.enter_context(Lab(rates))
            if not lab.isolated:
                pytest.skip(str(lab.note))
            return lab

        yield make


def speed(lab: Lab, source: int, target: int) -> float:
    """Bits per second that one TCP connection brings from one worker to another."""
    return transfer(lab.command(source, []), lab.command(target, []), lab.address(target))


def transfer(at_source: list[str], at_target: list[str], address: str, python: str = sys.executable) -> float:
    receiver = [*at_target, python, "-c", RECEIVE, address]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout
        assert receiving.stdout.readline() == "listening\n"
        subprocess.run([*at_source, python, "-c", SEND, address, str(PAYLOAD)], check=True)
        return float(receiving.stdout.readline())


def wait_until_gone(name: str, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while members(name) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert members(name) == []


def host_links() -> str:
    return subprocess.run(["ip", "-oneline", "link"], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 100 * MBIT),
        ("1gbit", 10**9),
        ("2.5gbit", 2_500_000_000),
        ("56kbit", 56_000),
        (" 10MBit ", 10 * MBIT),
        ("none", None),
        ("None", None),
    ],
)
def test_a_rate_is_read_in_bits_per_second(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "mbit", "0mbit", "-1mbit", "1e3mbit", "100mbits", "9999gbit"]
)
def test_what_is_not_a_rate_is_refused_with_the_value_and_examples(text: str) -> None:
    with pytest.raises(ValueError, match=f"link rate '{text}' .* like 56kbit, 100mbit, 2.5gbit or none"):
        parse_rate(text)


def test_one_rate_serves_all_workers() -> None:
    assert parse_links("1gbit", 3) == (10**9, 10**9, 10**9)


def test_each_worker_can_have_its_own_rate() -> None:
    assert parse_links("1gbit,none, 100mbit", 3) == (10**9, None, 100 * MBIT)


def test_a_wrong_number_of_rates_is_refused_with_both_counts() -> None:
    with pytest.raises(ValueError, match="2 link rates for 4 workers"):
        parse_links("1gbit,100mbit", 4)


@pytest.mark.parametrize("workers", [0, 255])
def test_a_lab_of_an_impossible_size_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match=f"cannot have {workers} workers; use 1 to 254"):
        Lab([None] * workers)


def test_counters_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(
        "Inter-|   Receive   |  Transmit\n face |bytes packets ...\n"
        "    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
        "  eth0:100 2 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n"
    )
    assert interface_counters("eth0", table) == (900, 100)
    with pytest.raises(ValueError, match=r"'eth1' .* use one of lo, eth0"):
        interface_counters("eth1", table)


def test_a_link_is_as_slow_as_its_rate_in_both_directions(make_lab: MakeLab) -> None:
    lab = make_lab(None, RATE, None)
    assert lab.shaped
    assert LEAST <= speed(lab, 0, 1) / RATE <= MOST
    assert LEAST <= speed(lab, 1, 0) / RATE <= MOST


def test_a_slow_link_does_not_slow_the_others(make_lab: MakeLab) -> None:
    lab = make_lab(RATE, None, None)
    assert speed(lab, 1, 2) > 5 * RATE


def test_a_path_is_as_slow_as_its_slower_link(make_lab: MakeLab) -> None:
    lab = make_lab(50 * RATE, RATE)
    assert LEAST <= speed(lab, 0, 1) / RATE <= MOST


def test_counters_count_what_passed(make_lab: MakeLab) -> None:
    lab = make_lab(None, None)
    assert not lab.shaped
    sent_before, received_before = lab.counters(0)[0], lab.counters(1)[1]
    speed(lab, 0, 1)
    sent, received = lab.counters(0)[0] - sent_before, lab.counters(1)[1] - received_before
    assert sent >= PAYLOAD
    assert sent == pytest.approx(received, rel=0.2)  # a busy machine drops packets, and TCP sends them again
    assert received == pytest.approx(PAYLOAD, rel=0.2)


def test_a_worker_reads_its_own_counters(make_lab: MakeLab) -> None:
    lab = make_lab(None, None)
    script = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); import links\n"
    script += "print(*links.interface_counters(sys.argv[1]))"
    speed(lab, 0, 1)
    command = lab.command(1, [sys.executable, "-c", script, lab.interface])
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert tuple(map(int, output.split())) == pytest.approx(lab.counters(1), abs=STRAY)


def test_sixty_four_workers_reach_each_other(make_lab: MakeLab) -> None:
    lab = make_lab(*[None] * 64)
    assert len({lab.address(worker) for worker in range(64)}) == 64
    assert speed(lab, 63, 0) > 0


def test_processes_in_a_lab_carry_its_name_and_its_interface(make_lab: MakeLab) -> None:
    lab = make_lab(None)
    assert lab.environment() == {
        MARK: lab.name,
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
    assert len(members(lab.name)) == 2  # the holders of the switch's namespace and of the worker's


def test_every_job_gets_another_port(make_lab: MakeLab) -> None:
    lab = make_lab(None)
    assert lab.port() != lab.port()


def test_the_machines_own_network_is_never_touched(make_lab: MakeLab) -> None:
    before = host_links()
    lab = make_lab(RATE, None)
    assert host_links() == before
    lab.close()
    assert host_links() == before


def test_closing_removes_everything_and_can_be_repeated(make_lab: MakeLab) -> None:
    lab = make_lab(RATE, None)
    assert members(lab.name)
    lab.close()
    assert members(lab.name) == []
    lab.close()


def test_an_exception_closes_the_lab() -> None:
    with pytest.raises(KeyboardInterrupt), Lab([None, None]) as lab:
        raise KeyboardInterrupt
    assert members(lab.name) == []


@contextmanager
def launcher(*python: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Any]]]:
    """Another process that holds a lab with the package in `folder`, and what it says about the lab."""
    command = [*python, "-c", HOLD_A_LAB, str(RATE)]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True, cwd=folder) as process:
        assert process.stdout
        yield process, json.loads(process.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_launcher_leaves_nothing_behind(make_lab: MakeLab, number: signal.Signals) -> None:
    make_lab(None)
    with launcher(sys.executable, folder=PACKAGE.parents[1]) as (process, (name, *_)):
        assert len(members(name)) == 3
        process.send_signal(number)
        process.wait()
        wait_until_gone(name)


def stray(name: str) -> subprocess.Popen[bytes]:
    """A process that ignores SIGTERM and says that it belongs to the lab `name`."""
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env={**os.environ, MARK: name})
    assert process.stdout
    process.stdout.readline()
    return process


def test_cleaning_ends_what_a_dead_launcher_left_and_nothing_else(make_lab: MakeLab) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    lab = make_lab(None)
    alive, own_start = lab.name.split("-")[1:3]
    gone = f"laconic-{dead.pid}-1-abcdef01"
    reused = f"laconic-{alive}-{int(own_start) - 1}-abcdef02"  # our number, but an earlier process
    others = [stray(name) for name in ("not-a-lab", f"laconic-{alive}-{own_start}-abcdef03")]
    orphans = [stray(gone), stray(reused)]
    try:
        said = clean()
        assert [orphan.wait(1) for orphan in orphans] == [-signal.SIGKILL] * 2
        for orphan, name in zip(orphans, (gone, reused), strict=True):
            assert f"ended process {orphan.pid} of {name}" in said
        assert [other.poll() for other in others] == [None, None]
        assert len(members(lab.name)) == 2
    finally:
        for process in [*others, *orphans]:
            with process:
                process.kill()


def test_a_disabled_lab_runs_unshaped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE, "1")
    with Lab([RATE, RATE]) as lab:
        assert (lab.shaped, lab.isolated) == (False, False)
        assert lab.note == f"the workers share an unshaped loopback, because {DISABLE} is 1; unset it"
        assert lab.command(1, ["true"]) == ["true"]
        assert (lab.address(1), lab.interface) == ("127.0.0.1", "lo")
        assert lab.environment()["GLOO_SOCKET_IFNAME"] == "lo"
        assert members(lab.name) == []
        sent, _ = lab.counters(0)
        assert speed(lab, 0, 1) > 5 * RATE
        assert lab.counters(0)[0] - sent >= PAYLOAD


@pytest.mark.parametrize("tool", ["unshare", "nsenter", "ip", "tc"])
def test_a_system_that_refuses_runs_unshaped_and_the_note_quotes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_lab: MakeLab, tool: str
) -> None:
    make_lab(RATE)
    refusing = tmp_path / tool
    refusing.write_text(f"#!/bin/sh\necho {tool} is not permitted >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with Lab([RATE]) as lab:
        assert (lab.shaped, lab.isolated) == (False, False)
        assert f"because of '{tool} is not permitted'; install iproute2, and run as root" in str(lab.note)
        assert members(lab.name) == []


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DISABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with Lab([RATE]) as lab:
        assert not lab.isolated
        assert "unshare" in str(lab.note)


def another_users_python(as_other: list[str]) -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        check = [*as_other, python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        if subprocess.run(check, capture_output=True).returncode == 0:
            return python
    return pytest.skip("no Python that another user can run")


def test_a_user_without_privileges_gets_shaped_links(make_lab: MakeLab) -> None:
    make_lab(None)
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user, with setpriv")
    # setpriv itself still has root's access to files when it runs a program; env has not.
    as_other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env"]
    attempt = [*as_other, "unshare", "--user", "--net", "true"]
    refusal = subprocess.run(attempt, capture_output=True, text=True)
    if refusal.returncode:
        pytest.skip(f"no namespaces without privileges: {refusal.stderr.strip()}")
    python = another_users_python(as_other)
    with tempfile.TemporaryDirectory() as folder:  # which, unlike tmp_path, another user may enter
        copy = Path(folder, "laconic", "lab")
        copy.mkdir(parents=True)
        shutil.copy(PACKAGE / "links.py", copy)
        Path(folder).chmod(0o755)
        with launcher(*as_other, python, folder=Path(folder)) as (process, said):
            name, shaped, note, first, second = said
            assert (shaped, note) == (True, None)
            forth = transfer([*as_other, *first], [*as_other, *second], "10.77.0.2", python)
            back = transfer([*as_other, *second], [*as_other, *first], "10.77.0.1", python)
            process.kill()
            wait_until_gone(name)
    assert LEAST <= forth / RATE <= MOST
    assert LEAST <= back / RATE <= MOST
