/* The program from outside: commands, exit codes, streams. */
#include "support.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/sys.h"

static void expect(lks_test_result r, int code, const char *out, const char *err)
{
    assert_exits(code, r);
    assert_contains(r.out, out);
    assert_contains(r.err, err);
}

TEST(test_dispatch)
{
    expect(lks_test_tool("--help"), 0, "Exit codes", "");
    expect(lks_test_tool("-h"), 0, "Commands", "");
    expect(lks_test_tool("--version"), 0, "lockstep " LKS_VERSION_TEXT "\n", "");
    expect(lks_test_tool("-V"), 0, "lockstep " LKS_VERSION_TEXT "\n", "");
    expect(lks_test_tool("help"), 0, "Exit codes", "");
    expect(lks_test_tool("help", "prep"), 0, "--val_fraction=0.1", "");
    expect(lks_test_tool("help", "run"), 0, "--nproc-per-node", "");
    expect(lks_test_tool("fetch", "gpt2", "--from"), 2, "", "--from: mirror needs a value: ");
    expect(lks_test_tool("fetch", "--help=all"), 0, " folder for the files; empty: see NAME\n", "");
    expect(lks_test_tool("help", "gelu", "freeze"), 0, "freeze, a setting of", "");
    expect(lks_test_tool("help", "mfu"), 0, "share of `peak` that training uses", "");
    expect(lks_test_tool("help", "peak"), 0, "GFLOP/s", "");
    expect(lks_test_tool("help", "gelu", "quux"), 2, "", "\"quux\" is neither a command");
    expect(lks_test_tool("help", "seed"), 0,
           "`lockstep train`, `lockstep sample`, `lockstep bench`", "");
    expect(lks_test_tool("help", "--n-layer"), 0, "transformer blocks (a whole", "");
    expect(lks_test_tool("help", "NUM_LAYERS"), 0, "n_layer, a setting of `lockstep train`", "");
    expect(lks_test_tool("help", "ITERATIONS"), 0, "iterations, a setting of", "");
    expect(lks_test_tool("help", "n_layer"), 0,
           "n_layer, a setting of `lockstep train`, `lockstep bench`, `lockstep plan`\n", "");
    expect(lks_test_tool("help", "block_size"), 0,
           "    context length in tokens; eval: the model's by\n", "");
    expect(lks_test_tool("help", "from"), 0, "mirror, a setting of `lockstep fetch`\n", "");
    expect(lks_test_tool("help", "from"), 0, "\nfrom_step, a setting of `lockstep audit`\n", "");
    expect(lks_test_tool("help", "n_layer"), 0, "A resume keeps the run's value and refuses", "");
    expect(lks_test_tool("help", "keep"), 0, "A resume keeps the run's value unless", "");
    expect(lks_test_tool("help", "n_layr"), 2, "", "did you mean n_layer?");
    expect(lks_test_tool("help", "lr"), 2, "", "did you mean learning_rate?");
    expect(lks_test_tool("prpe"), 2, "", "did you mean prep?");
    expect(lks_test_tool("chat"), 2, "", "did you mean sample?");
    expect(lks_test_tool("\x1b[2J"), 2, "", "\\x1b[2J");
    expect(lks_test_tool(""), 2, "", "there is no command \"\"");
    lks_test_result r = lks_test_run((const char *const[]){"lockstep", NULL}, NULL, 60);
    expect(r, 2, "", "Usage: lockstep COMMAND");
    assert_string_equal(r.out, "");
    /* Other programs' settings are named, up to a limit. */
    const char *many[3 + 34 + 1] = {"lockstep", "fetch", "none"};
    for (int i = 0; i < 34; i++)
        many[3 + i] = lks_test_text("--wandb_%d=1", i);
    expect(lks_test_run(many, NULL, 60), 2, "",
           "not used here: command line: wandb_31\nlockstep fetch: not used here: 2 more\n");
    expect(lks_test_tool("fetch", "none", "--wandb_log=True"), 2, "",
           "not used here: command line: wandb_log (scripts/to_wandb.py copies runs to Weights & ");
}

