"""Converts a GGUF file to another precision: `python -m bench.peers.gguf_file SOURCE Q8_0`.

Matrices are dequantised and stored as Q8_0 or F16; everything else is copied. The file is written beside the source
with the precision in its name. bench.decode itself makes the files that it lacks.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np

from ssd.cli.command import guarded

from . import converted

TYPES = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "F16": gguf.GGMLQuantizationType.F16}
FILE_TYPES = {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "F16": gguf.LlamaFileType.MOSTLY_F16}


def gguf_of(target: Path, precision: str) -> Path:
    """The GGUF file in or beside a model folder that has the precision in its name; else one that is converted from
    another file there and kept in the cache folder. Raises FileNotFoundError if there is no file to convert."""
    own = [target] if target.is_file() else sorted(target.glob("*.gguf"))
    for file in own + sorted(target.parent.glob("*.gguf")):
        if precision.lower() in file.name.lower():
            return file
    if not own or precision not in TYPES:
        raise FileNotFoundError(f"{target}: neither it nor its parent has a GGUF file with {precision} in its name")
    return converted(own[0], f"{precision}.gguf", lambda path: convert(own[0], precision, path))


def convert(source: Path, precision: str, path: Path | None = None) -> Path:
    """Writes the source in another precision, beside it if no path is given, and returns the path. Raises ValueError if
    the precision is neither Q8_0 nor F16."""
    reader = gguf.GGUFReader(source)
    name = source.stem.rsplit(".", 1)[0]
    path = path or source.parent / f"{name}.{precision}.gguf"
    tensors = ((t.name, gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors)
    write(path, precision, reader.fields["general.architecture"].contents(), copied(reader), tensors)
    return path


def copied(reader: gguf.GGUFReader, prefix: str = "") -> list[tuple]:
    """Metadata for `write`: every key that begins with the prefix, except those that the writer adds itself."""
    own = ("GGUF.", "general.architecture", "general.file_type")
    kept = {key: field for key, field in reader.fields.items() if key.startswith(prefix) and not key.startswith(own)}
    return [(k, f.contents(), f.types[0], f.types[-1] if len(f.types) > 1 else None) for k, f in kept.items()]


def write(path: Path, precision: str, architecture: str, metadata: Iterable[tuple], tensors: Iterable[tuple]) -> None:
    """Writes a GGUF file. tensors: (name, float32 values), of which matrices get the precision; metadata: (key, value,
    type, type of the elements or None). Raises ValueError if the precision is neither Q8_0 nor F16."""
    if precision not in TYPES:
        raise ValueError(f"precision: got {precision!r}, wanted {' or '.join(TYPES)}")
    making = path.with_suffix(".part")
    writer = gguf.GGUFWriter(making, architecture)
    for key, value, kind, element in metadata:
        writer.add_key_value(key, value, kind, element)
    writer.add_file_type(FILE_TYPES[precision])
    for name, weight in tensors:
        if weight.ndim < 2:
            writer.add_tensor(name, weight.astype(np.float32))
        else:
            stored = gguf.quants.quantize(weight, TYPES[precision])
            writer.add_tensor(name, stored, raw_dtype=TYPES[precision])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    making.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("precision", choices=list(TYPES), help="precision of the new file's matrices")
    args = parser.parse_args()
    if not args.source.is_file():
        parser.error(f"no such file: {args.source}")
    print(convert(args.source, args.precision))


if __name__ == "__main__":
    sys.exit(guarded(main, ValueError))
