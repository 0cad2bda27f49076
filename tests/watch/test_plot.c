/* `lockstep plot`: the structure of its pictures, and of those in characters. */
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "report/plot/plot.h"
#include "report/view/series.h"

enum { WIDTH = 760, LEFT = 56, RIGHT = 740, GRAPH = 300 };

static const char blue[] = "#2f7fd6", orange[] = "#e8873a";

/* Run `lockstep COMMAND OPTION RUNS…`. */
static lks_test_result plot(const char *option, const char *const runs[])
{
    const char *argv[16] = {"lockstep", "plot"};
    size_t n = 2;
    if (option != NULL)
        argv[n++] = option;
    for (size_t i = 0; runs[i] != NULL; i++)
        argv[n++] = runs[i];
    return lks_test_run(argv, (const char *const[]){"COLUMNS=60", "LC_ALL=C.UTF-8", NULL}, 60);
}

/* The SVG of these runs; the list ends with NULL and may contain options. */
static const char *drawn(const char *const runs[])
{
    const char *file = lks_test_text("%s/loss.svg", lks_test_folder());
    assert_exits(0, plot(lks_test_text("--out=%s", file), runs),
                 lks_test_text("lockstep plot: wrote %s (", file));
    return lks_test_read(file, NULL);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* Find the `index`th line of a colour. Writes its start tag and its points, to 16384 positions. */
struct line {
    char tag[256];
    double xy[2 * 16384];
    size_t n;
};

static bool find_line(const char *svg, const char *colour, int index, struct line *line)
{
    const char *tag = lks_test_text("<polyline fill=\"none\" stroke=\"%s\"", colour);
    for (; (svg = strstr(svg, tag)) != NULL; svg++) {
        if (index-- > 0)
            continue;
        const char *at = strstr(svg, "points=\"") + 8;
        snprintf(line->tag, sizeof line->tag, "%.*s", (int)(at - svg), svg);
        line->n = 0;
        for (char *end; *at != '"'; at = *end == ' ' ? end + 1 : end) {
            line->xy[2 * line->n] = strtod(at, &end);
            line->xy[2 * line->n + 1] = strtod(end + 1, &end);
            line->n++;
        }
        return true;
    }
    return false;
}

static bool has_dot(const char *svg, double x, double y, const char *fill)
{
    return strstr(svg, lks_test_text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"", x, y,
                                     fill)) != NULL;
}

/* --- SVG -------------------------------------------------------------------------------------- */

#define SHOWN "Training and validation loss of &#60;&#38;&#62;\xef\xbf\xbd\xef\xbf\xbd"

TEST(test_one)
{
    static struct line train, val;
    const char *dir = fake_run("run", 1, 21, 1.0, "\"n_layer\":2");
    const char *svg =
        drawn((const char *const[]){lks_test_text("<&>\xef\xbf\xbe\xef\xbf\xbf=%s", dir), NULL});
    assert_memory_equal(svg, "<svg xmlns=", 11);
    assert_contains(svg, "<title>" SHOWN "</title>", "font-weight=\"bold\">" SHOWN "</text>");
    assert_non_null(strstr(svg, "</svg>"));
    assert_contains(svg, "height=\"414\""); /* title, key, graph, axis */
    /* one line for training, within a faint layer, and one for validation, through its dots */
    assert_true(find_line(svg, blue, 0, &train)); /* the key's sample comes later */
    assert_true(find_line(svg, blue, 1, &val));
    assert_int_equal(train.n, 21);
    assert_int_equal(val.n, 4);
    assert_contains(svg, "<g opacity=\"0.4\">\n<polyline fill=\"none\" stroke=\"#2f7fd6\"");
    for (size_t i = 0; i < val.n; i++) /* the last one is the final checkpoint's: a ring */
        assert_true(has_dot(svg, val.xy[2 * i], val.xy[2 * i + 1], i < 3 ? blue : "#ffffff"));
    assert_contains(svg, "stroke=\"#2f7fd6\" stroke-width=\"1.5\"/>",
                    ">validation of the final checkpoint</text>");
    /* The axis ends with iteration 21 and begins with 0. */
    assert_near(train.xy[0], LEFT, 0.06);
    assert_near(train.xy[40], LEFT + (RIGHT - LEFT) * 20 / 21.0, 0.06);
    assert_near(val.xy[6], RIGHT, 0.06);
}