TEST(test_prep)
{
    const char *dir = lks_test_folder(), *text = lks_test_text("%s/text", dir);
    const char *input = lks_test_text("--input=%s", text);
    const char *out = lks_test_text("--out=%s/tokens", dir);
    lks_test_write_text(text, "abcabcabca");
    expect(lks_test_tool("prep", "char", input, out), 0,
           "vocab size: 3\ntrain has 9 tokens\nval has 1 tokens\n",
           lks_test_text("lockstep prep: wrote the tokens to %s/tokens\n", dir));
    assert_true(lks_test_exists(lks_test_text("%s/tokens/meta.json", dir)));
    expect(lks_test_tool("prep", "--help"), 0, "--val_fraction=0.1", "");
    expect(lks_test_tool("prep", "--help"), 0, " NFKC)\n", "");
    expect(lks_test_tool("help", "val_fraction"), 0,
           "end of the text (char, raw, and gpt2 with one\n", "");
    expect(lks_test_tool("prep", "char", input, input, out), 0,
           "vocab size: 4\ndocuments: 2, empty: 0\ntrain has 19 tokens\nval has 3 tokens\n",
           lks_test_text("note: read more than once: %s; ", text));
    expect(lks_test_tool("prep", "char", input, out), 0, "train has 9 tokens\n", "");
    expect(lks_test_tool("prep", "char", input, lks_test_text("--out=%s/", text)), 2, "",
           lks_test_text("%s is a file: give a folder for the tokens", text));
    /* the folder of a run can contain tokens, but not be one of them */
    const char *run = lks_test_text("%s/run", dir), *in_run = lks_test_text("--out=%s", run);
    assert_int_equal(mkdir(run, 0777), 0);
    lks_test_write_text(lks_test_text("%s/metrics.jsonl", run), "");
    expect(lks_test_tool("prep", "char", input, in_run), 2, "",
           lks_test_text("%s is the folder of a run", run));
    expect(lks_test_tool("prep", "char", input, lks_test_text("%s/data", in_run)), 0, "", "");
    run = lks_test_text("%s/library", dir);
    in_run = lks_test_text("--out=%s", run);
    assert_int_equal(mkdir(run, 0777), 0);
    assert_int_equal(symlink("ckpt-00000003", lks_test_text("%s/latest", run)), 0);
    expect(lks_test_tool("prep", "char", input, in_run), 2, "",
           lks_test_text("%s is the folder of a run", run));
    run = lks_test_text("%s/ckpt-00000003", dir);
    assert_int_equal(mkdir(run, 0777), 0);
    lks_test_write_text(lks_test_text("%s/state.json", run), "{}");
    expect(lks_test_tool("prep", "char", input, lks_test_text("--out=%s", run)), 2, "",
           "ckpt-00000003 is the folder of a run or checkpoint");
    assert_int_equal(symlink("tokens", lks_test_text("%s/latest", dir)), 0); /* of other data */
    expect(lks_test_tool("prep", "char", input, lks_test_text("--out=%s", dir)), 0, "", "");
    /* a window needs one token more than block_size */
    const char *data = lks_test_text("--dataset=%s/tokens", dir);
    expect(lks_test_tool("train", "--dry_run", data, "--block_size=9"), 2, "",
           "the tokens for training are 9: too few for one window of block_size + 1 = 10");
    expect(lks_test_tool("train", "--dry_run", data, "--block_size=8"), 2, "",
           "the tokens for validation are 1: too few");
    expect(lks_test_tool("prep", input, out), 2, "", "lockstep prep char");
    expect(lks_test_tool("prep", "words", input, out), 2, "", "\"words\"");
    expect(lks_test_tool("prep", "char", input), 2, "", "--out=DIR is missing");
    expect(lks_test_tool("prep", "char", out), 2, "",
           "--input=TEXT is missing: give your own text, or get nanoGPT's with `lockstep fetch "
           "shakespeare`, then --input=data/shakespeare/input.txt");
    expect(lks_test_tool("prep", "shakespeare_char", input, out), 2, "", "did you mean char?");
    expect(lks_test_tool("prep", "char", text, out), 2, "",
           lks_test_text("to read this text, write --input=%s", text));
    expect(lks_test_tool("plan", text), 2, "", lks_test_text("\"%s\" is neither a setting", text));
    expect(lks_test_tool("prep", "char", "more", input, out), 2, "", "\"more\" is neither");
    expect(lks_test_tool("prep", "char", "--inptu=x", out), 2, "", "did you mean input?");
    expect(lks_test_tool("prep", "char", "--input=/none", out), 1, "", "/none");
}

TEST(test_run)
{
    expect(lks_test_tool("run", "--standalone", "--nproc-per-node=2", "sh", "-c",
                         "echo $WORLD_SIZE; exit $((RANK * 3))"),
           3, "2\n", "rank 1");
    expect(lks_test_tool("run", "--nproc_per_node", "2", "--", "sh", "-c", "echo $WORLD_SIZE"), 0,
           "0] 2\n", "");
    /* What stands behind PROGRAM is the program's. */
    expect(lks_test_tool("run", "sh", "-c", "echo \"$1\"", "sh", "--help"), 0, "--help\n", "");
    expect(lks_test_tool("run", "--help"), 0, "Usage: lockstep run", "");
    expect(lks_test_tool("run", "--nproc-per-nod=2", "true"), 2, "",
           "did you mean --nproc-per-node");
    expect(lks_test_tool("run", "-np", "2", "true"), 2, "", "did you mean --nproc-per-node");
    expect(lks_test_tool("run", "-n", "2", "true"), 2, "", "did you mean --nproc-per-node");
    expect(lks_test_tool("run", "--nproc-per-node=0", "true"), 2, "", "from 1 to 1024");
    expect(lks_test_tool("run", "--nproc-per-node=all", "true"), 2, "", "not \"all\"");
    expect(lks_test_tool("run", "--nproc_per_node"), 2, "", ": --nproc-per-node needs a value");
    expect(lks_test_tool("run", "--ranks=2", "sh", "-c", "echo $WORLD_SIZE"), 0, "0] 2\n", "");
    expect(lks_test_tool("run", "--ranks=2", "--nproc-per-node=2", "true"), 0, "", "");
    expect(lks_test_tool("run", "--ranks=2", "--nproc-per-node=3", "true"), 2, "",
           "--ranks=2 and --nproc-per-node=3 are one option by two names: give one of them");
    expect(lks_test_tool("run", "--ranks=all", "true"), 2, "", "--ranks must be auto, cpu");
    expect(lks_test_tool("run", "--ranks=2", "--nnodes=2", "true"), 2, "",
           "--ranks is for one host; on several, --nproc-per-node=2 counts the ranks of each");
    expect(lks_test_tool("run", "--ranks=2", "--hosts=a,b", "true"), 2, "",
           "--ranks is for one host; on several, --nproc-per-node=2 counts the ranks of each");
    expect(lks_test_tool("run", "-t"), 2, "", ": --tee needs a value");
    expect(lks_test_tool("run", "--logs-specs"), 2, "", ": --logs_specs needs a value");
    expect(lks_test_tool("run", "--standalone=1", "true"), 2, "", ": --standalone takes no value");
    expect(lks_test_tool("run", "-h=1"), 2, "", ": --help takes no value");
    expect(lks_test_tool("run", "--help=all"), 0, "Usage: lockstep run", "");
    expect(lks_test_tool("run", "-x", "true"), 2, "", "no such option");
    expect(lks_test_tool("run", "--standalone"), 2, "", "no PROGRAM");
    expect(lks_test_tool("run", "--"), 2, "", "no PROGRAM");
    /* A Python script, as torchrun takes it; an executable one has its own interpreter. */
    const char *dir = lks_test_folder(), *py = lks_test_text("%s/ranks.py", dir);
    static const char script[] = "#!/bin/sh\nimport os\nprint('rank', os.environ['RANK'])\n";
    lks_test_write_text(py, script);
    expect(lks_test_tool("run", "--nproc-per-node=2", py, "--flag"), 0, "1] rank 1\n",
           "ranks.py is run by python3");
    static const char own[] = "#!/bin/sh\necho own $1\n";
    lks_test_write_text(py, own);
    assert_int_equal(chmod(py, 0755), 0);
    expect(lks_test_tool("run", py, "one"), 0, "own one", "");
    expect(lks_test_tool("run", "missing.py"), 127, "", "missing.py");
    /* Programs start with signals as the system has them: SIGPIPE still ends them. */
    expect(lks_test_tool("run", "sh", "-c", "kill -PIPE $$"), 128 + 13, "", "");
}

