"""What a careless caller does with an LLM: streams that are let go, calls from finalisers and signal handlers."""

import gc
import os
import subprocess
import sys
import threading
import tracemalloc

import pytest

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams
from ssd.runtime.devices.threads import CORES

LONG = SamplingParams(max_tokens=30, ignore_eos=True)
MODES = ["ar", "sd", "ssd"]


class Session:
    """A cycle, so that only the collector frees it."""

    def __init__(self, stream):
        self.me, self.stream = self, stream


def make(tiny_folder, tiny_target, mode, **options):
    draft = None if mode == "ar" else Draft.load(tiny_folder, tiny_target, "bf16")
    return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode=mode, threads=1, **options)


def is_idle(llm):
    engine = llm.engine
    return engine.allocator.num_free == engine.allocator.num_pages and not engine.scheduler.running


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_the_collector_closes_inside_a_pass_is_cancelled_and_decoding_goes_on(
    mode, tiny_folder, tiny_target
):
    llm = make(tiny_folder, tiny_target, mode)
    wanted, forward = llm.generate("Hi", LONG)[0].token_ids, tiny_target.forward
    collected = []

    def collects(*args):
        collected.append(gc.collect() if len(collected) % 8 == 4 else 0)
        return forward(*args)

    tiny_target.forward = collects
    try:
        for _ in range(5):
            session = Session(llm.stream("Hello", LONG))
            next(session.stream)
            del session
            assert llm.generate("Hi", LONG)[0].token_ids == wanted
    finally:
        del tiny_target.forward
    assert collected and is_idle(llm)
    llm.close()


def test_a_stream_that_is_let_go_holds_no_page_after_the_next_pass(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, "ar")
    for chunk in llm.stream("Hello", LONG):
        assert chunk.token_ids
        break
    llm.generate("Hi", SamplingParams(max_tokens=1))
    assert is_idle(llm)


def test_a_stream_that_is_closed_holds_no_page_and_tells_nothing_more(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, "ar")
    with llm.stream("Hello", LONG) as stream:
        next(stream)
    assert is_idle(llm) and list(stream) == []
    stream.close()


def test_a_call_from_a_signal_handler_inside_a_pass_is_refused_in_a_sentence_and_a_close_is_done_later(
    tiny_folder, tiny_target
):
    llm = make(tiny_folder, tiny_target, "ar")
    stream, said, forward = llm.stream("Hello", LONG), [], tiny_target.forward
    next(stream)

    def interrupted(*args):
        with pytest.raises(RuntimeError, match="called from inside one of its own passes"):
            llm.generate("Hi", LONG)
        stream.close()
        said.append(True)
        return forward(*args)

    tiny_target.forward = interrupted
    try:
        llm.generate("Hi", SamplingParams(max_tokens=2))
    finally:
        del tiny_target.forward
    assert said and is_idle(llm) and list(stream) == []


def test_a_callback_may_ask_for_another_answer(tiny_folder, tiny_target):
    llm, more = make(tiny_folder, tiny_target, "ar"), []
    llm.generate(["a", "b"], LONG, on_finish=lambda i, output: more.extend(llm.generate("c", LONG)))
    assert len(more) == 2 and is_idle(llm)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_the_finaliser_of_an_llm_takes_no_lock_and_its_draft_lane_ends(tiny_folder, tiny_target):
    """The collector may run it in the draft lane's own thread, inside the event that the lane waits for."""
    llm = make(tiny_folder, tiny_target, "ssd")
    lane, done = llm.engine.speculator.lane, threading.Event()
    llm.generate("Hi", LONG)
    session = Session(llm)
    del llm, session

    def collect():
        with lane.awake._cond:  # as inside of wait, set and clear
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(20)
    lane.thread.join(20)
    assert not lane.thread.is_alive()


@pytest.mark.parametrize("mode", MODES)
def test_the_interpreter_ends_while_streams_and_lanes_are_open(mode, tiny_folder):
    draft = "" if mode == "ar" else f"draft={str(tiny_folder)!r}, "
    script = f"""
from ssd import LLM, SamplingParams
llm = LLM({str(tiny_folder)!r}, mode={mode!r}, {draft}max_batch=2)
stream = llm.stream("Hello", SamplingParams(max_tokens=30, ignore_eos=True))
print(next(stream).token_ids is not None)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=os.getcwd())
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_the_interpreter_ends_after_a_lane_whose_pass_takes_long(tiny_folder):
    script = f"""
