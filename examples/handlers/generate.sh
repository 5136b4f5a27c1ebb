#!/bin/sh
# Run each interval by the one process that leads: each line is a message. Numbers begin anew with each term.
echo "order $ARTEL_TERM-$ARTEL_SEQ"