/* A run without evaluations has one line, not faint, and no key. */
TEST(test_training_only)
{
    static struct line train;
    const char *dir = lks_test_folder();
    for (int i = 0; i < 9; i++)
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':%d}\n", i, 9 - i));
    const char *svg = drawn((const char *const[]){lks_test_text("run=%s", dir), NULL});
    assert_contains(svg, ">Training loss of run</text>");
    assert_null(strstr(svg, "opacity"));
    assert_null(strstr(svg, ">validation<"));
    assert_int_equal(count(svg, "<circle"), 0);
    assert_true(find_line(svg, blue, 0, &train));
    assert_false(find_line(svg, blue, 1, &train));
    assert_contains(svg, "height=\"394\"");
}

/* Numbers that no run writes are left out, and so is a segment whose place isn't known. Its text is
 * escaped. */
TEST(test_hostile)
{
    static const char *const bad[] = {"'loss':2,'tokens':-1000000", "'loss':1e308,'tokens':5",
                                      "'loss':-1e308,'tokens':6"};
    const char *dir = lks_test_folder();
    for (int i = 0; i < 9; i++)
        fake_append(
            dir, lks_test_text("{'kind':'train','iter':%d,%s}\n", i,
                               i < 3 ? bad[i] : lks_test_text("'loss':%d,'tokens':%d", 9 - i, i)));
    fake_append(dir, "{'kind':'train','iter':9,'loss':0.5}\n"
                     "{'kind':'segment','iter':10,'path':'\\u001b[31mred'}\n");
    const lks_test_result r =
        assert_exits(0, plot("--axis=tokens", (const char *const[]){dir, NULL}));
    assert_contains(r.out, "     6 |", "        0 ", "\n  from iteration 10: \\x1b[31mred\n");
    assert_null(strstr(drawn((const char *const[]){"--axis=tokens", dir, NULL}), "nan"));
}

/* A run whose losses fall from 8 to 1.7. */
static const char *falling_run(void)
{
    const char *dir = lks_test_folder();
    for (int i = 0; i <= 100; i++)
        fake_append(dir,
                    lks_test_text("{'kind':'train','iter':%d,'loss':%.3f}\n", i, 8.0 - 0.063 * i));
    return dir;
}

/* The axis has the range of the losses, not that of round numbers around it. */
TEST(test_range)
{
    static struct line train;
    const char *svg = drawn((const char *const[]){lks_test_text("run=%s", falling_run()), NULL});
    const double top = 48, room = GRAPH * 0.03 / 1.06;
    assert_true(find_line(svg, blue, 0, &train));
    assert_near(train.xy[1], top + room, 0.06);
    assert_near(train.xy[201], top + GRAPH - room, 0.06);
    for (int mark = 0; mark <= 10; mark++)
        assert_true(
            (strstr(svg, lks_test_text("text-anchor=\"end\" fill=\"#59636e\">%d</text>", mark)) !=
             NULL) == (mark == 2 || mark == 4 || mark == 6 || mark == 8));
    assert_contains(svg, ">iteration</text>");
    /* a run that begins at iteration 900, as after a copy: so does its axis */
    const char *late = lks_test_folder();
    for (int i = 900; i <= 1000; i++)
        fake_append(late, lks_test_text("{'kind':'train','iter':%d,'loss':%d}\n", i, 1000 - i));
    svg = drawn((const char *const[]){late, NULL});
    assert_true(find_line(svg, blue, 0, &train));
    assert_near(train.xy[0], LEFT, 0.06);
    assert_contains(svg, "text-anchor=\"middle\" fill=\"#59636e\">900</text>");
    assert_null(strstr(svg, "text-anchor=\"middle\" fill=\"#59636e\">0</text>"));
}

