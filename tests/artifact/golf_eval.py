"""Evaluates a model file of lockstep's by the functions of parameter-golf's train_gpt.py, on the CPU in fp32.

    NUM_LAYERS=… MODEL_DIM=… … python3 tests/artifact/golf_eval.py SCRIPT TOKENIZER DATA_FOLDER FILE [ARTIFACT]

Settings come from the environment, as the script takes them. FILE ends in .pt (the raw model) or is the artifact. It prints
`val_loss:… val_bpb:…`. GOLF_EVAL_STRIDE=64: by the script's eval_val_sliding(), which records have. With ARTIFACT it writes that file from a raw model, as the script does at its end. Needs PyTorch and the sentencepiece package.
"""
import importlib.util
import io
import os
import sys
import warnings
import zlib

import sentencepiece
import torch

warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
script, tokenizer, data, path = sys.argv[1:5]
spec = importlib.util.spec_from_file_location("train_gpt", script)
golf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golf)
args = golf.Hyperparameters()

if path.endswith(".pt"):
    state = torch.load(path, map_location="cpu")
    if len(sys.argv) > 5:
        raw = io.BytesIO()
        torch.save(golf.quantize_state_dict_int8(state)[0], raw)
        with open(sys.argv[5], "wb") as f:
            f.write(zlib.compress(raw.getvalue(), level=9))
else:
    with open(path, "rb") as f:
        saved = torch.load(io.BytesIO(zlib.decompress(f.read())), map_location="cpu")
    with open(path, "rb") as f:
        assert torch.load(io.BytesIO(zlib.decompress(f.read())), weights_only=False)["quantized"].keys() == saved["quantized"].keys()
    state = golf.dequantize_state_dict_int8(saved)

model = golf.GPT(
    vocab_size=args.vocab_size, num_layers=args.num_layers, model_dim=args.model_dim, num_heads=args.num_heads,
    num_kv_heads=args.num_kv_heads, mlp_mult=args.mlp_mult, tie_embeddings=args.tie_embeddings,
    tied_embed_init_std=args.tied_embed_init_std, logit_softcap=args.logit_softcap, rope_base=args.rope_base,
    qk_gain_init=args.qk_gain_init,
).float()
model.load_state_dict(state, strict=True)
sp = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
luts = golf.build_sentencepiece_luts(sp, args.vocab_size, torch.device("cpu"))
tokens = golf.load_validation_tokens(f"{data}/fineweb_val_*.bin", args.train_seq_len)
if "GOLF_EVAL_STRIDE" in os.environ:
    loss, bpb = golf.eval_val_sliding(args, model, 0, 1, torch.device("cpu"), tokens, *luts, stride=int(os.environ["GOLF_EVAL_STRIDE"]))
else:
    loss, bpb = golf.eval_val(args, model, 0, 1, torch.device("cpu"), 8, tokens, *luts)
print(f"val_loss:{loss:.8f} val_bpb:{bpb:.8f}")
