import json
import mmap
import shutil
import weakref
from types import SimpleNamespace

import pytest
import torch

from ssd.distill.teacher import Target
from ssd.kernels.linear import reference
from ssd.model import safetensors_file
from ssd.model import weights as module
from ssd.model.config import LlamaConfig
from ssd.model.safetensors_file import SafetensorsFile, write_safetensors
from ssd.model.weights import load_weights, tensor_shapes

st = pytest.importorskip("safetensors.torch")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "attention_bias": True,
    "mlp_bias": True,
}


def plain(weight, _):
    """Panels of 16 rows in place of a packed weight."""
    return module.pad_rows(weight).unflatten(0, (-1, 16)).clone()


@pytest.fixture
def checkpoint(tmp_path):
    """(folder, configuration, tensors)."""
    torch.manual_seed(0)
    config = LlamaConfig.from_dict(CONFIG)
    tensors = {name: torch.randn(shape) for name, shape in tensor_shapes(config).items()}
    st.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path, config, tensors


def test_fused_weights(checkpoint):
    folder, config, tensors = checkpoint
    w = load_weights(config, folder, plain)
    x = torch.randn(3, 16)
    for i, layer in enumerate(w.layers):
        t = {k.removeprefix(f"model.layers.{i}."): v for k, v in tensors.items() if k.startswith(f"model.layers.{i}.")}
        qkv = [f"self_attn.{p}_proj." for p in "qkv"]
        assert torch.equal(layer.qkv.flatten(0, 1), torch.cat([t[p + "weight"] for p in qkv]))
        assert torch.equal(layer.qkv_bias, torch.cat([t[p + "bias"] for p in qkv]))
        assert torch.equal(layer.attention_norm, t["input_layernorm.weight"])
        gate, up = (x @ t[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))
        inner = reference.linear_swiglu(x, layer.gate_up.flatten(0, 1))  # [3, 32]: 24 and 8 of padding
        torch.testing.assert_close(inner[:, :24], torch.nn.functional.silu(gate) * up)
        assert torch.equal(inner[:, 24:], torch.zeros(3, 8))
        assert torch.equal(layer.down.flatten(0, 1), torch.nn.functional.pad(t["mlp.down_proj.weight"], (0, 8)))
    assert torch.equal(w.lm_head.flatten(0, 1)[:40], tensors["lm_head.weight"])
    assert torch.equal(w.embedding, tensors["model.embed_tokens.weight"]) and w.embedding.dtype == torch.float32


def test_packing_a_few_rows_at_a_time_changes_nothing(checkpoint, monkeypatch):
    folder, config, _ = checkpoint
    whole = load_weights(config, folder, plain)
    monkeypatch.setattr(module, "CHUNK", 1)  # 32 rows, the fewest
    parts = load_weights(config, folder, plain)
    assert torch.equal(whole.lm_head, parts.lm_head)
    for a, b in zip(whole.layers, parts.layers, strict=True):
        assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("qkv", "o", "gate_up", "down"))


def test_gate_and_up_are_packed_in_pieces_as_large_as_any(checkpoint, monkeypatch):
    folder, config, _ = checkpoint
    monkeypatch.setattr(module, "CHUNK", 64 * 16)
    seen = []
    load_weights(config, folder, lambda weight, n: seen.append(weight.numel()) or plain(weight, n))
    assert max(seen) == 64 * 16 and len(seen) == 1 + 4 * 2  # the output matrix, and four products a layer


