#!/bin/sh
# A process per message: payload on stdin. Exit code 0 is done, 65 is failed for good, 75 asks for a retry.
order=$(cat)
case "$order" in
  "order "*) echo "$ARTEL_MESSAGE_ID, attempt $ARTEL_ATTEMPT: $order" ;;
  *) echo "no order: $order" >&2; exit 65 ;; # the end of stderr is kept as the reason
esac
