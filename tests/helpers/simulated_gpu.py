"""A GPU that is simulated on the CPU, for tests of the product along the path that it takes on a real one.

torch knows it as the device "simgpu". Its tensors hide CPU tensors: whatever mixes them with tensors of the host, or
reads their values without a copy, fails as on a GPU. The operators of ssd run in their Triton forms, in the
interpreter. Streams are vector clocks: each operator is stamped, and one that reads or writes memory which another
stream wrote or reads, with no event or wait between, is a fault; so is memory that is freed while a stream of another
may still use it. A copy to pinned memory fills it with garbage until the host waits; to read it before is a fault, and
so is writing to pinned memory before its copy to the device has ended. Faults raise where they happen and are kept in
SIMULATOR.faults.
"""

import random
import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME, aten = "simgpu", torch.ops.aten
COPIES = {aten.copy_.default, aten._copy_from.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}  # take indices of the host too
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
GB = 1 << 30


class Fault(RuntimeError):
    pass


class Stream:
    """A queue of work. clock: of each stream, the number of its newest operator before what is queued next."""

    def __init__(self, device=None, priority=0):
        self.clock = Counter()
        with SIMULATOR.lock:
            self.number = len(SIMULATOR.streams)
            SIMULATOR.streams.append(self)

    def join(self, clock):
        for number, epoch in clock.items():
            self.clock[number] = max(self.clock[number], epoch)

    def synchronize(self):
        SIMULATOR.wait(self.clock)

    def wait_event(self, event):
        self.join(event.clock)

    def wait_stream(self, other):
        self.join(other.clock)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return True


class Event:
    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.clock = Counter()

    def record(self, stream=None):
        self.clock = Counter((stream or MODULE.current_stream()).clock)

    def wait(self, stream=None):
        (stream or MODULE.current_stream()).wait_event(self)

    def synchronize(self):
        SIMULATOR.wait(self.clock)

    def query(self):
        self.synchronize()
        return True


class Memory:
    """What one allocation's users did: who wrote last, who read since then."""

    def __init__(self, born):
        self.born, self.writer, self.readers, self.recorded = born, None, {}, set()

    def __del__(self):  # takes no lock: the collector may run it anywhere
        used = [*self.readers.items(), *([self.writer] if self.writer else [])]
        for number, epoch in used:
            known = max(self.born.clock[number], SIMULATOR.host[number])
            if number != self.born.number and number not in self.recorded and known < epoch:
                SIMULATOR.faults.append(f"memory was freed while stream {number} may still use it")


class Simulator:
    def __init__(self):
        self.lock = threading.RLock()
        self.streams, self.host, self.faults = [], Counter(), []
        self.arriving = []  # (pinned memory, its content, stream, epoch)
        self.leaving = []  # (pinned memory, a copy of it, stream, epoch)
        self.pinned = weakref.WeakValueDictionary()
        self.waits = self.launches = 0
        self.free = 100 * GB
        self.chance = None

    def fault(self, text):
        self.faults.append(text)
        raise Fault(text)

    def dawdle(self):
        """A thread may come late, by chance, so that lanes meet in other orders."""
        if self.chance and self.chance.random() < 0.2:
            time.sleep(self.chance.random() / 500)

    def wait(self, clock):
        """The host has waited for these operators."""
        with self.lock:
            self.waits += 1
            for number, epoch in clock.items():
                self.host[number] = max(self.host[number], epoch)
            self.arriving = [a for a in self.arriving if not self._arrived(*a)]
            self.leaving = [a for a in self.leaving if not self._left(*a)]

    def _arrived(self, pinned, content, number, epoch):
        done = self.host[number] >= epoch
        if done:
            with torch.inference_mode():  # where the memory was made
                pinned.copy_(content)
        return done

    def _left(self, pinned, copy, number, epoch):
        if not same(pinned, copy):
            self.fault("pinned memory was written before its copy to the device had ended")
        return self.host[number] >= epoch

    def look(self, tensors):
        """The host reads these."""
        seen = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        if any(pinned.untyped_storage().data_ptr() in seen for pinned, *_ in self.arriving):
            self.fault("the host reads memory that has not arrived")

    def order(self, name, stream, access, what):
        if access and stream.clock[access[0]] < access[1]:
            self.fault(f"{name} on stream {stream.number} {what} stream {access[0]}, and no event orders them")

    def stamp(self, name, reads, writes):
        """Queue an operator on the current stream. Returns (stream, epoch)."""
        stream = MODULE.current_stream()
        stream.join(self.host)
        stream.clock[stream.number] += 1
        self.launches += 1
        at = stream.number, stream.clock[stream.number]
        for memory in [*reads, *writes]:
            self.order(name, stream, memory.writer, "uses memory written on")
        for memory in reads:
            memory.readers[at[0]] = at[1]
        for memory in writes:
            for access in memory.readers.items():
                self.order(name, stream, access, "writes memory read on")
            memory.writer, memory.readers = at, {}
        return at


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class Module:
    """The device module that torch.get_device_module gives."""

    Stream, Event = Stream, Event

    def __init__(self):
        self.local = threading.local()

    def is_available(self):
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self):
        return False

    def device_count(self):
        return 2

    def current_device(self):
        return 0

    def set_device(self, device):
        torch.device(device)

    def get_device_name(self, device=None):
        return "a simulated GPU"

    def empty_cache(self):
        pass

    def mem_get_info(self, device=None):
        return SIMULATOR.free, 141 * GB

    def current_stream(self, device=None):
        return getattr(self.local, "stream", None) or SIMULATOR.streams[0]

    default_stream = current_stream

    def synchronize(self, device=None):
        everything = Counter()
        for stream in SIMULATOR.streams:
            everything |= stream.clock
        SIMULATOR.wait(everything)

    @contextmanager
    def stream(self, stream):
        before, self.local.stream = getattr(self.local, "stream", None), stream
        try:
            yield
        finally:
            self.local.stream = before

    @contextmanager
    def device(self, device):
        yield


