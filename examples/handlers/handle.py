#!/usr/bin/env python3
# A process per slot: a JSON line in, a JSON line out. Twenty times as fast as a process per message.
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    answer = {"id": message["id"]}
    if not message["payload"].startswith("order "):
        answer["error"] = "no order"  # without an error it is done
    print(json.dumps(answer), flush=True)
