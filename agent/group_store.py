"""Keeps the child that holds the store of sequence-parallel groups."""

import logging

from agent.children import Child
from agent.groups import Groups
from spotlightd.wire import pipe

logger = logging.getLogger(__name__)


async def keep_store(groups: Groups) -> None:
    """Keep a store running and tell `groups` its port; without one, workers stay alone."""
    while True:
        child = await Child.start("agent.store_child", pipe.FROM_STORE, pipe.TO_STORE)
        try:
            while True:
                message, _ = await child.receive()
                groups.port = message.port
        except EOFError:
            groups.port = 0
            logger.warning("the store of sequence-parallel groups died: starting it again")
        finally:
            await child.stop()
