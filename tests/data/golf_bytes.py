"""Shards of single bytes by parameter-golf's data script, of made-up documents.

    python3 tests/data/golf_bytes.py SCRIPT FOLDER

writes FOLDER/docs_selected.jsonl, FOLDER/theirs/*.bin and FOLDER/tokenizer.json. Needs NumPy.
"""
import importlib.util
import json
import sys
import types
from pathlib import Path

hub = types.ModuleType("huggingface_hub")  # what the script downloads with: nothing is downloaded here
hub.hf_hub_download = None
errors = types.ModuleType("huggingface_hub.utils")
errors.EntryNotFoundError = KeyError
sys.modules |= {"huggingface_hub": hub, "huggingface_hub.utils": errors}
script, folder = sys.argv[1], Path(sys.argv[2])
spec = importlib.util.spec_from_file_location("golf_data", script)
golf = importlib.util.module_from_spec(spec)
sys.modules["golf_data"] = golf  # dataclasses look their module up
spec.loader.exec_module(golf)

docs = folder / "docs_selected.jsonl"
texts = ["", "\n\n", "\0\r\n", "a\u2581b \U0001f600", "\u00e9" * 300]
texts += [f"Document {i}:\n" + "".join(chr(32 + (i * j * 7 + j) % 90) for j in range(i * 5)) for i in range(40)]
with docs.open("w", encoding="utf-8") as f:
    for i, text in enumerate(texts):
        f.write(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n")
tok = golf.default_pure_byte_tokenizer()
tok.save_json(folder / "tokenizer.json")
what = {"vocab_size": tok.vocab_size, "bos_id": tok.bos_id, "eos_id": tok.eos_id, "encode": tok.encode, "encode_batch": tok.encode_batch}
print(golf.export_shards(docs, what, folder / "theirs", num_val_docs=7, shard_size=1000, docs_total=len(texts)))
