#!/usr/bin/env python3
"""Drive an agent gateway that exposes an OpenAI-style HTTP chat endpoint and
time it against mock_llm.py (stdlib only, Linux).

A target is a JSON file:
  {"url": "http://127.0.0.1:18790/v1/chat/completions",
   "headers": {"Authorization": "Bearer x"},
   "body": {"model": "coterie/{agent}", "user": "{session}",
            "messages": [{"role": "user", "content": "{text}"}]},
   "reply": "choices.0.message.content",
   "mock": "http://127.0.0.1:8901",
   "start": ["cmd", "..."],            # only for `cold` and `crash`
   "ready": "http://127.0.0.1:18790/healthz"}   # optional, only for `cold`
"{agent}", "{session}" and "{text}" are substituted inside any string.

Commands:
  seq   -n 100 --session s1      sequential turns in one session
  conc  -c 1 8 32 -n 64          n turns per level over c sessions (closed loop)
  cold  -r 3                     start -> first HTTP answer / first completed turn
  rss   --pid N                  resident + private (USS) MiB of the process tree
  steer --after 3.5              second message into a session whose tool turn is running
  crash --after 3.5              kill -9 mid turn, restart, list every LLM call seen
                                 (needs "start"; the gateway must not be running)

Reported per turn:
  pre   client sends  -> mock has read the first LLM request of that turn
  post  mock flushed the last LLM response of that turn -> client has the reply
  total client sends  -> client has the reply
Turns are matched with a [t:...] tag the mock echoes, so a reply that belongs
to another turn counts as an error.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

Json = dict[str, Any]
TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


# The target


def substituted(value: Any, names: dict[str, str]) -> Any:
    """The value with every {name} in its strings replaced."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, list):
        return [substituted(one, names) for one in value]
    if isinstance(value, dict):
        return {key: substituted(one, names) for key, one in value.items()}
    return value


def dig(value: Any, path: str) -> Any:
    """What stands at a dotted path."""
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value[step]
    return value


class Turn(NamedTuple):
    reply: str | None
    sent: int
    """Epoch nanoseconds."""
    answered: int


