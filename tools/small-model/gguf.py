"""GGUF version 3: as much as one model file needs, writing and reading."""
import struct

import numpy as np

import blocks

U8, I8, U16, I16, U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64, I64, FLOAT64 = range(13)
_SCALAR = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", FLOAT32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", FLOAT64: "<d"}
ALIGNMENT = 32


def _pad(n):
    return -n % ALIGNMENT


def _text(s):
    raw = s.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind, v):
    return _text(v) if kind == STRING else struct.pack(_SCALAR[kind], v)


def write(path, metadata, tensors):
    """metadata: (key, type, value) or (key, (ARRAY, element type), values). tensors: (name, shape slowest first, block type, bytes)."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, kind, value in metadata:
        out += _text(key)
        if isinstance(kind, tuple):
            out += struct.pack("<IIQ", ARRAY, kind[1], len(value)) + b"".join(_value(kind[1], v) for v in value)
        else:
            out += struct.pack("<I", kind) + _value(kind, value)
    offset = 0
    for name, shape, kind, raw in tensors:
        out += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        offset += len(raw) + _pad(len(raw))
    out += bytes(_pad(len(out)))
    for _, _, _, raw in tensors:
        out += raw + bytes(_pad(len(raw)))
    with open(path, "wb") as file:
        file.write(out)
    return len(out)


class File:
    """A GGUF file in memory: `metadata` as (key, type, value) in file order, `tensors` name -> (shape slowest first, type, bytes)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._raw = file.read()
        magic, version, tensor_count, key_count = struct.unpack_from("<4sIQQ", self._raw)
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{path} is not a GGUF file of version 3")
        self._at = 24
        self.metadata = []
        for _ in range(key_count):
            key, kind = self._read(STRING), self._read(U32)
            if kind == ARRAY:
                element, count = self._read(U32), self._read(U64)
                self.metadata.append((key, (ARRAY, element), [self._read(element) for _ in range(count)]))
            else:
                self.metadata.append((key, kind, self._read(kind)))
        infos = []
        for _ in range(tensor_count):
            name, rank = self._read(STRING), self._read(U32)
            shape = [self._read(U64) for _ in range(rank)][::-1]
            infos.append((name, shape, self._read(U32), self._read(U64)))
        data = self._at + _pad(self._at)
        self.tensors = {}
        for name, shape, kind, offset in infos:
            values, size = blocks.SHAPE[kind]
            self.tensors[name] = (shape, kind, self._raw[data + offset:data + offset + int(np.prod(shape)) // values * size])

    def _read(self, kind):
        if kind == STRING:
            n = self._read(U64)
            self._at += n
            return self._raw[self._at - n:self._at].decode("utf-8")
        value = struct.unpack_from(_SCALAR[kind], self._raw, self._at)[0]
        self._at += struct.calcsize(_SCALAR[kind])
        return value

    def get(self, key):
        return next((value for k, _, value in self.metadata if k == key), None)

    def array(self, name):
        shape, kind, raw = self.tensors[name]
        return blocks.dequantise(raw, kind, shape)
