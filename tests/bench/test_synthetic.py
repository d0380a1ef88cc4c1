"""Random weights whose tokens are known, through LLM."""

import json

import pytest
import torch

from bench import synthetic
from bench.shapes import TINY


@pytest.fixture(scope="module")
def pair():
    return synthetic.Pair(TINY["tiny"], TINY["tiny-draft"], "cpu", prefix=100, tokens=60, acceptance=0.7)


def test_every_mode_gives_the_known_tokens(pair):
    plain, sd, ssd = (pair.row(mode=mode, k=3, branches=24, lockstep=True) for mode in ("ar", "sd", "ssd"))
    assert all(row["right"] and row["tokens"] == 60 and row["rollbacks"] == 0 for row in (plain, sd, ssd))
    assert plain["acceptance_rate"] is None and plain["tokens_per_second"] > 0 and plain["gb_per_s"] > 0
    assert 0.5 < sd["acceptance_rate"] < 0.9  # 0.7 of all tokens, of which these are some
    assert ssd["hit_rate"] > 0.8  # where the draft is wrong, its second choice is right


@pytest.mark.parametrize("acceptance", [1.0, 0.0])
def test_acceptance_is_the_share_that_the_draft_knows(acceptance):
    pair = synthetic.Pair(TINY["tiny"], TINY["tiny-draft"], "cpu", prefix=100, tokens=40, acceptance=acceptance)
    row = pair.row(mode="sd", k=3, branches=24)
    assert row["right"] and abs(row["acceptance_rate"] - acceptance) < 0.2  # a draft of 32 numbers a token errs


def test_wrong_choices_are_right_after_another_token():
    after = synthetic.chain(100)
    tokens, choices = synthetic.wrong_choices(after, 0.6)
    assert sorted(after.tolist()) == list(range(100)) and 20 < len(tokens) < 60
    assert (after[tokens] != choices).all() and sorted(choices.tolist()) == sorted(after[tokens].tolist())


def test_a_wrong_token_is_told(pair, tmp_path, monkeypatch):
    file = tmp_path / "s.json"
    options = ["--target", "tiny", "--draft", "tiny-draft", "--device", "cpu", "--prefix", "50", "--tokens", "20"]
    assert synthetic.main([*options, "--modes", "ar,sd", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["ar", "sd"] and rows[1]["speedup"] > 0
    orders = iter(torch.randperm(256) for _ in range(3))  # target, draft and what is wanted disagree
    monkeypatch.setattr(synthetic, "chain", lambda vocab: next(orders))
    assert synthetic.main([*options, "--modes", "ar"]) == 1


def test_a_mode_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        synthetic.main(["--modes", "fast"])
    assert "--modes: got 'fast', wanted some of ar, sd, ssd, auto" in capsys.readouterr().err
