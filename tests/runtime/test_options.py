"""Options that could change nothing beside an n-gram draft are refused; others may be swept over modes."""

import pytest

from ssd.runtime.options import SpeculationOptions
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


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "auto"])
def test_a_sweep_leaves_out_what_a_mode_does_not_use(mode):
    given = dict(mode=mode, draft="d", k=2, branches=8, threads=3)
    kept = {"ar": {"mode", "threads"}, "sd": {"mode", "draft", "k", "threads"}}.get(mode, given.keys())
    assert used(given).keys() == kept
    SpeculationOptions(**{name: value for name, value in used(given).items() if name != "threads"})