/* --ranks counts the ranks of one host. */
TEST(test_ranks_name)
{
    expect(lks_test_tool("train", "--help"), 0, "here; also --ranks\n", "");
    expect(lks_test_tool("help", "ranks"), 0, "nproc_per_node, a setting of `lockstep train`", "");
    expect(lks_test_tool("plan", "--ranks=2", "--nnodes=2", "--n_layer=1", "--vocab_size=65"), 2,
           "", "--ranks is for one host; on several, --nproc_per_node=2 counts the ranks of each");
    expect(lks_test_tool("plan", "--ranks=2", "--n_layer=1", "--vocab_size=65"), 0, "", "");
    expect(lks_test_tool("plan", "--n_layer=1", "--dataset=/none"), 2, "", "dataset \"/none\": ");
    /* The ranks that it starts have it, too; a rank on one of two hosts refuses it. */
    expect(lks_test_tool("train", "--ranks=2", "--n_layer=1", "--dataset=/none"), 2, "", "/none");
    static const char *const hosts[] = {
        "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
        NULL};
    const char *const train[] = {LKS_TEST_TOOL, "train", "--ranks=2", "--dataset=/none", NULL};
    expect(lks_test_run(train, hosts, 60), 2, "", "`lockstep run --nproc-per-node=2 ...`");
}

/* Train a tiny model by a recipe whose lines are `recipe`, with up to two more arguments. */
static lks_test_result train_by(const char *dir, const char *recipe, const char *one,
                                const char *two)
{
    const char *path = lks_test_text("%s/a.conf", dir);
    lks_test_write_text(path, recipe);
    return lks_test_tool("train", path, lks_test_text("--dataset=%s", dir),
                         lks_test_text("--out_dir=%s/run", dir), "--n_layer=1", "--n_head=1",
                         "--n_embd=16", "--block_size=8", "--batch_size=2",
                         "--gradient_accumulation_steps=1", "--eval_iters=1", one, two);
}

/* Passes whose samples fill no whole number of batches. */
TEST(test_epoch_note)
{
    static const char recipe[] = "warmup_iters = 1\nlr_decay_iters = 1\nmax_iters = 1\n"
                                 "sampler = epoch\n";
    const char *dir = lks_test_folder();
    uint16_t ids[67 * 8 + 1] = {1}; /* 67 samples */
    lks_test_write(lks_test_text("%s/train.bin", dir), ids, sizeof ids);
    lks_test_write(lks_test_text("%s/val.bin", dir), ids, sizeof ids);
    expect(train_by(dir, recipe, "--batch_size=34", NULL), 0, "",
           "lockstep train: each pass over the data leaves out 33 of 67 samples, which don't fill "
           "a batch of batch_size=34 for each of 1 virtual ranks; --batch_size=33 leaves out 1\n");
    const lks_test_result most = train_by(dir, recipe, "--batch_size=32", NULL); /* 64 of 67 */
    expect(most, 0, "", "");
    assert_null(strstr(most.err, "each pass"));
}

/* A run that is longer than its recipe's schedule ends at the lowest rate: one line says so, unless
 * somebody chose both. Others say so if the lowest rate is above the highest, or if the warm-up is
 * longer than the run. */
TEST(test_schedule_notes)
{
    static const char said[] = "lockstep train: the learning rate stays at min_lr=6e-5 after "
                               "iteration 4, as lr_decay_iters=4 and max_iters=9; "
                               "--lr_decay_iters=9 lets it fall over the whole run\n";
    static const char both[] = "warmup_iters = 1\nlr_decay_iters = 4\nmax_iters = 4\n";
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    expect(train_by(dir, both, "--max_iters=9", NULL), 0, "latest is ckpt-00000010", said);
    expect(train_by(dir, both, "--learning_rate=1e-5", NULL), 0, "latest is ckpt-00000005",
           "lockstep train: the learning rate rises from learning_rate=1e-5 to min_lr=6e-5 after "
           "the warm-up; --min_lr=1e-06 lets it fall\n");
    expect(train_by(dir, "", "--max_iters=40", NULL), 0, "latest is ckpt-00000041",
           "lockstep train: the learning rate rises during the whole run, as warmup_iters=2000 and "
           "max_iters=40; --warmup_iters=2 shortens the warm-up\n");
    const struct {
        const char *recipe, *one, *two;
    } silent[] = {
        {both, NULL, NULL},
        {"warmup_iters = 1\nlr_decay_iters = 4\nmax_iters = 9\n", NULL, NULL},
        {both, "--max_iters=9", "--lr_decay_iters=4"},
        {both, "--max_iters=9", "--decay_lr=false"},
        {"max_iters = 9\n", "--decay_lr=false", NULL},
        {"max_iters = 9\n", "--warmup_iters=2000", NULL},
        {both, "--learning_rate=1e-5", "--min_lr=1e-06"},
        {both, "--learning_rate=1e-5", "--decay_lr=false"},
        {both, "--learning_rate=1e-5", "--max_iters=1"},                     /* only the warm-up */
        {"warmup_iters = 1\nlr_decay_iters = 40\n", "--max_iters=43", NULL}, /* 3 of 43 steps */
        {both, "--max_iters=4", NULL}, /* the run that is resumed next */
    };
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        lks_test_result r = train_by(dir, silent[i].recipe, silent[i].one, silent[i].two);
        expect(r, 0, "latest is ckpt-", "");
        assert_null(strstr(r.err, "learning rate"));
    }
    expect(train_by(dir, "", "--init_from=resume", "--max_iters=9"), 0, "latest is ckpt-00000010",
           said);
    lks_test_result again = train_by(dir, "", "--init_from=resume", NULL); /* nothing is left */
    assert_null(strstr(again.err, "learning rate"));
}

