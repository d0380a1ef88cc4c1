"""python -m ssd.distill on tiny random models: recording, training, resuming, evaluation, refusals."""

import json

import numpy as np
import pytest
import tiny_checkpoint
import torch
from safetensors.torch import load_file

from ssd.distill import __main__ as distill
from ssd.distill import data
from ssd.distill.batches import Data
from ssd.distill.evaluate import best, chains, walk
from ssd.distill.export import load_draft
from ssd.distill.teacher import Target


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A target, and teacher data that the engine recorded."""
    folder = tmp_path_factory.mktemp("distill")
    tiny_checkpoint.write(folder / "target")
    lines = [json.dumps({"task": "abc"[i % 3], "prompt": f"Say {i}"}) for i in range(24)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    call = ["--target", str(folder / "target"), "--cache", str(folder / "cache"), "--threads", "1"]
    record = ["--max-tokens", "12", "--record-batch", "8", "--part", "16", "--dtype", "fp32", "--temperatures", "0,1"]
    assert distill.main([*call, *record, "--record", str(folder / "teacher"), str(folder / "prompts.jsonl")]) == 0
    return folder, call


def train(tiny, out, *more):
    folder, call = tiny
    small = ["--draft-vocab", "200", "--batch-tokens", "256", "--held-out", "0.3", "--depth", "3", "--warmup", "2"]
    return distill.main([*call, *small, "--out", str(out), *more, str(folder / "teacher")])


def test_what_is_recorded_is_what_the_target_says(tiny):
    folder, _ = tiny
    assert sorted(p.name for p in (folder / "teacher").iterdir()) == ["part_0.npz", "part_1.npz"]
    s = data.load_recorded(folder / "teacher" / "part_0.npz")
    assert len(s) == 16 and s.kinds[:4] == ["a", "b", "c", "a"] and s.temperatures[:3] == [0, 1, 0]
    target = Target(folder / "target", torch.float32)
    _, tops = target.read([np.concatenate([p, c]) for p, c in zip(s.prompts, s.completions, strict=True)], True)
    for i, (ids, nlp) in enumerate(tops):
        rows = slice(len(s.prompts[i]) - 1, -1)
        assert (ids[rows] == s.top_ids[i]).mean() > 0.95  # near ties may swap
        assert np.abs(nlp[rows].astype(int) - s.top_nlp[i]).max() <= 2
        if s.temperatures[i] == 0:
            assert (s.completions[i] == s.top_ids[i][:, 0]).all()


def test_a_broken_recording_goes_on(tiny, tmp_path):
    folder, call = tiny
    record = ["--max-tokens", "12", "--record-batch", "8", "--part", "16", "--dtype", "fp32", "--temperatures", "0,1"]
    (tmp_path / "part_0.npz").write_bytes(b"kept")
    assert distill.main([*call, *record, "--record", str(tmp_path), str(folder / "prompts.jsonl")]) == 0
    assert (tmp_path / "part_0.npz").read_bytes() == b"kept"
    a, b = (data.load_recorded(f / "part_1.npz") for f in (tmp_path, folder / "teacher"))
    for x, y in zip(a.completions, b.completions, strict=True):
        assert (x == y).all()


def test_torch_answers_as_the_engine_does(tiny, tmp_path):
    """Both engines record the same greedy answers, and torch's features are those of a pass over the whole text."""
    folder, call = tiny
    record = ["--max-tokens", "12", "--record-batch", "8", "--temperatures", "0", "--feature-layers", "0,2"]
    assert (
        distill.main([*call, *record, "--record", str(tmp_path), "--engine", "torch", str(folder / "prompts.jsonl")])
        == 0
    )
    s, wanted = data.load_recorded(tmp_path / "part_0.npz"), data.load_recorded(folder / "teacher" / "part_0.npz")
    same = [
        len(c) == len(w) and (c == w).all() for c, w in zip(s.completions[:16:2], wanted.completions[::2], strict=False)
    ]
    assert sum(same) >= 6  # bfloat16 against float32
    from ssd.distill.features import path_of, prepare

    target = Target(folder / "target", features=(0, 2))
    assert path_of(folder / "cache", s, target).is_file()
    stored = prepare(s, target, folder / "cache")
    computed = prepare(s, target, tmp_path / "again")
    at = (
        np.cumsum([len(p) + len(c) for p, c in zip(s.prompts, s.completions, strict=True)]) - 1
    )  # the last tokens were never read
    keep = np.setdiff1d(np.arange(len(stored)), at)
    a, b = stored[keep].float(), computed[keep].float()
    assert (a - b).norm() < 0.02 * b.norm()


