/* A run knows its data: a resume and eval need no --dataset. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/record/metrics/metrics.h"
#include "report/record/outdir.h"
#include "train/setup/remember.h"

/* A new folder with data/text, and a run in run/ that was started there. */
static const char *new_run(void)
{
    const char *dir = lks_test_folder();
    assert_int_equal(mkdir(lks_test_text("%s/data", dir), 0755), 0);
    assert_int_equal(mkdir(lks_test_text("%s/data/text", dir), 0755), 0);
    assert_int_equal(mkdir(lks_test_text("%s/else", dir), 0755), 0);
    lks_test_generated_tokens(lks_test_text("%s/data/text", dir));
    return dir;
}

/* `cd DIR/FOLDER && lockstep COMMAND` */
static lks_test_result in(const char *dir, const char *folder, const char *command)
{
    const char *text =
        lks_test_text("cd '%s/%s' && exec '%s' %s", dir, folder, lks_test_program(), command);
    return lks_test_shell(text);
}

static void expect(lks_test_result r, int code, const char *out, const char *err)
{
    assert_exits(code, r);
    assert_contains(r.out, out);
    assert_contains(r.err, err);
}

static const char begin[] =
    "train --dataset=text --out_dir=run --n_layer=1 --n_head=1 --n_embd=16 --block_size=16 "
    "--batch_size=1 --gradient_accumulation_steps=2 --vocab_size=65 --eval_iters=2 --max_iters=4";

TEST(test_resume_and_eval)
{
    const char *dir = new_run();
    const lks_test_result begun = in(dir, ".", begin);
    expect(begun, 0, " eval run\n", "");
    /* a small model's parameters are counted in full: 0.00M says nothing */
    assert_contains(begun.out, "\nnumber of parameters: 4160\n", "\niter 0: loss ");
    assert_null(strstr(begun.out, "mfu")); /* it isn't measured yet */
    /* as it was used, also on several ranks; rank 0 tells the others */
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=6 --nproc_per_node=2"),
           0, "Resuming training", "");
    lks_test_result given = in(dir, ".", "eval --out_dir=run --dataset=data/text");
    expect(given, 0, "val loss ", "");
    lks_test_result known = in(dir, ".", "eval --out_dir=run --nproc_per_node=2");
    expect(known, 0, "val loss ", "");
    assert_string_equal(known.out, given.out);
    /* from elsewhere */
    expect(in(dir, "else", "train --out_dir=../run --init_from=resume --max_iters=8"), 0,
           "Resuming training", "");
    expect(in(dir, "else", "eval --out_dir=../run"), 0, given.out[0] == 'v' ? "val loss " : "", "");
    /* a new run without data, in the folder of an old one: a resume was meant, perhaps */
    expect(in(dir, ".", "train --out_dir=run --n_layer=1"), 2, "",
           "There is a run in run: --init_from=resume continues it");
    lks_test_result none = in(dir, ".", "train --out_dir=new --n_layer=1");
    expect(none, 2, "", "train: no text was given: `lockstep train my.txt` prepares a text");
    assert_null(strstr(none.err, "resume"));
    none = in(dir, ".", "train"); /* its first words are the way to a success */
    assert_int_equal(strncmp(none.err, "lockstep train: no text was given: ", 35), 0);
    expect(in(dir, ".", "train quickstart --family=golf"), 2, "", "dataset \"");
    expect(in(dir, ".", "train quickstart --dataset=verse"), 2, "",
           "`lockstep prep char --input=TEXT --out=data/verse` makes one");
    expect(in(dir, ".", "train quickstart '--dataset=my verse'"), 2, "", "--out=data/'my verse'`");
    /* recipes whose data have GPT-2's tokens */
    expect(in(dir, ".", "train train_gpt2"), 2, "",
           "`lockstep prep openwebtext --tokenizer=DIR --input=TEXT --out=data/openwebtext` makes");
    expect(in(dir, ".", "train train_gpt2 --dry_run"), 2, "", "`lockstep prep openwebtext --tok");
    /* A variable of parameter-golf's script isn't for this run. */
    setenv("DATA_PATH", "~/none", 1);
    setenv("TOKENIZER_PATH", "~/none.model", 1);
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=9"), 0, "Resuming", "");
    expect(in(dir, ".", "eval run"), 0, "val loss ", "");
    expect(in(dir, ".", "audit run --step=0"), 0, "", "");
    unsetenv("DATA_PATH");
    unsetenv("TOKENIZER_PATH");
    /* a checkpoint's own folder belongs to the run, too */
    expect(in(dir, "else", "eval --out_dir=../run/ckpt-00000009"), 0, "val loss ", "");
    const char *line = lks_test_read(lks_test_text("%s/run/evals.jsonl", dir), NULL);
    assert_contains(line, lks_test_text("\"dataset\":\"%s/data/text\"", dir));
}

