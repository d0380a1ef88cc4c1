"""The pictures: every line has its name, no name lies on another, nothing is outside of what is shown."""

import pytest

pytest.importorskip("matplotlib")

from bench import plots


def boxes(figure, axis):
    """Where the names of an axis stand, in pixels."""
    figure.canvas.draw()
    return [text.get_window_extent() for text in axis.texts]


def apart(found):
    return all(not a.overlaps(b) for i, a in enumerate(found) for b in found[:i])


def test_names_at_the_ends_of_lines_do_not_overlap():
    rows = [
        {"shape": "a", "cores": cores, "format": name, "rows": n, "microseconds": 1e3 * n + shift}
        for cores in (1, 2)
        for shift, name in enumerate(("fp32", "bf16", "int8", "q4"))
        for n in (1, 8, 64)
    ]
    figure = plots.linear(rows)
    assert len(figure.axes) == 2
    for axis in figure.axes:
        assert [text.get_text() for text in axis.texts] == ["fp32", "bf16", "int8", "q4"]
        assert apart(boxes(figure, axis))
    colours = [{line.get_color() for line in axis.lines} for axis in figure.axes]
    assert colours[0] == colours[1] and len(colours[0]) == 4  # a format has one colour in all panels


def test_hit_rate_shows_few_lines():
    rows = [
        {"workload": w, "verify": v, "temperature": t, "fan_out": f, "tree_width": width, "hit_rate": 0.1 * f}
        for w in ("humaneval", "dialogue")
        for v, temperatures in (("coupled", (0.0, 0.6, 1.0)), ("rejection", (0.6, 1.0)))
        for t in temperatures
        for f in (1, 2, 4)
        for width in (1, 2)
    ]
    figure = plots.hit_rate(rows)
    assert [len(axis.lines) for axis in figure.axes] == [3, 3]  # coupled at 0 and 1, rejection at 1
    assert [axis.get_title() for axis in figure.axes] == ["HumanEval", "dialogue"]
    assert apart(boxes(figure, figure.axes[-1])) and len(figure.axes[-1].texts) == 3


def row(system, mode, speed, workload="code"):
    spread = {"median": speed, "min": 0.9 * speed, "max": 1.1 * speed}
    return {"system": system, "mode": mode, "precision": "bf16", "cores": 2, "workload": workload} | {
        "tokens_per_second": spread, "speed_up": speed / 10
    }  # fmt: skip


def test_decoding_shows_the_fastest_mode_of_each_system_or_all_modes_of_one():
    rows = [row("ssd", "ar", 10), row("ssd", "sd", 20), row("llama_cpp", "ar", 12), row("llama_cpp", "lookup", 9)]
    (axis,) = plots.decode(rows).axes
    assert [text.get_text().split() for text in axis.texts] == [["20", "sd"], ["12"]]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["ssd bf16", "llama.cpp bf16"]
    (axis,) = plots.decode(rows[:2]).axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["plain bf16", "sd bf16"]


def test_speed_up_tells_gains_from_losses_by_side_and_colour():
    (axis,) = plots.speed_up([row("ssd", "sd", 20), row("ssd", "ssd", 8), row("ssd", "ar", 10)]).axes
    gain, loss = axis.patches
    assert gain.get_width() == pytest.approx(1) and loss.get_width() == pytest.approx(-0.2)
    assert gain.get_facecolor() != loss.get_facecolor()


def test_marks_of_a_trace_are_inside_of_the_picture():
    events = [
        {"name": "hit" if i % 2 else "miss", "ph": "i", "tid": 1, "ts": 1e4 * i} for i in range(12)
    ] + [{"name": "pass", "ph": "X", "tid": 2, "ts": 1e4 * i + 10, "dur": 12e3} for i in range(12)]  # fmt: skip
    (axis,) = plots.trace(events).axes
    low, high = axis.get_xlim()
    assert len(axis.texts) == 9 and all(low < text.get_position()[0] < high for text in axis.texts)
    assert all(low < bar.get_x() and bar.get_x() + bar.get_width() < high for bar in axis.patches)