/* All curves are equally wide. Those that coincide are dashed over solid, and their dots take
 * turns. */
TEST(test_equal_runs)
{
    static struct line line;
    const char *one = fake_run("one", 1, 21, 1.0, "\"n_layer\":2");
    const char *two = fake_run("two", 1, 21, 1.0, "\"n_layer\":2");
    const char *svg = drawn((const char *const[]){one, two, NULL});
    assert_contains(svg, ">Training and validation loss of 2 runs</text>");
    for (int i = 0; find_line(svg, blue, i, &line); i++) {
        assert_contains(line.tag, "stroke-width=\"1.6\"");
        assert_null(strstr(line.tag, "dash"));
    }
    assert_true(find_line(svg, orange, 0, &line)); /* training */
    assert_contains(line.tag, "stroke-width=\"1.6\" stroke-dasharray=\"12 12\" "
                              "stroke-dashoffset=\"-12\"");
    assert_int_equal(line.n, 21);
    assert_true(find_line(svg, orange, 1, &line)); /* validation */
    assert_contains(line.tag, "stroke-width=\"1.6\" stroke-dasharray=\"12 12\"");
    for (size_t i = 0; i < 3; i++) {
        assert_true(has_dot(svg, line.xy[2 * i], line.xy[2 * i + 1], blue));
        assert_true(has_dot(svg, line.xy[2 * i], line.xy[2 * i + 1], orange) == (i % 2 == 1));
    }
    assert_contains(svg, ">same losses as one</text>");
    /* a third one: each has a third of the line */
    svg = drawn((const char *const[]){one, two, two, NULL});
    assert_true(find_line(svg, "#2f9e5b", 0, &line));
    assert_contains(line.tag, "stroke-dasharray=\"12 24\" stroke-dashoffset=\"-24\"");
    /* only as far as they are equal */
    const char *fork = lks_test_folder();
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", one), NULL);
    const size_t bytes = (size_t)(strstr(text, "{\"kind\":\"train\",\"iter\":12") - text);
    lks_test_write(lks_test_text("%s/metrics.jsonl", fork), text, bytes);
    for (int i = 12; i < 21; i++)
        fake_append(fork, lks_test_text("{'kind':'train','iter':%d,'loss':1.5}\n", i));
    svg = drawn((const char *const[]){one, fork, NULL});
    assert_true(find_line(svg, orange, 0, &line));
    assert_int_equal(line.n, 12);
    assert_contains(line.tag, "stroke-dasharray");
    assert_true(find_line(svg, orange, 1, &line));
    assert_int_equal(line.n, 10); /* from iteration 11 on */
    assert_null(strstr(line.tag, "dash"));
    assert_null(strstr(svg, "same losses"));
}

/* The legend has the settings that differ, without those that follow from others, and the ranks if
 * they do. */
