"""Two drafts that take turns: the larger one is used where it pays, and no change costs a token."""

import pytest
from speculation_helpers import answers

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM


@pytest.mark.parametrize("layers", [None, [1, 2]])
def test_the_larger_draft_is_tried_where_the_first_brings_little_and_left_where_it_brings_no_more(
    layers, tiny_folder, tiny_target, plain, tmp_path, monkeypatch
):
    from draft_helpers import write_draft

    from ssd.runtime.switching.backup_draft import BackupDraft

    monkeypatch.setattr(BackupDraft, "WINDOW", 4)
    weak = Draft.load(write_draft(tmp_path / "weak", layers=layers), tiny_target, "bf16")
    strong = Draft.load(write_draft(tmp_path / "strong", layers=[0, 2]), tiny_target, "bf16")
    llm = LLM.from_model(
        tiny_target,
        Tokenizer(tiny_folder),
        draft=weak,
        backup=strong,
        mode="ssd",
        k=3,
        lockstep=True,
        seed=3,
        threads=1,
    )
    both = llm.engine.speculator
    assert both.layers == ((0, 2) if layers is None else (0, 1, 2))
    for _ in range(3):
        assert answers(llm) == plain
    assert both.switched.count and all(part.supervisor.failures == 0 for part in both.parts.values())
    assert (both.mode == "backup") == both.switched.count % 2  # it begins with the draft
    assert llm.stats()["recoveries"]["model_switch"]["count"] == both.switched.count


@pytest.mark.parametrize("seed", range(8))
def test_drafts_that_change_at_any_round_leave_the_lanes_sound(
    seed, tiny_folder, tiny_target, plain, tmp_path, monkeypatch
):
    import random

    from draft_helpers import write_draft

    from ssd.runtime.switching.backup_draft import BackupDraft

    chance = random.Random(seed)

    def decide(self, length):
        if chance.random() < 0.3:
            self.switch("backup" if self.mode == "draft" else "draft")
        self.rounds = self.tokens = 0

    monkeypatch.setattr(BackupDraft, "WINDOW", 1)
    monkeypatch.setattr("ssd.runtime.lanes.retry_value.RetryValue.pays", lambda self: True)
    monkeypatch.setattr(BackupDraft, "_decide", decide)
    weak, strong = (
        Draft.load(write_draft(tmp_path / str(layers), layers=layers), tiny_target, "bf16")
        for layers in ([1, 2], [0, 2])
    )
    options = {"mode": "ssd", "k": 3, "lockstep": True, "seed": 3, "threads": 1}
    llm = LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=weak, backup=strong, **options)
    for _ in range(3):
        assert answers(llm) == plain
    assert [part.supervisor.failures for part in llm.engine.speculator.parts.values()] == [0, 0]


def test_the_larger_draft_stays_while_it_gives_more_tokens_a_second():
    from time import perf_counter
    from types import SimpleNamespace

    from ssd.runtime.switching.backup_draft import BackupDraft

    def window(tokens, length):  # a window of rounds that took a second
        both.rounds, both.tokens, both.began = BackupDraft.WINDOW, tokens, perf_counter() - 1.0
        both._decide(length)
        return both.mode

    parts = [SimpleNamespace(layers=(), pause=lambda: None, trace=None) for _ in range(2)]
    both = BackupDraft(*parts)
    assert window(90, 1.9) == "draft"  # it brings enough
    assert window(60, 1.2) == "backup"
    assert window(100, 2.2) == "backup" and window(100, 2.2) == "backup"
    assert window(20, 1.1) == "draft" and both.rest == BackupDraft.REST
    assert [window(60, 1.2) for _ in range(11)] == ["draft"] * 10 + ["backup"]  # after 512 rounds
    assert both.switched.count == 3
