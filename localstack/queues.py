"""Create the two FIFO queues that the examples and tests use: `queues.py ENDPOINT_URL`.

Plain HTTP, because importing an AWS SDK takes longer than all the rest of a second `up`.
"""

import sys
import urllib.error
import urllib.parse
import urllib.request

# A proxy from the environment has no business between here and loopback.
http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

for name in ("orders.fifo", "payments.fifo"):
    # Asking again with the same attributes is allowed. The producer names every deduplication
    # id; content-based ids would only hide a missing one.
    form = {
        "Action": "CreateQueue",
        "QueueName": name,
        "Attribute.1.Name": "FifoQueue",
        "Attribute.1.Value": "true",
        "Attribute.2.Name": "ContentBasedDeduplication",
        "Attribute.2.Value": "false",
    }
    request = urllib.request.Request(
        sys.argv[1],
        urllib.parse.urlencode(form).encode(),
        # LocalStack reads service and region from here and does not verify the signature.
        {
            "Authorization": "AWS4-HMAC-SHA256 Credential=test/20250101/us-east-1/sqs/aws4_request,"
            " SignedHeaders=host, Signature=0"
        },
    )
    try:
        http.open(request, timeout=15).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"CreateQueue {name}: {error} {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"CreateQueue {name}: {error}")