TEST(test_legend)
{
    const char *one = fake_run("one", 1, 21, 1.0,
                               "\"n_layer\":2,\"learning_rate\":0.001,\"train_batch_tokens\":64,"
                               "\"batch_size\":1,\"parameters\":12,\"trained_parameters\":10");
    const char *two = fake_run("two", 7, 21, 1.1,
                               "\"n_layer\":2,\"learning_rate\":0.003,\"train_batch_tokens\":128,"
                               "\"batch_size\":2,\"parameters\":22,\"trained_parameters\":20");
    const char *svg = drawn((const char *const[]){one, two, NULL});
    assert_contains(svg, ">one</text>",
                    ">seed 1, learning_rate 0.001, train_batch_tokens 64</text>",
                    ">seed 7, learning_rate 0.003, train_batch_tokens 128</text>");
    assert_null(strstr(svg, "n_layer"));
    assert_null(strstr(svg, "dash"));
    assert_null(strstr(svg, "2 ranks"));
    fake_append(two, "{'kind':'host','world_size':4}\n");
    svg = drawn((const char *const[]){one, two, NULL});
    assert_contains(svg, ">seed 7, learning_rate 0.003, train_batch_tokens 128, 4 ranks</text>");
    /* The key and each run have a line of 20 points above the graph. */
    assert_contains(svg, "y=\"50.5\" text-anchor=\"start\" fill=\"#59636e\">training</text>",
                    "y=\"70.5\" text-anchor=\"start\" fill=\"#1f2328\">one</text>",
                    "y=\"90.5\" text-anchor=\"start\" fill=\"#1f2328\">two</text>",
                    "height=\"454\"");
    /* A run's own name isn't repeated. */
    const char *named = lks_test_text("4 ranks=%s", two);
    svg = drawn((const char *const[]){one, named, NULL});
    assert_contains(svg, ">seed 7, learning_rate 0.003, train_batch_tokens 128</text>");
    named = lks_test_text("44 ranks=%s", two);
    svg = drawn((const char *const[]){one, named, NULL});
    assert_contains(svg, ">seed 7, learning_rate 0.003, train_batch_tokens 128, 4 ranks</text>");
}

/* Names that aren't UTF-8, or are longer than a picture has room for. */
TEST(test_names)
{
    const char *e = "\xc3\xa9",
               *ten = lks_test_text("%s%s%s%s%s%s%s%s%s%s", e, e, e, e, e, e, e, e, e, e);
    const char *latin = fake_run("caf\xe9", 1, 20, 1.5, "\"n_layer\":2");
    const char *wide = lks_test_text("%s%s%s%sx%s", ten, ten, ten, ten, e);
    const char *text =
        lks_test_text("\"n_layer\":3,\"a\":\"%s%s%s\",\"b\":\"%s%s\"", ten, ten, ten, ten, ten);
    const char *runs[] = {latin, fake_run(wide, 2, 20, 1.0, text), NULL};
    const char *svg = drawn(runs);
    assert_contains(svg, ">caf?</text>");
    /* 40 characters of a name; the rest of the line ends within the picture */
    const char *cut = lks_test_text(">%s%s%s%.18s\xe2\x80\xa6</text>", ten, ten, ten, ten);
    assert_contains(svg, cut);
    const char *line = lks_test_find(svg, ">seed 2, n_layer 3, a ");
    const char *end = strchr(line, '<');
    assert_memory_equal(end - 3, "\xe2\x80\xa6", 3);
    int characters = 0;
    for (const char *c = line + 1; c < end; c++)
        characters += ((unsigned char)*c & 0xc0) != 0x80;
    while (strncmp(line, "<text x=\"", 9) != 0)
        line--;
    assert_true(characters > 30 && strtod(line + 9, NULL) + characters * 7.3 <= RIGHT);
    lks_test_result r = plot(lks_test_text("--out=%s/loss.png", lks_test_folder()), runs);
    assert_true(r.exit_code == 0 || strstr(r.err, "can't write PNG") != NULL);
}

static bool has_mark(const char *svg, const char *anchor, const char *text)
{
    return strstr(svg, lks_test_text("text-anchor=\"%s\" fill=\"#59636e\">%s</text>", anchor,
                                     text)) != NULL;
}

static void assert_inside(const char *svg)
{
    double y, height;
    assert_int_equal(sscanf(lks_test_find(svg, "viewBox="), "viewBox=\"0 0 %*d %lf", &height), 1);
    for (const char *at = svg; (at = strstr(at, "<text ")) != NULL; at++)
        assert_true(sscanf(at, "<text x=\"%*f\" y=\"%lf", &y) == 1 && y > 0 && y < height);
}

