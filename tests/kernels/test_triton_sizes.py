"""Every Triton kernel is lowered at sizes of 1. A number that is 1 becomes a constant of the compiled kernel, which the
interpreter does not imitate, and a kernel that treats it as a tensor compiles at every other size."""

import pytest
import torch

pytest.importorskip("triton")

from bench.kernel_report.triton import compile_launch, floats, ints, longs, lower, meta, recorded  # noqa: E402
from ssd.kernels import cuda  # noqa: E402

FORMS = {form.__name__: form for form in cuda.FORMS}


def attention(requests=3, rows=5, group=3, kv_heads=2, dim=64, pages=40, page=16, words=2, masked=True):
    cache = meta(9, page, kv_heads, dim)
    q = meta(requests * rows, group * kv_heads, dim)
    mask = longs(requests * rows, words) if masked else None
    where = ints(requests, pages), ints(requests), ints(requests + 1)
    FORMS["tree_attention"](q, cache, cache, *where, mask, 0.1, 0.0, True)


def product(rows=5, n=64, k=1024, int8=False, swiglu=False):
    packed = FORMS["pack_linear"](floats(n, k), "int8" if int8 else "bf16")
    if swiglu:
        FORMS["linear_swiglu"](meta(rows, k), packed, n, floats(n))
    else:
        FORMS["linear"](floats(rows, k), packed, n, floats(n), floats(rows, n))


def norm(rows=5, n=64, add=False):
    x, weight = floats(rows, n), meta(n)
    FORMS["add_rms_norm"](x, x, weight, 1e-5) if add else FORMS["rms_norm"](x, weight, 1e-5)


def embedding(rows=5, n=64, vocab=99):
    FORMS["embedding"](longs(rows), meta(vocab, n))


def rope(rows=5, group=3, kv_heads=2, dim=64, page=16):
    cache, table = meta(9, page, kv_heads, dim), floats(70, dim // 2)
    qkv = floats(rows, (group + 2) * kv_heads * dim)
    FORMS["rope_append"](qkv, table, table, ints(rows), longs(rows), cache, cache)


def copy(layers=2, moves=5, kv_heads=2, dim=64, page=16):
    cache = meta(layers, 9, page, kv_heads, dim)
    FORMS["kv_copy"](cache, cache, longs(moves), longs(moves))


def filters(rows):
    return floats(rows), ints(rows), floats(rows), floats(rows), longs(rows), longs(rows)


def sample(rows=5, vocab=9000):
    FORMS["sample"](floats(rows, vocab), *filters(rows), True)


def top_f(rows=5, vocab=9000, f=4, excluded=3, purpose=2, ids=False, exclude=True):
    target_ids = longs(vocab) if ids else None
    excluded = longs(rows, excluded) if exclude else None
    FORMS["top_f"](floats(rows, vocab), *filters(rows), f, excluded, target_ids, purpose)


def verify(requests=3, nodes=6, vocab=9000):
    tree = ints(requests + 1), ints(requests, nodes), meta(requests, nodes, dtype=torch.int8)
    FORMS["verify_coupled"](floats(requests * (nodes + 1), vocab), *tree, *filters(requests), True)


def noise(rows=5, ids=99, purpose=2):
    FORMS["noise_words"](longs(rows), longs(rows), ids, purpose)


CALLS = {  # for each kernel, its sizes that may be 1, and its other variants
    attention: ("requests rows group kv_heads pages page words".split(), [{}, {"masked": False}]),
    product: (["rows", "n", "k"], [{}, {"swiglu": True}, {"int8": True}, {"int8": True, "swiglu": True}]),
    norm: (["rows", "n"], [{}, {"add": True}]),
    embedding: (["rows", "n", "vocab"], [{}]),
    rope: ("rows group kv_heads page".split(), [{}]),
    copy: ("layers moves kv_heads dim page".split(), [{}]),
    sample: (["rows", "vocab"], [{}]),
    top_f: ("rows vocab f excluded purpose".split(), [{}, {"ids": True}, {"exclude": False}]),
    verify: (["requests", "nodes", "vocab"], [{}]),
    noise: (["rows", "ids", "purpose"], [{}]),
}


def launches(call, sizes):
    with recorded() as made:
        call(**sizes)
    assert made, sizes
    return made


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_kernel_lowers_with_any_of_its_sizes_one(call):
    names, variants = CALLS[call]
    for variant in variants:
        small = [name for name in names if not (variant.get("swiglu") and name == "n")]  # gate and up are two matrices
        for ones in ([], *[[name] for name in small], small):
            for launch in launches(call, variant | dict.fromkeys(ones, 1)):
                try:
                    assert lower(launch, 90)
                except Exception as e:  # any kind: the compiler has many errors
                    raise AssertionError(f"{launch.name} with {variant} and 1 of {ones or 'nothing'}: {e}") from e


def test_one_row_of_a_split_product_compiles_to_the_end():
    kinds = set()
    for launch in launches(product, {"rows": 1, "swiglu": True}):
        kinds.add(launch.name)
        assert compile_launch(launch, 80).asm["cubin"]
    assert kinds == {"linear_fwd_kernel", "linear_merge_kernel"}  # K is split


def test_all_operators_of_the_forms_are_here():
    composed = {"llama_forward"}  # of the others
    with pytest.MonkeyPatch.context() as patch:
        called = set()
        for name, form in FORMS.items():
            patch.setitem(FORMS, name, lambda *a, name=name, form=form, **k: called.add(name) or form(*a, **k))
        for call, (_, variants) in CALLS.items():
            for variant in variants:
                launches(call, variant)
    assert called == set(FORMS) - composed