class DeviceTensor(torch.Tensor):
    """A tensor of the simulated GPU around a CPU tensor."""

    @staticmethod
    def __new__(cls, inner, memory):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip

    def __init__(self, inner, memory):
        self.inner, self.memory = inner, memory

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        SIMULATOR.dawdle()
        with SIMULATOR.lock:
            return dispatch(func, args, kwargs or {})

    def record_stream(self, stream):
        self.memory.recorded.add(stream.number)

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self):
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"


def inner(x):
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.inner if isinstance(x, DeviceTensor) else x


def on_device(tensor, inputs, at):
    """The wrapper of a result: of the memory of the input that it is a view of, or of new memory."""
    for x in inputs:
        if x.inner is tensor:
            return x
    pointer = tensor.untyped_storage().data_ptr()
    for x in inputs:
        if pointer and x.inner.untyped_storage().data_ptr() == pointer:
            return DeviceTensor(tensor, x.memory)
    memory = Memory(MODULE.current_stream())
    memory.writer = at
    return DeviceTensor(tensor, memory)


def written(func, args, kwargs):
    """The tensors that an operator writes in place, by its schema."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        if argument.alias_info and argument.alias_info.is_write:
            found += [x for x in tree_flatten(value)[0] if isinstance(x, DeviceTensor)]
    return found


def dispatch(func, args, kwargs):
    values = tree_flatten((args, kwargs))[0]
    inputs = [x for x in values if isinstance(x, DeviceTensor)]
    if func in COPIES:
        return copy(func, *args, **kwargs)
    if func.name().startswith(("aten::to.", "aten::_to_copy")) and torch.device("cpu") in values:
        return to_host(func, args, kwargs, inputs[0])
    if func.namespace != "ssd":
        check_devices(func, values)
    run = FORMS[func._schema.name] if func.namespace == "ssd" else func
    results = run(*tree_map(inner, args), **tree_map(inner, kwargs))
    writes = written(func, args, kwargs)
    pointers = {t.untyped_storage().data_ptr() for t in tree_flatten(results)[0] if isinstance(t, torch.Tensor)}
    views = [x for x in inputs if x.inner.untyped_storage().data_ptr() in pointers]
    reads = inputs if func.namespace == "ssd" else [x for x in inputs if not any(x is v for v in views)]
    at = SIMULATOR.stamp(str(func), {x.memory for x in reads}, {x.memory for x in writes})
    if WAITING & set(func.tags):
        MODULE.current_stream().synchronize()
    return tree_map(lambda t: on_device(t, inputs, at) if isinstance(t, torch.Tensor) else t, results)


def check_devices(func, values):
    for x in values:
        if isinstance(x, torch.Tensor) and not isinstance(x, DeviceTensor) and x.dim() and x.numel():
            if func not in INDEXED:
                raise RuntimeError(f"{func}: expected all tensors on one device, found {NAME} and cpu")
            MODULE.current_stream().synchronize()


def copy(func, target, source, non_blocking=False):
    if func is aten._copy_from.default:
        target, source = source, target
    if not isinstance(source, DeviceTensor):
        return to_device(target, source, non_blocking)
    if isinstance(target, DeviceTensor):
        SIMULATOR.stamp("copy_", {source.memory}, {target.memory})
        target.inner.copy_(source.inner)
        return target
    number, epoch = SIMULATOR.stamp("copy to the host", {source.memory}, ())
    if non_blocking and target.data_ptr() in SIMULATOR.pinned:
        garbage = torch.randint(0, 256, (target.nbytes,), dtype=torch.uint8)
        SIMULATOR.arriving.append((target, source.inner.to(target.dtype).clone(), number, epoch))
        target.view(-1).view(torch.uint8).copy_(garbage) if target.numel() else None
    else:
        MODULE.current_stream().synchronize()
        target.copy_(source.inner)
    return target


def to_device(target, source, non_blocking):
    number, epoch = SIMULATOR.stamp("copy to the device", (), {target.memory})
    target.inner.copy_(source)
    if non_blocking and source.data_ptr() in SIMULATOR.pinned:
        SIMULATOR.leaving.append((source, source.clone(), number, epoch))
    else:
        MODULE.current_stream().synchronize()
    return target


def to_host(func, args, kwargs, source):
    SIMULATOR.stamp("copy to the host", {source.memory}, ())
    MODULE.current_stream().synchronize()
    return func(*tree_map(inner, args), **tree_map(inner, kwargs)).clone()


def made(op):
    """A factory, or an operator that starts from the host's tensors."""

    def make(*args, **kwargs):
        with SIMULATOR.lock:
            kwargs["pin_memory"] = None
            tensor = op(*args, **tree_map(inner, kwargs))
            return DeviceTensor(tensor, Memory(MODULE.current_stream()))

    return make


