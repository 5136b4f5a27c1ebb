#!/bin/sh
# Sends two messages. Under the same Idempotency-Key the request may be repeated until it is answered: they are added once.
curl --fail-with-body --silent --show-error --retry 5 --retry-all-errors \
  -H 'Content-Type: application/json' -H "Idempotency-Key: ${1:-import-7}" \
  -d '{"lane":"high","messages":[{"payload":"order 7"},{"payload":{"order":8},"kind":"mail","in_ms":60000}]}' \
  "${ARTEL_HTTP:-http://localhost:8090}/api/v1/messages"
