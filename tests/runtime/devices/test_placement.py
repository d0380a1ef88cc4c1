"""The devices of lanes. Tensors that refuse to meet others, as those of a GPU do, stand in for a device; with a GPU the
same tests run on it."""

import pytest
import torch
from speculation_helpers import answers, load

from ssd.model.draft import Draft
from ssd.model.llama import Llama
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM
from ssd.runtime.devices import placement as devices
from ssd.runtime.devices.placement import Placement, device_of


class There(torch.Tensor):
    """A tensor on another device: it meets only tensors of its own kind and single numbers, and its values are
    hidden."""

    SEEN = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item, torch.Tensor.__iter__}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in cls.SEEN:
            raise RuntimeError(f"{func.__name__} of a tensor that is elsewhere")
        for t in tensors((args, kwargs or {})):
            if type(t) is torch.Tensor and t.dim():
                raise RuntimeError(f"{func}: tensors here and elsewhere")
        return super().__torch_function__(func, types, args, kwargs or {})


def tensors(x):
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from tensors(y)
    elif isinstance(x, dict):
        yield from tensors(list(x.values()))


class Elsewhere(Placement):
    """A Placement by which tests see that the runtime entered the device and its stream before it computed."""

    def __init__(self, device="cpu", cores=None):
        super().__init__(device, cores)
        self.remote, self.queued = True, 0

    def enter(self):
        pass

    def stream(self):
        place = self

        class Context:
            def __enter__(self):
                place.queued += 1

            def __exit__(self, *error):
                place.queued -= 1

        return Context()

    def put(self, *given):
        assert not any(isinstance(t, There) for t in given)
        return tuple(None if t is None else t.clone().as_subclass(There) for t in given)

    def get(self, *given):
        assert all(isinstance(t, There) for t in given) and self.queued > 0
        return tuple(t.clone().as_subclass(torch.Tensor) for t in given)


def elsewhere(model):
    """The same model with its tensors on that device."""
    for name in ("embedding", "norm", "lm_head"):
        setattr(model.weights, name, getattr(model.weights, name).as_subclass(There))
    for layer in model.weights.layers:
        for name, t in vars(layer).items():
            setattr(layer, name, None if t is None else t.as_subclass(There))
    for name in ("cos", "sin", "hidden_norm", "fc", "ids"):
        if getattr(model, name, None) is not None:
            setattr(model, name, getattr(model, name).as_subclass(There))
    model.flat = [t.as_subclass(There) for t in model.flat]
    new = model.new_kv_cache

    def new_kv_cache(*args):
        kv = new(*args)
        kv.k, kv.v = kv.k.as_subclass(There), kv.v.as_subclass(There)
        return kv

    model.new_kv_cache = new_kv_cache
    return model


def test_tensors_that_play_a_device_refuse_what_a_gpu_refuses():
    here, there = torch.ones(3), torch.ones(3).as_subclass(There)
    assert isinstance(there * 2 + there, There)
    for wrong in (lambda: there + here, lambda: there.tolist(), lambda: torch.cat([here, there])):
        with pytest.raises(RuntimeError, match="elsewhere"):
            wrong()
    with pytest.raises(RuntimeError, match="elsewhere"):
        torch.ops.ssd.rms_norm(torch.ones(2, 3), there, 1e-5)


