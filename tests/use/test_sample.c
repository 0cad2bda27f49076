/* lockstep sample, from its arguments to its text: the same text for any threads and number of
 * samples, endings, the likeliest text, conversations. */
#include "support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text/utf8.h"

static const char rule[] = "\n---------------\n";
static const char *out_dir; /* --out_dir=… of a small run on characters */

/* A run that has learned a little of a text; returns --out_dir=… */
static const char *trained_on(const char *text)
{
    const char *dir = lks_test_folder();
    const char *input = lks_test_text("%s/text", dir), *data = lks_test_text("%s/data", dir);
    lks_test_write_text(input, text);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", input),
                lks_test_text("--out=%s", data));
    const char *run = lks_test_text("--out_dir=%s/out", dir);
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", data), run, "--n_layer=2",
                "--n_head=2", "--n_embd=16", "--block_size=32", "--batch_size=4",
                "--gradient_accumulation_steps=1", "--max_iters=60", "--learning_rate=0.01",
                "--warmup_iters=0", "--eval_interval=60", "--eval_iters=1", "--threads=1");
    return run;
}

/* Text with letters of two bytes. */
static int train(void **state)
{
    const char *text = "";
    for (int i = 0; i < 40; i++)
        text = lks_test_text("%sn\xc3\xa9"
                             "e %c\xc3\xa0 l'\xc3\xa9t\xc3\xa9,\nun jour d'orage\\.\n",
                             text, 'a' + i % 26);
    out_dir = trained_on(text);
    return 0;
}

#define SAMPLE(...)                                                                                \
    lks_test_do("lockstep", "sample", out_dir,                                                     \
                "--start=n\xc3\xa9"                                                                \
                "e",                                                                               \
                __VA_ARGS__)                                                                       \
        .out

/* Sample `i` of what was printed. */
static const char *sample_of(const char *out, int i)
{
    const char *end;
    for (; i > 0; i--)
        out = strstr(out, rule) + sizeof rule - 1;
    assert_non_null(end = strstr(out, rule));
    return lks_test_text("%.*s", (int)(end - out), out);
}

/* 100 tokens, while the context is full after 32; 20 samples are more than are computed at once. */
TEST(test_same_text)
{
    const char *alone =
        sample_of(SAMPLE("--num_samples=1", "--max_new_tokens=100", "--threads=1"), 0);
    for (int threads = 1; threads <= 4; threads += threads) {
        const char *t = lks_test_text("--threads=%d", threads);
        const char *three = SAMPLE("--num_samples=3", "--max_new_tokens=100", t);
        assert_string_equal(sample_of(three, 0), alone);
        assert_string_not_equal(sample_of(three, 1), alone);
        assert_string_not_equal(sample_of(three, 2), sample_of(three, 1));
        if (threads != 2)
            continue;
        const char *many = SAMPLE("--num_samples=20", "--max_new_tokens=100", t);
        for (int i = 0; i < 3; i++)
            assert_string_equal(sample_of(many, i), sample_of(three, i));
        for (int i = 1; i < 20; i++)
            assert_string_not_equal(sample_of(many, i), sample_of(many, 0));
    }
}

/* A variable of golf's script means nothing to characters; a path on the command line is an error.
 */
TEST(test_tokenizer)
{
    const char *const argv[] = {"lockstep",           "sample", out_dir, "--num_samples=1",
                                "--max_new_tokens=5", NULL};
    assert_exits(0, lks_test_run(argv, (const char *const[]){"TOKENIZER_PATH=/nowhere", NULL}, 60),
                 "not used here: TOKENIZER_PATH: the tokens are characters\n");
    assert_exits(2, lks_test_tool("sample", out_dir, "--tokenizer_path=/nowhere"),
                 "the model's tokens are its own characters, which need no tokenizer");
    const lks_test_result special = assert_exits(2, lks_test_tool("sample", out_dir, "--special"));
    assert_contains(special.err, "--special is only for GPT-2's tokens");
    assert_null(strstr(special.err, "knows no line feed"));
}

