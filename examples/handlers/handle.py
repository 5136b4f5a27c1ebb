#!/usr/bin/env python3
# A process per slot: a JSON line in, a JSON line out. Some twenty times as fast as a process per message.
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    answer = {"id": message["id"]}
    if not message.get("payload", "").startswith("order "):  # payload_b64 if it is not UTF-8
        answer["error"] = "no order"  # without an error it is done
    print(json.dumps(answer), flush=True)
