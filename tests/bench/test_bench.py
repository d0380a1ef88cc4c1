import importlib
import json
import os
import runpy
import sys
from argparse import Namespace

import gguf
import numpy as np
import pytest
import torch

from bench import decode, machine, plots, results, timing
from bench.agreement import agreement
from bench.peers import SYSTEMS, System, gguf_file, timeline
from bench.worker import Worker, WorkerError
from bench.workloads import PROMPTS, read_workloads
from ssd.runtime.engine.trace import Trace

CORE = sorted(os.sched_getaffinity(0))[:1]
FAKE = "tests.helpers.fake_peer:Peer"
ARGS = {"target": "fast", "precision": "bf16", "mode": "ar"}


@pytest.fixture
def bind_threads():
    yield lambda n: torch.ops.ssd.bind_threads([-1] * n)
    torch.ops.ssd.bind_threads([-1] * len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("words", [0, 8, 8 * 5, 8 * 1001])
def test_probe_read_is_the_xor_of_all_words(threads, words, isas, bind_threads):
    x = torch.randint(-(2**62), 2**62, (words,))
    bind_threads(threads)
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        assert torch.ops.ssd.probe_read(x) == int(np.bitwise_xor.reduce(x.numpy()))


def test_probe_fma_counts_the_operations_of_all_threads(bind_threads):
    counts = []
    for threads in (1, 3):
        bind_threads(threads)
        counts.append(torch.ops.ssd.probe_fma(10))
    assert counts[1] == 3 * counts[0] and counts[0] % (2 * 16 * 10) == 0 and counts[0] > 0


def test_probes_name_bad_arguments():
    with pytest.raises(ValueError, match="x: got 4 bytes, wanted a multiple of 64"):
        torch.ops.ssd.probe_read(torch.zeros(1))
    with pytest.raises(ValueError, match="iterations: got 0"):
        torch.ops.ssd.probe_fma(0)


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


def test_worker_keeps_to_its_cores_and_passes_errors_on():
    with Worker(FAKE, CORE, ARGS) as worker:
        cores, places = worker.call("cores")
        assert cores == CORE and places == f"{{{CORE[0]}}}"
        with pytest.raises(WorkerError, match="ValueError: x: got 1, wanted 2"):
            worker.call("fail")
        assert worker.call("generate", ids=[5, 6], max_tokens=3)["tokens"] == [6, 6, 6]
        assert worker.call("peak_memory") > 1 << 20
        with pytest.raises(WorkerError, match="ended with code 3"):
            worker.call("leave")
    with pytest.raises(WorkerError, match="no such model"):
        Worker(FAKE, CORE, ARGS | {"refuse": "no such model"})


def test_decode_measures_who_is_there(monkeypatch, capsys):
    monkeypatch.setitem(SYSTEMS, "fake", System(FAKE, ("ar", "lookup"), ("bf16", "fp32")))
    monkeypatch.setitem(SYSTEMS, "absent", System(FAKE, ("ar",), ("bf16",)))
    wanted = list(decode.configurations(["fake", "absent"], ["ar"], ["ar"], ["bf16"]))
    assert wanted == [("fake", "ar", "bf16"), ("absent", "ar", "bf16")]
    wanted.insert(1, ("fake", "lookup", "bf16"))
    args = Namespace(max_tokens=6, repeats=2, prefill=9)
    workloads = {"one": [[1, 2], [3]], "two": [[4]]}
    options = {"absent": {"refuse": "it is not installed"}}
    found = decode.measure(1, wanted, "slow", options, workloads, args)
    rows = found["rows"]
    assert "absent ar bf16 left out: FileNotFoundError: it is not installed" in capsys.readouterr().err
    assert [(r["system"], r["mode"], r["workload"]) for r in rows] == [
        ("fake", mode, workload) for workload in workloads for mode in ("ar", "lookup")
    ]
    for row in rows:
        rate = row["tokens_per_second"]
        assert row["precision"] == "bf16" and row["cores"] == 1 and row["peak_bytes"] > 1 << 20
        assert 0 < rate["min"] <= rate["median"] <= rate["max"] < 250  # a token takes at least 4 ms
        assert 0.02 <= row["decode_seconds"]["min"] <= row["decode_seconds"]["max"]
        assert 0.024 <= row["total_seconds"]["median"] and 0.004 <= row["prefill_seconds"]["median"]
        assert row["speed_up"] == 1.0 if row["mode"] == "ar" else row["speed_up"] > 0
    pair = {"cores": 1, "precision": "bf16", "a": "fake ar", "b": "fake lookup", "modes": "ar, lookup"}
    assert found["agreement"] == [{**pair, "prompts": 3, "same": 1.0, "same_tokens": 1.0}]
    assert [p["prompt_tokens"] for p in found["prefill"]] == [9, 9] and found["costs"] == []


def test_costs_are_measured_beside_the_runs(monkeypatch):
    monkeypatch.setitem(SYSTEMS, "ssd", System(FAKE, ("ar", "sd"), ("bf16", "fp32")))
    wanted = list(decode.configurations(["ssd"], ["ar", "sd"], [], None))
    found = decode.measure(1, wanted, "slow", {}, {"one": [[1], [2]]}, Namespace(max_tokens=6, repeats=1, prefill=None))
    assert found["costs"] == [
        {"precision": precision, "cores": 1, "workload": "one", "target_together": {"1": step}}
        for precision, step in (("bf16", 0.004), ("fp32", 0.002))
    ]
    assert decode.mean([{"a": {"1": 1.0, "5": 2.0}}, {"a": {"1": 3.0, "5": 2.0}}]) == {"a": {"1": 2.0, "5": 2.0}}


def test_what_fails_its_warm_up_or_needs_a_gpu_is_left_out(monkeypatch, capsys):
    monkeypatch.setitem(SYSTEMS, "fake", System(FAKE, ("ar",), ("bf16",)))
    monkeypatch.setitem(SYSTEMS, "far", System(FAKE, ("ar",), ("bf16",), gpu=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    args = Namespace(max_tokens=6, repeats=1, prefill=None)
    wanted = [("fake", "ar", "bf16"), ("far", "ar", "bf16")]
    found = decode.measure(1, wanted, "slow", {}, {"one": [[]]}, args)  # no prompt: the fake raises
    assert found == {"rows": [], "agreement": [], "prefill": [], "costs": []}
    error = capsys.readouterr().err
    assert "far ar bf16 left out: it needs a GPU" in error and "fake ar bf16 left out: IndexError" in error


def test_agreement_is_by_precision():
    texts = {
        ("a", "ar", "bf16"): [[1, 2, 3, 4], [2, 2]],
        ("b", "ar", "bf16"): [[1, 2, 3, 9], [2, 2]],
        ("b", "ar", "fp32"): [[9], [9]],
    }
    pair = {"precision": "bf16", "a": "a ar", "b": "b ar", "modes": "ar, ar", "prompts": 2}
    assert agreement(texts) == [{**pair, "same": 0.5, "same_tokens": 0.875}]


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
    assert len(axis.patches) == 16  # of eight rounds, a pass of each lane
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


def test_long_prompts_have_the_length_and_differ():
    prompts = decode.long_prompts({"w": [[1, 2, 3], list(range(40))]}, 100)
    assert {len(p) for p in prompts} == {100} and len({tuple(p) for p in prompts}) == len(prompts)


def test_own_prompts_and_broken_files(tmp_path):
    files = sorted(map(str, PROMPTS.glob("*.jsonl")))
    found = read_workloads(files, None)
    assert {w: len(set(p)) for w, p in found.items()} == {"code": 12, "dialogue": 12, "maths": 12}
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    with pytest.raises(ValueError, match="bad.jsonl line 2: "):
        read_workloads([str(bad)], None)
    bad.write_text("\n")
    with pytest.raises(ValueError, match="bad.jsonl: holds no prompt"):
        read_workloads([str(bad)], None)


@pytest.mark.skipif(len(machine.CORES) < 2, reason="wants two cores")
def test_cores_of_the_machine_are_those_of_the_process_where_a_lane_has_bound_its_thread():
    have = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, CORE)
        assert machine.describe()["cores"] == len(have) and machine.cores_of(2) == sorted(have)[:2]
    finally:
        os.sched_setaffinity(0, have)


@pytest.mark.parametrize(
    "command,arguments,message",
    [
        ("exact", "--limit 0", "--limit: got 0, wanted a whole number, at least 1"),
        ("exact", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("hit_rate", "--fan-out x", "--fan-out: got 'x', wanted numbers such as 1,2,4"),
        ("hit_rate", "--temperatures 0,warm", "--temperatures: got '0,warm', wanted numbers such as 0,0.5"),
        ("hit_rate", "--verify foo", "--verify: got 'foo', wanted some of coupled, rejection, saguaro"),
        ("hit_rate", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("precision", "--target /no/such/model", "ssd: no such folder: /no/such/model"),
        ("ngram", "--max-tokens 0", "--max-tokens: got 0"),
        ("roofline", "--cores 99999", "ssd: cores: got 99999"),
        ("linear", "--rows x", "--rows: got 'x'"),
        ("plots", "/no/such/file.json", "ssd: /no/such/file.json: No such file or directory"),
        ("plots", "requirements.txt", "ssd: requirements.txt: holds no results of a benchmark, nor a trace"),
    ],
)
def test_bad_input_of_a_benchmark_is_one_sentence(command, arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [command, *arguments.split()])
    monkeypatch.delitem(sys.modules, f"bench.{command}", raising=False)
    if command == "plots":
        pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"bench.{command}", run_name="__main__")
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_plots_without_matplotlib_are_refused(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        plots.main(["trace.json"])
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, said",
    [
        ("bench.decode --target TINY --data no/such/file", "--data: [Errno 2] No such file"),
        ("bench.decode --target TINY --modes ar,sdd", "--modes: got 'sdd', wanted some of ar, sd, ssd, auto"),
        ("bench.exact --target TINY --modes sdd", "--modes: got 'sdd', wanted some of ar, sd, ssd, auto"),
        ("bench.theory --target TINY --modes sdd", "--modes: got 'sdd', wanted some of "),
        ("bench.ngram --target TINY --data no/such/file", "--data: [Errno 2]"),
        ("bench.peers.gguf_file no/such.gguf Q8_0", "no such file: no/such.gguf"),
    ],
)
def test_refusals(command, said, tiny_folder, monkeypatch, capsys):
    name, *arguments = command.replace("TINY", str(tiny_folder)).split()
    main = importlib.import_module(name).main
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]


def test_results_name_the_machine_but_not_its_owner(tmp_path):
    file = tmp_path / "deep" / "rows.json"
    results.write(str(file), [{"a": 1}], more=2)
    read = json.loads(file.read_text())
    assert read["rows"] == [{"a": 1}] and read["more"] == 2 and read["machine"]["isa"]
    assert os.uname().nodename not in json.dumps(read["machine"])
    assert results.table([{"a": 0.12345, "b": {"c": 2}}, {"a": None}], ["a", "b"]).splitlines() == [
        "| a     | b   |",
        "| ----- | --- |",
        "| 0.123 | c 2 |",
        "|       |     |",
    ]


@pytest.mark.parametrize("precision,bound", [("Q8_0", 0.005), ("F16", 0.0005)])
def test_gguf_file_in_another_precision(tmp_path, precision, bound):
    source = tmp_path / "tiny.Q4_1.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "é"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    weight = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    four_bits = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w", four_bits, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("norm", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    path = gguf_file.convert(source, precision)
    assert path.name == f"tiny.{precision}.gguf"
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(path)
    assert set(before.fields) == set(after.fields)
    assert after.fields["tokenizer.ggml.tokens"].contents() == ["a", "é"]
    w, norm = after.tensors
    assert w.tensor_type.name == precision and norm.tensor_type.name == "F32"
    exact = gguf.quants.dequantize(four_bits, gguf.GGMLQuantizationType.Q4_1)
    assert 0 < np.abs(gguf.quants.dequantize(w.data, w.tensor_type) - exact).max() < bound * np.abs(exact).max()
    with pytest.raises(ValueError, match="precision: got 'Q2_K'"):
        gguf_file.convert(source, "Q2_K")
