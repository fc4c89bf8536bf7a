"""Groups over NCCL: the same words and tensors as over gloo, and an end when a member leaves."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spotlightd.dit.sp_group import GroupBrokenError, GroupMaker, Place, make_store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
TIMEOUT_S = 5.0


@pytest.fixture
def meet():
    """Run `work(group, device)` on two ranks, a thread and a GPU each; return both outcomes."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"NCCL needs two GPUs, and there is {torch.cuda.device_count()}")
    store, devices = make_store(), [torch.device("cuda", index) for index in (0, 1)]
    makers = [GroupMaker(store.port, device, TIMEOUT_S) for device in devices]

    def run(name, work):
        def member(rank):
            torch.cuda.set_device(devices[rank])
            return work(makers[rank].enter(Place(name, rank, 2)), devices[rank])

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(member, (0, 1)))

    yield run
    for maker in makers:
        maker.close()


def test_tensors_cross_between_gpus_also_in_uneven_parts(meet):
    sizes = [[3, 1], [2, 4]]
    """Rank r sends sizes[r][q] elements to rank q."""

    def work(group, device):
        rank = group.rank
        mine = torch.arange(sum(sizes[rank]), device=device, dtype=torch.float32) + 10 * rank
        came = group.exchange(mine, sizes[rank], [sizes[0][rank], sizes[1][rank]])
        everyone = group.gather(torch.full((2, 3), float(rank), device=device))
        word = group.announce(7 if rank == 0 else 0)
        group.settle()
        return came.cpu().tolist(), everyone[:, 0, 0].cpu().tolist(), word

    first, second = meet("one", work)
    assert first == ([0.0, 1.0, 2.0, 10.0, 11.0], [0.0, 1.0], 7)
    assert second == ([3.0, 12.0, 13.0, 14.0, 15.0], [0.0, 1.0], 7)


def test_a_group_is_met_again_and_a_new_one_made_beside_it(meet):
    for name in ("one", "two", "one"):
        assert meet(name, lambda group, device: group.announce(3)) == [3, 3]


def test_who_is_left_alone_is_told_within_the_timeout(meet):
    def work(group, device):
        if group.rank == 1:
            group.close()
            return 0.0
        began = time.monotonic()
        with pytest.raises(GroupBrokenError):
            group.gather(torch.ones(4, device=device))
            group.settle()
        assert group.closed
        return time.monotonic() - began

    waited, _ = meet("one", work)
    assert waited < TIMEOUT_S + 5
