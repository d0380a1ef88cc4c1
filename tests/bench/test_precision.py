"""bench.precision on a tiny model."""

import json
import math

import tiny_checkpoint
import torch
from model_helpers import one_request

from bench import precision
from ssd.model import Llama


def test_rows_and_what_they_say(tmp_path):
    target = tiny_checkpoint.write(tmp_path / "target")
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"once upon {i}"}) + "\n" for i in range(3)))
    call = ["--target", target, "--data", tmp_path / "p.jsonl", "--max-tokens", 12, "--json", tmp_path / "f.json"]
    assert precision.main([str(x) for x in (*call, "--precisions", "fp32,q4")]) == 0
    exact, again, q4 = json.loads((tmp_path / "f.json").read_text())["rows"]
    assert (exact["agreement"], exact["same_text"], exact["perplexity_change"]) == (1, 1, 0) and exact["tokens"] <= 36
    assert again == exact
    assert q4["precision"] == "q4" and 0 <= q4["agreement"] <= 1 and q4["perplexity_change"] != 0
    assert q4["perplexity"] == exact["perplexity"] * (1 + q4["perplexity_change"])


@torch.no_grad()
def test_what_a_text_is_worth(tmp_path):
    model = Llama.load(tiny_checkpoint.write(tmp_path / "target"), "fp32")
    ids = [3, 14, 15, 9, 26, 5, 35]
    logits = model.forward(one_request(ids), model.new_kv_cache(1))
    own, lost = precision.read(model, ids, 4)
    assert own == sum(int(logits[i].argmax()) == ids[i + 1] for i in (3, 4, 5))
    wanted = -sum(float(logits[i].log_softmax(-1)[ids[i + 1]]) for i in (0, 1, 2))
    assert math.isclose(lost, wanted, rel_tol=1e-5)
