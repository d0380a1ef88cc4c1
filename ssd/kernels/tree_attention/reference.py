import torch


def visible_keys(prefix_len, row, mask_row):
    """The logical indices that a row sees, ascending: the prefix, then its mask's set bits (None: slots 0..row)."""
    if mask_row is None:
        return list(range(prefix_len + row + 1))
    words = [int(w) for w in mask_row]
    return list(range(prefix_len)) + [prefix_len + s for s in range(64 * len(words)) if words[s // 64] >> (s % 64) & 1]


def tree_attention(q, k_cache, v_cache, page_table, prefix_lens, row_offsets, mask=None, scale=1.0, softcap=0.0):
    """The output float32 [R, Hq, D] and log-sum-exp of scaled scores [R, Hq]; 0 and -inf for a row that sees no key."""
    rows, num_heads, _ = q.shape
    page_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.full((rows, num_heads), float("-inf"), device=q.device)
    for b in range(len(prefix_lens)):
        first, last = int(row_offsets[b]), int(row_offsets[b + 1])
        for r in range(first, last):
            seen = visible_keys(int(prefix_lens[b]), r - first, None if mask is None else mask[r])
            if not seen:
                continue
            index = torch.tensor(seen, device=q.device)
            where = page_table[b, index // page_size].long(), index % page_size
            k = k_cache[where].float().repeat_interleave(group, 1)  # [keys, Hq, D]
            v = v_cache[where].float().repeat_interleave(group, 1)
            scores = torch.einsum("hd,khd->hk", q[r].float(), k) * scale
            if softcap > 0:
                scores = softcap * torch.tanh(scores / softcap)
            lse[r] = torch.logsumexp(scores, -1)
            out[r] = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), v)
    return out, lse
