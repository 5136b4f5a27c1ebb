"""Measures Celery. Settings: Redis as the broker and no result backend; messages are added by apply_async with
ignore_result over one producer connection, in kombu's publish batches of 1,000, as the other libraries are given
their bulk calls; one worker of the default pool (prefork) with 2 processes and a prefetch multiplier of 64, so that
neither the number of cores nor round trips for single messages hold it back; events, gossip, mingle and heartbeats
are off, as they only cost time here. All else is Celery's default, including that a message is acknowledged when a
process takes it, before the handler runs; the count of handled messages comes from the processes themselves."""

import itertools

from celery import Celery
from celery.signals import worker_process_shutdown, worker_ready

import common

app = Celery("peer", broker=common.redis_url(), set_as_current=True)
app.conf.update(
    task_default_queue=common.QUEUE,
    task_ignore_result=True,
    worker_concurrency=2,
    worker_prefetch_multiplier=64,
)

handled = itertools.count()


@app.task(name="nothing")
def nothing(payload):
    next(handled)


@app.task(name="measure")
def measure(sent_ns):
    common.report_latency(sent_ns)


@worker_ready.connect
def on_ready(**_):
    common.server().rpush(common.READY_KEY, 1)


@worker_process_shutdown.connect
def on_shutdown(**_):
    common.count_handled(next(handled))


def remaining():
    waiting, unacknowledged = common.server().pipeline().llen(common.QUEUE).hlen("unacked").execute()
    return waiting + unacknowledged


def workers():
    return common.Workers(
        *("celery", "--app", "celery_peer", "--quiet", "worker", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )


def fill(count):
    with app.producer_pool.acquire(block=True) as producer:

        def add_all(count):
            with producer.batch(common.BATCH):
                for _ in range(count):
                    nothing.apply_async((common.PAYLOAD,), producer=producer, ignore_result=True)

        return common.timed_fill(add_all, count)


def work(count):
    return common.timed_drain(workers(), remaining, count)


def latency(count):
    with app.producer_pool.acquire(block=True) as producer:

        def send(sent_ns):
            measure.apply_async((sent_ns,), producer=producer, ignore_result=True)

        return common.timed_latency(
            workers(), lambda: common.server().exists(common.READY_KEY), send, remaining, count
        )


if __name__ == "__main__":
    common.main(fill=fill, work=work, latency=latency)
