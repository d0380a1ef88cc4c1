def kv_copy(k_cache, v_cache, sources, targets):
    for cache in (k_cache, v_cache):
        slots = cache.flatten(1, 2)  # [layers, slots, kv heads, head_dim]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            if source >= 0 and target >= 0:
                slots[:, target] = slots[:, source].clone()