/* An older version may have made a folder named ~, which still can be used. */
TEST(test_home)
{
    const char *dir = new_run();
    assert_exits(0, lks_test_shell(lks_test_text("cd '%s' && mkdir '~' && mv data '~/data'", dir)));
    expect(in(dir, ".", lks_test_text("%s --dataset=~/data/text --out_dir=run", begin)), 0, "", "");
    assert_exits(0, lks_test_shell(lks_test_text("cd '%s' && mv run '~/run'", dir)));
    expect(in(dir, ".", "resume '~/run' --max_iters=6"), 0, "Resuming training", "");
    expect(in(dir, ".", "audit '~/run'"), 0, "equal", "");
    expect(in(dir, ".", "resume '~/other'"), 2, "", "~ isn't replaced here: write /");
}

/* A run's folder as a word: the same as --out_dir, and `resume` the same as train's longer form. */
TEST(test_folder)
{
    const char *dir = new_run();
    expect(in(dir, ".", begin), 0, "", "");
    expect(in(dir, ".", "eval run"), 0, in(dir, ".", "eval --out_dir=run").out, "");
    expect(in(dir, ".", "export run --format=safetensors --out=weights"), 0, "", "");
    const char *copy = lks_test_text("cp -r '%s/run' '%s/copy'", dir, dir);
    assert_exits(0, lks_test_shell(copy));
    expect(in(dir, ".", "resume --max_iters=6 --nproc_per_node=2 run"), 0, "Resuming training",
           lks_test_text("lockstep resume: the same as %s train --out_dir=run --init_from=resume "
                         "--max_iters=6 --nproc_per_node=2\n",
                         lks_test_program()));
    expect(in(dir, ".", "train --out_dir=copy --init_from=resume --max_iters=6"), 0, "", "");
    assert_same_file(lks_test_text("%s/run/ckpt-00000007/model.safetensors", dir),
                     lks_test_text("%s/copy/ckpt-00000007/model.safetensors", dir));
    /* on this machine's cores; a checkpoint's folder, too */
    expect(in(dir, ".", "resume run/ckpt-00000005 --max_iters=6"), 0, "was moved to run/earlier-1",
           " train --out_dir=run/ckpt-00000005 --init_from=resume --max_iters=6 --nproc_per_node=");
    /* the launcher's ranks leave the number of ranks to it */
    lks_test_result r = in(
        dir, ".",
        lks_test_text("run --nproc_per_node=2 '%s' resume run --max_iters=8", lks_test_program()));
    expect(r, 0, "2 ranks", "");
    assert_null(strstr(r.err, "the same as"));
}

/* A setting that the run's recorded ones leave without effect, refused before ranks start. */
TEST(test_resume_unused)
{
    const char *dir = new_run();
    expect(in(dir, ".", lks_test_text("%s --keep=all", begin)), 0, "", "");
    const lks_test_result r =
        in(dir, ".", "train --out_dir=run --init_from=resume --keep_every=2 --nproc_per_node=2");
    expect(r, 2, "", "--keep_every has no effect with keep=all");
    assert_null(strstr(r.err, "rank"));
}

/* An evaluation of new weights, nanoGPT's habit, leaves the run in OUT alone. If a run without a
 * checkpoint is there, the one that it has moved is named. */
