/* parameter-golf's environment: every command reads it, and what means nothing to a run is named.
 */
#include "support.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "settings/family.h"
#include "settings/settings.h"

/* `cd DIR && VARIABLES lockstep ARGUMENTS` */
static lks_test_result in(const char *dir, const char *variables, const char *arguments)
{
    const char *text = lks_test_text("cd '%s' && exec env %s '%s' %s", dir, variables,
                                     lks_test_program(), arguments);
    return lks_test_shell(text);
}

static void expect(lks_test_result r, int code, const char *out, const char *err)
{
    assert_exits(code, r);
    assert_contains(r.out, out);
    assert_contains(r.err, err);
}

#define SMALL                                                                                      \
    "NUM_LAYERS=2 MODEL_DIM=32 NUM_HEADS=2 NUM_KV_HEADS=1 TRAIN_SEQ_LEN=32 "                       \
    "TRAIN_BATCH_TOKENS=512 VAL_BATCH_SIZE=4096 ITERATIONS=3 MAX_WALLCLOCK_SECONDS=0 "             \
    "DATA_PATH=data "

static const char *new_folder(void)
{
    const char *dir = lks_test_folder();
    assert_int_equal(mkdir(lks_test_text("%s/data", dir), 0755), 0);
    lks_test_generated_golf(lks_test_text("%s/data", dir));
    return dir;
}

/* A setting on the command line that the run's family doesn't use is refused, with the one to use.
 */
TEST(test_no_effect)
{
    const char *dir = new_folder();
    expect(in(dir, SMALL, "train --family=golf --out_dir=run"), 0, "", "");
    expect(in(dir, "A=", "resume run --max_iters=5"), 2, "",
           "--max_iters has no effect in a run with family=golf: use --iterations");
    /* found before ranks start: none of them has crashed */
    const lks_test_result two = in(dir, "A=", "resume run --max_iters=5 --nproc_per_node=2");
    expect(two, 2, "", "lockstep train: --max_iters has no effect in a run with family=golf");
    assert_null(strstr(two.err, "exited with code"));
    expect(in(dir, SMALL, "train --family=golf --learning_rate=0.1"), 2, "",
           "--learning_rate has no effect in a run with family=golf: use --matrix_lr");
    expect(in(dir, SMALL, "train --family=golf --train_batch_tokens=4"), 2, "",
           "train_batch_tokens=4 over 8 micro-batches is 0 tokens each, no multiple of");
    expect(in(dir, SMALL, "train --family=golf --dropout=0.1"), 2, "",
           "--dropout has no effect in a run with family=golf: leave it out");
    expect(in(dir, SMALL, "train --family=golf --gelu=tanh"), 2, "",
           "--gelu has no effect in a run with family=golf: leave it out");
    expect(in(dir, SMALL, "train --family=golf --drop_last"), 2, "",
           "--drop_last has no effect with sampler=stream: leave it out, or give --sampler=epoch");
    static const char *const unused[][2] = {
        {"--optimizer=adamw --muon_momentum=0.9", "--muon_momentum has no effect with "
                                                  "optimizer=adamw: leave it out, or give "
                                                  "--optimizer=muon"},
        {"--optimizer=sgd --adam_eps=1e-7", "--adam_eps has no effect with optimizer=sgd: leave it "
                                            "out, or give --optimizer=adamw"},
        {"--optimizer=sgd --beta2=0.9", "--beta2 has no effect with optimizer=sgd"},
        {"--on_nan_limit=3", "--on_nan_limit has no effect with on_nan=stop: leave it out, or give "
                             "--on_nan=skip"},
        {"--keep=all --keep_every=3", "--keep_every has no effect with keep=all: leave it out, or "
                                      "give --keep=N"},
        {"--exec_timeout=3", "--exec_timeout has no effect without exec_on: leave it out, or give "
                             "--exec_on=EVENT:COMMAND"},
    };
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        expect(in(dir, SMALL, lks_test_text("train --family=golf %s", unused[i][0])), 2, "",
               unused[i][1]);
    expect(in(dir, SMALL, "train --family=golf --dry_run --optimizer=adamw --matrix_lr=0.1"), 0, "",
           "");
    static const char *const gpt2[][2] = {
        {"--run_id=a", "--run_id has no effect in a run with family=gpt2: leave it out"},
        {"--code=a", "--code has no effect in a run with family=gpt2: leave it out"},
        {"--matrix_lr=0.1", "--matrix_lr has no effect with optimizer=adamw: leave it out, or give "
                            "--optimizer=muon"},
    };
    for (size_t i = 0; i < sizeof gpt2 / sizeof gpt2[0]; i++)
        expect(in(dir, "A=", lks_test_text("train --dataset=data %s", gpt2[i][0])), 2, "",
               gpt2[i][1]);
    expect(in(dir, "A=", "resume run --on_nan_limit=3"), 2, "",
           "--on_nan_limit has no effect with on_nan=stop");
    expect(in(dir, "A=", "train --dataset=data --family=gpt2 --iterations=5"), 2, "",
           "--iterations has no effect in a run with family=gpt2: use --max_iters");
    expect(in(dir, "A=", "resume run --iterations=5"), 0, "step:5/5 ", "");
    /* A killed run's part of an artifact doesn't stay. */
    const char *part = lks_test_text("%s/run/final_model.int8.ptz.tmp-1", dir);
    lks_test_write_text(part, "x");
    expect(in(dir, "A=", "resume run --iterations=6"), 0, "step:6/6 ", "");
    assert_false(lks_test_exists(part));
    /* a file may be for several families */
    lks_test_write(lks_test_text("%s/both.conf", dir), "max_iters = 5\n", 14);
    expect(in(dir, SMALL, "train both.conf --family=golf --out_dir=both"), 0, "step:3/3 ", "");
}

