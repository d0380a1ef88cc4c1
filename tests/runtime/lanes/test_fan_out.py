"""The outcomes that the draft lane prepares for."""

import json

import pytest

from ssd.runtime.lanes.branch_budget import BranchBudget
from ssd.runtime.lanes.fan_out import DEPTHS, RANKS, FanOut

CHAIN = ([1, 2, 3, 4], [-1, 0, 1, 2])


def test_chances_sum_to_one_over_chains_and_trees():
    for depths, parents in (([], []), CHAIN, ([1, 1, 2, 2, 3], [-1, -1, 0, 0, 3])):
        chances = FanOut().chances(True, depths, parents)
        assert len(chances) == len(parents) + 1 and sum(chances) == pytest.approx(1) and min(chances) >= 0
    a = 0.6
    assert FanOut(acceptance=a).chances(True, *CHAIN) == pytest.approx([(1 - a) * a**k for k in range(4)] + [a**4])


def test_the_budget_goes_where_the_chances_are():
    for budget in (1, 5, 12, 40):
        assert sum(FanOut().allocate(True, *CHAIN, budget)) == budget
    shy, bold = FanOut(acceptance=0.1).allocate(True, *CHAIN, 10), FanOut(acceptance=0.95).allocate(True, *CHAIN, 10)
    assert shy[0] > 5 and shy[4] <= 1 and bold[4] > 3 and bold[4] == max(bold)
    assert FanOut(each=3).allocate(True, *CHAIN, 10) == [3] * 5


def test_theorem_12_with_power_law_hits():
    """F_k is proportional to a^(k / (1 + r)) for k < K (Kumar, Dao, May, arXiv 2603.03251), up to whole numbers."""
    a, r, k = 0.7, 0.6, 3
    fan_out = FanOut(acceptance=a, power=r)
    counts = fan_out.allocate(True, [1, 2, 3], [-1, 0, 1], 24)
    weights = [a ** (i / (1 + r)) for i in range(k)] + [a ** (k / (1 + r)) * (1 - a) ** (-1 / (1 + r))]
    wanted = [(24 + 4) * w / sum(weights) - 1 for w in weights]  # the law counts from rank 1 on
    assert all(abs(c - w) < 1.6 for c, w in zip(counts, wanted, strict=True)), (counts, wanted)


def test_what_happens_is_learnt_and_ranks_come_back():
    fan_out = FanOut()
    for _ in range(300):
        fan_out.update(True, 2, False, 3)  # always refused at depth 2, and the fourth candidate
    counts = fan_out.allocate(True, *CHAIN, 4)
    assert counts[2] == max(counts) and fan_out.tables[1]["hit"][2][3] > 0.99
    assert fan_out.tables[0] == FanOut().tables[0]  # the other table is not touched
    for _ in range(300):
        fan_out.update(True, 0, False, 0)
    assert fan_out.allocate(True, *CHAIN, 2)[0] == 2 or fan_out.tables[1]["accept"][0] < 0.01
    fan_out.update(True, DEPTHS + 5, True, None)  # deeper than the tables


def test_history_is_kept_and_a_broken_one_is_no_history(tmp_path):
    learnt, path = FanOut(), tmp_path / "sub" / "history.json"
    for _ in range(50):
        learnt.update(False, 1, False, 2)
    learnt.write(path)
    assert FanOut.read([tmp_path / "none.json", path]).tables == learnt.tables
    good = json.loads(path.read_text())
    for broken in ("{", "[]", "{}", json.dumps({"tables": good["tables"][:1]}), json.dumps({"tables": [{}, {}]})):
        path.write_text(broken)
        assert FanOut.read([path]).tables == FanOut().tables
    good["tables"][0]["hit"][0][RANKS - 1] = float("nan")
    path.write_text(json.dumps(good))
    assert FanOut.read([path]).tables == FanOut().tables
    learnt.write(tmp_path / "sub" / "history.json" / "below a file.json")  # no place, no error


# --- how much is prepared --------------------------------------------------------------------------------------------


def after(clock, rounds, in_time, accept=(0.9,) * 16):
    for _ in range(rounds):
        clock.tick(in_time, list(accept))
    return clock.outcomes, clock.depth


def test_the_clock_prepares_for_fewer_outcomes_first_then_shorter_branches_and_back():
    clock = BranchBudget(12, 7, adapts=True)
    assert (clock.outcomes, clock.depth) == (12, 4)
    assert after(clock, 1, False) == (9, 4)
    assert after(clock, 6, False) == (3, 4)
    assert after(clock, 40, False) == (3, 2)
    assert after(clock, 18, True) == (12, 2)
    assert after(clock, 80, True) == (12, 7)


def test_branches_grow_no_longer_than_they_are_useful():
    assert after(BranchBudget(12, 7, adapts=True), 80, True, [0.5] * 16) == (12, 3)  # 0.5^4 < 0.1 < 0.5^3
    assert after(BranchBudget(12, 7, adapts=True), 80, True, [0.1] * 16) == (12, 2)
    assert after(BranchBudget(12, 5, adapts=False), 80, True) == (12, 5)
    assert after(BranchBudget(12, 5, adapts=False), 80, False) == (3, 5)
    assert after(BranchBudget(2, 1, adapts=True), 80, True) == (2, 1)