class Client:
    """One keep-alive connection."""

    def __init__(self, target: Json, timeout: float = 120) -> None:
        self._target = target
        url = urlsplit(target["url"])
        self._path = url.path + (f"?{url.query}" if url.query else "")
        self._connection = http.client.HTTPConnection(url.netloc, timeout=timeout)

    def turn(self, text: str, session: str, agent: str) -> Turn:
        names = {"text": text, "session": session, "agent": agent}
        body = json.dumps(substituted(self._target["body"], names)).encode()
        headers = {"Content-Type": "application/json", **self._target.get("headers", {})}
        headers = substituted(headers, {"session": session, "agent": agent})
        try:
            return self._post(body, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()  # the other end gave up on an idle connection
            return self._post(body, headers)

    def _post(self, body: bytes, headers: dict[str, str]) -> Turn:
        if self._connection.sock is None:
            self._connection.connect()
        sent = time.time_ns()
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        answered = time.time_ns()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {data[:200]!r}")
        return Turn(dig(json.loads(data), self._target["reply"]), sent, answered)


def mock(target: Json, path: str) -> Any:
    """Ask the mock's control plane."""
    with urlopen(Request(target["mock"] + path), timeout=30) as answer:
        return json.load(answer)


def mock_requests(target: Json) -> int:
    return int(mock(target, "/_stats")["requests"])


# Processes and the machine


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        fields = _stat(entry.name) if entry.name.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children.get(one, [])
    return found


def _stat(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, or None for a process that is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


class Memory(NamedTuple):
    """MiB of a process tree."""

    rss: float
    uss: float
    processes: int


def memory(pid: int) -> Memory:
    rss = uss = processes = 0
    for one in tree(pid):
        try:
            lines = (PROC / str(one) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        rss += sizes.get("Rss", 0)
        uss += sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)
        processes += 1
    return Memory(rss / 1024, uss / 1024, processes)


def cpu_seconds(pid: int | None) -> float:
    """CPU (user and system) used so far by the live tree of a process, reaped children included."""
    fields = (_stat(one) for one in tree(pid)) if pid else ()
    return sum(sum(map(int, found[11:15])) for found in fields if found is not None) / TICKS


class Machine(NamedTuple):
    """CPU seconds over all cores since the machine started."""

    busy: float
    all: float


def machine() -> Machine:
    with (PROC / "stat").open() as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return Machine((sum(fields) - fields[3] - fields[4]) / TICKS, sum(fields) / TICKS)


def wait_quiet(limit: float, want: float = 0.9, span: float = 2.0) -> float:
    """Wait until the machine is idle enough, for so many seconds at most. Returns how idle it was."""
    end = time.time() + limit
    while True:
        before = machine()
        time.sleep(span)
        after = machine()
        idle = 1 - (after.busy - before.busy) / max(after.all - before.all, 1e-9)
        if idle >= want or time.time() > end:
            return idle


class Meter:
    """CPU of the gateway's tree, and the share of the machine that strangers took."""

    def __init__(self, pid: int | None, mock_pid: int | None) -> None:
        self._pid, self._mock_pid = pid, mock_pid
        self._gateway, self._mock = cpu_seconds(pid), cpu_seconds(mock_pid)
        self._own, self._machine = time.process_time(), machine()

    def stop(self) -> tuple[float, float]:
        now = machine()
        gateway = cpu_seconds(self._pid) - self._gateway
        known = gateway + cpu_seconds(self._mock_pid) - self._mock + time.process_time() - self._own
        foreign = max(0.0, now.busy - self._machine.busy - known)
        return gateway, foreign / max(now.all - self._machine.all, 1e-9)


# Figures


class Timing(NamedTuple):
    """One turn, in milliseconds, and its first model request."""

    tag: str
    pre: float
    post: float
    total: float
    calls: int
    bytes: int
    tools: int
    system: int


def joined(turns: dict[str, Turn], log: Iterable[Json]) -> list[Timing]:
    """Turns by tag, and the mock's log, as one list."""
    requests: dict[str, list[Json]] = {}
    for record in log:
        for tag in record.get("tags", ()):
            requests.setdefault(tag, []).append(record)
    return [_timing(tag, turn, requests[tag]) for tag, turn in turns.items() if tag in requests]


def _timing(tag: str, turn: Turn, requests: list[Json]) -> Timing:
    first, last = requests[0], requests[-1]
    return Timing(
        tag,
        pre=(first["t_in"] - turn.sent) / 1e6,
        post=(turn.answered - last["t_out"]) / 1e6,
        total=(turn.answered - turn.sent) / 1e6,
        calls=len(requests),
        bytes=first["bytes"],
        tools=first["n_tools"],
        system=first["system_chars"],
    )


def percentile(values: Iterable[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def summary(name: str, values: Sequence[float]) -> str:
    p10, p90, p99 = (percentile(values, p) for p in (10, 90, 99))
    return (
        f"{name:6s} median {median(values):8.2f}  p10 {p10:8.2f}  p90 {p90:8.2f}"
        f"  p99 {p99:8.2f}  max {max(values):8.2f} ms  n={len(values)}"
    )


def clock(nanoseconds: int | None = None) -> str:
    """A moment in seconds, short enough to compare by eye."""
    seconds = time.time() if nanoseconds is None else nanoseconds / 1e9
    return f"{seconds % 1e5:9.2f}"


# Commands


def seq(target: Json, given: argparse.Namespace) -> None:
    client = Client(target)
    for number in range(given.warmup):
        client.turn(f"warm up {number}", f"{given.session}-warm", given.agent)
    seen = mock_requests(target)
    if given.quiet:
        print(f"machine idle before: {wait_quiet(given.quiet):.0%}")
    run, errors = uuid.uuid4().hex[:6], 0
    turns: dict[str, Turn] = {}
    meter = Meter(given.pid, given.mock_pid)
    for number in range(given.n):
        tag = f"{run}.{number}"
        turns[tag] = client.turn(f"{given.text} [t:{tag}]", given.session, given.agent)
        errors += f"[t:{tag}]" not in (turns[tag].reply or "")
    gateway, foreign = meter.stop()
    timings = joined(turns, mock(target, f"/_log?since={seen}"))
    if given.pid:
        print(
            f"gateway cpu/turn {gateway / given.n * 1e3:.1f} ms; foreign cpu share of machine {foreign:.0%}"
        )
    print_seq(timings, errors, given.n)
    if given.out:
        Path(given.out).write_text(json.dumps([timing._asdict() for timing in timings]))


def print_seq(timings: list[Timing], errors: int, turns: int) -> None:
    print(summary("pre", [timing.pre for timing in timings]))
    print(summary("post", [timing.post for timing in timings]))
    print(summary("total", [timing.total for timing in timings]))
    calls = sum(timing.calls for timing in timings) / max(len(timings), 1)
    first, last = timings[0], timings[-1]
    print(
        f"errors {errors}/{turns}; llm calls/turn {calls:.2f}; request bytes first {first.bytes} "
        f"last {last.bytes}; tools {first.tools}; system chars {first.system}"
    )
    step = max(1, len(timings) // 5)
    for start in range(0, len(timings), step):
        part = timings[start : start + step]
        middle = median(timing.total for timing in part)
        print(
            f"  turns {start + 1:4d}-{start + len(part):4d}: total median {middle:8.2f} ms, "
            f"request {part[-1].bytes} B"
        )


def conc(target: Json, given: argparse.Namespace) -> None:
    for sessions in given.concurrency:
        if given.quiet:
            wait_quiet(given.quiet)
        level(target, given, sessions)


def level(target: Json, given: argparse.Namespace, sessions: int) -> None:
    """One number of sessions, each on its own thread and connection."""
    left, lock = list(range(max(given.n, sessions))), threading.Lock()
    turns: dict[str, Turn] = {}
    errors: list[str] = []
    run, seen = uuid.uuid4().hex[:6], mock_requests(target)

    def work(number: int) -> None:
        client, agent = Client(target), given.agents[number % len(given.agents)]
        while True:
            with lock:
                if not left:
                    return
                tag = f"{run}.{left.pop()}"
            try:
                turn = client.turn(f"{given.text} [t:{tag}]", f"{given.session}-{run}-{number}", agent)
            except Exception as error:
                errors.append(repr(error)[:200])
                continue
            turns[tag] = turn
            if f"[t:{tag}]" not in (turn.reply or ""):
                errors.append(f"mismatch: {str(turn.reply)[:80]}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(sessions)]
    meter, started = Meter(given.pid, given.mock_pid), time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.time() - started
    gateway, foreign = meter.stop()
    cost = (
        f"  cpu/turn {gateway / max(len(turns), 1) * 1e3:.1f} ms, foreign {foreign:.0%}" if given.pid else ""
    )
    print(
        f"c={sessions:3d}  {len(turns) / seconds:8.2f} turns/s  ({len(turns)} turns in {seconds:.2f} s)  "
        f"errors {len(errors)} {errors[:1]}{cost}"
    )
    timings = joined(turns, mock(target, f"/_log?since={seen}"))
    if timings:
        print("   " + summary("total", [timing.total for timing in timings]))


def rss(target: Json, given: argparse.Namespace) -> None:
    used = memory(given.pid)
    print(f"rss {used.rss:.1f} MiB  uss {used.uss:.1f} MiB  processes {used.processes}")


class Start(NamedTuple):
    """Seconds from the start of a gateway."""

    listening: float | None
    ready: float | None
    first_turn: float


def cold(target: Json, given: argparse.Namespace) -> None:
    starts = []
    for number in range(given.r):
        if given.quiet:
            wait_quiet(given.quiet)
        before = machine()
        with Path(given.log).open("ab") as log:
            process = started(target, log)
            try:
                start = first_turn(target, given.agent, given.timeout)
                starts.append(start)
                after, cpu = machine(), cpu_seconds(process.pid)
                foreign = max(0.0, after.busy - before.busy - cpu) / (after.all - before.all)
                time.sleep(given.settle)
                used = memory(process.pid)
            finally:
                stop(process)
        print(
            f"run {number + 1}: listening {_seconds(start.listening)}, ready {_seconds(start.ready)}, "
            f"first turn done {start.first_turn:.2f} s (gateway cpu {cpu:.2f} s, other cpu {foreign:.0%}), "
            f"{given.settle:.0f} s later rss {used.rss:.0f} uss {used.uss:.0f} MiB ({used.processes} procs)",
            flush=True,
        )
    listening, ready = ([one[i] or -1 for one in starts] for i in (0, 1))
    first = median(one.first_turn for one in starts)
    print(
        f"median: listening {median(listening):.2f} s, ready {median(ready):.2f} s, first turn {first:.2f} s"
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def first_turn(target: Json, agent: str, timeout: float) -> Start:
    """Try until a turn is answered, or until the time is up."""
    began = time.time()
    listening = ready = None
    while time.time() - began < timeout:
        if listening is None:
            if not is_listening(target):
                time.sleep(0.01)
                continue
            listening = time.time() - began
        if target.get("ready") and ready is None:
            if not is_ready(target):
                time.sleep(0.01)
                continue
            ready = time.time() - began
        try:
            Client(target).turn("hello", f"cold-{uuid.uuid4().hex[:6]}", agent)
            break
        except (OSError, RuntimeError, http.client.HTTPException):
            time.sleep(0.02)
    return Start(listening, ready, time.time() - began)


def is_listening(target: Json) -> bool:
    try:
        socket.create_connection(("127.0.0.1", urlsplit(target["url"]).port or 80), timeout=5).close()
    except OSError:
        return False
    return True


def is_ready(target: Json) -> bool:
    try:
        with urlopen(Request(target["ready"], headers=target.get("headers", {})), timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def started(target: Json, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(target["start"], stdout=log, stderr=log, start_new_session=True)


def boot(target: Json, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the gateway and wait until it listens."""
    process = started(target, log)
    for _ in range(6000):
        if is_listening(target):
            return process
        time.sleep(0.02)
    raise SystemExit("gateway did not start")


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """The whole tree at once, without a chance to tidy up."""
    for pid in tree(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def print_log(log: Iterable[Json]) -> None:
    for record in log:
        print(
            f"  {record['i']:3d} {clock(record['t_in'])} {record['action']:9s} tool={record.get('tool')} "
            f"tags={record.get('tags')} shape={record.get('kinds', '')[-40:]} "
            f"last_user={record.get('last_user', '')[-60:]!r}"
        )


def fire(target: Json, text: str, session: str, agent: str, out: list[str]) -> threading.Thread:
    """Send a message and go on; what came of it is added to `out`."""

    def go() -> None:
        try:
            turn = Client(target, timeout=60).turn(text, session, agent)
            out.append(f"{clock(turn.answered)} reply to {text!r}: {turn.reply!r}")
        except Exception as error:
            out.append(f"{clock()} no reply to {text!r}: {error!r}"[:200])

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


def steer(target: Json, given: argparse.Namespace) -> None:
    seen, session = mock_requests(target), f"steer-{uuid.uuid4().hex[:6]}"
    out: list[str] = []
    task = f"long job TOOLS {given.rounds} DELAY {given.delay} [t:first]"
    threads = [fire(target, task, session, given.agent, out)]
    time.sleep(given.after)
    print(f"{clock()} second message sent")
    threads.append(fire(target, "by the way [t:second]", session, given.agent, out))
    for thread in threads:
        thread.join(given.rounds * given.delay / 1000 + 30)
    print_log(mock(target, f"/_log?since={seen}"))
    print("\n".join(out))


def crash(target: Json, given: argparse.Namespace) -> None:
    session = f"crash-{uuid.uuid4().hex[:6]}"
    out: list[str] = []
    with Path(given.log).open("ab") as log:
        process = boot(target, log)
        time.sleep(given.settle)
        seen = mock_requests(target)
        fire(target, f"work TOOLS {given.rounds} DELAY {given.delay} [t:lost]", session, given.agent, out)
        time.sleep(given.after)
        kill(process)
        asked = mock_requests(target)
        print(f"killed at {clock()} after {asked - seen} LLM calls")
        process = boot(target, log)
        try:
            print(f"listening again at {clock()}")
            time.sleep(given.watch)
            print(f"LLM calls made by itself after the restart: {mock_requests(target) - asked}")
            fire(target, "are you there? [t:probe]", session, given.agent, out).join(60)
            print_log(mock(target, f"/_log?since={seen}"))
            print("\n".join(out))
        finally:
            stop(process)


COMMANDS = {"seq": seq, "conc": conc, "cold": cold, "rss": rss, "steer": steer, "crash": crash}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    commands = parser.add_subparsers(dest="command", required=True)
    adders = {name: commands.add_parser(name) for name in COMMANDS}

    adders["seq"].add_argument("-n", type=int, default=100)
    adders["seq"].add_argument("--session", default=f"seq-{uuid.uuid4().hex[:6]}")
    adders["seq"].add_argument("--text", default="hello")
    adders["seq"].add_argument("--warmup", type=int, default=3)
    adders["seq"].add_argument("--out")

    adders["conc"].add_argument("-c", "--concurrency", type=int, nargs="+", default=[1, 8, 32])
    adders["conc"].add_argument("-n", type=int, default=96)
    adders["conc"].add_argument("--session", default="conc")
    adders["conc"].add_argument("--agents", nargs="+", default=["dot", "rose", "miles"])
    adders["conc"].add_argument("--text", default="hello")

    adders["cold"].add_argument("-r", type=int, default=3)
    adders["cold"].add_argument("--timeout", type=float, default=90)

    for name in ("steer", "crash"):
        adders[name].add_argument("--after", type=float, default=3.5)
        adders[name].add_argument("--rounds", type=int, default=8)
        adders[name].add_argument("--delay", type=int, default=1000)
        adders[name].add_argument("--watch", type=float, default=30)
    for name in ("cold", "steer", "crash"):
        adders[name].add_argument("--log", default=os.devnull)
        adders[name].add_argument("--settle", type=float, default=5)
    for name in ("seq", "cold", "steer", "crash"):
        adders[name].add_argument("--agent", default="dot")
    for adder in adders.values():
        adder.add_argument("--pid", type=int, help="gateway pid, for cpu/memory of its process tree")
        adder.add_argument("--mock-pid", type=int, default=0)
        adder.add_argument(
            "--quiet", type=float, default=0, help="wait up to this many seconds for a quiet machine first"
        )
    return parser.parse_args()


def main() -> None:
    given = arguments()
    COMMANDS[given.command](json.loads(Path(given.target).read_text()), given)


if __name__ == "__main__":
    main()
