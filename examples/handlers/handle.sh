#!/bin/sh
# A process per message: payload on stdin, exit code 0 is done, anything else is failed.
order=$(cat)
case "$order" in
  "order "*) echo "$ARTEL_MESSAGE_ID, attempt $ARTEL_ATTEMPT: $order" ;;
  *) echo "no order: $order" >&2; exit 1 ;; # the end of stderr is kept as the reason
esac