TEST(test_lost_output)
{
    for (int all = 0; all < 2; all++) /* less and more than one buffer */
        expect(lks_test_command("sh", "-c", "\"$1\" train \"$2\" >/dev/full", "sh", LKS_TEST_TOOL,
                                all ? "--help=all" : "--help"),
               1, "", "standard output failed: No space left on device");
    const char *const closed[] = {"sh", "-c", "\"$1\" --help >&-", "sh", LKS_TEST_TOOL, NULL};
    expect(lks_test_run(closed, NULL, 60), 1, "", "standard output failed");
    /* A reader that has left is no error to speak of. */
    const char *dir = lks_test_folder();
    lks_test_result r = assert_exits(
        128 + SIGPIPE,
        lks_test_command(
            "sh", "-c",
            "mkfifo \"$2/p\" && exec 3<>\"$2/p\" 4>\"$2/p\" 3<&- && \"$1\" train --help=all >&4",
            "sh", LKS_TEST_TOOL, dir));
    assert_string_equal(r.err, "");
    /* With both closed the files written are not taken for them. */
    lks_test_write_text(lks_test_text("%s/t", dir), "abcabcabca");
    expect(lks_test_command("sh", "-c", "cd \"$2\" && \"$1\" prep char --input=t --out=o >&- 2>&-",
                            "sh", LKS_TEST_TOOL, dir),
           1, "", "");
    size_t bytes;
    lks_test_read(lks_test_text("%s/o/train.bin", dir), &bytes);
    assert_int_equal(bytes, 18);
}

/* The number behind `word` in `text`. */
static double number_behind(const char *text, const char *word)
{
    return strtod(lks_test_find(text, word) + strlen(word), NULL);
}

/* The parts of a step add up to it, on every rank; each family reads data of its own form. */
static void check_bench_step(const char *family, int heads)
{
    lks_test_result r = lks_test_tool(
        "bench", "step", family, lks_test_text("--n_head=%d", heads), "--n_layer=2", "--n_embd=32",
        "--block_size=32", "--batch_size=2", "--vocab_size=65", "--nproc_per_node=2", "--iters=4");
    expect(r, 0, ", a step is one micro-batch per rank\n", "");
    /* two ranks of two sequences of 32 tokens */
    const double tokens = number_behind(r.out, "), ") * number_behind(r.out, "median ") / 1e3;
    assert_near(tokens, 128.0, 25.0); /* the time is printed to 0.01 ms */
    static const char *const parts[] = {"data ",   "forward ", "head ",   "backward ",
                                        "reduce ", "wait ",    "update ", "other "};
    for (int rank = 0; rank < 2; rank++) {
        const char *line = lks_test_find(r.out, lks_test_text("rank %d: mean", rank));
        double mean = number_behind(line, "mean "), sum = 0;
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
            sum += number_behind(line, parts[p]);
        assert_true(mean > 0);
        assert_near(sum, mean, 0.05); /* each is printed to 0.01 ms */
        assert_true(number_behind(line, "backward ") > 0);
    }
}

/* Only a run that writes golf's artifact at its end needs libzip. */
TEST(test_without_zip)
{
    const char *dir = lks_test_folder();
    const char *modules = lks_test_text("LOCKSTEP_MODULES=%s", dir);
    const char *const env[] = {modules, NULL};
    lks_test_write_text(lks_test_text("%s/lockstep_zip.so", dir), "no module");
    lks_test_short_golf(dir);
#define GOLF                                                                                       \
    "--family=golf", "--num_kv_heads=1", "--n_layer=1", "--n_head=2", "--n_embd=16",               \
        "--block_size=16"
#define RUN                                                                                        \
    GOLF, lks_test_text("--dataset=%s", dir), lks_test_text("--out_dir=%s/out", dir),              \
        "--train_batch_tokens=128", "--val_batch_size=128", "--iterations=1", "--vocab_size=1024"
    const char *const bench[] = {"lockstep",  "bench",           "step",           GOLF,
                                 "--iters=1", "--vocab_size=65", "--batch_size=2", NULL};
    expect(lks_test_run(bench, env, 60), 0, "step: median", "");
    /* another family's variables are named */
    const char *const noted[] = {"lockstep", "bench", "peak", "--threads=1", NULL};
    expect(lks_test_run(noted, (const char *const[]){"NUM_LAYERS=9", NULL}, 60), 0, "",
           "lockstep bench: not used here: environment, for --family=golf: NUM_LAYERS\n");
    const char *const evaluate[] = {"lockstep", "train", RUN, "--eval_only", NULL};
    expect(lks_test_run(evaluate, env, 60), 0, "val_loss", "");
    /* It is refused before it changes the folder. */
    const char *const train[] = {"lockstep", "train", RUN, NULL};
    expect(lks_test_run(train, env, 60), 1, "", "cannot read or write zip files");
    assert_int_equal(access(lks_test_text("%s/out/train.log", dir), F_OK), 0);
    assert_int_equal(access(lks_test_text("%s/out/metrics.jsonl", dir), F_OK), 0);
#undef RUN
#undef GOLF
}

