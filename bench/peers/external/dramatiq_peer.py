"""Measures Dramatiq. Settings: the Redis broker with its default middleware and no results; messages are added by
actor.send, one by one, since Dramatiq has no bulk call; the dramatiq program runs 2 processes of 8 threads each (8
is its default), so that both of two cores can be used, and prefetches 256 messages per process in place of 16, so
that fetching does not hold it back. All else is Dramatiq's default."""

import itertools

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import common

PROCESSES = 2


class Reports(dramatiq.Middleware):
    """Tells the script when a worker process is ready, and at its end how much it has handled."""

    def after_worker_boot(self, broker, worker):
        common.server().rpush(common.READY_KEY, 1)

    def after_worker_shutdown(self, broker, worker):
        common.count_handled(next(handled))


broker = RedisBroker(url=common.redis_url())
broker.add_middleware(Reports())
dramatiq.set_broker(broker)

handled = itertools.count()


@dramatiq.actor(queue_name=common.QUEUE)
def nothing(payload):
    next(handled)


@dramatiq.actor(queue_name=common.QUEUE)
def measure(sent_ns):
    common.report_latency(sent_ns)


def remaining():
    """Both the waiting and the unacknowledged messages: only an acknowledgement takes one out of this hash."""
    return common.server().hlen(f"{broker.namespace}:{common.QUEUE}.msgs")


def workers():
    return common.Workers(
        *("dramatiq", "dramatiq_peer", "--processes", str(PROCESSES), "--threads", "8"),
        dramatiq_queue_prefetch="256",
    )


def fill(count):
    def add_all(count):
        for _ in range(count):
            nothing.send(common.PAYLOAD)

    return common.timed_fill(add_all, count)


def work(count):
    return common.timed_drain(workers(), remaining, count)


def latency(count):
    return common.timed_latency(
        workers(), lambda: common.server().llen(common.READY_KEY) == PROCESSES, measure.send, remaining, count
    )


if __name__ == "__main__":
    common.main(fill=fill, work=work, latency=latency)
