#!/bin/sh
# Run each interval by the one process that leads: each line is a message.
echo "order $ARTEL_SEQ"
