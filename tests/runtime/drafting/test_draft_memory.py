"""The memory of a draft: pages that its sequences, both modes and lanes that follow one another share."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lane_helpers import make
from speculation_helpers import PROMPTS, answers, load

from ssd.model.config import LlamaConfig
from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM, SamplingParams, factory
from ssd.runtime.devices.threads import CORES
from ssd.runtime.drafting.draft_memory import DraftMemory, DraftPages
from ssd.runtime.drafting.draft_runner import DraftRunner
from ssd.runtime.drafting.draft_state import DraftState
from ssd.runtime.lanes.draft_lane import DraftLane
from ssd.runtime.options import EngineOptions, SpeculationOptions
from ssd.runtime.switching.cost_model import Costs
from ssd.runtime.sync.model_proposer import ModelProposer

GB = 1e9
SHAPES = {  # hidden size, inner, layers, heads, KV heads, head_dim
    "8B": (4096, 14336, 32, 32, 8, 128),
    "1B": (2048, 8192, 16, 32, 8, 64),
}


def without_memory(name, context=131072):
    """A model of that shape on the meta device, without weights."""
    hidden, inner, layers, heads, kv_heads, dim = SHAPES[name]
    config = dict(vocab_size=128256, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers)
    config |= dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim)
    config = LlamaConfig.from_dict(config | {"model_type": "llama", "max_position_embeddings": context,
                                             "rms_norm_eps": 1e-5, "architectures": ["LlamaForCausalLM"]})  # fmt: skip
    nothing = torch.empty(0)
    weights = SimpleNamespace(layers=[], embedding=nothing, norm=nothing, lm_head=nothing)
    table = torch.empty(context, dim // 2, device="meta")
    return Draft(config, weights, table, table, "bf16")


@pytest.mark.parametrize("mode", ["sd", "ssd", "auto"])
def test_the_kv_of_a_draft_is_as_large_as_that_of_its_tokens(mode):
    target, draft = without_memory("8B"), without_memory("1B")
    speculation, options = SpeculationOptions(mode=mode), EngineOptions(max_batch=8)
    parts = factory.kv_parts(speculation, options, (draft, None), target, 131072)
    assert [part.name for part in parts] == ["target", "draft"]
    tokens = 131072
    for part, model in zip(parts, (target, draft), strict=True):
        memory = DraftMemory(model, part.pages(tokens))
        assert memory.kv.nbytes == part.bytes(tokens) and memory.kv.k.device.type == "meta"
    assert 17.1 * GB < parts[0].bytes(tokens) < 17.3 * GB
    assert 4.29 * GB < parts[1].bytes(tokens) < 4.4 * GB  # eight whole contexts would take 34 GB


class Runner(SimpleNamespace):
    """As much of a DraftRunner as its states read."""

    def __init__(self, memory, slots=2, shift=0):
        super().__init__(pages=DraftPages(memory, slots, 64), draft=SimpleNamespace(shift=shift), own=())


def memory_of(pages, tiny_target, **options):
    return DraftMemory(tiny_target, pages, **options)


def state_of(runner, slot, tokens, whose="a"):
    import numpy as np

    state = DraftState(runner, slot, whose, np.array(tokens, np.int64))
    state.confirm(len(tokens))
    return state


def test_a_state_without_pages_starts_again_and_leaves_its_own_to_others(tiny_target):
    memory = memory_of(6, tiny_target)
    runner = Runner(memory)
    one, two = state_of(runner, 0, range(60)), state_of(runner, 1, range(100, 120))
    assert one.reserve(4) and two.reserve(4)
    assert len(set(runner.pages.held[0] + runner.pages.held[1])) == 6 and memory.allocator.num_free == 0
    where = runner.pages.where[0][:64]
    assert where.tolist() == [p * 16 + i for p in runner.pages.held[0] for i in range(16)]
    one.cached, one.done = 59, {1}
    assert not one.reserve(40) and runner.pages.held[0] == [] and memory.allocator.num_free == 4
    assert (one.cached, one.done) == (0, set()) and one.accept([1]) == []  # there is no KV to be moved
    assert two.reserve(60) and memory.allocator.num_free == 1
    assert not one.reserve(4) and memory.allocator.num_free == 1
    runner.pages.drop(1)
    assert one.reserve(4) and (one.cached, one.done, one.fresh) == (16, set(), 44)  # the others went, last ones first


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_what_begins_alike_shares_pages(prefix_caching, shift, tiny_target):
    memory = memory_of(20, tiny_target, prefix_caching=prefix_caching)
    runner, other = Runner(memory, shift=shift), Runner(memory, shift=shift)
    tokens = list(range(70))
    one = state_of(runner, 0, tokens)
    assert one.reserve(0) and one.cached == 0
    one.cached = len(tokens)
    assert one.reserve(0) and one.named == 4
    again = state_of(other, 0, tokens)  # of the same sequence
    assert again.reserve(0) and again.cached == 64 + shift and other.pages.held[0][:4] == runner.pages.held[0][:4]
    changed = state_of(runner, 1, tokens[:40] + [9] + tokens[41:], whose="b")
    assert changed.reserve(0) and changed.cached == prefix_caching * (32 + shift)
    if shift:  # the KV at index 15 is that of token 16
        early = state_of(other, 1, tokens[:16] + [9] + tokens[17:])
        assert early.reserve(0) and early.cached == 0
    at_a_boundary = state_of(runner, 1, tokens[: 64 + shift])
    assert at_a_boundary.reserve(0) and at_a_boundary.cached == 48 + shift  # the root is always computed
    at_a_boundary.cached = 64 + shift
    assert at_a_boundary.reserve(0)
    assert runner.pages.held[1][:4] == runner.pages.held[0][:4]  # of two pages for one block one is enough


def test_pages_of_a_lane_that_was_given_up_are_free_when_its_pass_has_ended(tiny_target):
    memory = memory_of(4, tiny_target)
    old, new = Runner(memory), Runner(memory)
    tokens = range(40)
    first = state_of(old, 0, tokens)
    assert first.reserve(0)
    first.cached = 40
    assert first.reserve(0) and first.named == 2
    with old.pages.at_work():
        old.pages.retire()
        second = state_of(new, 0, tokens)
        assert memory.allocator.num_free == 1 and not second.reserve(0)
        old.pages.drop(0)
        assert memory.allocator.num_free == 1
    assert memory.allocator.num_free == 4 and not first.reserve(0)
    assert second.reserve(0) and second.cached == 0  # what the lane had computed is not trusted
    with pytest.raises(RuntimeError, match="given up"), old.pages.at_work():
        pass


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("kind", ["itself", "features"])
def test_a_new_lane_allocates_no_kv(kind, lockstep, tiny_folder, tiny_target, plain, tmp_path, monkeypatch):
    draft, made, steps = load(kind, tiny_folder, tmp_path, tiny_target, "bf16"), [], [0]
    new, step = draft.new_kv_cache, DraftLane.step
    monkeypatch.setattr(draft, "new_kv_cache", lambda *args: made.append(new(*args)) or made[-1])

    def fails(self, *args):
        step(self, *args)
        steps[0] += 1
        if steps[0] in (9, 14):
            raise RuntimeError("planted")

    monkeypatch.setattr(DraftLane, "step", fails)
    llm = make(tiny_folder, tiny_target, draft, k=3, lockstep=lockstep)
    lanes, begin = llm.engine.speculator, time.monotonic()
    while lanes.supervisor.failures < 2 and time.monotonic() - begin < 20:
        assert answers(llm) == plain
    assert answers(llm) == plain
    assert lanes.supervisor.failures == 2 and len(made) == 1 and lanes.runner.kv.k.data_ptr() == made[0].k.data_ptr()
    llm.close()


@pytest.mark.briefly
def test_a_lane_that_hangs_in_a_pass_shares_no_page_with_its_successor(tiny_folder, tiny_target, plain, monkeypatch):
    draft, hung, held = Draft.load(tiny_folder, tiny_target, "bf16"), threading.Event(), []
    forward = draft.forward_features

    def hangs(batch, kv, *rest):
        if not held and threading.current_thread() is not threading.main_thread():
            held.append(set(batch.slots.tolist()))
            hung.wait(30.0)
            held.append("woke")
            return forward(batch, kv, *rest)
        if len(held) == 1 and threading.current_thread() is not threading.main_thread():
            assert not held[0] & set(batch.slots.tolist())
        return forward(batch, kv, *rest)

    monkeypatch.setattr(draft, "forward_features", hangs)
    llm = make(tiny_folder, tiny_target, draft, k=3, lockstep=False)
    lanes, old = llm.engine.speculator, llm.engine.speculator.lane
    while lanes.supervisor.failures < 1:
        assert answers(llm) == plain
    successor = lanes.lane
    while not successor.runner.passes:
        assert answers(llm) == plain
    assert len(held) == 1 and lanes.supervisor.failures == 1 and successor.error is None
    allocator = successor.runner.memory.allocator
    hung.set()
    old.thread.join(20.0)
    assert not old.thread.is_alive() and isinstance(old.error, RuntimeError | None) and not any(old.runner.pages.held)
    assert answers(llm) == plain
    llm.close()
    successor.runner.pages.drop_all()
    assert allocator.num_free == allocator.num_pages


def scarce(monkeypatch, pages):
    """Lets drafts have so few pages."""
    part = factory.kv_part

    def smaller(*args):
        found = part(*args)
        return found if args[2] == "target" else replace(found, most=pages)

    monkeypatch.setattr(factory, "kv_part", smaller)


@pytest.mark.parametrize("kind", ["itself", "features", "eagle"])
@pytest.mark.parametrize("mode, options", [("sd", {}), ("ssd", {}), ("ssd", {"lockstep": False})])
def test_sequences_without_draft_pages_decode_on(
    mode, options, kind, tiny_folder, tiny_target, plain, tmp_path, monkeypatch
):
    draft, outcomes = load(kind, tiny_folder, tmp_path, tiny_target, "bf16"), []
    reserve = DraftPages.reserve
    monkeypatch.setattr(DraftPages, "reserve", lambda *args: outcomes.append(reserve(*args)) or outcomes[-1])
    pages = {"sd": 6, "ssd": 12}[mode]
    scarce(monkeypatch, pages)
    if mode == "sd":
        llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode="sd", k=3, seed=3, threads=1)
    else:
        llm = make(tiny_folder, tiny_target, draft, k=3, branches=6, **options)
    begin = time.monotonic()
    while time.monotonic() - begin < 20 and (outcomes.count(False) < 3 or outcomes.count(True) < 20):
        assert answers(llm) == plain
    assert answers(llm) == plain
    speculator = llm.engine.speculator
    memory = speculator.runner.memory
    assert memory.allocator.num_pages == pages and outcomes.count(False) >= 3 and outcomes.count(True) >= 20
    assert mode == "sd" or speculator.supervisor.failures == 0
    llm.close()
    if mode == "sd":
        assert memory.allocator.num_free == pages


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_both_modes_of_auto_share_one_memory(tiny_folder, tiny_target, tmp_path, monkeypatch):
    params = [SamplingParams(temperature=i % 2, seed=i, max_tokens=90, ignore_eos=True) for i in range(3)]
    wanted = LLM.from_model(tiny_target, Tokenizer(tiny_folder), threads=1).generate(PROMPTS[:3], params)
    draft, made = load("features", tiny_folder, tmp_path, tiny_target, "bf16"), []
    new = draft.new_kv_cache
    flat = dict.fromkeys((1, 5, 12), 0.001)
    monkeypatch.setattr(factory, "costs_of", lambda *args: Costs(flat, flat, flat, flat))
    monkeypatch.setattr(draft, "new_kv_cache", lambda *args: made.append(new(*args)) or made[-1])
    options = {"mode": "auto", "seed": 3, "prefix_caching": False}  # a sequence finds its own pages alone
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **options)
    auto = llm.engine.speculator
    sd, ssd = auto.parts["sd"], auto.parts["ssd"]
    assert len(made) == 1 and sd.runner.kv is ssd.runner.kv is made[0] and sd.runner.memory is ssd.runner.memory
    found, find = [], DraftPages.find
    monkeypatch.setattr(DraftPages, "find", lambda *args: found.append((args[0], find(*args))) or found[-1][1])
    propose, rounds = auto.propose, [0]

    def switching(plan):
        rounds[0] += 1
        if rounds[0] % 16 == 0:
            until = time.monotonic() + 5
            while auto.mode == "ssd" and ssd.slots and not any(ssd.runner.pages.held) and time.monotonic() < until:
                time.sleep(0.01)  # the lane has its turn
            auto.switch("ssd" if auto.mode == "sd" else "sd")
            assert auto.mode == "sd" or not any(sd.runner.pages.held)
        return propose(plan)

    monkeypatch.setattr(auto, "propose", switching)

    def least():
        """How often the mode that found less went on with what the other left."""
        return min(sum(n > 0 for pages, n in found if pages is part.runner.pages) for part in (sd, ssd))

    begin = time.monotonic()
    while least() < 3 and time.monotonic() - begin < 20:
        assert llm.generate(PROMPTS[:3], params) == wanted
    assert least() >= 3 and len(made) == 1 and ssd.supervisor.failures == 0
    llm.close()


def test_no_memory_for_another_lane_costs_no_request(tiny_folder, tiny_target, plain, monkeypatch, caplog):
    llm = make(tiny_folder, tiny_target, Draft.load(tiny_folder, tiny_target, "bf16"), k=3)
    supervisor = llm.engine.speculator.supervisor

    def start():
        raise MemoryError("none is left")

    supervisor.start = start
    assert answers(llm) == plain
    monkeypatch.setattr(DraftLane, "step", lambda self, *args: 1 / 0)
    assert answers(llm) == plain and supervisor.lane is None
    (warning,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "none is left" in warning.getMessage()


@pytest.mark.parametrize(
    "error", [MemoryError("planted"), torch.OutOfMemoryError("planted"), RuntimeError("can't allocate memory: 9 bytes")]
)
def test_no_memory_to_draft_costs_no_request(error, tiny_folder, tiny_target, plain, monkeypatch):
    draft, forward, calls = Draft.load(tiny_folder, tiny_target, "bf16"), DraftRunner.forward, [0]

    def fails(self, *args):
        calls[0] += 1
        if calls[0] % 5 == 3:
            raise error
        return forward(self, *args)

    monkeypatch.setattr(DraftRunner, "forward", fails)
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, mode="sd", k=3, seed=3, threads=1)
    assert answers(llm) == plain and calls[0] > 20
    assert llm.stats()["mean_accepted_length"] > 1.5

    def wrong(*args):
        raise RuntimeError("planted")

    monkeypatch.setattr(ModelProposer, "propose", wrong)
    with pytest.raises(RuntimeError, match="planted"):  # anything else is a fault of the program
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=9))
