"""Weights on their way to a device, with the CPU in its place, or a device without memory of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_checkpoint
import torch
from draft_helpers import write_draft
from model_helpers import one_request
from safetensors.torch import load_file, save_file

from ssd.distill.teacher import Target
from ssd.model import draft, source
from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.ring import Ring
from ssd.model.source import packing
from ssd.model.weights import load_weights, tensor_shapes

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 200,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


class Later(Ring):
    """A device that copies when somebody waits for it, and not before."""

    def __init__(self, *args, patient=True):
        super().__init__(CPU, *args)
        self.queue, self.waits, self.patient = [], 0, patient

    def _copy(self, target, part):
        self.queue.append((target, part))
        return self

    def synchronize(self):
        self.waits += 1
        if self.patient:
            self.finish()

    def finish(self):
        for target, part in self.queue:
            target.copy_(part)
        self.queue = []


def filler(data: torch.Tensor):
    left, at = data.view(torch.uint8).numpy(), 0

    def fill(part):
        nonlocal at
        part[:] = left[at : at + len(part)]
        at += len(part)

    return fill


def test_a_buffer_is_filled_again_only_after_its_copy():
    tensors = [torch.randn(n) for n in (3, 1000, 64, 4096, 1)]

    def sent(ring):
        found = [ring.send(t.shape, t.dtype, filler(t)) for t in tensors]
        ring.finish()
        return [torch.equal(a, b) for a, b in zip(found, tensors, strict=True)]

    ring = Later(256, 3)
    assert all(sent(ring)) and ring.waits > 50 and ring.sent == sum(t.nbytes for t in tensors)
    assert not all(sent(Later(256, 3, patient=False)))  # the test would find a ring that does not wait


def write(folder, dtype, **changes):
    """A random checkpoint; its tensors."""
    random = torch.Generator().manual_seed(0)
    config = LlamaConfig.from_dict(CONFIG | changes)
    tensors = {n: torch.randn(s, generator=random).to(dtype) for n, s in tensor_shapes(config).items()}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def same(a, b) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bytes_sent_are_bytes_stored_and_the_packed_bits_those_of_the_cpu(tmp_path, dtype, tied):
    tensors = write(tmp_path, dtype, tie_word_embeddings=tied)
    stored = sum(t.nbytes for t in tensors.values())
    config = LlamaConfig.from_folder(tmp_path)
    for format in ("bf16", "int8", "fp32"):
        pack, _ = packing(format)
        plain = load_weights(config, tmp_path, pack, norm_dtype=torch.bfloat16)
        checkpoint = Checkpoint(tmp_path, ring=Ring(CPU, 1000, 3))  # pieces end within rows, not within numbers
        got = load_weights(config, checkpoint, pack, norm_dtype=torch.bfloat16)
        assert checkpoint.ring.sent == stored
        checkpoint.check_values()
        assert same(got.embedding, plain.embedding) and same(got.lm_head, plain.lm_head) and same(got.norm, plain.norm)
        for a, b in zip(got.layers, plain.layers, strict=True):
            assert all(same(*pair) for pair in zip(vars(a).values(), vars(b).values(), strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_value_that_is_no_number_is_named(tmp_path, name, bad):
    tensors = write(tmp_path, torch.bfloat16)
    tensors[name].view(-1)[-1] = bad
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path, ring=Ring(CPU, 4096))
    load_weights(LlamaConfig.from_folder(tmp_path), checkpoint, packing("bf16")[0])
    with pytest.raises(ValueError, match=f"^tensor {name} in .*model.safetensors holds NaN or infinite values$"):
        checkpoint.check_values()
    checkpoint.check_values()  # told once


def test_the_largest_numbers_are_numbers(tmp_path):
    tensors = write(tmp_path, torch.float32)
    tensors["lm_head.weight"][:] = torch.finfo(torch.float32).max
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path, ring=Ring(CPU))
    load_weights(LlamaConfig.from_folder(tmp_path), checkpoint, packing("fp32")[0])
    checkpoint.check_values()


@pytest.fixture
def rings(monkeypatch):
    """Models for the CPU take the way of a device; the rings that they made."""
    made = []

    def ring_to(device):
        made.append(Ring(device, 4096))
        return made[-1]

    for module in ("ssd.model.source", "ssd.model.draft", "ssd.distill.teacher"):
        monkeypatch.setattr(f"{module}.ring_to", ring_to)
    return made


def logits(model):
    return model.forward(one_request(torch.arange(9)), model.new_kv_cache(4))


def test_models_drafts_and_teachers_take_this_way(tmp_path, rings, monkeypatch):
    folder = tiny_checkpoint.write(tmp_path / "target")
    drafts = [write_draft(tmp_path / str(eagle), layers=[0, 2], outputs=40, eagle=eagle) for eagle in (False, True)]

    def load():
        target = Llama.load(folder, "bf16")
        loaded = [Draft.load(d, target) for d in drafts]
        ids = torch.arange(9)[None]
        teacher = Target(folder).forward(ids, ids, None)[0]
        return [logits(target), teacher, *(same_parts(d) for d in loaded)]

    def same_parts(d):
        return torch.cat([d.fc.flatten(), d.hidden_norm, d.weights.lm_head.flatten(), d.weights.embedding.flatten()])

    sent = load()
    assert len(rings) == 4 and all(ring.sent for ring in rings)
    for module in (source, draft):
        monkeypatch.setattr(module, "ring_to", lambda device: None)
    monkeypatch.setattr("ssd.distill.teacher.ring_to", lambda device: None)
    assert all(torch.equal(a, b) for a, b in zip(sent, load(), strict=True))


@pytest.mark.parametrize("name", ["fc.weight", "model.layers.0.hidden_norm.weight"])
def test_what_a_draft_reads_last_is_checked_too(tmp_path, rings, name):
    target = Llama.load(tiny_checkpoint.write(tmp_path / "target"), "bf16")
    file = write_draft(tmp_path / "draft", layers=[0, 2], outputs=40) / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file)
    with pytest.raises(ValueError, match=f"tensor {name} in .* holds NaN"):
        Draft.load(tmp_path / "draft", target)


def test_a_file_that_became_shorter(tmp_path):
    write(tmp_path, torch.bfloat16)
    checkpoint = Checkpoint(tmp_path, ring=Ring(CPU))
    with open(tmp_path / "model.safetensors", "r+b") as f:
        f.truncate(5000)
    with pytest.raises(ValueError, match="model.safetensors became shorter while it was read"):
        load_weights(LlamaConfig.from_folder(tmp_path), checkpoint, packing("bf16")[0])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_gguf_files_go_the_same_way(tmp_path, kind, rings, monkeypatch):
    pytest.importorskip("gguf")
    from gguf import GGMLQuantizationType as Type
    from gguf_helpers import FAMILIES, write_pair

    from ssd.model.gguf import weights

    monkeypatch.setattr(weights, "STEP", 512)
    file, _ = write_pair(tmp_path, Type[kind], FAMILIES["llama, biases"])
    got = Llama.load(file, "int8")
    (ring,) = rings
    size = {"F16": 2, "BF16": 2}.get(kind, 4)  # floats as stored; blocks are dequantised on their way
    shapes = tensor_shapes(got.config).values()
    assert ring.sent == sum(torch.Size(s).numel() * (size if len(s) > 1 else 4) for s in shapes)
    monkeypatch.setattr(source, "ring_to", lambda device: None)
    plain = Llama.load(file, "int8")
    assert all(torch.equal(a, b) for a, b in zip(got.flat, plain.flat, strict=True))
    assert torch.equal(got.weights.embedding, plain.weights.embedding)


PEAK = """
import sys, torch
from ssd.model.checkpoint import Checkpoint
from ssd.model.config import LlamaConfig
from ssd.model.ring import Ring
from ssd.model.source import packing
from ssd.model.weights import load_weights

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

for folder in sys.argv[1:]:
    before = peak()
    checkpoint = Checkpoint(folder, ring=Ring(torch.device("meta")))  # takes no memory, so what grows is the host's
    load_weights(LlamaConfig.from_folder(folder), checkpoint, packing("bf16")[0], torch.bfloat16)
    print(checkpoint.ring.sent, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_the_host_holds_the_buffers_and_nothing_else(tmp_path):
    """A file of more than a gigabyte, all holes; a small one first, for what torch loads at its first operation."""
    large = CONFIG | {"vocab_size": 100_000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4}
    for name, raw in (("small", CONFIG), ("large", large)):
        header, at = {}, 0
        for tensor, shape in tensor_shapes(LlamaConfig.from_dict(raw)).items():
            end = at + 2 * torch.Size(shape).numel()
            header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
            at = end
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(raw))
        with open(folder / "model.safetensors", "wb") as f:
            text = json.dumps(header).encode()
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + at)
    command = [sys.executable, "-c", PEAK, tmp_path / "small", tmp_path / "large"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sent, grew = map(int, out.splitlines()[1].split())
    assert sent == at > 1 << 30
    assert grew < 320 << 20  # four buffers of 64 MB, whatever the model