TEST(test_earlier_run)
{
    const char *dir = new_run();
    expect(in(dir, ".", begin), 0, "", "");
    const char *log = lks_test_read(lks_test_text("%s/run/train.log", dir), NULL);
    expect(in(dir, ".", lks_test_text("%s --eval_only=True", begin)), 0, "step 0: train loss",
           "run contains an earlier run, so this evaluation is only printed: "
           "--init_from=resume evaluates that run");
    assert_false(lks_test_exists(lks_test_text("%s/run/earlier-1", dir)));
    assert_string_equal(lks_test_read(lks_test_text("%s/run/train.log", dir), NULL), log);
    expect(in(dir, ".", begin), 0, "an earlier run was moved to run/earlier-1", "");
    expect(in(dir, ".", begin), 0, "an earlier run was moved to run/earlier-2", "");
    const char *stop = lks_test_text("cd '%s/run' && rm -r ckpt-* latest best", dir);
    assert_exits(0, lks_test_shell(stop));
    int lock;
    assert_ok(lks__outdir_lock(lks_test_text("%s/run", dir), true, &lock));
    expect(in(dir, ".", "sample run"), 1, "",
           "there is no checkpoint in run: the run there has not written one yet. An earlier run ");
    assert_int_equal(close(lock), 0);
    expect(in(dir, ".", "info run"), 1, "",
           "there is no checkpoint in run: the run there ended before it wrote one, or its "
           "checkpoints were deleted; start it again with the command that began it. "
           "An earlier run is in run/earlier-2\n");
}

TEST(test_no_run)
{
    static const char *const commands[] = {"sample", "eval", "export --out=x", "resume", "info"};
    const char *dir = new_run();
    expect(in(dir, ".", begin), 0, "", "");
    lks_test_write_text(lks_test_text("%s/text", dir), "a");
    assert_int_equal(mkdir(lks_test_text("%s/out", dir), 0755), 0);
    const char *move = lks_test_text("cd '%s' && mv run out && rm out/run/best", dir);
    assert_exits(0, lks_test_shell(move));
    /* the longer form of resume, before ranks start */
    expect(in(dir, ".", "train --init_from=resume --out_dir=out --nproc_per_node=2"), 2, "",
           "train: there is no checkpoint in out: give a run in it: out/run");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *command = lks_test_text("%.*s", (int)strcspn(commands[i], " "), commands[i]),
                   *rest = commands[i] + strlen(command);
        const struct {
            const char *word, *what;
        } cases[] = {
            {"none",
             "there is no folder none: give the folder of a run, as in `lockstep %s out/run`"},
            {"run",
             "there is no folder run: give the folder of a run, as in `lockstep %s out/run`"},
            {"text", "text is a file: give the folder of a run, as in `lockstep %s out/run`"},
            {"else", "there is no checkpoint in else, so it is not the folder of a run: `lockstep "
                     "train TEXT` makes one"},
            {"out", "there is no checkpoint in out: give a run in it: out/run"},
            {"out/run/ckpt-00000003",
             "there is no checkpoint ckpt-00000003 in out/run; it has ckpt-00000005"},
            {"out/run/ckpt-3",
             "there is no folder out/run/ckpt-3: give the folder of a run, as in `lockstep %s "
             "out/run`"},
            {"out/run/best", "out/run has no best checkpoint: none has been evaluated, or it was "
                             "deleted; a resume finds it again"},
        };
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            char what[200];
            const char *hole = strstr(cases[c].what, "%s");
            snprintf(what, sizeof what, "%.*s%s%s",
                     (int)(hole != NULL ? hole - cases[c].what : 200), cases[c].what,
                     hole != NULL ? command : "", hole != NULL ? hole + 2 : "");
            lks_test_result r =
                in(dir, ".", lks_test_text("%s %s%s", command, cases[c].word, rest));
            expect(r, 2, "", lks_test_text("lockstep %s: %s\n", command, what));
            assert_string_equal(strchr(r.err, '\n'), "\n"); /* one line */
        }
    }
    assert_int_equal(symlink("loop", lks_test_text("%s/loop", dir)), 0);
    expect(in(dir, ".", "info loop/run"), 1, "",
           "info: cannot read loop/run: Too many levels of symbolic links\n");
    expect(in(dir, ".", "resume out/run --checkpoint=3"), 2, "",
           "resume: give the checkpoint's folder instead of --checkpoint, as in `lockstep resume "
           "out/my/ckpt-00002000`\n");
    expect(in(dir, ".", "resume out/run --checkpoint best"), 2, "", "instead of --checkpoint,");
    expect(in(dir, ".", "eval out/run else"), 2, "", "else: the command uses one run");
    expect(in(dir, ".", "eval out/run --out_dir=else"), 2, "",
           "the folder out/run and --out_dir each name a model");
    expect(in(dir, ".", "sample out/run --init_from=text"), 2, "",
           "the folder out/run and --init_from each name a model");
    expect(in(dir, ".", "sample out/run 'The license'"), 2, "",
           "The license: the command uses one run, and its folder was given already; "
           "--start='The license' gives a text to continue");
    expect(in(dir, ".", "sample out/run start=The"), 2, "",
           "its folder was given already; settings are written --key=value");
    expect(in(dir, ".", "resume"), 2, "",
           "give the folder of the run to continue: `lockstep resume out/run`");
    expect(in(dir, ".", "report"), 2, "", "give one or more run folders, for example out/run,");
    expect(in(dir, ".", "resume out/run --out_dir=else"), 2, "", "leave --out_dir out");
    expect(in(dir, ".", "resume out/run --init_from=scratch"), 2, "", "leave --init_from out");
    expect(in(dir, ".", "resume --help"), 0, "you leave out keep the run's values:", "");
    /* One folder deeper, as quickstart's, and with a name that has to be quoted. */
    const char *copy = lks_test_text("cd '%s/out' && mkdir 'q s' && cp -r run 'q s/run' && "
                                     "touch -d tomorrow 'q s/run/metrics.jsonl'",
                                     dir);
    assert_exits(0, lks_test_shell(copy));
    for (int i = 0; i < 2; i++)
        expect(in(dir, ".", commands[i]), 2, "",
               "no checkpoint in out: give a run in it, the newest first: 'out/q s/run', out/run");
    expect(in(dir, ".", "resume"), 2, "", "`lockstep resume 'out/q s/run'`");
    expect(in(dir, "out", "report ."), 0, "", "lockstep report: 2 runs in .: q s/run, run\n");
    const char *deeper = lks_test_text("rm -r '%s/out/run'", dir);
    assert_exits(0, lks_test_shell(deeper));
    expect(in(dir, ".", "report out"), 0, "", "lockstep report: 1 run in out: q s/run\n");
}