TEST(test_bench_step)
{
    check_bench_step("--family=gpt2", 2);
    check_bench_step("--family=golf", 4); /* num_kv_heads is 4 */
    expect(lks_test_tool("bench", "steps"), 2, "", "name a measurement");
    expect(lks_test_tool("bench", "peak", "--nproc_per_node=2"), 2, "",
           "bench peak measures one process: --nproc_per_node is for step, comm and machine\n");
    static const char *const untraced[] = {"peak", "comm", "kernels", "machine"};
    for (int i = 0; i < 4; i++)
        expect(lks_test_tool("bench", untraced[i], "--trace=x.json"), 2, "",
               lks_test_text("bench %s writes no trace: --trace is for step\n", untraced[i]));
    const char *file = lks_test_text("%s/my.conf", lks_test_folder());
    lks_test_write(file, "n_layer = 1\n", 12);
    expect(lks_test_tool("bench", file), 2, "",
           lks_test_text("for example `lockstep bench step %s`", file));
}

/* A signal while the model is made leaves no data. */
TEST(test_bench_stop)
{
    const char *dir = lks_test_folder();
    lks_test_child run =
        lks_test_start((const char *const[]){"lockstep", "bench", "step", "--n_layer=4",
                                             "--n_embd=512", "--n_head=4", NULL},
                       (const char *const[]){lks_test_text("TMPDIR=%s", dir), NULL});
    for (int i = 0; i < lks_test_tries(5000) && lks_test_count_files(dir) == 0; i++)
        usleep(1000);
    assert_int_equal(lks_test_count_files(dir), 1);
    kill(run.pid, SIGTERM);
    assert_int_equal(lks_test_wait(&run, 60).signal, SIGTERM);
    assert_int_equal(lks_test_count_files(dir), 0);
}

/* Without an init, an orphan stays a zombie. */
static bool has_ended(pid_t pid)
{
    const char state = lks__sys_process_state(pid);
    return state == 0 || state == 'Z';
}

/* The launcher that `bench comm` starts ends with it. */
TEST(test_bench_launcher)
{
    const char *dir = lks_test_folder(), *mpirun = lks_test_text("%s/mpirun", dir),
               *file = lks_test_text("%s/pid", dir);
    const char *text = lks_test_text("#!/bin/sh\necho $$ >'%s'\nexec sleep 60\n", file);
    lks_test_write_text(mpirun, text);
    assert_int_equal(chmod(mpirun, 0700), 0);
    lks_test_child run = lks_test_start(
        (const char *const[]){"lockstep", "bench", "comm", "--backend=mpi", "--nproc_per_node=2",
                              NULL},
        (const char *const[]){lks_test_text("PATH=%s:%s", dir, getenv("PATH")), NULL});
    lks_test_wait_for_text(file, "\n");
    const pid_t pid = atoi(lks_test_read(file, NULL));
    kill(run.pid, SIGTERM);
    lks_test_wait(&run, 60);
    for (int i = 0; i < lks_test_tries(1000) && !has_ended(pid); i++)
        usleep(5000);
    assert_true(has_ended(pid));
    lks_test_write(mpirun, "#!/bin/sh\nexit 1\n", 17);
    const char *env[] = {lks_test_text("PATH=%s:%s", dir, getenv("PATH")), NULL};
    const char *argv[] = {"lockstep", "bench", "comm", "--backend=mpi", "--nproc_per_node=2", NULL};
    expect(lks_test_run(argv, env, 60), 1, "",
           geteuid() == 0 ? "it refuses root: OMPI_ALLOW_RUN_AS_ROOT=1 and" : "");
}

/* A launch that SIGTERM ended is the last one, but a rank's crash is only its backend's. */
TEST(test_bench_signal)
{
    const char *dir = lks_test_folder(), *file = lks_test_text("%s/started", dir),
               *mpirun = lks_test_text("%s/mpirun", dir);
    const char *argv[] = {"lockstep", "bench", "comm", "--nproc_per_node=2", "--iters=1", NULL};
    const char *env[] = {lks_test_text("PATH=%s:%s", dir, getenv("PATH")),
                         "LOCKSTEP_FAULT=any:1:term", "LOCKSTEP_FAULT_RANK=0", NULL};
    lks_test_write_text(mpirun, lks_test_text("#!/bin/sh\n: >'%s'\n", file));
    assert_int_equal(chmod(mpirun, 0700), 0);
    expect(lks_test_run(argv, env, 60), 128 + SIGTERM, "", "");
    assert_int_equal(access(file, F_OK), -1);
    env[1] = "LOCKSTEP_FAULT=any:1:usr1"; /* stands for SIGSEGV */
    expect(lks_test_run(argv, env, 60), 128 + SIGUSR1, "", "");
    assert_int_equal(access(file, F_OK), 0);
}

/* Ranks have the program's name. A variable that an earlier launch left must not turn two ranks
 * into one in silence. */