def test_many_files_and_tied_embeddings(checkpoint):
    folder, config, tensors = checkpoint
    one = load_weights(config, folder, plain)
    names = sorted(tensors)
    files = {f"model-{i + 1:05}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, part in files.items():
        st.save_file({n: tensors[n] for n in part}, folder / file)
    (folder / "model.safetensors").unlink()
    where = {n: file for file, part in files.items() for n in part}
    for step in ("no index", "index"):
        if step == "index":
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        assert torch.equal(load_weights(config, folder, plain).layers[1].gate_up, one.layers[1].gate_up)
    tied = LlamaConfig.from_dict(CONFIG | {"tie_word_embeddings": True})
    assert torch.equal(
        load_weights(tied, folder, plain).lm_head.flatten(0, 1)[:40], tensors["model.embed_tokens.weight"]
    )
    (folder / next(iter(files))).unlink()
    with pytest.raises(ValueError, match="model-00001-of-00002.safetensors is missing, and .*index.json names it"):
        load_weights(config, folder, plain)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../elsewhere"}}))
    with pytest.raises(ValueError, match="weight_map must give the file name"):
        load_weights(config, folder, plain)


def test_the_index_says_which_shard_a_tensor_is_in(checkpoint):
    """A stale copy in another shard stays unread, and without an index two copies are refused."""
    folder, config, tensors = checkpoint
    name, stale = "model.layers.0.self_attn.o_proj.weight", {}
    for number, part in ((1, {name}), (2, tensors.keys() - {name})):
        stale = {name: torch.full_like(tensors[name], 7.0)} if number == 2 else {}
        st.save_file({n: tensors[n] for n in part} | stale, folder / f"model-{number}.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=f"tensor {name} is both in .*model-1.saf.* and in .*model-2.saf"):
        load_weights(config, folder, plain)
    where = {n: f"model-{1 if n == name else 2}.safetensors" for n in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(load_weights(config, folder, plain).layers[0].o.flatten(0, 1), tensors[name])
    where[name] = "model-2.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert (load_weights(config, folder, plain).layers[0].o == 7).all()
    where["model.norm.weight"] = "model-1.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    with pytest.raises(ValueError, match="tensor model.norm.weight is missing in"):
        load_weights(config, folder, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_dtypes(checkpoint, dtype):
    folder, config, tensors = checkpoint
    st.save_file({k: v.to(dtype) for k, v in tensors.items()}, folder / "model.safetensors")
    w = load_weights(config, folder, plain)
    assert torch.equal(w.layers[0].o.flatten(0, 1), tensors["model.layers.0.self_attn.o_proj.weight"].to(dtype).float())


def test_bad_checkpoints_are_named(checkpoint):
    folder, config, tensors = checkpoint
    path, name = folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight"

    def fails(message, **changes):
        if changes:
            st.save_file({k: v for k, v in (tensors | changes["t"]).items() if v is not None}, path)
        with pytest.raises(ValueError, match=message) as e:
            load_weights(config, folder, plain)
        assert "\n" not in str(e.value)

    fails(f"tensor {name} is missing in ", t={name: None})
    fails(rf"tensor {name} in .*: got shape \[24, 15\], wanted \[24, 16\]", t={name: torch.zeros(24, 15)})
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = tensors[name].clone()
        broken[7, 3] = bad
        fails(f"tensor {name} in .* holds NaN or infinite values", t={name: broken})
    huge = torch.full((24, 16), 3e38)
    st.save_file(tensors | {name: huge}, path)
    assert load_weights(config, folder, plain).layers[1].gate_up.max() == huge.max()  # though the sum overflows
    fails(f"tensor {name} in .*: dtype I64, wanted one of F32", t={name: torch.zeros(24, 16, dtype=torch.int64)})
    st.save_file(tensors, path)
    with pytest.raises(ValueError, match="_proj.bias is in .*, but config.json has no place for it"):
        load_weights(LlamaConfig.from_dict(CONFIG | {"attention_bias": False}), folder, plain)
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        fails("model.safetensors is truncated")
    path.write_bytes(whole[:8] + b"x" + whole[9:])
    fails("model.safetensors has a corrupt safetensors header")
    path.unlink()
    fails("no \\*.safetensors in ")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        [],
    ],
)
def test_headers_that_contradict_themselves(tmp_path, entry):
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="corrupt safetensors header"):
        SafetensorsFile(tmp_path / "f")


def test_safetensors_written_and_read(tmp_path):
    tensors = {"a": torch.randn(3, 5), "b.c": torch.randn(7), "none": torch.empty(0, 4)}
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {k: v.shape for k, v in tensors.items()}, (v.numpy() for v in tensors.values()))
    theirs, ours = st.load_file(path), SafetensorsFile(path)
    assert all(torch.equal(theirs[k], v) and torch.equal(ours.read(k), v) for k, v in tensors.items())
    with pytest.raises(ValueError, match=r"tensor a: got shape \[2\], wanted \[3\]"):
        write_safetensors(path, {"a": (3,)}, [torch.zeros(2).numpy()])


def test_reading_leaves_no_mapping(checkpoint):
    folder, config, _ = checkpoint
    maps = "/proc/self/maps"
    if not shutil.os.path.exists(maps):
        pytest.skip("needs /proc")
    w = load_weights(config, folder, plain)
    assert str(folder) not in open(maps).read() and w.layers[0].attention_norm.isfinite().all()


LOADS = (
    lambda folder: load_weights(LlamaConfig.from_dict(CONFIG), folder, plain),
    lambda folder: Target(folder, torch.float32),
)


@pytest.mark.parametrize("load", LOADS)
def test_no_more_than_three_tensors_are_in_memory_twice(checkpoint, monkeypatch, load):
    """The matrices that one product is made of."""
    folder, _, tensors = checkpoint
    (folder / "config.json").write_text(json.dumps(CONFIG))
    mapped, most = weakref.WeakSet(), []

    class Mapping(mmap.mmap):
        def __init__(self, *args, **options):
            mapped.add(self)
            most.append(len(mapped))

    names = {n: getattr(mmap, n) for n in ("ALLOCATIONGRANULARITY", "ACCESS_COPY")}
    monkeypatch.setattr(safetensors_file, "mmap", SimpleNamespace(mmap=Mapping, **names))
    loaded = load(folder)
    assert len(most) >= len(tensors) and max(most) == 3 and loaded
    assert len(mapped) == 0
