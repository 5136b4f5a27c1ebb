#!/bin/sh
# Exit code 75: try again later. 65: failed, and never again. Anything else but 0: retried if --retries allows it.
[ "$ARTEL_MESSAGE_KIND" = log ] && exec cat # a command gets the messages of all kinds
read -r to
echo "mail to $to, retry $ARTEL_RETRY"
case "$to" in
  *@*) [ "$ARTEL_RETRY" -ge 2 ] || { echo "the server is busy" >&2; exit 75; } ;;
  *) echo "$to is no address" >&2; exit 65 ;;
esac
# What follows is sent together with the outcome, once.
printf '{"then":[{"payload":"mail to %s is out","kind":"log","in":1}]}' "$to" >&3