/* The family's own defaults are the script's, and the log has its lines and its file. */
TEST(test_run)
{
    const char *dir = new_folder();
    expect(in(dir, "DATA_PATH=data", "train --family=golf --dry_run"), 0,
           "8 micro-batches of 64 x 1024 tokens on 8 virtual ranks", "");
    expect(in(dir, "DATA_PATH=data GRAD_ACCUM_STEPS=4 TRAIN_MAX_SEQ_LEN=512",
              "train --family=golf --dry_run"),
           0, "4 micro-batches of 256 x 512 tokens on 4 virtual ranks", "");
    expect(in(dir, "DATA_PATH=data TRAIN_SEQ_LEN=256 TRAIN_MAX_SEQ_LEN=512",
              "train --family=golf --dry_run"),
           0, "8 micro-batches of 256 x 256 tokens", "");
    expect(
        in(dir, SMALL "OUT_DIR=mlx MIN_LR=0.25 EVAL_STRIDE=4 MUON_WD=0.04", "train --family=golf"),
        0, "mlx/train.log\n", "");
    const json_t *mlx =
        lks_test_member(lks_test_record(lks_test_text("%s/mlx", dir), "config"), "0");
    assert_near(lks_test_number(mlx, "min_lr"), 0.25, 0);
    assert_near(lks_test_number(mlx, "muon_weight_decay"), 0.04, 0);
    assert_int_equal(lks_test_number(mlx, "eval_stride"), 4);
    const json_t *artifact =
        lks_test_member(lks_test_record(lks_test_text("%s/mlx", dir), "artifact"), "0");
    expect(in(dir, "A=", "eval --artifact=mlx/final_model.int8.ptz --dataset=data --stride=4"), 0,
           lks_test_text("val loss %.8f over", lks_test_number(artifact, "val_loss")), "");
    expect(in(dir, "A=", "eval --artifact=mlx/final_model.int8.ptz --dataset=data --rope_base=5e3"),
           2, "", "rope_base=5000 was given, but the model has rope_base=10000: leave it out");
    expect(in(dir, SMALL "RUN_ID=mine SCALAR_LR=1e-5 EVAL_STRIDE=32", "train --family=golf"), 0,
           "logs/mine.txt\n", "");
    const char *log = lks_test_read(lks_test_text("%s/logs/mine.txt", dir), NULL);
    assert_string_equal(log, lks_test_read(lks_test_text("%s/out/train.log", dir), NULL));
    assert_contains(log,
                    "\nworld_size:1 grad_accum_steps:8\n"
                    "sdp_backends:cudnn=False flash=True mem_efficient=False math=False\n"
                    "attention_mode:gqa num_heads:2 num_kv_heads:1\n",
                    " scalar_lr:1e-05\n", "\nseed:1337\nwarmup_step:0/20\n", "\nstep:3/3 ");
    /* A run that goes on brings its family: its variables count, though nobody names it. */
    lks_test_result r = in(dir, "ITERATIONS=5 WARMUP_STEPS=0", "train --init_from=resume");
    expect(r, 0, "\nstep:5/5 ", "");
    assert_null(strstr(r.out, "warmup_step:"));
    assert_null(strstr(r.err, "not used here"));
    expect(in(dir, "MODEL_DIM=64", "train --init_from=resume"), 2, "",
           "MODEL_DIM=64 was given in the environment, but the run in out/ckpt-00000005 has "
           "MODEL_DIM=32");
    expect(in(dir, "A=", "train --init_from=resume --model_dim=64"), 2, "",
           "model_dim=64 was given, but the run in out/ckpt-00000005 has model_dim=32");
    expect(in(dir, "DATA_PATH=data", "eval"), 0, "val loss ", "");
    /* Which tensors Adam updates is part of the run; what an artifact keeps may change. */
    expect(in(dir, "CONTROL_TENSOR_NAME_PATTERNS=c_q", "train --init_from=resume"), 2, "",
           "CONTROL_TENSOR_NAME_PATTERNS=c_q was given in the environment, but the run in "
           "out/ckpt-00000005 has "
           "CONTROL_TENSOR_NAME_PATTERNS=attn_scale,");
    expect(in(dir,
              SMALL "CONTROL_TENSOR_NAME_PATTERNS=c_q,oops, INT8_KEEP_FLOAT_FP32_NAME_PATTERNS=",
              "train --family=golf --out_dir=parts"),
           0, "\nstep:3/3 ", "warning: no tensor's name contains \"oops\" of");
    const json_t *config =
        lks_test_member(lks_test_record(lks_test_text("%s/parts", dir), "config"), "0");
    assert_string_equal(lks_test_string(config, "control_tensor_name_patterns"), "c_q,oops,");
    assert_string_equal(lks_test_string(config, "int8_keep_float_fp32_name_patterns"), "");
    /* A value without effect in a file is no mistake, nor is it one in an audit of that run. */
    lks_test_write(lks_test_text("%s/limit.conf", dir), "on_nan_limit = 3\n", 17);
    expect(in(dir, "A=", "resume parts limit.conf --iterations=5"), 0, "\nstep:5/5 ", "");
    expect(in(dir, "A=", "audit parts --step=4"), 0, "", "");
    expect(in(dir, SMALL "RUN_ID=a/b", "train --family=golf --out_dir=other"), 2, "",
           "run_id=a/b names the file");
}

