def kv_copy(k_cache, v_cache, sources, targets):
    moved = (sources >= 0) & (targets >= 0)
    for cache in (k_cache, v_cache):
        slots = cache.flatten(1, 2)  # [layers, slots, kv heads, head_dim]
        slots[:, targets[moved]] = slots[:, sources[moved]].clone()
