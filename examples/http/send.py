import json, os, time, urllib.error, urllib.request, uuid

BASE = os.environ.get("ARTEL_HTTP", "http://localhost:8090")


def send(messages, lane="normal", key=None):
    """Adds messages once, whatever happens to the answers. Returns their ids."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid.uuid4())}
    if token := os.environ.get("ARTEL_HTTP_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"lane": lane, "messages": messages}).encode()
    for attempt in range(6):
        request = urllib.request.Request(f"{BASE}/api/v1/messages", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)["ids"]
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise SystemExit(json.load(error)["error"])
        except OSError:
            pass  # It may have been added. The same key again: it is not added twice.
        time.sleep(0.2 * 2**attempt)
    raise SystemExit("no answer")


print(*send([{"payload": "order 7"}, {"payload": {"order": 8}, "kind": "mail"}]))