def copied(source, target, non_blocking=False):
    with SIMULATOR.lock:
        return copy(aten._copy_from.default, source, target, non_blocking)


SIMULATOR, MODULE = Simulator(), Module()
Stream()
FORMS, LIBRARY = {}, torch.library.Library("aten", "IMPL")


class PinnedTensor(torch.Tensor):
    """Pinned memory of the host: whoever looks at what is in it must have waited for what arrives there."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ not in UNSEEN:
            with SIMULATOR.lock:
                SIMULATOR.look(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, cls))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


UNSEEN = {"__get__", "copy_", "data_ptr", "untyped_storage"}  # calls that read no element


def pinned_or_plain(*args, pin_memory=False, **kwargs):
    tensor = EMPTY(*args, **kwargs)
    if pin_memory:
        tensor = tensor.as_subclass(PinnedTensor)
        SIMULATOR.pinned[tensor.data_ptr()] = tensor
    return tensor


EMPTY = torch.empty


def install() -> None:
    """Make the device known to torch and to ssd, for the life of this process, which runs Triton's interpreter."""
    from ssd.kernels import cuda
    from ssd.runtime.devices import placement

    _setup_privateuseone_for_python_backend(NAME, backend_module=MODULE)
    LIBRARY.impl("empty.memory_format", made(aten.empty.memory_format), "PrivateUse1")
    LIBRARY.impl("empty_strided", made(aten.empty_strided.default), "PrivateUse1")
    LIBRARY.impl("_copy_from", copied, "PrivateUse1")
    FORMS.update({f"ssd::{form.__name__}": form for form in cuda.FORMS})
    torch.empty = pinned_or_plain
    placement.DEVICES = (*placement.DEVICES, NAME)


def reset(seed: int | None = None) -> None:
    """Forget faults and counts. seed: of the times by which threads come late; None: none does."""
    MODULE.synchronize()
    SIMULATOR.faults.clear()
    SIMULATOR.waits = SIMULATOR.launches = 0
    SIMULATOR.free = 100 * GB
    SIMULATOR.chance = None if seed is None else random.Random(seed)
