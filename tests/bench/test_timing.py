"""Times are taken in turn and compared within rounds."""

from bench import timing
from bench.peers import timeline


def test_interleave_takes_turns_and_leaves_the_warm_up_out():
    calls = []
    candidates = {name: lambda turn, name=name: calls.append((turn, name)) for name in "ab"}
    times = timing.interleave(candidates, seconds=0, least=3, warm_up=2)
    assert calls == [(turn, name) for turn in range(5) for name in "ab"]
    assert [len(t) for t in times.values()] == [3, 3]


def test_ratio_is_taken_within_rounds():
    times = {"ours": [1.0, 10.0, 1.0], "theirs": [2.0, 20.0, 4.0]}
    assert timing.ratio(times, "ours", "theirs") == 2.0
    assert timing.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_timeline_counts_what_comes_after_the_first_piece_up_to_the_limit():
    run = timeline(10.0, [(11.0, [1, 2]), (12.0, [3]), (14.0, [4, 5, 6]), (15.0, [7])], limit=5)
    assert run == {"tokens": [1, 2, 3, 4, 5], "prefill_seconds": 1.0, "decode_seconds": 3.0, "decode_tokens": 3}
