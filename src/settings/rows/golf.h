/* settings/rows/golf.h - the rows of LKS__SETTING_MAP (settings/map.h) for the golf family. */
#pragma once

/* The script's parts of names of control tensors, and the word for "the same as
 * control_tensor_name_patterns". */
#define LKS__GOLF_CONTROL                                                                          \
    "attn_scale,attn_scales,mlp_scale,mlp_scales,resid_mix,resid_mixes,q_gain,skip_weight,"        \
    "skip_weights"
#define LKS__GOLF_AS_CONTROL "control_tensor_name_patterns"

#define LKS__SETTING_ROWS_GOLF(X)                                                                  \
    X(INT, num_kv_heads, 4, INTS(1, 1024), TRAIN | BENCH, SHAPE | GOLF, MODEL_GOLF,                \
      "key and value heads; must divide n_head")                                                   \
    X(INT, mlp_mult, 2, INTS(1, 64), TRAIN | BENCH, SHAPE | GOLF, MODEL_GOLF,                      \
      "width of the MLP, as a multiple of n_embd")                                                 \
    X(BOOL, tie_embeddings, true, ANY, TRAIN | BENCH, SHAPE | GOLF, MODEL_GOLF,                    \
      "use one matrix for embedding and head")                                                     \
    X(FLOAT, rope_base, 10000, OVER_TO(0, 1e12), TRAIN | SAMPLE | EVAL | BENCH | EXPORT,           \
      SHAPE | GOLF, MODEL_GOLF, "base of the rotary frequencies")                                  \
    X(FLOAT, logit_softcap, 30, OVER_TO(0, 1e6), TRAIN | SAMPLE | EVAL | BENCH | EXPORT,           \
      SHAPE | GOLF, MODEL_GOLF, "soft limit c of the logits: c tanh(x / c)")                       \
    X(FLOAT, qk_gain_init, 1.5, FROM_TO(-1e6, 1e6), TRAIN | BENCH, SHAPE | GOLF, MODEL_GOLF,       \
      "initial query gain of every head")                                                          \
    X(FLOAT, tied_embed_init_std, 0.005, FROM_TO(0, 1e6), TRAIN | BENCH, SHAPE | GOLF, MODEL_GOLF, \
      "standard deviation of the tied embedding's initial values")                                 \
    X(INT, train_batch_tokens, 524288, INTS(1, 1LL << 40), TRAIN, RUN | SEGMENT | GOLF,            \
      MODEL_GOLF, "tokens per step; sets batch_size")                                              \
    X(INT, iterations, 20000, INTS(0, 4294967294), TRAIN, FREE | GOLF, MODEL_GOLF,                 \
      "steps of the run (golf does not use max_iters)")                                            \
    X(INT, warmdown_iters, 1200, INTS(0, 4294967294) OR(off), TRAIN, FREE | GOLF, MODEL_GOLF,      \
      "steps at the end over which the learning rates fall to 0; off: none")                       \
    X(INT, warmup_steps, 20, INTS(0, 4294967294), TRAIN, FREE | GOLF, MODEL_GOLF,                  \
      "no effect: the script primes its compiler with these steps and undoes them")                \
    X(FLOAT, max_wallclock_seconds, 600, FROM_TO(0, 1e9) OR(off), TRAIN, FREE | GOLF, MODEL_GOLF,  \
      "golf: training time after which the run stops; the learning rates fall by this time, too; " \
      "off: no limit. For a run of any family, `timeout -s INT 3600 lockstep train ...` stops it " \
      "with a checkpoint")                                                                         \
    X(INT, val_batch_size, 524288, INTS(1, 1LL << 40), TRAIN, FREE | GOLF, MODEL_GOLF,             \
      "tokens that all virtual ranks together evaluate at once")                                   \
    X(INT, eval_stride, 0, INTS(0, 1 << 20) OR(none), TRAIN, FREE | GOLF, MODEL_GOLF,              \
      "--stride of `lockstep eval` for the artifact at the end of the run")                        \
    X(FLOAT, embed_lr, 0.6, FROM_TO(0, 1e6), TRAIN, FREE | GOLF, MODEL_GOLF,                       \
      "learning rate of an embedding that is not tied")                                            \
    X(FLOAT, head_lr, 0.008, FROM_TO(0, 1e6), TRAIN, FREE | GOLF, MODEL_GOLF,                      \
      "learning rate of a head that is not tied")                                                  \
    X(FLOAT, tied_embed_lr, 0.05, FROM_TO(0, 1e6), TRAIN, FREE | GOLF, MODEL_GOLF,                 \
      "learning rate of the tied embedding")                                                       \
    X(FLOAT, matrix_lr, 0.04, FROM_TO(0, 1e6), TRAIN, FREE | GOLF | MUON, MODEL_GOLF,              \
      "learning rate of the layers' matrices; only for the golf family and optimizer=muon")        \
    X(FLOAT, scalar_lr, 0.04, FROM_TO(0, 1e6), TRAIN, FREE | GOLF, MODEL_GOLF,                     \
      "learning rate of vectors, gains and scales")                                                \
    X(FLOAT, muon_momentum, 0.95, FROM_BELOW(0, 1), TRAIN, FREE | GOLF | MUON, MODEL_GOLF,         \
      "Muon's momentum after its warm-up")                                                         \
    X(FLOAT, muon_momentum_warmup_start, 0.85, FROM_BELOW(0, 1), TRAIN, FREE | GOLF | MUON,        \
      MODEL_GOLF, "Muon's momentum at the start")                                                  \
    X(FLOAT, muon_weight_decay, 0, FROM_TO(0, 1e6), TRAIN, FREE | GOLF | MUON, MODEL_GOLF,         \
      "decay of the layers' matrices, multiplied by matrix_lr, before Muon's update")              \
    X(INT, muon_momentum_warmup_steps, 500, INTS(0, 4294967294), TRAIN, FREE | GOLF | MUON,        \
      MODEL_GOLF, "steps of the momentum's warm-up")                                               \
    X(INT, muon_backend_steps, 5, INTS(0, 100), TRAIN, FREE | GOLF | MUON, MODEL_GOLF,             \
      "Newton-Schulz iterations")                                                                  \
    X(FLOAT, adam_eps, 1e-8, OVER_TO(0, 1), TRAIN, FREE | GOLF, MODEL_GOLF, "Adam's epsilon")      \
    X(STR, control_tensor_name_patterns, LKS__GOLF_CONTROL, ANY, TRAIN, RUN | GOLF | LATER,        \
      MODEL_GOLF,                                                                                  \
      "parts of names, separated by commas: Adam with scalar_lr updates the tensors of a layer "   \
      "whose names contain one of them, and Muon every other matrix of a layer; Adam always "      \
      "updates vectors")                                                                           \
    X(STR, int8_keep_float_fp32_name_patterns, LKS__GOLF_AS_CONTROL, ANY, TRAIN, FREE | GOLF,      \
      MODEL_GOLF,                                                                                  \
      "parts of names, for artifacts: a tensor of at most 65,536 elements whose name contains "    \
      "one of them stays float32, every other such tensor becomes float16; by default the parts "  \
      "of control_tensor_name_patterns")                                                           \
    X(STR, tokenizer_path, "", PATH, TRAIN | SAMPLE | EVAL, HOST | GOLF | KEPT, MODEL_GOLF,        \
      "SentencePiece model, or the data script's description of single bytes, for val_bpb and "    \
      "samples; empty: the tokenizer that the data folder's meta.json names (train, eval)")        \
    X(STR, run_id, "", ANY, TRAIN, HOST | GOLF, MODEL_GOLF,                                        \
      "also write the log to logs/RUN_ID.txt, as the script does; empty: only train.log")
