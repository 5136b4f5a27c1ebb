"""Measures RQ. Settings: jobs are added by enqueue_many, 1,000 at a time, with a result lifetime of 0, so that a
finished job is deleted and no result is kept; one SimpleWorker, which runs jobs in its own process, in place of the
default worker, which forks for every job and is far slower; logging is at warnings, as lines for every job only cost
time. All else is RQ's default. RQ's worker handles one job at a time, so this one uses one core. For the throughput
it runs inside this script, and time and CPU are taken from the first handled job on; for the latency it is the rq
program, so that sending and handling do not share an interpreter."""

import time

from rq import Queue, SimpleWorker, Worker
from rq.worker import WorkerStatus

import common

queue = Queue(common.QUEUE, connection=common.server())


class Handled:
    count = 0
    first = None
    cpu = None


def nothing(payload):
    if Handled.count == 0:
        Handled.first, Handled.cpu = time.perf_counter(), common.cpu_seconds()
    Handled.count += 1


def measure(sent_ns):
    common.report_latency(sent_ns)


def remaining():
    return queue.count + queue.started_job_registry.get_job_count(cleanup=False)


def fill(count):
    def add_all(count):
        for start in range(0, count, common.BATCH):
            queue.enqueue_many(
                Queue.prepare_data(nothing, (common.PAYLOAD,), result_ttl=0)
                for _ in range(min(common.BATCH, count - start))
            )

    return common.timed_fill(add_all, count)


def work(count):
    common.expect_remaining(remaining, count)
    SimpleWorker([queue], connection=common.server()).work(burst=True, max_jobs=count, logging_level="WARNING")
    end, cpu = time.perf_counter(), common.cpu_seconds()
    common.expect_remaining(remaining, 0)
    if Handled.count != count:
        raise RuntimeError(f"{Handled.count} messages were handled instead of {count}")
    return {"seconds": end - Handled.first, "messages": Handled.count, "cpu": cpu - Handled.cpu}


def latency(count):
    workers = common.Workers(
        *("rq.cli", "worker", "--url", common.redis_url(), "--worker-class", "rq.SimpleWorker"),
        *("--logging_level", "WARNING", common.QUEUE),
    )
    return common.timed_latency(
        workers,
        lambda: any(worker.get_state() == WorkerStatus.IDLE for worker in Worker.all(queue=queue)),
        lambda sent_ns: queue.enqueue(measure, sent_ns, result_ttl=0),
        remaining,
        count,
    )


if __name__ == "__main__":
    import rq_peer  # RQ refuses handlers of the module __main__

    common.main(fill=rq_peer.fill, work=rq_peer.work, latency=rq_peer.latency)