/* Temperature 0 takes the likeliest token, as top_k=1 does, and top_p with hardly any room. */
TEST(test_likeliest)
{
    const char *want = SAMPLE("--num_samples=2", "--temperature=0", "--max_new_tokens=50");
    assert_string_equal(sample_of(want, 0), sample_of(want, 1));
    assert_string_equal(SAMPLE("--num_samples=2", "--top_k=1", "--max_new_tokens=50", "--seed=7"),
                        want);
    assert_string_equal(SAMPLE("--num_samples=2", "--top_p=1e-9", "--max_new_tokens=50"), want);
}

/* The beginning may stand in a file. */
TEST(test_prompt_in_file)
{
    const char *path = lks_test_text("%s/prompt", lks_test_folder());
    lks_test_write(path, "n\303\251e", 4);
    assert_string_equal(lks_test_do("lockstep", "sample", out_dir, "--num_samples=1",
                                    "--max_new_tokens=9", lks_test_text("--start=FILE:%s", path))
                            .out,
                        SAMPLE("--num_samples=1", "--max_new_tokens=9"));
    lks_test_write_text(path, "");
    assert_exits(2, lks_test_tool("sample", out_dir, lks_test_text("--start=FILE:%s", path)),
                 "lockstep sample: --start: it is empty: give at least one character");
    assert_exits(2, lks_test_tool("sample", out_dir, "--start=FILE:"),
                 "--start=FILE: needs a path");
}

/* A text is what stands before the stop text in the text without one, and no token is drawn after
 * that; the prompt doesn't count. */
TEST(test_stop)
{
    static const char *const stops[] = {"\xc3\xa9t", "r", "ou", "n\303\251e", "\n", "\\", "zz"};
    const char *whole = SAMPLE("--num_samples=4", "--max_new_tokens=90");
    int cut = 0;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        const char *stop = stops[i][0] == '\n' ? "\\n" : stops[i][0] == '\\' ? "\\\\" : stops[i];
        const lks_test_result r =
            lks_test_tool("sample", out_dir, "--start=n\303\251e", "--num_samples=4",
                          "--max_new_tokens=90", lks_test_text("--stop=%s", stop), "--stop=zzz");
        const char *got = assert_exits(0, r).out;
        int ended = 0;
        for (int s = 0; s < 4; s++) {
            const char *text = sample_of(whole, s), *end = strstr(text + 4, stops[i]);
            ended += end != NULL;
            if (end != NULL)
                text = lks_test_text("%.*s", (int)(end - text), text);
            assert_string_equal(sample_of(got, s), text);
        }
        cut += ended;
        const char *told = lks_test_find(r.err, " new tokens");
        while (told > r.err && told[-1] != ' ')
            told--;
        const int drawn = atoi(told);
        assert_true(ended > 0 ? drawn < 4 * 90 : drawn == 4 * 90);
    }
    assert_in_range(cut, 5, 22); /* some end early, and some don't */
    assert_contains(lks_test_tool("sample", out_dir, "--stop=\n").err, "--stop is empty");
}

/* Everything that is written is whole characters. */
TEST(test_characters)
{
    const char *text = SAMPLE("--num_samples=3", "--max_new_tokens=200", "--temperature=5");
    for (size_t n = strlen(text), i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = lks__utf8_decode(text + i, n - i, &cp);
        assert_true(len > 0 && cp != 0xfffd);
    }
}

/* ---- conversations -------------------------------------------------------------------------- */

#define CHAT(input, more)                                                                          \
    lks_test_run((const char *const[]){"sh", "-c",                                                 \
                                       lks_test_text("printf '%s' | %s sample %s --interactive "   \
                                                     "--threads=1 %s",                             \
                                                     input, lks_test_program(), out_dir, more),    \
                                       NULL},                                                      \
                 NULL, 60)