/* Settings that define no bytes, so that checkpoints lack them: a resume keeps them all the same.
 */
TEST(test_settings)
{
    const char *dir = new_run();
    const char *more = "--checkpoint_interval=1 --eval_interval=0";
    expect(in(dir, ".", lks_test_text("%s %s --keep=0 --tensorboard=false", begin, more)), 0, "",
           "");
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=5"), 0, "", "");
    for (int i = 1; i <= 6; i++)
        assert_true(lks_test_exists(lks_test_text("%s/run/ckpt-%08d", dir, i)));
    assert_false(lks_test_exists(lks_test_text("%s/run/events.out.tfevents.000001.lockstep", dir)));
    /* A value that is given wins, and is kept from then on. */
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=6 --keep=2"), 0, "",
           "");
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=7"), 0, "", "");
    for (int i = 1; i <= 8; i++)
        assert_int_equal(lks_test_exists(lks_test_text("%s/run/ckpt-%08d", dir, i)), i > 6);
    /* The record is another run's. */
    const char *metrics = lks_test_text("%s/run/metrics.jsonl", dir);
    const char *edit =
        lks_test_text("sed -i 's/\\(00008\",\"params_hash\":\"\\)..../\\1xxxx/' '%s'", metrics);
    assert_exits(0, lks_test_shell(edit));
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=8"), 0, "",
           "metrics.jsonl in run records other weights for checkpoint 8 than the checkpoint has");
    /* A value that no run has written. */
    edit = lks_test_text("sed -i 's/\"keep\":2/\"keep\":-1/' '%s'", metrics);
    assert_exits(0, lks_test_shell(edit));
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=8"), 1, "",
           "metrics.jsonl: the setting keep is not a whole number from 0 to 1,000,000");
    /* More than any run has written. */
    edit = lks_test_text("sed -i 's/\"keep\":-1/\"keep\":2,\"x\":\"%08191d\"/' '%s'", 0, metrics);
    assert_exits(0, lks_test_shell(edit));
    expect(in(dir, ".", "train --out_dir=run --init_from=resume --max_iters=8"), 1, "",
           "metrics.jsonl: the settings have over 8191 bytes");
}

