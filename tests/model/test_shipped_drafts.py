"""The drafts that come with the package."""

import pytest
import torch
from safetensors import safe_open

from ssd.distill.config import DraftConfig
from ssd.distill.model import shapes
from ssd.drafts import default_draft

MEBIBYTES = 45


def test_by_the_name_of_the_target():
    folder = default_draft("SmolLM2-135M-Instruct")
    assert (
        folder
        == default_draft("HuggingFaceTB/SmolLM2-135M-Instruct")
        == default_draft("HuggingFaceTB/SmolLM2-135M-Instruct@main")
        == default_draft("/models/SmolLM2-135M-Instruct/")
    )
    assert folder.is_dir() and default_draft("SmolLM2-360M-Instruct") is None and default_draft("") is None

    large = default_draft("HuggingFaceTB/SmolLM2-135M-Instruct@main", "large")
    assert large.is_dir() and large.name == folder.name + "-large"
    assert default_draft("", "large") is None and default_draft("SmolLM2-360M-Instruct", "large") is None


@pytest.mark.parametrize("size", ["", "large"])
def test_a_shipped_draft_is_whole(size):
    folder = default_draft("SmolLM2-135M-Instruct", size)
    assert sum(f.stat().st_size for f in folder.iterdir()) < MEBIBYTES << 20
    assert (folder / "CARD.md").is_file()
    config = DraftConfig.from_folder(folder)
    with safe_open(folder / "model.safetensors", "pt") as f:
        assert {n: tuple(f.get_slice(n).get_shape()) for n in f.keys() if n != "d2t"} == shapes(config)  # noqa: SIM118
        d2t = f.get_tensor("d2t")
        for n in shapes(config):
            assert f.get_tensor(n).isfinite().all(), n
    assert d2t.dtype == torch.int64 and len(d2t) == config.draft_vocab_size
    assert (d2t.diff() > 0).all() and 0 <= d2t[0] and d2t[-1] < config.vocab_size
    eos = config.base["eos_token_id"]
    assert set(eos if isinstance(eos, list) else [eos]) <= set(d2t.tolist())
