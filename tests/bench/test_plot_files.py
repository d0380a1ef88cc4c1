"""Plots are written beside results and traces, and refused without matplotlib."""

import json

import pytest

from bench import plots
from ssd.runtime.engine.trace import Trace


def test_picture_of_a_trace(tmp_path):
    pytest.importorskip("matplotlib")
    t = Trace()
    for i in range(12):
        t.span("verify", "forward", t.start + i, t.start + i + 0.9)
        t.span("draft", "pass", t.start + i, t.start + i + 0.3, rows=4)
        t.instant("draft", "publish", depth=1, branches=[4])
        t.instant("verify", "hit" if i % 3 else "miss", accepted=0, next=0)
        t.events[-1]["ts"] = 1e6 * (i + 0.9)
    t.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    axis = plots.trace(events).axes[0]
    assert [text.get_text() for text in axis.texts].count("miss") in (2, 3) and len(axis.texts) == 9
    assert len(axis.patches) == 16  # one pass of each lane in eight rounds
    plots.beside(str(tmp_path / "trace.json"), plots.trace, events)
    assert (tmp_path / "trace.png").stat().st_size > 1000
    assert plots.trace(events[:8]) is None


def test_plots_of_decoding(tmp_path):
    pytest.importorskip("matplotlib")
    counts = {"decode_tokens": 20, "rounds": 10, "decode_passes": 10, "decode_seconds": 0.05}
    counts |= {"decode_draft_seconds": 0.01, "decode_forward_seconds": 0.03, "decode_sample_seconds": 0.001}
    assert plots.spent_on(counts) == pytest.approx({"draft": 1, "target": 3, "verify": 0.1, "rest": 0.9})
    speeds = {"tokens_per_second": {"median": 2.0, "min": 1.0, "max": 3.0}, "speed_up": 1.5}
    names = [("ssd", mode, "bf16") for mode in ("ar", "sd:1", "sd:3")] + [("other", "ar", "fp32")]
    rows = [
        dict(zip(("system", "mode", "precision"), name, strict=True)) | {"cores": c, "workload": w} | speeds
        for name in names
        for c in (1, 2)
        for w in ("code", "maths")
    ]
    for row in rows:
        row |= {"counts": counts} if row["system"] == "ssd" else {}
    for name, draw in plots.DECODE.items():
        plots.beside(str(tmp_path / "decode.json"), draw, rows, name)
        assert (tmp_path / f"decode{name}.png").stat().st_size > 1000
    plain = [r for r in rows if r["system"] == "other"]
    for name in ("_accepted", "_split", "_speed_up"):  # nothing to draw
        plots.beside(str(tmp_path / "plain.json"), plots.DECODE[name], plain, name)
    assert not list(tmp_path.glob("plain*"))


def test_plots_without_matplotlib_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        plots.main(["trace.json"])
    assert "pip install matplotlib" in capsys.readouterr().err
