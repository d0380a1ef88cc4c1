"""Options that could change nothing beside the others are refused."""

import pytest

from ssd.runtime.options import SpeculationOptions
from ssd.shared_options import used


@pytest.mark.parametrize(
    "given,message",
    [
        (dict(k=3), "k: needs a mode that speculates .mode sd, ssd or auto"),
        (dict(mode="sd", branches=8), "branches: needs a draft that runs beside the target .mode ssd or auto"),
        (dict(mode="auto", draft="ngram", fan_out=2), "fan_out: needs a draft model, which draft ngram does without"),
        (dict(mode="sd", draft="ngram", draft_dtype="int8"), "draft_dtype: needs a draft model"),
        (dict(mode="auto", verify="rejection", backup_draft="large"), "backup_draft: needs mode ssd"),
    ],
)
def test_options_without_an_effect_are_refused(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        SpeculationOptions(**given)


def test_defaults_may_be_written_out():
    SpeculationOptions(mode="ar", verify="coupled", saguaro=1.0, k=None)
    SpeculationOptions(mode="auto", draft="ngram", k=4, tree_width=2)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "auto"])
def test_a_sweep_leaves_out_what_a_mode_does_not_use(mode):
    given = dict(mode=mode, draft="d", k=2, branches=8, threads=3)
    kept = {"ar": {"mode", "threads"}, "sd": {"mode", "draft", "k", "threads"}}.get(mode, given.keys())
    assert used(given).keys() == kept
    SpeculationOptions(**{name: value for name, value in used(given).items() if name != "threads"})
