#!/usr/bin/env bash
# LocalStack runs this inside its container once it is ready.
set -euo pipefail

for queue in orders.fifo payments.fifo; do
    awslocal sqs create-queue --region us-east-1 --queue-name "$queue" \
        --attributes FifoQueue=true,ContentBasedDeduplication=false
done