/* Messages have the names that the user wrote, and tell which values are a recipe's. */
TEST(test_names)
{
    const char *dir = new_folder();
    static const char train[] = "train --family=golf --out_dir=names";
    expect(in(dir, SMALL "NUM_HEADS=3", train), 2, "",
           "MODEL_DIM=32 is not a multiple of NUM_HEADS=3: every head gets MODEL_DIM / NUM_HEADS ");
    expect(in(dir, SMALL, lks_test_text("%s --num_heads=3", train)), 2, "",
           "MODEL_DIM=32 is not a multiple of num_heads=3: ");
    expect(in(dir, SMALL "NUM_HEADS=abc", train), 2, "",
           "NUM_HEADS in the environment must be a whole number from 1 to 1024, not \"abc\"");
    expect(in(dir, SMALL "DATA_PATH=none", train), 2, "", "DATA_PATH \"none\": there is no such");
    lks_test_write(lks_test_text("%s/r.conf", dir), "tokenizer_path = none.model\n", 28);
    expect(in(dir, SMALL, lks_test_text("%s r.conf", train)), 1, "",
           "the recipe's tokenizer (TOKENIZER_PATH=MODEL names another one, and TOKENIZER_PATH= "
           "leaves it out): cannot open none.model: ");
    expect(in(dir, SMALL "TOKENIZER_PATH=no.model", lks_test_text("%s r.conf", train)), 1, "",
           "TOKENIZER_PATH: cannot open no.model: ");
    expect(in(dir, SMALL "TOKENIZER_PATH=", lks_test_text("%s r.conf", train)), 0, "step:3/3", "");
}

/* In a run of another family: files are read, the rest is named. */
TEST(test_other_family)
{
    const char *dir = lks_test_folder();
    assert_int_equal(mkdir(lks_test_text("%s/text", dir), 0755), 0);
    lks_test_generated_tokens(lks_test_text("%s/text", dir));
    lks_test_result r = in(dir, "DATA_PATH=text MODEL_DIM=7 ITERATIONS=9 RUN_ID=x",
                           "train --dry_run --n_layer=1 --n_head=1 --n_embd=16");
    expect(r, 0, "data:              text: 200000 tokens",
           "not used here: environment, for --family=golf: MODEL_DIM\n");
    assert_contains(r.err, "for --family=golf: ITERATIONS\n", "for --family=golf: RUN_ID\n");
    assert_null(strstr(r.err, "DATA_PATH"));
    /* a user of that script's variables who named no family */
    static const char ways[] = "`lockstep train config/golf_baseline.conf`, or --family=golf\n";
    assert_contains(r.err, lks_test_text("to use these variables: %s", ways));
    expect(in(dir, "DATA_PATH=none", "train"), 2, "",
           lks_test_text("makes one. For parameter-golf's model: %s", ways));
    lks_test_write(lks_test_text("%s/empty.conf", dir), "\n", 1);
    assert_null(strstr(in(dir, "NUM_LAYERS=2", "train --dry_run empty.conf").err, "to use these"));
    /* What a person gave for this run wins over a variable of another script. */
    lks_test_write(lks_test_text("%s/x.conf", dir), "dataset = text\n", 15);
    static const char *const given[] = {"--dataset=text", "x.conf"};
    for (int i = 0; i < 2; i++)
        expect(in(dir, "DATA_PATH=elsewhere",
                  lks_test_text("train --dry_run --n_layer=1 %s", given[i])),
               0, "data:              text: ", "");
    expect(in(dir, "TOKENIZER_PATH=none.model", "sample"), 2, "", "out");
    expect(in(dir, "DATA_PATH=text", "sample"), 2, "", "out"); /* sample has no such setting */
    lks__settings s;
    lks__args args;
    lks__settings_defaults(&s);
    setenv("TOKENIZER_PATH", "none.model", 1);
    assert_ok(lks__settings_parse(&s, LKS__CMD_SAMPLE, 0, NULL, 0, &args));
    assert_string_equal(s.tokenizer_path, "none.model");
    unsetenv("TOKENIZER_PATH");
}
