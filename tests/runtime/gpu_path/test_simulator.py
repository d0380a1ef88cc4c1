"""The simulated GPU finds what it is there to find, and nothing else."""

import gc

import pytest
import torch
from simulated_gpu import MODULE, SIMULATOR, Event, Fault, Stream

from ssd import kernels

DEVICE = "simgpu:0"


@pytest.fixture
def other():
    """A stream beside the current one."""
    return Stream()


def ones(n: int = 4) -> torch.Tensor:
    return torch.ones(n, device=DEVICE)


def pinned(n: int = 4) -> torch.Tensor:
    return torch.empty(n, pin_memory=True)


def joined(other, tensors):
    other.wait_stream(MODULE.current_stream())


def by_event(other, tensors):
    event = Event()
    event.record()
    event.wait(other)


def by_the_host(other, tensors):
    MODULE.current_stream().synchronize()


def unordered(other, tensors):
    pass


@pytest.mark.parametrize("order", [joined, by_event, by_the_host, unordered])
@pytest.mark.parametrize("use", ["read", "write", "write what is read", "operator"])
def test_streams_meet_in_memory_only_in_order(use, order, other):
    x, y, weight = ones(), ones(), torch.ones(4, device=DEVICE)
    if use == "write what is read":
        MODULE.synchronize()
        y.copy_(x)
    order(other, (x, y))
    work = {
        "read": lambda: x + 1, "write": lambda: x.zero_(), "write what is read": lambda: x.zero_(),
        "operator": lambda: kernels.rms_norm(x[None], weight, 1e-5),
    }[use]  # fmt: skip
    with MODULE.stream(other):
        if order is unordered:
            with pytest.raises(Fault, match="no event orders them"):
                work()
            assert SIMULATOR.faults
        else:
            work()
            assert not SIMULATOR.faults


def test_an_event_tells_of_what_was_queued_before_it(other):
    x, event = ones(), Event()
    event.record()
    x.add_(1)
    event.wait(other)
    with MODULE.stream(other), pytest.raises(Fault, match="no event orders them"):
        x + 1


def test_streams_may_read_side_by_side(other):
    x = ones()
    other.wait_stream(MODULE.current_stream())
    with MODULE.stream(other):
        x + 1
    x + 2
    assert not SIMULATOR.faults


def test_what_arrives_in_pinned_memory_is_there_once_the_host_has_waited():
    host = pinned().copy_(ones(), non_blocking=True)
    with pytest.raises(Fault, match="has not arrived"):
        host.tolist()
    with torch._C.DisableTorchFunctionSubclass():
        assert host.tolist() != [1.0] * 4
    MODULE.current_stream().synchronize()
    assert host.tolist() == [1.0] * 4
    assert torch.empty(4).copy_(ones(), non_blocking=True).tolist() == [1.0] * 4  # the copy itself waits


def test_waiting_for_another_stream_brings_nothing(other):
    host = pinned().copy_(ones(), non_blocking=True)
    other.synchronize()
    with pytest.raises(Fault, match="has not arrived"):
        host.numpy()


@pytest.mark.parametrize("waits", [True, False])
def test_pinned_memory_is_written_again_after_its_copy(waits):
    host = pinned().fill_(1)
    there = host.to(DEVICE, non_blocking=True)
    if waits:
        MODULE.synchronize()
    host.fill_(2)
    if waits:
        MODULE.synchronize()
        assert there.cpu().tolist() == [1.0] * 4
    else:
        with pytest.raises(Fault, match="before its copy to the device had ended"):
            MODULE.synchronize()
        SIMULATOR.leaving.clear()


def recorded(x, other):
    x.record_stream(other)


def waited(x, other):
    other.synchronize()


def joined_again(x, other):
    MODULE.current_stream().wait_stream(other)


@pytest.mark.parametrize("keep", [recorded, waited, joined_again, None])
@pytest.mark.parametrize("use", [lambda x: x + 1, lambda x: x.add_(1), lambda x: x[1:] + 1])
def test_memory_is_freed_when_no_stream_uses_it(use, keep, other):
    x = ones()
    other.wait_stream(MODULE.current_stream())
    with MODULE.stream(other):
        use(x)
    if keep:
        keep(x, other)
    del x
    gc.collect()
    assert len(SIMULATOR.faults) == (keep is None)
    assert keep or "was freed while" in SIMULATOR.faults[0]


def test_host_and_device_do_not_mix():
    with pytest.raises(RuntimeError, match="one device"):
        ones() + torch.ones(4)
    with pytest.raises((RuntimeError, TypeError)):
        ones().numpy()
    assert (ones() + 1).sum().item() == 8.0 and not SIMULATOR.faults
