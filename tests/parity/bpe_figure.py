#!/usr/bin/env python3
"""Records tests/figures/bpe_small.json: a small byte-level BPE vocabulary and the ids of awkward strings.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    tests/parity/bpe_figure.py TEXT > tests/figures/bpe_small.json

The vocabulary is trained by `tokenizers` on TEXT (tinyshakespeare). Its ids are those of `tokenizers` and of
tiktoken, made from the same merges; a string on which the two differ would be left out, and said.
"""
import json
import random
import sys

import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
PARTS = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "'", "'s", "'ll", "'re", "'S", "a", "the", " the", "The", "é", "ß", "中", "文字", "\U0001f600",
         "\u00a0", "\u2003", "\u3000", "\u0085", "1", "23", "٣", "½", "Ⅻ", "!", "?!", "...", "\u200d", "e\u0301", "\x00", "\x1c", "İ", "ǅ",
         "_", "-", "’", "<|endoftext|>", "x" * 70, "ab" * 40, "\u4e2d" * 30, " " * 40, "\U0001d7d9", "\u16ee", "\u1d7a", "\uffff"]


def spellings():
    """GPT-2's characters for the 256 bytes."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([sys.argv[1]], trainers.BpeTrainer(
        vocab_size=640, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    spelled = spellings()
    vocab = tokenizer.get_vocab()
    # tiktoken's ranks are ids: here those of the vocabulary, which trained them in order
    ranks = {bytes(spelled[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    other = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": vocab["<|endoftext|>"]})
    rng = random.Random(2026)
    texts = ["", *PARTS] + ["".join(rng.choice(PARTS) for _ in range(rng.randrange(2, 40))) for _ in range(150)]
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts += ["".join(rng.choice(every) for _ in range(60)) for _ in range(20)]
    tokenizer.encode_special_tokens = True  # the spelling of a special token is ordinary text
    cases = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if ids != other.encode_ordinary(text):
            print(f"left out, as the two differ: {text!r}", file=sys.stderr)
            continue
        cases.append({"utf8_hex": text.encode().hex(), "ids": ids})
    print(json.dumps({"how": "tests/parity/bpe_figure.py; tokenizers 0.23.3 and tiktoken 0.14.0 agree on each",
                      "tokenizer": json.loads(tokenizer.to_str()), "cases": cases}, separators=(",", ":")))


main()
