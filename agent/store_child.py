"""Holds the store where sequence-parallel groups meet: `python -m agent.store_child FD`.

It outlives every worker, so that no group depends on a member of another; it is no part of the
agent's own process, which loads no torch.
"""

import contextlib
import sys

from spotlightd.childproc import Channel, enter_child
from spotlightd.dit.sp_group import make_store
from spotlightd.wire import pipe
from spotlightd.wire import worker as w


def main(argv: list[str]) -> int:
    channel = Channel(enter_child(argv), receives=pipe.TO_STORE, sends=pipe.FROM_STORE)
    store = make_store()
    channel.send(w.StorePort(store.port))
    with contextlib.suppress(EOFError):
        channel.receive()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
