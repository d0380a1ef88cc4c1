"""Counts instructions in the machine code of a kernel."""

import re


def instructions(sass: str) -> dict:
    """The names of tensor-core instructions, the number of 128-bit loads from global memory, and the number of narrower
    copies to shared memory, which is how keys, values and weights are loaded."""
    copies = re.findall(r"\bLDGSTS\b\S*", sass)
    return {
        "mma": sorted(set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA|IMMA|QGMMA)[.\w]*)", sass))),
        "wide_loads": len(re.findall(r"\b(?:LDG|LDGSTS)\.\S*128\b", sass)),
        "narrow_copies": sum(".128" not in copy for copy in copies),
    }