@pytest.mark.parametrize("kind", [["--feature-layers", "1,2"], ["--feature-layers", "2", "--layers", "0,1"], []])
def test_a_run_that_was_interrupted_ends_in_the_same_bits(tiny, tmp_path, kind):
    more = [*kind, "--steps", "6", "--accumulate", "2", "--own-steps", "2"]
    assert train(tiny, tmp_path / "a", *more, "--evaluate-every", "3") == 0
    for _ in range(3):
        assert train(tiny, tmp_path / "b", *more, "--evaluate-every", "3", "--minutes", "1e-9") == 0
    assert json.loads((tmp_path / "b" / "curve.json").read_text())[-1]["step"] == 3
    assert train(tiny, tmp_path / "b", *more, "--evaluate-every", "3") == 0
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_training_learns(tiny, tmp_path):
    assert (
        train(
            tiny,
            tmp_path,
            "--feature-layers",
            "2",
            "--steps",
            "60",
            "--evaluate-every",
            "60",
            "--learning-rate",
            "1e-2",
        )
        == 0
    )
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert curve[-1]["tokens"] > 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["draft_vocab_size"] == 200 and config["feature_layers"] == [2] and config["vocab_size"] == 272
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["d2t"].dtype == torch.int64 and (tensors["d2t"].diff() > 0).all() and 258 in tensors["d2t"]
    assert tensors["model.layers.0.self_attn.q_proj.weight"].shape == (32, 64)
    assert "fc.weight" not in tensors and "model.embed_tokens.weight" not in tensors


def test_evaluation_by_kind(tiny, tmp_path):
    folder, call = tiny
    assert train(tiny, tmp_path / "d", "--steps", "2", "--hidden-size", "16") == 0
    assert "model.embed_tokens.weight" in load_file(tmp_path / "d" / "model.safetensors")
    json_file = tmp_path / "e.json"
    assert (
        distill.main([*call, "--evaluate", str(tmp_path / "d"), "--json", str(json_file), str(folder / "teacher")]) == 0
    )
    rows = json.loads(json_file.read_text())
    assert {(r["kind"], r["temperature"]) for r in rows} == {(k, t) for k in "abc" for t in (0.0, 1.0)}


def test_text_without_a_teacher(tiny, tmp_path):
    folder, call = tiny
    lines = [json.dumps({"prompt": f"What is {i}?", "completion": f"It is {i} plus one."}) for i in range(12)]
    lines += [json.dumps({"text": f"All of this, {i} times."}) for i in range(12)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    more = [
        "--draft-vocab",
        "200",
        "--held-out",
        "0.3",
        "--steps",
        "1",
        "--feature-layers",
        "1,2",
        "--out",
        str(tmp_path / "d"),
    ]
    for _ in range(2):  # the second time from the cache
        assert distill.main([*call, *more, str(tmp_path / "text.jsonl")]) == 0


def test_chains_and_rounds_by_hand():
    ok = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 1]], dtype=torch.bool)
    sequence = torch.tensor([0, 0, 0, 0, 0])
    taken = chains(ok, sequence)  # for root 0: rows 0 and 1; for root 1: row 1, then row 2 at step 1; and so on
    assert taken.tolist() == [2, 2, 0, 2, -1]
    assert walk(taken, sequence) == (2, 6)
    assert chains(ok, torch.tensor([0, 0, 0, 1, 1])).tolist() == [2, 2, -1, 2, -1]
    assert walk(taken.clamp_max(1), sequence) == (3, 5)
    assert best([1.5, 1.75], 0.1) == (1.75 / 1.2, 2) and best([1.05, 1.1], 0.1) == (1.0, 0)


@pytest.mark.parametrize(
    "more, said",
    [
        (["--feature-layers", "9"], "feature layers"),
        (["--layers", "7"], "layers: got [7]"),
        (["--draft-vocab", "5000"], "draft vocabulary"),
        (["--hidden-size", "64"], "hidden size"),
        (["--steps", "x"], "--steps"),
        (["--threads", "0"], "threads: got 0"),
        (["--depth", "0"], "--depth: got 0, wanted 1 or more"),
        (["--minutes", "-1"], "--minutes: got -1"),
        (["--plot", "nowhere/plot.png"], "--plot"),
        (["--held-out", "0"], "another --held-out"),
        (["--steps", "0"], "steps: got 0, wanted at least 1"),
        (["--learning-rate", "nan"], "learning_rate: got nan, wanted a number above 0"),
        (["--clip", "-1"], "clip: got -1.0, wanted a number above 0"),
        (["--device", "tpu"], "device: got 'tpu', wanted cpu"),
        (["--device", "cuda:99"], "device: got 'cuda:99', but this torch sees"),
        (["nowhere"], "no such file or folder: nowhere"),
    ],
)
def test_bad_input_is_one_sentence(tiny, tmp_path, capsys, more, said):
    assert train(tiny, tmp_path, *more) == 2
    err = capsys.readouterr().err.splitlines()
    assert said in err[-1] and err[-1].startswith("ssd: ")


