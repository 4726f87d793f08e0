"""LocalStack, on loopback only: `sqs.py STATE_FOLDER`.

The argument is not read; it says in the process list which checkout this belongs to.
"""

import functools

from localstack.runtime.main import main
from twisted.internet import endpoints

# LocalStack takes only the port from GATEWAY_LISTEN and would serve every interface.
endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")

main()
