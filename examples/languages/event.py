#!/usr/bin/env python3
# Sets, clears or waits for an event of a fleet: event.py set|clear|wait URL FLEET NAME
import sys

import redis

if len(sys.argv) != 5 or sys.argv[1] not in ("set", "clear", "wait"):
    sys.exit("usage: event.py set|clear|wait URL FLEET NAME")
what, url, fleet, name = sys.argv[1:]
key = "artel:{%s}:event:%s" % (fleet, name)
r = redis.Redis.from_url(url, decode_responses=True)
# Redis publishes across databases, so the channel names the database.
db = r.connection_pool.connection_kwargs.get("db") or 0
name_of_channel = "artel:{%s}:@%s:event:%s" % (fleet, db, name)


def read():
    flag, gen, until = r.hmget(key, "flag", "gen", "until")
    seconds, micros = r.time()
    over = 0 < int(until or 0) <= seconds * 1000 + micros // 1000
    return flag == "1" and not over, int(gen or 0)


if what == "set":
    with r.pipeline(transaction=True) as p:
        p.hincrby(key, "gen", 1).hset(key, mapping={"flag": 1, "until": 0})
        p.execute_command("SPUBLISH", name_of_channel, "set")
        p.execute()
elif what == "clear":
    r.hset(key, "flag", 0)
else:
    channel = r.pubsub()
    channel.execute_command("SSUBSCRIBE", name_of_channel)
    channel.parse_response()  # the confirmation: from here on nothing is missed
    is_set, first = read()
    if not is_set:
        print("waiting", flush=True)
    while not is_set:
        channel.parse_response(block=False, timeout=5)
        is_set, now = read()
        is_set = is_set or now > first
    print("set")