/* Other data in the folder that the run used: eval without --dataset refuses them, as a resume
 * does.
 */
TEST(test_replaced)
{
    const char *dir = new_run();
    expect(in(dir, ".", begin), 0, "", "");
    expect(in(dir, ".", "eval run"), 0, "val loss ", "");
    const char *train = lks_test_text("%s/data/text/train.bin", dir);
    size_t n;
    char *bytes = (char *)lks_test_read(train, &n);
    assert_int_equal(mkdir(lks_test_text("%s/data/te xt", dir), 0755), 0);
    lks_test_generated_tokens(lks_test_text("%s/data/te xt", dir));
    bytes[0] ^= 1; /* another id of the same alphabet */
    lks_test_write(train, bytes, n);
    expect(
        in(dir, ".", "eval run"), 2, "",
        "the data in data/text is not the data that checkpoint run/ckpt-00000005 was trained on");
    expect(in(dir, ".", "eval run --nproc_per_node=2"), 2, "", "--dataset=data/text evaluates on");
    expect(in(dir, ".", "eval run --dataset=text"), 0, "val loss ", "");
    const lks_test_result resumed = in(dir, ".", "resume run --max_iters=6");
    expect(resumed, 2, "", "is not the data that checkpoint run/ckpt-00000005 was trained on");
    expect(resumed, 2, "", "`lockstep train --init_from=run --dataset=data/text --out_dir=NEW`");
    expect(in(dir, ".", "train --init_from=run --dataset=data/text --out_dir=new --max_iters=1"), 0,
           "", "");
    /* of another alphabet: nobody gave a vocab_size */
    const char meta[] = "{\"kind\":\"ids\",\"vocab_size\":64}";
    lks_test_write_text(lks_test_text("%s/data/text/meta.json", dir), meta);
    expect(in(dir, ".", "eval run"), 2, "", "is not the data that checkpoint");
    const lks_test_result r = in(dir, ".", "resume run --max_iters=6");
    expect(r, 2, "", "the data in data/text is not the data that the run was trained on");
    assert_null(strstr(r.err, "--vocab_size"));
    /* a best checkpoint that can't be read isn't passed over */
    const char *best = lks_test_text("%s/run/best", dir);
    assert_int_equal(unlink(best), 0);
    expect(in(dir, ".", "info run"), 0, "\ncheckpoints  latest is ckpt-00000005\nstate", "");
    assert_int_equal(symlink("ckpt-00000004", best), 0);
    assert_int_equal(mkdir(lks_test_text("%s/run/ckpt-00000004", dir), 0755), 0);
    lks_test_write_text(lks_test_text("%s/run/ckpt-00000004/state.json", dir), "x");
    expect(in(dir, ".", "info run"), 0,
           "\ncheckpoints  run/ckpt-00000004/state.json is not a sound checkpoint state", "");
    /* a path that a shell must have quoted */
    expect(in(dir, ".", lks_test_text("%s --dataset='te xt' --out_dir=spaced", begin)), 0, "", "");
    lks_test_write(lks_test_text("%s/data/te xt/train.bin", dir), bytes, n);
    expect(in(dir, ".", "eval spaced"), 2, "", "--dataset='data/te xt' evaluates on");
}