/* Marks are round numbers, also on a logarithmic axis, and short. */
TEST(test_marks)
{
    const char *dir = fake_run("run", 1, 31, 1.0, "\"n_layer\":2");
    const char *svg = drawn((const char *const[]){"--log_scale", dir, NULL});
    assert_contains(svg, "loss of run (log scale)</text>");
    assert_true(has_mark(svg, "end", "1.0") && has_mark(svg, "end", "1.2"));
    assert_true(has_mark(svg, "end", "1.8") && !has_mark(svg, "end", "2.2"));
    assert_inside(svg);
    assert_true(has_mark(svg, "middle", "10") && has_mark(svg, "middle", "30"));
    const char *wide = lks_test_folder();
    for (int i = 0; i < 9; i++)
        fake_append(wide, lks_test_text("{'kind':'train','iter':%d,'loss':%g,'ms':1800000,"
                                        "'tokens':%d}\n",
                                        i, pow(10.0, 1.2 - 0.2 * i), 12345678 * (i + 1)));
    svg = drawn((const char *const[]){"--log_scale", "--axis=tokens", wide, NULL});
    assert_true(has_mark(svg, "end", "10") && has_mark(svg, "end", "5") &&
                has_mark(svg, "end", "0.5") && !has_mark(svg, "end", "20"));
    assert_inside(svg);
    assert_true(has_mark(svg, "middle", "20M") && has_mark(svg, "middle", "100M"));
    assert_contains(svg, ">tokens</text>");
    svg = drawn((const char *const[]){"--axis=time", wide, NULL});
    assert_true(has_mark(svg, "middle", "1") && has_mark(svg, "middle", "4"));
    assert_contains(svg, ">hours of training</text>");
}

/* Of a curve with more points than columns the highest and the lowest are drawn. */
TEST(test_long_curve)
{
    enum { POINTS = 4000 };
    const char *file = lks_test_text("%s/loss.svg", lks_test_folder());
    lks__series s = {.n_points = POINTS, .points = calloc(POINTS, sizeof(lks__point))};
    for (size_t i = 0; i < POINTS; i++)
        s.points[i] = (lks__point){.iter = i, .loss = 4.0 + (double)(i % 7) / 7};
    s.points[2001].loss = 9.0;
    s.points[3002].loss = 1.0;
    const lks__plot p = {.runs = &s, .n = 1};
    assert_ok(lks__plot_file(&p, file));
    const char *svg = lks_test_read(file, NULL);
    const double room = GRAPH * 0.03 / 1.06, top = 48;
    assert_contains(
        svg, lks_test_text(" %.1f,%.1f ", LEFT + (RIGHT - LEFT) * 2001 / 3999.0, top + room),
        lks_test_text(" %.1f,%.1f ", LEFT + (RIGHT - LEFT) * 3002 / 3999.0, top + GRAPH - room));
    static struct line line;
    assert_true(find_line(svg, blue, 0, &line));
    assert_true(line.n > 2000 && line.n < 3000);
    free(s.points);
}

/* --- PNG -------------------------------------------------------------------------------------- */

/* The pixels of a PNG with three bytes each, as cairo writes it. */
static unsigned char *pixels_of(const unsigned char *png, size_t bytes, size_t width, size_t height)
{
    const size_t row = 3 * width;
    unsigned char *packed = malloc(bytes), *all = malloc(height * (row + 1));
    size_t n = 0;
    for (size_t at = 8, length; at + 12 <= bytes; at += length + 12) {
        length = (size_t)png[at] << 24 | png[at + 1] << 16 | png[at + 2] << 8 | png[at + 3];
        assert_true(length <= bytes - at - 12);
        if (memcmp(png + at + 4, "IDAT", 4) == 0) {
            memcpy(packed + n, png + at + 8, length);
            n += length;
        }
    }
    uLongf size = height * (row + 1);
    assert_int_equal(uncompress(all, &size, packed, n), Z_OK);
    assert_int_equal(size, height * (row + 1));
    free(packed);
    for (size_t y = 0; y < height; y++) { /* each row's filter is its first byte */
        unsigned char *to = all + y * row, *from = all + y * (row + 1);
        const unsigned char filter = *from;
        memmove(to, from + 1, row);
        for (size_t i = 0; i < row; i++) {
            const int left = i < 3 ? 0 : to[i - 3], up = y == 0 ? 0 : *(to + i - row);
            const int corner = i < 3 || y == 0 ? 0 : *(to + i - row - 3), p = left + up - corner;
            const int paeth = abs(p - left) <= abs(p - up) && abs(p - left) <= abs(p - corner)
                                  ? left
                              : abs(p - up) <= abs(p - corner) ? up
                                                               : corner;
            const int add[] = {0, left, up, (left + up) / 2, paeth};
            assert_true(filter < 5);
            to[i] = (unsigned char)(to[i] + add[filter]);
        }
    }
    return all;
}