TEST(test_ranks)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    const char *argv[] = {"lockstep",
                          "train",
                          lks_test_text("--dataset=%s", dir),
                          lks_test_text("--out_dir=%s/out", dir),
                          "--n_layer=1",
                          "--n_head=1",
                          "--n_embd=16",
                          "--block_size=16",
                          "--batch_size=1",
                          "--gradient_accumulation_steps=2",
                          "--vocab_size=65",
                          "--eval_interval=0",
                          "--nproc_per_node=2",
                          NULL};
    const char *const left[] = {"RANK=0", "WORLD_SIZE=1", NULL};
    expect(lks_test_run(argv, left, 60), 2, "", "has RANK=0, as if a launcher");
    argv[12] = "--dry_run";
    expect(lks_test_run(argv, left, 60), 2, "", "--dry_run starts no ranks");
    assert_false(lks_test_exists(lks_test_text("%s/out", dir)));
    const char *const empty[] = {"RANK=", NULL};
    expect(lks_test_run(argv, empty, 60), 0, "total on 1 rank", "");
    argv[12] = "--nproc_per_node=2";
    lks_test_child run = lks_test_start(argv, NULL);
    const char *metrics = lks_test_text("%s/out/metrics.jsonl", dir);
    for (int i = 0; i < lks_test_tries(600) && !lks_test_exists(metrics); i++)
        usleep(100000);
    lks_test_result names =
        lks_test_shell("for p in $(cat /proc/$1/task/$1/children); do "
                       "for q in $(cat /proc/$p/task/$p/children); do "
                       "grep -zq ^RANK= /proc/$q/environ || continue; cat /proc/$q/comm; tr "
                       "'\\0' ' ' </proc/$q/cmdline; echo; done; done",
                       "sh", lks_test_text("%d", (int)run.pid));
    kill(run.pid, SIGTERM);
    assert_exits(128 + SIGTERM, lks_test_wait(&run, 60));
    const char *name = strrchr(lks_test_program(), '/') + 1;
    int n = 0;
    for (const char *at = names.out; (at = strstr(at, lks_test_text("%s train ", name))); at++)
        n++;
    assert_int_equal(n, 2);
    assert_contains(names.out, lks_test_text("%.15s\n", name));
    assert_null(strstr(names.out, "exe"));
}

/* What a run would take adds up, and Muon's matrices have one moment only. */
TEST(test_dry_run)
{
    const char *dir = lks_test_folder(), *data = lks_test_text("--dataset=%s", dir);
    expect(lks_test_tool("train", "--dry_run", data), 2, "", "train.bin");
    lks_test_generated_golf(dir);
    expect(lks_test_tool("train", "--dry_run", data, "--family=golf", "--sampler=stream",
                         "--vocab_size=64", "--gradient_accumulation_steps=8"),
           1, "", "64");
    lks_test_result r = lks_test_tool(
        "train", "--dry_run", data, "--family=golf", "--sampler=stream", "--vocab_size=1024",
        "--n_layer=2", "--n_head=4", "--num_kv_heads=2", "--n_embd=512", "--block_size=64",
        "--train_batch_tokens=256", "--gradient_accumulation_steps=4", "--nproc_per_node=2");
    expect(r, 0, "in 1 arena, for each rank", "");
    assert_contains(r.out, "200000 tokens for training, 20000 for validation");
    double params = number_behind(strstr(r.out, "on 4 virtual ranks"), "parameters: ");
    double moments = number_behind(r.out, "MB, and ");
    double gradients =
        number_behind(r.out, "gradients: ") + number_behind(r.out, "staging buffer: ");
    double activations = number_behind(r.out, "activations: ");
    /* two layers of 512 x (512 + 256 + 256 + 512 + 1024 + 1024): first moments alone */
    assert_near(moments, 2 * params - 2 * 512 * 3584 * 4e-6, 0.2);
    double process = number_behind(r.out, "process: ");
    double once = number_behind(r.out, "for each rank; ") + number_behind(r.out, "libraries and ");
    assert_near(number_behind(r.out, "on 2 ranks: "),
                params + moments + 2 * (gradients + activations + process) + once, 0.7);
}

/* A size that nobody asked for is named, with recipes that fit and what they take. */
TEST(test_size_not_asked_for)
{
    static const char said[] = "no size was given, so the model is GPT-2's: 12 layers of 768, ";
    const char *dir = lks_test_folder(), *data = lks_test_text("--dataset=%s", dir);
    lks_test_generated_tokens(dir);
    lks_test_result r = lks_test_tool("train", "--dry_run", data);
    expect(r, 0, "on 8 virtual ranks", said);
    assert_contains(r.err, "config/quickstart.conf (");
    r = lks_test_tool("train", "--dry_run", data, "--n_layer=12");
    assert_string_equal(r.err, "");
    static const char *const recipes[] = {"config/quickstart.conf",
                                          "config/train_shakespeare_char.conf"};
    /* A process takes less without oneDNN. */
    static const char *const libraries[][2] = {{NULL}, {"LD_LIBRARY_PATH=" LKS_TEST_NO_DNNL, NULL}};
    int n_printed = 0;
    for (int i = 0; i < 4; i++) {
        const char *recipe = recipes[i / 2];
        const char *file = lks_test_text("%s/%s", LKS_TEST_SOURCE_DIR, recipe);
        const char *const with[] = {"lockstep", "train",           "--dry_run", data,
                                    file,       "--vocab_size=65", NULL};
        const char *const without[] = {"lockstep", "train", "--dry_run", data, NULL};
        r = lks_test_run(with, libraries[i % 2], 60);
        expect(r, 0, "total on 1 rank: ", "");
        double total = number_behind(r.out, "total on 1 rank: ");
        r = lks_test_run(without, libraries[i % 2], 60);
        const char *at = strstr(r.err, recipe);
        if (at == NULL) /* it doesn't fit this machine */
            continue;
        n_printed++;
        const double said_of_it = number_behind(at, "parameters, ");
#ifdef __SANITIZE_ADDRESS__ /* whose own memory grows while a program runs */
        assert_true(said_of_it > 0.5 * total && said_of_it < 2 * total);
#else
        assert_near(said_of_it, total, 0.1 * total);
#endif
    }
    assert_true(n_printed > 0);
}

/* Activations of both ranks that together are more than the machine has are refused before the
 * first step, which would be killed. Each alone would fit. */
TEST(test_activations_refused)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    const char *data = lks_test_text("--dataset=%s", dir);
#define SMALL                                                                                      \
    data, lks_test_text("--out_dir=%s/out", dir), "--vocab_size=65", "--n_layer=2", "--n_head=2",  \
        "--n_embd=64", "--block_size=64", "--gradient_accumulation_steps=2", "--nproc_per_node=2"
    lks_test_result r = lks_test_tool("train", SMALL, "--dry_run", "--batch_size=100");
    expect(r, 0, "activations:", "");
    double each = number_behind(r.out, "activations: ") * 1e6 / 100;
    double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const char *batch = lks_test_text("--batch_size=%.0f", 0.75 * all / each);
    if (*lks_test_proc("/proc/sys/vm/overcommit_memory") == '2')
        lks_test_lacks("overcommit", "this machine gives no more memory than it has");
    expect(lks_test_tool("train", SMALL, "--max_iters=1", batch), 1, "", "the run takes ");
    expect(lks_test_tool("train", SMALL, "--max_iters=1", batch, "--skip_fit_check"), 1, "",
           "the activations of 2 ranks here take");
