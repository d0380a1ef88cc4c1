"""`--device` of a benchmark reaches the target, which the draft follows, and the engine."""

import importlib
import json

import pytest
import torch
from draft_helpers import write_draft

from ssd import LLM
from ssd.model import Llama


class Reached(Exception):
    """Carries the device."""


@pytest.mark.parametrize("name,draft", [("exact", "--drafts"), ("hit_rate", "--draft")])
@pytest.mark.parametrize("stop", ["load", "from_model"])
def test_target_and_engine_get_the_device(name, draft, stop, tiny_folder, tiny_target, tmp_path, monkeypatch):
    def load(source, dtype, device):
        if stop == "load":
            raise Reached(device)
        return tiny_target  # there may be no such GPU

    def from_model(*args, device, **options):
        raise Reached(device)

    monkeypatch.setattr("ssd.runtime.devices.placement.device_of", lambda name, *_: torch.device(name))
    monkeypatch.setattr(Llama, "load", load)
    monkeypatch.setattr(LLM, "from_model", from_model)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "once"}))
    folder = write_draft(tmp_path / "draft", layers=[1, 2])
    options = ["--target", tiny_folder, draft, folder, "--data", tmp_path / "p.jsonl", "--device", "cuda:3"]
    with pytest.raises(Reached, match="cuda:3"):
        importlib.import_module(f"bench.{name}").main([str(x) for x in options])
