"""The whole product on a simulated GPU: its tokens are those of plain decoding there, and whatever one stream writes
and another reads has an event between."""

from functools import partial

import product_runs
import pytest
from product_runs import Case, covering_cases, lanes_of, requests, told

from ssd.kernels import compiling
from ssd.runtime.drafting.draft_runner import DraftRunner
from ssd.runtime.switching import auto, measure

pytest.importorskip("llguidance")
TOKENS = 8
PLAIN = Case("ar", "coupled", "chain", "features", 8, "plain", "ample", "one GPU")


@pytest.fixture(scope="module")
def plain(models):
    return product_runs.PlainAnswers(models)


def check(case, models, plain, simulator, tokens):
    """Run a case: its tokens, and that it did what it is about."""
    numbers = range(8) if case.batch > 1 else (0, 3)
    wanted = [plain.of(case, tokens)[i] for i in numbers]
    asked = [requests(case, tokens)[i] for i in numbers]
    llm = models.llm(case)
    got = told(llm.generate(*zip(*asked, strict=True)))
    llm.close()
    equal = [i for i, (_, params) in enumerate(asked) if case.verify == "coupled" or params.temperature == 0]
    assert equal and [got[i] for i in equal] == [wanted[i] for i in equal]
    assert [len(ids) for ids, *_ in got] == [len(ids) for ids, *_ in wanted]
    assert simulator.faults == []
    stats = llm.stats()
    assert (stats["preemptions"] > 0) == (case.memory == "preemption")
    assert case.memory == "preemption" or (stats["cached_prompt_tokens"] > 0) == (case.memory == "prefix")
    if case.mode == "ar":
        return
    assert sum(llm.metrics.accepted) > 0
    if lanes := lanes_of(llm):
        hits, answers = lanes.counts.hits, stats["recoveries"]["local_retry"]["count"]
        assert hits > 0 if case.mode == "ssd" and case.batch > 1 else hits + answers > 0
        assert lanes.supervisor.failures == 0 and stats["recoveries"]["rollback"]["count"] == 0
    if case.mode == "auto":
        assert stats["mode_switches"] > 0


@pytest.mark.parametrize("case", covering_cases(2), ids=str)
def test_tokens_are_those_of_plain_decoding(case, models, plain, eager, simulator):
    check(case, models, plain, simulator, TOKENS)


@pytest.mark.parametrize("memory, batch, tokens", [("ample", 1, 8), ("preemption", 8, 10), ("prefix", 8, 8)])
def test_plain_decoding_does_not_depend_on_memory_and_batch(memory, batch, tokens, models, plain, simulator):
    check(PLAIN._replace(memory=memory, batch=batch), models, plain, simulator, tokens)


def test_passes_before_the_first_request_and_measured_costs_change_no_token(models, plain, simulator, monkeypatch):
    """What a device that compiles kernels and mode auto do beside serving."""
    forward = DraftRunner.forward

    def within(self, rows, hidden):
        assert all(r.prefix + bits.bit_length() <= self.room for r in rows for bits in r.bits or ())
        return forward(self, rows, hidden)

    monkeypatch.setattr(DraftRunner, "forward", within)
    monkeypatch.setattr(compiling, "watched", True)
    monkeypatch.setattr(measure, "measure", partial(measure.measure, repeats=1))
    monkeypatch.setattr(measure, "PREFIX", 4)
    monkeypatch.setattr(measure, "ROWS", (1, 2, 3))
    case = PLAIN._replace(mode="auto", batch=1)
    llm = models.llm(case, max_model_len=24, prefill_chunk=8, k=1, branches=1)
    launches = simulator.launches
    assert launches > 1000 and isinstance(llm.engine.speculator, auto.AutoMode)
    asked = requests(case, TOKENS)[:2]
    got = told(llm.generate(*zip(*asked, strict=True)))
    llm.close()
    assert got == plain.of(case, TOKENS)[:2] and simulator.faults == [] and simulator.launches > launches


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed, case", [(i % 5 + 1, case) for i, case in enumerate(covering_cases(3))], ids=str)
def test_longer_answers_of_more_layers(case, seed, two_layers, eager, simulator):
    check(case, *two_layers, simulator, 2 * TOKENS)
