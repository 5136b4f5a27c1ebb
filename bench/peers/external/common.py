"""What the Python scripts share: the command line, the deadline, worker processes, and the measuring."""

import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis

PAYLOAD = "x" * 100
BATCH = 1_000
QUEUE = "peer"

RATE = 200
WARMUP = 50

DEADLINE_SECONDS = 55
POLL_SECONDS = 0.002
# A message may be between two keys for a moment, so "empty" counts only when it lasts.
SETTLE_SECONDS = 0.1

READY_KEY = "peer:ready"
HANDLED_KEY = "peer:handled"
LATENCIES_KEY = "peer:latencies"

URL_VARIABLE = "PEER_REDIS_URL"


def redis_url():
    """The server: from the environment in a worker process, from the command line in the script."""
    if URL_VARIABLE not in os.environ:
        if len(sys.argv) != 4:
            sys.exit(f"usage: {Path(sys.argv[0]).name} fill|work|latency REDIS_URL COUNT")
        os.environ[URL_VARIABLE] = sys.argv[2]
    return os.environ[URL_VARIABLE]


@functools.cache
def server():
    """A plain connection, one per process."""
    return redis.Redis.from_url(redis_url())


def cpu_seconds():
    times = os.times()
    return times.user + times.system


def children_cpu_seconds():
    times = os.times()
    return times.children_user + times.children_system


class Workers:
    """A library's worker program, in a process group of its own so that nothing of it is left behind."""

    running = None

    def __init__(self, *arguments, **environment):
        self.arguments = [sys.executable, "-m", *arguments]
        self.environment = os.environ | environment

    def __enter__(self):
        clear_reports()
        self.output = tempfile.TemporaryFile()
        self.cpu_before = children_cpu_seconds()
        self.process = subprocess.Popen(
            self.arguments,
            cwd=Path(__file__).parent,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )
        Workers.running = self
        return self

    def __exit__(self, kind, *_):
        self.kill()
        self.process.wait()
        if kind:
            self.show_output()

    def check(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the workers ended early, with code {self.process.returncode}")

    def stop(self):
        """Stops the workers in the orderly way; answers the CPU seconds of all of them."""
        self.process.terminate()
        if self.process.wait() != 0:
            raise RuntimeError(f"the workers ended with code {self.process.returncode}")
        return children_cpu_seconds() - self.cpu_before

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def show_output(self):
        self.output.seek(0)
        sys.stderr.write(self.output.read().decode(errors="replace"))


def expect_remaining(remaining, count):
    left = remaining()
    if left != count:
        raise RuntimeError(f"the queue holds {left} messages instead of {count}")


def timed_fill(add_all, count):
    cpu, start = cpu_seconds(), time.perf_counter()
    add_all(count)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {"seconds": seconds, "messages": count, "cpu": cpu}


def timed_drain(workers, remaining, count):
    """Lets the workers empty the queue, which they report on with count_handled()."""
    expect_remaining(remaining, count)
    with workers:
        first = emptied = None
        while True:
            left, now = remaining(), time.perf_counter()
            if first is None and left < count:
                first = now
            if left > 0:
                emptied = None
            elif emptied is None:
                emptied = now
            elif now - emptied > SETTLE_SECONDS:
                break
            workers.check()
            time.sleep(POLL_SECONDS)
        cpu = workers.stop()
    handled = int(server().get(HANDLED_KEY) or 0)
    clear_reports()
    if handled < count:
        raise RuntimeError(f"{handled} messages were handled instead of {count}")
    return {"seconds": emptied - first, "messages": handled, "cpu": cpu}


def clear_reports():
    server().delete(READY_KEY, HANDLED_KEY, LATENCIES_KEY)


def count_handled(handled):
    """For a worker process at its end: how many messages it has handled."""
    server().incrby(HANDLED_KEY, handled)


def report_latency(sent_ns):
    """For a handler, as the first thing it does."""
    server().rpush(LATENCIES_KEY, (time.time_ns() - sent_ns) / 1e6)


def timed_latency(workers, ready, send, remaining, count):
    if count <= WARMUP:
        raise ValueError(f"COUNT must be more than {WARMUP}, which are left out")
    expect_remaining(remaining, 0)

    def wait_for(condition):
        while not condition():
            workers.check()
            time.sleep(0.01)

    with workers:
        wait_for(ready)
        start = time.perf_counter()
        for number in range(count):
            time.sleep(max(0, start + number / RATE - time.perf_counter()))
            send(time.time_ns())
        wait_for(lambda: server().llen(LATENCIES_KEY) >= count)
        workers.stop()
    latencies = sorted(float(each) for each in server().lrange(LATENCIES_KEY, WARMUP, -1))
    clear_reports()
    return {"messages": count, "p50_ms": percentile(latencies, 0.50), "p99_ms": percentile(latencies, 0.99)}


def percentile(ordered, share):
    return round(ordered[math.ceil(share * len(ordered)) - 1], 3)


def end_at_deadline():
    """In a thread, since RQ uses the alarm signal itself."""
    time.sleep(DEADLINE_SECONDS)
    if Workers.running:
        Workers.running.kill()
        Workers.running.show_output()
    print(f"{Path(sys.argv[0]).name}: not done within {DEADLINE_SECONDS} seconds", file=sys.stderr, flush=True)
    os._exit(1)


def main(**commands):
    name, command, _, count = sys.argv
    threading.Thread(target=end_at_deadline, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(f"{Path(name).name} {command}: ended by signal {number}"))
    try:
        if command not in commands:
            raise ValueError(f"COMMAND must be one of {', '.join(commands)}")
        if not count.isascii() or not count.isdigit() or int(count) == 0:
            raise ValueError("COUNT must be a whole number above 0")
        print(json.dumps(commands[command](int(count))))
    except Exception as error:
        sys.exit(f"{Path(name).name} {command}: {type(error).__name__}: {error}")
