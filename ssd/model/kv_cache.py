"""The paged KV cache and the allocator of its pages."""

from collections import Counter, OrderedDict

import torch

from . import memory


class KVCache:
    """Keys and values of all layers: k, v [layers, num_pages, page_size, kv_heads, head_dim], not initialised.

    A page holds the same page_size tokens in every layer, so one page table serves them all. On the CPU the cache lies
    on huge pages, since the pages of a request are scattered, and takes no memory before tokens are written.
    Raises ValueError on a size below 1 and MemoryError when the memory is not there.
    """

    def __init__(
        self,
        layers: int,
        num_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        shape = (layers, num_pages, page_size, kv_heads, head_dim)
        for name, size in zip(("layers", "num_pages", "page_size", "kv_heads", "head_dim"), shape, strict=True):
            if size < 1:
                raise ValueError(f"{name}: got {size}, wanted at least 1")
        self.num_pages, self.page_size = num_pages, page_size
        try:
            if torch.device(device).type == "cpu":
                self.k, self.v = memory.empty(shape, dtype), memory.empty(shape, dtype)
            else:
                self.k, self.v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        except (MemoryError, RuntimeError) as e:  # torch has no MemoryError of its own
            gib = 2 * torch.Size(shape).numel() * dtype.itemsize / 2**30
            raise MemoryError(
                f"no memory for a KV cache of {num_pages * page_size} tokens ({gib:.1f} GiB): ask for fewer"
            ) from e

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


class BlockAllocator:
    """Hands out page numbers 0..num_pages-1; a page that several owners share is free when the last one frees it.

    A page may have a name, by which it is found while it holds what it was named for. A free page keeps its name until
    it is handed out again. Nameless pages go first, the one freed last before the others (its memory has been touched
    already), then those with a name, the one that has been free for longest first.
    """

    def __init__(self, num_pages: int):
        if num_pages < 1:
            raise ValueError(f"num_pages: got {num_pages}, wanted at least 1")
        self._free = list(range(num_pages - 1, -1, -1))  # pages without a name
        self._kept: OrderedDict[int, None] = OrderedDict()  # free pages with a name, the first freed first
        self._refs = [0] * num_pages
        self._names: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}

    @property
    def num_pages(self) -> int:
        return len(self._refs)

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._kept)

    def refs(self, page: int) -> int:
        """The number of owners of a page, 0 when it is free. Raises ValueError for a page that does not exist."""
        if not 0 <= page < len(self._refs):
            raise ValueError(f"page: got {page}, wanted one of 0..{len(self._refs) - 1}")
        return self._refs[page]

    def allocate(self, count: int) -> list[int]:
        """Take pages, each with one owner and no name. Raises MemoryError, and takes none, when fewer are free."""
        if count < 0:
            raise ValueError(f"count: got {count}, wanted at least 0")
        if count > self.num_free:
            raise MemoryError(f"got a request for {count} pages, and {self.num_free} are free")
        pages = [self._free.pop() if self._free else self._forget() for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def _forget(self) -> int:
        page, _ = self._kept.popitem(last=False)
        del self._pages[self._names.pop(page)]
        return page

    def name(self, page: int, name: bytes) -> None:
        """Name an owned page, unless it has a name or another page has this one. Raises ValueError for a free page."""
        if self.refs(page) == 0:
            raise ValueError(f"page {page}: is free, wanted a page that has an owner")
        if name not in self._pages and page not in self._names:
            self._names[page], self._pages[name] = name, page

    def find(self, name: bytes) -> int | None:
        """The page of that name, owned or free, or None."""
        return self._pages.get(name)

    def share(self, pages: list[int]) -> None:
        """Add an owner to each page. Raises ValueError, and changes nothing, when one is free and has no name."""
        for page in pages:
            if self.refs(page) == 0 and page not in self._kept:
                raise ValueError(f"page {page}: is free, wanted a page that has an owner or a name")
        for page in pages:
            self._kept.pop(page, None)
            self._refs[page] += 1

    def free(self, pages: list[int]) -> None:
        """Take an owner from each page. Raises ValueError, and changes nothing, on a page with fewer owners."""
        for page, times in Counter(pages).items():
            if self.refs(page) < times:
                raise ValueError(f"page {page}: freed {times} times, but has {self._refs[page]} owners")
        for page in reversed(pages):  # the last page of a sequence is handed out first
            self._refs[page] -= 1
            if self._refs[page] == 0 and page in self._names:
                self._kept[page] = None
            elif self._refs[page] == 0:
                self._free.append(page)
