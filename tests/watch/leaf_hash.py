"""Recompute the hash of a leaf's gradient from a checkpoint, and compare it with leaves.bin.

    leaf_hash.py RUN SUFFIX N    SUFFIX: of the moments that are the mean gradient of the run's only step, on
                                 one virtual rank with N micro-batches (a power of two)

It shares no code with lockstep and has its own XXH3-64, as the format's description says (docs/reference/formats.md).
"""
import array
import json
import re
import struct
import sys

BLOCK, PADDED = 4096, 16
MASK = 2**64 - 1
P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1, P64_2, P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P64_4, P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def fold(a, b):
    return (a * b >> 64) ^ (a * b & MASK)


def avalanche(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def mix(data, at, secret, seed):
    return fold(u64(data, at) ^ (u64(SECRET, secret) + seed & MASK), u64(data, at + 8) ^ (u64(SECRET, secret + 8) - seed & MASK))


def short(data, seed):
    """Up to 128 bytes, at least 17."""
    n = len(data)
    acc = n * P64_1
    for i in range((n - 1) // 32, -1, -1):
        acc += mix(data, 16 * i, 32 * i, seed) + mix(data, n - 16 * (i + 1), 32 * i + 16, seed)
    return avalanche(acc & MASK)


def middle(data, seed):
    """Up to 240 bytes."""
    n = len(data)
    acc = avalanche(n * P64_1 + sum(mix(data, 16 * i, 16 * i, seed) for i in range(8)) & MASK)
    acc += sum(mix(data, 16 * i, 16 * (i - 8) + 3, seed) for i in range(8, n // 16)) + mix(data, n - 16, 119, seed)
    return avalanche(acc & MASK)


def long(data, seed):
    n = len(data)
    secret = b"".join(struct.pack("<QQ", u64(SECRET, i) + seed & MASK, u64(SECRET, i + 8) - seed & MASK) for i in range(0, 192, 16))
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]

    def stripe(at, key):
        for i in range(8):
            value = u64(data, at + 8 * i)
            mixed = value ^ u64(secret, key + 8 * i)
            acc[i ^ 1] = acc[i ^ 1] + value & MASK
            acc[i] = acc[i] + (mixed & 0xFFFFFFFF) * (mixed >> 32) & MASK

    for k in range((n - 1) // 64):
        stripe(64 * k, k % 16 * 8)
        if k % 16 == 15:
            for i in range(8):
                acc[i] = (acc[i] ^ acc[i] >> 47 ^ u64(secret, 128 + 8 * i)) * P32_1 & MASK
    stripe(n - 64, 121)
    h = n * P64_1 + sum(fold(acc[i] ^ u64(secret, 11 + 8 * i), acc[i + 1] ^ u64(secret, 19 + 8 * i)) for i in range(0, 8, 2))
    return avalanche(h & MASK)


def xxh3(data, seed):
    return (short if len(data) <= 128 else middle if len(data) <= 240 else long)(data, seed)


def gradients(path, suffix, n):
    """The tensors whose names end in `suffix`, times n, in the file's order: (name, floats)."""
    with open(path, "rb") as f:
        head = f.read(struct.unpack("<Q", f.read(8))[0])
        start = f.tell()
        entries = sorted((e["data_offsets"], name) for name, e in json.loads(head).items() if name.endswith(suffix))
        for (begin, end), name in entries:
            f.seek(start + begin)
            yield name[:-len(suffix)], array.array("f", (x * n for x in array.array("f", f.read(end - begin))))


def backward_order(names):
    """Tensors after the layers, the layers from the last to the first, tensors before the layers."""
    layers = [re.search(r"\.(\d+)\.", name) for name in names]
    first = next(i for i, layer in enumerate(layers) if layer)
    return sorted(range(len(names)), key=lambda i: (-int(layers[i][1]) if layers[i] else 1 if i < first else -10**9, i))


def leaf_hash(tensors):
    total = block = 0
    for i in backward_order([name for name, _ in tensors]):
        values = tensors[i][1]
        values.extend([0.0] * (-len(values) % PADDED))
        for at in range(0, len(values), BLOCK):
            total += xxh3(values[at:at + BLOCK].tobytes(), block)
            block += 1
    return total & MASK


def main():
    run, suffix, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(f"{run}/leaves.bin", "rb") as f:
        magic, first, V, A, size, zero, step, recorded = struct.unpack("<8sQIIIIQQ", f.read())
    assert (magic, first, V, A, size, zero, step) == (b"lks_laf1", 0, 1, n, BLOCK, 0, 0)
    computed = leaf_hash(list(gradients(f"{run}/ckpt-00000001/optimizer.safetensors", suffix, n)))
    print(f"{recorded:016x} recorded, {computed:016x} computed")
    sys.exit(recorded != computed)


if __name__ == "__main__":
    main()