TEST(test_png)
{
    enum { PIXELS = 2 * WIDTH, HIGH = 2 * 414 };
    const char *dir = fake_run("run", 1, 21, 1.0, "\"n_layer\":2");
    const char *file = lks_test_text("%s/loss.png", lks_test_folder());
    lks_test_result r = plot(lks_test_text("--out=%s", file), (const char *const[]){dir, NULL});
    if (strstr(r.err, "can't write PNG") != NULL)
        lks_test_lacks("cairo", "libcairo2-dev");
    assert_exits(0, r);
    size_t bytes;
    const unsigned char *png = (const unsigned char *)lks_test_read(file, &bytes);
    assert_true(bytes > 1000);
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(png[18] << 8 | png[19], PIXELS);
    assert_int_equal(png[22] << 8 | png[23], HIGH);
    assert_int_equal(png[24] << 8 | png[25], 8 << 8 | 2); /* bytes of red, green and blue */
    unsigned char *pixels = pixels_of(png, bytes, PIXELS, HIGH);
    int strong = 0, faint = 0, words = 0, last = 0;
    for (size_t i = 0; i < PIXELS * HIGH; i++) {
        const unsigned char *c = pixels + 3 * i;
        const bool graph = i % PIXELS > WIDTH && i / PIXELS > 140; /* its right half */
        const bool line = graph && memcmp(c, "\x2f\x7f\xd6", 3) == 0;
        strong += line;
        last = line && (int)(i % PIXELS) > last ? (int)(i % PIXELS) : last;
        faint += graph && abs(c[0] - 172) < 4 && abs(c[1] - 204) < 4 && abs(c[2] - 239) < 4;
        words += i / PIXELS > HIGH - 40 && c[0] < 0xc0; /* the axis's name */
    }
    assert_true(strong > 500);
    assert_true(faint > 500);
    assert_true(words > 50);
    assert_in_range(last, 2 * RIGHT + 5, 2 * RIGHT + 9); /* the ring around the last dot */
    assert_memory_equal(pixels, "\xff\xff\xff", 3);
    free(pixels);
}

/* --- characters ------------------------------------------------------------------------------- */

