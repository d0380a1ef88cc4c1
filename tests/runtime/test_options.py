"""Options that could change nothing are refused, others may be swept over modes; what is the default."""

from types import SimpleNamespace

import pytest
import torch

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.runtime.factory import draft_dtype, load_draft, load_drafts
from ssd.runtime.options import EngineOptions, SpeculationOptions
from ssd.shared_options import used


@pytest.mark.parametrize(
    "given,message",
    [
        (dict(mode="auto", draft="ngram", fan_out=2), "fan_out: needs a draft model, which draft ngram does without"),
        (dict(mode="sd", draft="ngram", draft_dtype="int8"), "draft_dtype: needs a draft model"),
        (dict(mode="ssd", draft="ngram", backup_draft="large"), "backup_draft: needs a draft model"),
    ],
)
def test_options_without_an_effect_are_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        SpeculationOptions(**given)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "auto"])
def test_the_same_options_may_be_given_in_every_mode(mode):
    options = SpeculationOptions(mode=mode, draft="d", k=2, branches=8, backup_draft="large", draft_threads=1)
    assert (options.mode, options.outcomes) == (mode, 8)


def test_defaults_may_be_written_out():
    assert SpeculationOptions(mode="ar", verify="coupled", saguaro=1.0, k=None) == SpeculationOptions()
    assert SpeculationOptions(mode="auto", draft="ngram", k=4, tree_width=2).nodes == 8


@pytest.mark.parametrize(
    "given,target,wanted",
    [
        ({}, "cpu", "int8"),
        ({}, "cuda", "bf16"),
        ({"draft_device": "cpu"}, "cuda", "int8"),
        ({"draft_dtype": "fp32"}, "cuda", "fp32"),
        ({"draft_dtype": "int8"}, "cuda:0", "int8"),
    ],
)
def test_the_drafts_weights_by_default(given, target, wanted):
    options = SpeculationOptions(mode="sd", **given)
    assert draft_dtype(options, SimpleNamespace(device=torch.device(target))) == wanted


@pytest.mark.parametrize("load", [load_draft, lambda *args: load_drafts(*args)[1]])
def test_drafts_are_loaded_in_that_format(monkeypatch, tmp_path, load):
    loaded = []
    monkeypatch.setattr(Draft, "load", lambda folder, model, dtype, device: loaded.append(dtype))
    options = SpeculationOptions(mode="ssd", draft=str(tmp_path), backup_draft=str(tmp_path))
    for device in ("cpu", "cuda"):
        load(options, None, SimpleNamespace(device=torch.device(device)))
    assert {tuple(loaded)} <= {("int8", "bf16"), ("int8", "int8", "bf16", "bf16")}


def test_prompt_attention_is_one_of_two():
    with pytest.raises(ValueError, match="^prompt_attention: got 'sdpa', wanted tree or flash$"):
        EngineOptions(prompt_attention="sdpa")
    with pytest.raises(ValueError, match="^prompt_attention: got 'sdpa', wanted tree or flash$"):
        Llama.load("no such folder", prompt_attention="sdpa")


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "auto"])
def test_a_sweep_leaves_out_what_a_mode_does_not_use(mode):
    given = dict(mode=mode, draft="d", k=2, branches=8, threads=3)
    kept = {"ar": {"mode", "threads"}, "sd": {"mode", "draft", "k", "threads"}}.get(mode, given.keys())
    assert used(given).keys() == kept
    SpeculationOptions(**{name: value for name, value in used(given).items() if name != "threads"})
