#!/usr/bin/env python3
# Three tasks of one program wait for an event of a fleet: asyncio_events.py URL FLEET NAME
import asyncio
import sys

import redis.asyncio

from artel_events import Event

if len(sys.argv) != 4:
    sys.exit("usage: asyncio_events.py URL FLEET NAME")
url, fleet, name = sys.argv[1:]


async def main():
    client = redis.asyncio.Redis.from_url(url)
    event = Event(client, fleet, name)

    async def waits(number):
        await event.wait()
        print("task %d goes on" % number, flush=True)

    tasks = [asyncio.create_task(waits(number)) for number in range(3)]
    print("set already" if await event.is_set() else "waiting", flush=True)
    await asyncio.gather(*tasks)
    await event.clear()
    await Event(client, fleet, name + "-done").set()
    await client.aclose()


asyncio.run(main())
