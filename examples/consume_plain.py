"""The same for plain programs: publish, take messages one by one, look after a tenant. No async anywhere.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/consume_plain.py
"""

import os

from doubledecker.client import Bus

with Bus(os.environ["BUS"], os.environ["TOKEN"]) as bus:
    queue = bus.queue("letters")
    queue.register(r".*:letters:.*")
    queue.facet("acme").set(weight=2)  # twice the service of the others

    for number in range(3):
        bus.publish("letters", "write", tenant="acme", data={"n": number})

    # Each message is acked when the loop goes on to the next; an exception would give it back.
    for message in queue.messages():
        print("wrote", message.event.data["n"], flush=True)
        if message.event.data["n"] == 2:  # noqa: PLR2004 - the last one
            message.ack()
            break

    print("waiting:", queue.get().waiting)
