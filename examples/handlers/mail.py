#!/usr/bin/env python3
# A process per slot: a JSON line in, a JSON line out.
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    answer = {"id": message["id"]}
    if message.get("kind") == "log":
        print(message["payload"], file=sys.stderr)  # a command gets the messages of all kinds
    elif "@" not in message.get("payload", ""):  # not UTF-8: there is payload_b64 instead
        answer.update(error="no address", failed=True)  # a verdict: never retried
    elif message["retry"] < 2:
        answer.update(error="the server is busy", retry=1)  # again after a second; true: after the back-off
    else:
        answer["then"] = [{"payload": "mail is out", "kind": "log", "lane": "low"}]
    print(json.dumps(answer), flush=True)
