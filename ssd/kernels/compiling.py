"""Which threads compile kernels. Triton compiles a kernel at its first launch, in the thread that launches it."""

import threading
from time import monotonic

watched = False  # whether this process has kernels to compile
count = 0  # kernels compiled so far, those that Triton had on disk included
_compile: set[threading.Thread] = set()
_ended = 0.0


def watch() -> None:
    """Note every compilation of Triton from now on, beside what its hooks did before."""
    global watched
    from triton import knobs

    before, after = knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook

    def begins(**about):
        skips = before(**about) if before else None
        if not skips:
            _compile.add(threading.current_thread())
        return skips

    def has_ended(**about):
        global count
        count += 1
        ends()
        return after(**about) if after else None

    watched = True
    knobs.runtime.jit_cache_hook, knobs.runtime.jit_post_compile_hook = begins, has_ended


def ends() -> None:
    """The calling thread compiles no more: it is done, or its compilation failed."""
    global _ended
    _compile.discard(threading.current_thread())
    _ended = monotonic()


def newest() -> float:
    """When a kernel was compiled last, now if one is. By the interpreter lock that holds up other threads too."""
    return monotonic() if any(thread.is_alive() for thread in list(_compile)) else _ended