/* Each answer goes on from all that is above it. */
TEST(test_interactive)
{
    const char *how = "--temperature=0", *tokens = "--max_new_tokens=8";
    lks_test_result r =
        assert_exits(0, CHAT("n\xc3\xa9\\nun", lks_test_text("%s %s", how, tokens)));
    const char *context = "n\xc3\xa9\n", *want = "";
    for (int i = 0; i < 2; i++) {
        const char *all = lks_test_do("lockstep", "sample", out_dir, "--num_samples=1", how, tokens,
                                      lks_test_text("--start=%s", context))
                              .out;
        const char *answer = sample_of(all, 0) + strlen(context);
        const bool ended = answer[strlen(answer) - 1] == '\n';
        want = lks_test_text("%s%s%s", want, answer, ended ? "" : "\n");
        context = lks_test_text("%s%s%sun", context, answer, ended ? "" : "\n");
    }
    assert_string_equal(r.out, want);
    assert_contains(r.err, "16 new tokens");
    /* A line that can't be read is reported, and the next one is. */
    r = assert_exits(0, CHAT("\xe2\x82\xac\\nn\xc3\xa9\\n", lks_test_text("%s %s", how, tokens)),
                     "not read: character U+20AC");
    assert_memory_equal(r.out, want, strlen(r.out));
    assert_string_equal(CHAT("", how).out, "");
    /* An answer that ends with a line feed has no other. */
    const char *drawn = lks_test_do("lockstep", "sample", out_dir, "--num_samples=1",
                                    "--temperature=2", "--max_new_tokens=500", "--start=n\n")
                            .out;
    const char *line = sample_of(drawn, 0) + 2;
    const size_t n = strcspn(line, "\n") + 1;
    int characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((unsigned char)line[i] & 0xc0) != 0x80;
    assert_true(line[n - 1] == '\n');
    r = assert_exits(
        0, CHAT("n\\n", lks_test_text("--temperature=2 --max_new_tokens=%d", characters)));
    assert_string_equal(r.out, lks_test_text("%.*s", (int)n, line));
    /* A small context fills up without a message in the middle of an answer. */
    r = CHAT("n\xc3\xa9\\nun\\n", lks_test_text("%s --max_new_tokens=40", how));
    assert_contains(r.err, "80 new tokens");
    assert_null(strstr(r.err, "the context of "));
}

/* A text in one line has no line feed, which ends the lines of a conversation. Nothing follows an
 * empty context. */
TEST(test_one_line)
{
    const char *text = "", *usual = out_dir;
    for (int i = 0; i < 90; i++)
        text = lks_test_text("%s%.4s", text, &"ACGTTGCAAC"[i * i % 7]);
    out_dir = trained_on(text);
    const lks_test_result r = CHAT("\\nAC\\r\\n\\nT", "--max_new_tokens=8");
    out_dir = usual;
    assert_exits(0, r, "no line feed", "24 new tokens");
    assert_null(strstr(r.err, "not read"));
    assert_int_equal(strlen(r.out), 1 + 3 * 9);
}

/* Wait until a file has more than `bytes`; returns its size. */
static size_t wait_for(const char *path, size_t bytes)
{
    struct stat info;
    lks_test_until(stat(path, &info) == 0 && (size_t)info.st_size > bytes);
    return (size_t)info.st_size;
}

static void write_line(int fd, const char *line)
{
    assert_int_equal(write(fd, line, strlen(line)), strlen(line));
}

/* SIGINT ends an answer that would never end; then the next line is read. At the prompt it ends the
 * program, as the end of the input does. */
static void check_interrupted(bool at_prompt)
{
    const char *fifo = lks_test_text("%s/in", lks_test_folder());
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const int fd = open(fifo, O_RDWR | O_CLOEXEC);
    const char *argv[] = {"sh", "-c",
                          lks_test_text("exec %s sample %s --interactive --threads=1 "
                                        "--max_new_tokens=1000000000 --temperature=2 <%s",
                                        lks_test_program(), out_dir, fifo),
                          NULL};
    lks_test_child child = lks_test_start(argv, NULL);
    size_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        write_line(fd, "n\n");
        bytes = wait_for(child.out_path, bytes + 200);
        assert_int_equal(kill(child.pid, SIGINT), 0);
        for (size_t last = 0; last != bytes;) { /* until nothing more comes */
            last = bytes;
            for (int k = 0; k < 50; k++)
                usleep(10000);
            bytes = wait_for(child.out_path, 0);
        }
    }
    if (at_prompt) {
        assert_int_equal(kill(child.pid, SIGINT), 0);
        assert_exits(128 + SIGINT, lks_test_wait(&child, 30), "SIGINT: all text is complete");
    }
    close(fd); /* the end of the input */
    if (!at_prompt)
        assert_exits(0, lks_test_wait(&child, 30), "new tokens");
}

TEST(test_interrupted)
{
    check_interrupted(false);
    check_interrupted(true);
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(train, NULL);
}