#undef SMALL
}

/* What this program and machine are: what it says, each found out in another way. */
TEST(test_info)
{
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    lks_test_result r = lks_test_tool("info");
    expect(r, 0, "lockstep     ", "");
    assert_contains(r.out, lks_test_text("kernels      %s ", lks__cpu_level_name(level)),
                    lks_test_text(", %d cores\n", lks__cpu_count()), "backend      shm: ready\n");
    const char *in_c[] = {"LOCKSTEP_CPU=plain", NULL};
    r = lks_test_run((const char *const[]){"lockstep", "info", NULL}, in_c, 60);
    expect(r, 0, "kernels      plain ", "");
    /* a folder of tokens */
    const char *dir = lks_test_folder();
    const uint16_t ids[30] = {2};
    lks_test_write(lks_test_text("%s/train.bin", dir), ids, sizeof ids);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), ids, 7);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000001.bin", dir), ids, 5);
    expect(lks_test_tool("info", dir), 0,
           lks_test_text("data         %s\nkind         ids without a tokenizer\n"
                         "train        30 tokens in train.bin\n"
                         "val          12 tokens in fineweb_val_*.bin (2 files)\n",
                         dir),
           "");
    static const char meta[] = "{\"kind\":\"char\",\"vocab_size\":3,\"chars\":\"abc\"}";
    lks_test_write_text(lks_test_text("%s/meta.json", dir), meta);
    expect(lks_test_tool("info", dir), 0, "kind         characters\nvocab_size   3\ntrain  ", "");
}

/* Without its modules, which a copy in an empty folder doesn't find, each line of info is short;
 * one sentence at the end says how to add them. */
TEST(test_info_without_modules)
{
    const char *dir = lks_test_folder(), *copy = lks_test_text("%s/lockstep", dir);
    const char *const cp = lks_test_text("cp '%s' '%s'", LKS_TEST_TOOL, copy);
    assert_exits(0, lks_test_shell(cp));
    lks_test_result r = lks_test_do(copy, "info");
    assert_contains(r.out, "\nzip          libzip: not in this build (libzip-dev)\n",
                    "\nbackend      mpi: not in this build (libopenmpi-dev)\n");
    int n = 0;
    for (const char *at = r.out; (at = strstr(at, "build lockstep again")) != NULL; at++)
        n++;
    assert_int_equal(n, 1);
    /* doctor doesn't call that ok */
    r = lks_test_command(copy, "doctor");
    assert_contains(r.out, "\nnote     backend       mpi: not in this build\n",
                    "-> install the Debian package libopenmpi-dev",
                    "\nnote     tokenizer     sentencepiece: not in this build\n");
    assert_null(strstr(r.out, "ok       backend       mpi"));
}

/* Without a model bench takes a small one, and names it; with one it takes that. */
TEST(test_bench_model)
{
    expect(lks_test_tool("bench", "step", "--iters=1"), 0,
           "model: gpt2, 4 layers, 4 heads, width 128, context 64, vocabulary 65, 12 sequences per "
           "micro-batch; config/NAME.conf, or --n_layer, --n_embd, … choose another\n",
           "");
    expect(lks_test_tool("bench", "step", "--iters=1", "--n_layer=1", "--n_head=2", "--n_embd=16",
                         "--block_size=8", "--batch_size=2", "--vocab_size=32"),
           0,
           "model: gpt2, 1 layer, 2 heads, width 16, context 8, vocabulary 32, 2 sequences per "
           "micro-batch\n",
           "");
    /* The vocabulary is the dataset's, as for `train`. */
    const char *data = lks_test_folder(), *with_data = lks_test_text("%s/with_data.conf", data);
    const char *sizes = "n_layer = 1\nn_head = 2\nn_embd = 16\nblock_size = 8\nbatch_size = 2\n";
    const char *text = "{\"kind\":\"ids\",\"vocab_size\":78}";
    lks_test_write_text(lks_test_text("%s/meta.json", data), text);
    text = lks_test_text("%sdataset = %s\n", sizes, data);
    lks_test_write_text(with_data, text);
    expect(lks_test_tool("bench", "step", with_data, "--iters=1"), 0, ", vocabulary 78, 2 ", "");
    expect(lks_test_tool("bench", "step", with_data, "--iters=1", "--vocab_size=99"), 0,
           ", vocabulary 99, 2 ", "");
    expect(lks_test_tool("bench", "step", with_data, "--iters=1", "--dataset=/none/here"), 0,
           ", vocabulary 50304 (the dataset \"/none/here\" doesn't exist: --vocab_size=N chooses "
           "another), 2 ",
           "");
    /* A file without sizes means what it means for `train`, and the model is named before the work,
     * which this folder ends. */
    const char *const env[] = {"TMPDIR=/nonexistent", NULL};
    const char *file = lks_test_text("%s/no_sizes.conf", lks_test_folder());
    const char *out = lks_test_text("--out=%s/machine.json", lks_test_folder());
    lks_test_write(file, "max_iters = 5\n", 14);
    for (int machine = 0; machine < 2; machine++)
        expect(lks_test_run((const char *const[]){"lockstep", "bench", machine ? "machine" : "step",
                                                  file, machine ? out : "--iters=1", NULL},
                            env, 60),
               1,
               "model: gpt2, 12 layers, 12 heads, width 768, context 1024, vocabulary 50304, 12 "
               "sequences per micro-batch\n",
               "can't make");
}

