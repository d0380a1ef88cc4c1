"""A row's result is a function of its own token, position and visible keys, bitwise, on whole models."""

import pytest
import torch
from model_helpers import one_request, save_tiny

from ssd.model.batch import Batch
from ssd.model.llama import Llama
from ssd.model.source import DTYPES


@pytest.fixture(scope="module", params=[*(("Llama", dtype) for dtype in DTYPES), ("Qwen3", "int8")], ids="-".join)
def model(request, tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny")
    family, dtype = request.param
    sizes = dict(max_position_embeddings=1024, num_attention_heads=6, hidden_size=96, attention_bias=True)
    save_tiny(folder, family=family, **sizes)
    return Llama.load(folder, dtype)


def tokens(n, seed=0):
    return torch.randint(0, 99, (n,), generator=torch.Generator().manual_seed(seed))


def in_chunks(model, ids, size, pages=40):
    kv = model.new_kv_cache(pages)
    return torch.cat([model.forward(one_request(ids[i : i + size], prefix=i), kv) for i in range(0, len(ids), size)])


def test_chunks_of_1_16_and_512_and_threads(model):
    ids = tokens(530)
    wanted = in_chunks(model, ids, 512)
    for threads, size in ((1, 1), (2, 16), (3, 16), (2, 530)):
        torch.ops.ssd.bind_threads([-1] * threads)
        assert torch.equal(in_chunks(model, ids, size), wanted), (threads, size)
    torch.ops.ssd.bind_threads([-1, -1])


def test_one_operator_equals_the_composition(model):
    ids, kv, other = tokens(70), model.new_kv_cache(8), model.new_kv_cache(8)
    kv.k.zero_(), kv.v.zero_(), other.k.zero_(), other.v.zero_()
    for first, last in ((0, 64), (64, 65), (65, 70)):
        batch = one_request(ids[first:last], prefix=first)
        assert torch.equal(model.forward(batch, kv), model.forward_composed(batch, other))
    assert torch.equal(kv.k, other.k) and torch.equal(kv.v, other.v)


def test_a_row_alone_and_among_64_requests(model):
    n, lengths = 64, [1 + 7 * i % 50 for i in range(64)]
    kv = model.new_kv_cache(4 * n)
    alone = []
    for i, length in enumerate(lengths):
        ids = tokens(length + 1, seed=i)
        model.forward(one_request(ids[:-1], first_page=4 * i), kv)
        alone.append(model.forward(one_request(ids[-1:], prefix=length, first_page=4 * i), kv))
    table = torch.arange(4 * n, dtype=torch.int32).view(n, 4)
    prefix = torch.tensor(lengths, dtype=torch.int32)
    batch = Batch(
        ids=torch.stack([tokens(length + 1, seed=i)[-1] for i, length in enumerate(lengths)]),
        positions=prefix,
        slots=table[torch.arange(n), prefix.long() // 16].long() * 16 + prefix % 16,
        row_offsets=torch.arange(n + 1, dtype=torch.int32),
        prefix_lens=prefix,
        page_table=table,
        logit_rows=torch.arange(n),
    )
    assert torch.equal(model.forward(batch, kv), torch.cat(alone))


def test_isas_give_the_same_bits(model, isas):
    ids, results = tokens(40), []
    for isa in isas:
        torch.ops.ssd.set_isa(isa)
        results.append(in_chunks(model, ids, 33))
    assert len(isas) >= 1 and all(torch.equal(r, results[0]) for r in results)