@pytest.mark.parametrize("draft_too", [True, False], ids=["both", "target"])
@pytest.mark.parametrize("mode", ["ar", "sd", "ssd", "lockstep", "auto"])
@pytest.mark.parametrize("kind", ["itself", "features"])
def test_tokens_are_the_same_elsewhere(kind, mode, draft_too, tiny_folder, tiny_target, tmp_path, monkeypatch):
    plain = answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), seed=3, threads=1))
    draft = load(kind, tiny_folder, tmp_path, tiny_target, "bf16")
    target = elsewhere(Llama.load(tiny_folder, "bf16"))
    if draft_too:
        elsewhere(draft)

    monkeypatch.setattr("ssd.runtime.llm.placement_of", lambda model, cores: Elsewhere(cores=cores))
    monkeypatch.setattr(
        "ssd.runtime.factory.placement_of",
        lambda model, cores=None: Elsewhere() if draft_too else Placement("cpu", cores),
    )
    monkeypatch.setattr(
        "ssd.runtime.switching.measure.placement_of",
        lambda model: Elsewhere() if isinstance(model.cos, There) else Placement("cpu"),
    )
    how = {"mode": "ssd", "lockstep": True} if mode == "lockstep" else {"mode": mode}
    llm = LLM.from_model(target, Tokenizer(tiny_folder), draft=draft, seed=3, **how)
    for _ in range(2):
        assert answers(llm) == plain
    if mode in ("ssd", "lockstep"):
        assert llm.engine.speculator.supervisor.failures == 0
    if mode == "lockstep" and kind == "itself":
        assert llm.engine.speculator.counts.hits > 4 * llm.engine.speculator.counts.misses
    llm.close()


def test_rejection_is_the_same_elsewhere(tiny_folder, tiny_target, tmp_path, monkeypatch):
    draft = load("independent", tiny_folder, tmp_path, tiny_target, "bf16")
    options = {"mode": "sd", "k": 3, "seed": 3, "verify": "rejection", "threads": 1}
    here = answers(LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **options))
    monkeypatch.setattr("ssd.runtime.llm.placement_of", lambda model, cores: Elsewhere(cores=cores))
    monkeypatch.setattr("ssd.runtime.factory.placement_of", lambda model, cores=None: Elsewhere())
    target = elsewhere(Llama.load(tiny_folder, "bf16"))
    assert answers(LLM.from_model(target, Tokenizer(tiny_folder), draft=elsewhere(draft), **options)) == here


def test_devices_are_named_or_refused():
    assert device_of("cpu").type == "cpu"
    for name in ("gpu", "meta", "cuda:99", ""):
        with pytest.raises(ValueError, match="^device: got "):
            device_of(name)
    with pytest.raises(ValueError, match="^draft_device: got 'tpu'"):
        LLM(mode="sd", draft_device="tpu")


@pytest.mark.gpu
@pytest.mark.parametrize("draft_device", ["cuda", "cpu"])
@pytest.mark.parametrize("mode", ["sd", "ssd", "auto"])
@pytest.mark.parametrize("kind", ["itself", "features"])
def test_speculation_changes_nothing_on_a_gpu(kind, mode, draft_device, tiny_folder, tmp_path):
    """Both lanes run on streams of one GPU, or the target on a GPU and the draft on cores. The drafts are chains, for
    which alone tensor cores guarantee exactness."""
    target = Llama.load(tiny_folder, "bf16", device="cuda")
    plain = answers(LLM.from_model(target, Tokenizer(tiny_folder), seed=3))
    folder = load(kind, tiny_folder, tmp_path, target, "bf16").folder
    draft = Draft.load(folder, target, "bf16", draft_device)
    llm = LLM.from_model(target, Tokenizer(tiny_folder), draft=draft, mode=mode, seed=3, tree_width=1)
    for _ in range(2):
        assert answers(llm) == plain
    assert mode != "ssd" or llm.engine.speculator.supervisor.failures == 0
    llm.close()


@pytest.mark.gpu
def test_one_transfer_carries_all_and_back():
    given = [torch.arange(5, dtype=torch.int32), None, torch.randn(3, 7), torch.zeros(0, dtype=torch.int64)]
    place = Placement("cuda")
    with place.stream():
        there = place.put(*given)
        assert there[1] is None and all(t.is_cuda for t in there if t is not None)
        back = place.get(*(t for t in there if t is not None))
    assert all(torch.equal(a, b) for a, b in zip(back, [t for t in given if t is not None], strict=True))
    assert devices.CPU.put(*given)[0] is given[0]