/* Plain C is slower than this machine's own level, and two threads aren't slower than one by much;
 * every kernel has its line. */
TEST(test_bench_peak)
{
    lks_test_result r = lks_test_tool("bench", "peak", "--threads=2");
    expect(r, 0, "peak of fp32 multiply-adds", "");
    double one = number_behind(r.out, "): "), two = number_behind(r.out, "on one thread, ");
    /* The same unit; how fast they are is the machine's business. */
    assert_true(one > 0 && two > one / 20 && two < one * 20);
    const char *in_c[] = {"LOCKSTEP_CPU=plain", NULL};
    r = lks_test_run((const char *const[]){"lockstep", "bench", "peak", "--threads=1", NULL}, in_c,
                     60);
    expect(r, 0, "(plain)", "");
    double plain = number_behind(r.out, "): ");
    assert_true(plain > 0 && plain < one * 20);
}

TEST(test_bench_kernels)
{
    static const char *const names[] = {"gemm NT",
                                        "gemm NN",
                                        "gemm TN",
                                        "attention forward",
                                        "attention backward",
                                        "layernorm forward",
                                        "layernorm backward",
                                        "rmsnorm forward",
                                        "rmsnorm backward",
                                        "gelu forward",
                                        "gelu backward",
                                        "relu2 forward",
                                        "relu2 backward",
                                        "dropout",
                                        "cross-entropy",
                                        "cross-entropy, capped",
                                        "sum over two ranks",
                                        "sum of squares",
                                        "round to bfloat16",
                                        "adamw"};
    lks_test_result r = lks_test_tool("bench", "kernels");
    expect(r, 0, "one thread, ", "");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *line = strstr(r.out, lks_test_text("\n%s  ", names[i]));
        if (line == NULL)
            fail_msg("no line of %s in: %s", names[i], r.out);
        assert_true(number_behind(line, " us ") > 0); /* the rate, behind the time */
    }
}

TEST(test_bench_comm_alone)
{
    expect(lks_test_tool("bench", "comm", "--backend=shm", "--iters=1"), 0, "shm, 1 rank\n", "");
}

/* Every operation at every size, and the two sides of the last line. */
TEST(test_bench_comm)
{
    lks_test_result r =
        lks_test_tool("bench", "comm", "--nproc_per_node=2", "--backend=shm", "--iters=1");
    expect(r, 0, "shm, 2 ranks", "");
    static const char *const sizes[] = {"4 B",    "64 B",  "1 KiB", "4 KiB",
                                        "64 KiB", "1 MiB", "8 MiB", "64 MiB"};
    const char *at = r.out;
    static const char *const names[] = {"broadcast", "all-gather", "all-reduce"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        at = lks_test_find(at, names[i]);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *row = lks_test_find(r.out, lks_test_text(" %s ", sizes[i]));
        int n_times = 0;
        for (const char *end = strchr(row, '\n'); (row = strstr(row, " us ")) && row < end; row++)
            n_times++;
        assert_int_equal(n_times, 3);
    }
    assert_true(number_behind(r.out, "sums of squares: ") > 0);
    assert_true(number_behind(r.out, "two cores: ") > 0);
}

/* Next to the link; with a model, also the part of the reduction that a step doesn't hide. */
TEST(test_bench_engine)
{
    lks_test_result r = lks_test_tool("bench", "comm", "--nproc_per_node=2", "--backend=gloo",
                                      "--iters=1", "--n_layer=2", "--n_head=2", "--n_embd=32",
                                      "--block_size=32", "--batch_size=2", "--vocab_size=65");
    if (strstr(r.err, "libgloo-dev") != NULL)
        lks_test_lacks("gloo", r.err);
    expect(r, 0, "gloo, 2 ranks, each as if on its own host", "");
    assert_true(number_behind(r.out, "the link: ") > 0);
    assert_true(number_behind(r.out, "would need ") > 0);
    double alone = number_behind(r.out, "by itself "), exposed = number_behind(r.out, " ms: ");
    assert_true(alone > 0 && exposed >= 0);
    assert_true(number_behind(r.out, "a step of ") > exposed);
}

/* Processes of this run, and how many of them ps would show under another name than lockstep's. */
static void count_names(const char *out_dir, int *n, int *n_other)
{
    struct dirent *entry;
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    *n = *n_other = 0;
    while ((entry = readdir(proc)) != NULL) {
        const char *word = lks_test_proc("/proc/%s/cmdline", entry->d_name);
        while (*word != '\0' && strstr(word, out_dir) == NULL)
            word += strlen(word) + 1;
        if (*word == '\0')
            continue;
        const char *name = lks_test_proc("/proc/%s/comm", entry->d_name);
        *n += name[0] != '\0';
        *n_other += name[0] != '\0' && strncmp(name, "lockstep", 8) != 0;
    }
    closedir(proc);
}

/* The launcher, the ranks and what stands between them are called lockstep. */
TEST(test_names)
{
    const char *dir = lks_test_folder(), *out = lks_test_text("--out_dir=%s/run", dir);
    lks_test_generated_tokens(dir);
    const char *const argv[] = {"lockstep",
                                "train",
                                lks_test_text("--dataset=%s", dir),
                                out,
                                "--n_layer=1",
                                "--n_head=1",
                                "--n_embd=16",
                                "--block_size=8",
                                "--batch_size=1",
                                "--eval_interval=0",
                                "--nproc_per_node=2",
                                "--max_iters=100000000",
                                NULL};
    lks_test_child child = lks_test_start(argv, NULL);
    int n, n_other;
    for (int i = 0;
         i < lks_test_tries(2000) && !lks_test_exists(lks_test_text("%s/run/train.log", dir)); i++)
        usleep(5000);
    count_names(out, &n, &n_other);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    lks_test_wait(&child, 10);
    assert_true(n >= 3);
    assert_int_equal(n_other, 0);
}