static int widest(const char *text)
{
    int most = 0, n = 0;
    for (; *text != '\0'; text++) {
        n = *text == '\n' ? 0 : n + (((unsigned char)*text & 0xc0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

TEST(test_text)
{
    const char *dir = fake_run("run", 1, 30, 1.0, "\"n_layer\":2");
    const char *const one[] = {dir, NULL}, *const two[] = {dir, dir, NULL};
    lks_test_result r = assert_exits(0, plot(NULL, one));
    assert_contains(r.out, "run: loss 1.0000, best validation loss 1.0000");
    assert_true(strstr(r.out, "\xe2\xa0") != NULL || strstr(r.out, "\xe2\xa1") != NULL);
    assert_true(widest(r.out) <= 60);
    r = plot("--axis=time", two);
    assert_contains(r.out, " 3\n        seconds of training\n"); /* 30 steps of 100 ms */
    /* the curve falls from the first evaluation, the highest point, to a loss of 1 on the right */
    assert_contains(lks_test_text("%.*s", (int)strcspn(r.out, "\n"), r.out), " |o");
    const char *bottom = lks_test_find(r.out, "\n     1 |");
    assert_int_equal(bottom[strcspn(bottom + 1, "\n")], 'o'); /* the final evaluation */
    assert_int_equal(bottom[strcspn(bottom + 1, "\n") - 1], 'b');
    assert_contains(r.out, "b run");
    assert_null(strstr(r.out, "\xe2"));
    r = plot("--axis=tokens", one);
    assert_contains(r.out, " 30000\n        tokens\n");
    const char *argv[] = {"lockstep", "plot", "--log_scale", "--axis=tokens", dir, NULL};
    const char *narrow = NULL; /* with at least 8 columns of a drawing */
    for (int columns = 1; columns <= 1000; columns += columns < 40 ? 1 : 160) {
        r = assert_exits(0, lks_test_run(argv,
                                         (const char *const[]){lks_test_text("COLUMNS=%d", columns),
                                                               "LC_ALL=C", NULL},
                                         60));
        assert_true(columns < 30 || widest(r.out) <= columns);
        const char *end = lks_test_find(r.out, " tokens\n");
        narrow = columns == 1 ? lks_test_text("%.*s", (int)(end - r.out), r.out) : narrow;
        assert_true(columns > 16 || memcmp(narrow, r.out, (size_t)(end - r.out)) == 0);
        assert_true(strtod(r.out, NULL) > 1.0); /* the highest loss, not its logarithm */
        for (const char *c = r.out; *c != '\0'; c++)
            assert_true((unsigned char)*c < 0x80);
    }
}

/* Whole numbers stay whole, however many tokens; a label has room, however high the loss. */
TEST(test_large_numbers)
{
    const char *dir = lks_test_folder();
    for (int i = 0; i < 9; i++)
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':%s,'ms':9,'tokens':%d}\n",
                                       i, i == 1 ? "65979962368" : "1.5", 12345678 * (i + 1)));
    const char *const runs[] = {dir, NULL}, *const two[] = {dir, dir, NULL};
    lks_test_result r = plot("--axis=tokens", runs);
    assert_contains(r.out, " 111111102\n           tokens\n");
    assert_null(strstr(plot(NULL, two).out, "validation"));
    assert_memory_equal(r.out, "6.598e+10 |", 11);
    assert_contains(r.out, "\n          |");
    assert_true(has_mark(drawn(runs), "end", "2e10"));
    fake_append(dir, "{'kind':'rollback','iter':8,'to':1}\n"
                     "{'kind':'train','iter':1,'loss':227032096,'tokens':2}\n"
                     "{'kind':'train','iter':2,'loss':1.5,'tokens':3}\n");
    assert_true(has_mark(drawn(runs), "end", "2e8")); /* it has little room */
    assert_true(has_mark(drawn(runs), "end", "5e7"));
    assert_true(has_mark(drawn(runs), "end", "0"));
}

/* Letters of runs: all of a to z but o, which is an evaluation, then A to Z. */
TEST(test_letters)
{
    const char *base = lks_test_folder();
    for (int i = 0; i < 26; i++)
        assert_int_equal(rename(fake_run("run", i, 3, 1.5, "\"n_layer\":2"),
                                lks_test_text("%s/run-%d", base, i)),
                         0);
    lks_test_result r = plot(NULL, (const char *const[]){base, NULL});
    assert_contains(r.out, "\nz run-24: ", "\nA run-25: ");
}

/* A flat line has room above and below; a loss that is no number is left out. */
TEST(test_flat)
{
    const char *dir = lks_test_folder();
    for (int i = 0; i < 9; i++)
        fake_append(dir, lks_test_text("{'kind':'train','iter':%d,'loss':%s}\n", i,
                                       i == 4 ? "null" : "1.5"));
    lks_test_result r =
        assert_exits(0, plot("--log_scale=false", (const char *const[]){dir, NULL}));
    assert_memory_equal(r.out, "     2 |\n", 9);
    assert_contains(r.out, "\n     1 |\n", "\xe2");
}