import time
from ssd import LLM
from ssd.runtime.lanes.draft_lane import DraftLane
DraftLane.step = lambda lane: [lane.cache.wait_outcomes(lane.slots, lane.seen, 1000) for _ in range(2500)]
llm = LLM({str(tiny_folder)!r}, mode="ssd", draft={str(tiny_folder)!r}, max_batch=1)
time.sleep(0.2)  # the lane is in its pass
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=os.getcwd())
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_the_interpreter_ends_while_a_lane_frees_what_only_it_holds(tiny_folder):
    script = f"""
import gc, time, weakref
from ssd import LLM
llm = LLM({str(tiny_folder)!r}, mode="ssd", draft={str(tiny_folder)!r}, max_batch=1)
lane = llm.engine.speculator.lane

class Last:
    def __del__(self, wait=lane.cache.wait_outcomes, slots=lane.slots, seen=lane.seen + 100):
        for _ in range(1500):
            wait(slots, seen, 1000)  # as a tensor that is freed, an operator gives up the interpreter's lock

lane.last, gone = Last(), weakref.ref(lane)
del lane, llm
gc.collect()
while gone():
    time.sleep(0.001)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=os.getcwd())
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("mode", MODES)
def test_memory_of_a_long_run_stays_flat(mode, tiny_folder, tiny_target):
    """Python's own memory; every miss of this lane is answered by a retry, and every round is counted."""
    llm = make(tiny_folder, tiny_target, mode, max_batch=2, **(dict(lockstep=True, k=2) if mode == "ssd" else {}))
    params = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
    llm.generate(["Hello", "Hi"], params)

    def rounds(count):
        begin = llm.metrics.rounds
        while llm.metrics.rounds - begin < count:
            llm.generate(["Hello", "Hi"], params)

    tracemalloc.start()
    try:
        rounds(1000)  # until every page has been named once
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        rounds(1000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 4096
    finally:
        tracemalloc.stop()
    llm.close()


def test_what_a_pass_raises_about_one_request_ends_that_request_alone(tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, "ar")
    prompts = ["one", "two", "three"]
    wanted = [o.token_ids for o in llm.generate(prompts, LONG)]
    sequences, refused = llm.requests.sequences, []

    def planted(ids, params):
        found = sequences(ids, params)
        if ids == llm.encode("two"):
            found[0].logits_processors.append(raises)
        return found

    def raises(rows, answer, paths):
        if len(answer) == 4:
            refused.append(True)
            raise ValueError("logits: got nothing that may be drawn")

    llm.requests.sequences = planted
    first, second, third = llm.generate(prompts, LONG)
    assert [first.token_ids, third.token_ids] == [wanted[0], wanted[2]]
    assert (second.finish_reason, second.error) == ("error", "logits: got nothing that may be drawn")
    assert second.token_ids == wanted[1][:4] and len(refused) == 2 and is_idle(llm)
    with pytest.raises(ValueError, match="nothing that may be drawn"):
        llm.generate("two", LONG)
    chunks = list(llm.stream("two", LONG))
    assert chunks[-1].finish_reason == "error" and "nothing that may be drawn" in chunks[-1].error
    assert [t for c in chunks for t in c.token_ids] == wanted[1][:4] and is_idle(llm)


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_neighbours_of_a_request_that_fails_keep_their_tokens_when_they_speculate(mode, tiny_folder, tiny_target):
    llm = make(tiny_folder, tiny_target, mode, k=3)
    prompts = ["one", "two", "three"]
    wanted = [o.token_ids for o in make(tiny_folder, tiny_target, "ar").generate(prompts, LONG)]
    verify = llm.engine.verify

    def fails(plan, *args):
        if any(w.sequence.prompt_len == len(llm.encode("two")) and len(w.sequence.answer) > 5 for w in plan):
            raise ValueError("logits: planted")
        return verify(plan, *args)

    llm.engine.verify = fails
    outputs = llm.generate(prompts, LONG)
    assert [o.finish_reason for o in outputs] == ["error" if len(llm.encode(p)) == 3 else "length" for p in prompts]
    for output, tokens in zip(outputs, wanted, strict=True):
        assert output.token_ids == tokens[: len(output.token_ids)]
    assert is_idle(llm)
    llm.close()