def test_a_plot_without_matplotlib_is_refused_before_the_work(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ssd.distill.__main__.find_spec", lambda name: None)
    assert train(tiny, tmp_path, "--steps", "1", "--plot", str(tmp_path / "plot.png")) == 2
    assert "ssd: --plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_texts_that_begin_alike_are_held_out_one_by_one():
    texts = [np.array(t) for t in ([5, 6], [5, 7], [5, 6])] + [np.arange(5, 8 + i) for i in range(197)]
    s = data.Sequences(["a"] * 200, [t[:1] for t in texts], [t[1:] for t in texts])
    d = Data()
    d.add(s, None)
    items, held = d.split(0.3)
    assert sorted(items + held) == list(range(200)) and 40 < len(held) < 80 and (0 in held) == (2 in held)


def test_another_run_in_the_folder_is_refused(tiny, tmp_path, capsys):
    assert train(tiny, tmp_path, "--steps", "1") == 0
    assert train(tiny, tmp_path, "--steps", "2") == 2
    assert "begun with another steps" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_broken_teacher_data_is_one_sentence(tiny, tmp_path, capsys, content):
    _, call = tiny
    path = tmp_path / "t.npz"
    if content is None:
        np.savez(path, kind=np.array(["a"]), plen=[2], clen=[2], prompt=[1], comp=[1], top_id=[[1]], top_nlp16=[[1]])
    else:
        path.write_bytes(content)
    assert distill.main([*call, "--out", str(tmp_path / "d"), str(path)]) == 2
    assert "no recorded teacher data" in capsys.readouterr().err


def test_from_another_draft(tiny, tmp_path, capsys):
    """Without training to speak of, the draft that comes out is the one that went in, whether features are rescaled or
    not."""
    kind = ["--feature-layers", "1,2"]
    assert train(tiny, tmp_path / "a", *kind, "--steps", "3") == 0
    still = ["--steps", "1", "--learning-rate", "1e-12", "--weight-decay", "0", "--seed", "5"]
    assert train(tiny, tmp_path / "b", *kind, *still, "--from", str(tmp_path / "a")) == 0
    a, b = (load_file(tmp_path / x / "model.safetensors") for x in "ab")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-2, atol=1e-6)
    assert train(tiny, tmp_path / "c", "--feature-layers", "2", *still, "--from", str(tmp_path / "a")) == 2
    assert "has another feature_layers" in capsys.readouterr().err


def test_from_a_smaller_draft(tiny, tmp_path, capsys):
    """Added layers and a larger vocabulary change nothing of the smaller draft's output until they are trained."""
    folder, _ = tiny
    kind = ["--feature-layers", "1,2"]
    assert train(tiny, tmp_path / "a", *kind, "--steps", "3") == 0
    still = ["--steps", "1", "--learning-rate", "1e-12", "--weight-decay", "0", "--fp32"]
    larger = ["--layers", "1,0", "--draft-vocab", "260"]
    assert train(tiny, tmp_path / "b", *kind, *still, *larger, "--from", str(tmp_path / "a")) == 0
    embedding = torch.randn(Target(folder / "target", torch.float32).embedding.shape)
    a, b = (load_draft(tmp_path / x, embedding, torch.float32) for x in "ab")
    assert b.config.num_layers == 2 and len(b.d2t) == 260
    x = torch.randint(0, len(embedding), (2, 7)), torch.randn(2, 7, 2 * a.config.target_hidden_size)
    for small, large in zip(a(*x, 3), b(*x, 3), strict=True):
        rows = torch.searchsorted(b.d2t, a.d2t)
        torch.testing.assert_close(a.logits(small), b.logits(large)[..., rows], rtol=1e-2, atol=1e-3)
    assert train(tiny, tmp_path / "c", *kind, *still, "--from", str(tmp_path / "b")) == 2
    assert "has another num_hidden_layers, draft_vocab_size" in capsys.readouterr().err