TEST(test_moved)
{
    const char *dir = new_run();
    expect(in(dir, ".", begin), 0, "", "");
    assert_int_equal(rename(lks_test_text("%s/data", dir), lks_test_text("%s/moved", dir)), 0);
    static const char *const commands[] = {"train --init_from=resume --max_iters=6", "eval"};
    for (int i = 0; i < 2; i++)
        expect(in(dir, ".", lks_test_text("%s --out_dir=run", commands[i])), 2, "",
               lks_test_text(
                   "was in %s/data/text, but that folder doesn't exist now: give --dataset", dir));
    for (int i = 0; i < 2; i++)
        expect(in(dir, ".", lks_test_text("%s --out_dir=run --dataset=moved/text", commands[i])), 0,
               "", "");
    /* now the run knows the new place */
    expect(in(dir, "else", "eval --out_dir=../run"), 0, "val loss ", "");
    /* a whole tree that was moved: what was used leads to the data */
    assert_int_equal(rename(lks_test_text("%s/moved", dir), lks_test_text("%s/else/moved", dir)),
                     0);
    assert_int_equal(rename(lks_test_text("%s/run", dir), lks_test_text("%s/else/run", dir)), 0);
    expect(in(dir, "else", "eval --out_dir=run"), 0, "val loss ", "");
    /* a run that moved after its checkpoint was read isn't one that has lost its record */
    char data[LKS__SETTING_STR];
    assert_int_equal(lks__remembered_data(lks_test_text("%s/run", dir), data), LKS_ERR_IO);
    assert_contains(lks_last_error(), "cannot read the folder ");
}

/* A name that both have, this folder and data/: the one with tokens is meant, and this folder's if
 * both have some. A file is none. */
TEST(test_names)
{
    const char *dir = new_run(), *here = lks_test_text("%s/text", dir);
    assert_int_equal(mkdir(here, 0755), 0);
    lks_test_write_text(lks_test_text("%s/a.txt", here), "a text");
    static const char dry[] = "train --dry_run --n_layer=1 --n_head=1 --n_embd=16 --dataset=";
    expect(in(dir, ".", lks_test_text("%stext", dry)), 0, "data:              data/text: ", "");
    lks_test_generated_tokens(here);
    expect(in(dir, ".", lks_test_text("%stext", dry)), 0, "data:              text: ", "");
    expect(in(dir, ".", lks_test_text("%stext/a.txt", dry)), 2, "",
           "dataset \"text/a.txt\" is a file, but a folder of tokens is expected");
}

/* The last host line counts, and other lines and files aren't taken for one. */
TEST(test_lines)
{
    static const struct {
        const char *text, *used, *absolute;
    } cases[] = {
        {"{\"kind\":\"host\",\"paths\":{\"dataset\":\"a\",\"dataset_absolute\":\"/a\"}}\n"
         "{\"kind\":\"host\",\"paths\":{\"dataset\":\"b\"}}\n{\"kind\":\"train\",\"iter\":1}\n",
         "b", ""},
        {"{\"kind\":\"host\",\"paths\":{\"dataset\":\"a\",\"dataset_absolute\":\"/a\"}}\n"
         "{\"kind\":\"train\",\"host\":1}\n{\"kind\":\"host\",\"paths\":{\"data",
         "a", "/a"},
        {"{\"kind\":\"host\",\"paths\":{\"dataset\":3}}\n{\"kind\":\"host\",\"paths\":[]}\n", "",
         ""},
        {"", "", ""},
    };
    char used[LKS__METRICS_PATH], absolute[LKS__METRICS_PATH];
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/metrics.jsonl", dir);
    bool found = true;
    assert_ok(lks__metrics_dataset(dir, used, absolute, &found));
    assert_false(found);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_test_write_text(path, cases[i].text);
        assert_ok(lks__metrics_dataset(dir, used, absolute, &found));
        assert_string_equal(used, cases[i].used);
        assert_string_equal(absolute, cases[i].absolute);
        assert_int_equal(found, used[0] != '\0');
    }
    /* a path that no system has is none, and not its beginning */
    char many[LKS__METRICS_PATH + 1];
    memset(many, 'x', LKS__METRICS_PATH);
    many[LKS__METRICS_PATH] = '\0';
    for (int most = 0; most < 2; most++) {
        const char *line =
            lks_test_text("{\"kind\":\"host\",\"paths\":{\"dataset\":\"%s\"}}\n", many + most);
        lks_test_write_text(path, line);
        assert_ok(lks__metrics_dataset(dir, used, absolute, &found));
        assert_string_equal(used, most ? many + 1 : "");
    }
    static const char bad[] = "{\"kind\":\"host\",\n";
    lks_test_write_text(path, bad);
    assert_fails(LKS_ERR_FORMAT, lks__metrics_dataset(dir, used, absolute, &found),
                 "metrics.jsonl: the line that ends at offset 16 ");
}
