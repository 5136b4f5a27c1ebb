"""Events of an Artel fleet, for programs with asyncio: `from artel_events import Event`.

    event = Event(redis.asyncio.Redis.from_url(url), "orders", "new-prices")
    await event.set()       # wakes everybody who waits, in every language; it stays set
    await event.wait()      # returns at once while it is set
    await event.clear()

Nothing of Artel's is needed but the keys that its documentation names.
"""

import asyncio

import redis.asyncio
from redis.exceptions import ConnectionError, TimeoutError

AWAY = (ConnectionError, TimeoutError, OSError)
# Redis is asked at least this often, whatever is heard.
CONSUMER_TIMEOUT = 5.0
RETRY = 0.2


class Event:
    def __init__(self, client: redis.asyncio.Redis, fleet: str, name: str):
        self._redis = client
        # Redis publishes across databases, so the channel names the database.
        database = client.connection_pool.connection_kwargs.get("db") or 0
        self._key = "artel:{%s}:event:%s" % (fleet, name)
        self._channel = "artel:{%s}:@%s:event:%s" % (fleet, database, name)

    async def set(self) -> None:
        async with self._redis.pipeline(transaction=True) as batch:
            batch.hincrby(self._key, "gen", 1)
            batch.hset(self._key, mapping={"flag": 1, "until": 0})
            batch.execute_command("SPUBLISH", self._channel, "set")
            await batch.execute()

    async def clear(self) -> None:
        await self._redis.hset(self._key, "flag", 0)

    async def is_set(self) -> bool:
        return (await self._read())[0]

    async def wait(self) -> None:
        """Returns when it is set, also if it is cleared again at once. While Redis is away, it waits on."""
        seen = None
        while True:
            try:
                seen = await self._wait(seen)
                return
            except AWAY:
                await asyncio.sleep(RETRY)

    async def _wait(self, seen):
        # A connection of its own, from which only what is published is read.
        connection = self._redis.connection_pool.make_connection()
        try:
            await connection.connect()
            await connection.send_command("SSUBSCRIBE", self._channel)
            await connection.read_response()  # confirmed: from here on nothing is missed
            is_set, generation = await self._read()
            first = generation if seen is None else seen
            while not is_set and generation <= first:
                try:
                    await asyncio.wait_for(connection.read_response(), CONSUMER_TIMEOUT)
                except asyncio.TimeoutError:
                    pass
                is_set, generation = await self._read()
            return generation
        finally:
            await connection.disconnect()

    async def _read(self):
        flag, generation, until = await self._redis.hmget(self._key, "flag", "gen", "until")
        seconds, micros = await self._redis.time()
        over = 0 < int(until or 0) <= seconds * 1000 + micros // 1000
        return int(flag or 0) == 1 and not over, int(generation or 0)
