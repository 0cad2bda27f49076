/* The table of bytes per token (data/text/bpb.h) of a SentencePiece model that is written here. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "data/text/bpb.h"
#include "spm_model.h"

/* A model written by hand, with every kind of piece: the table is known from parameter-golf's rules
 * (build_sentencepiece_luts). */
TEST(test_table)
{
    enum { BYTES = 256, BYTE_KIND = 6, BYTE_FALLBACK = 35 };
    static const struct {
        const char *text;
        unsigned kind;
        int bytes;
        bool leading_space, boundary;
    } pieces[] = {
        {"<unk>", SPM_UNKNOWN, 0, false, true},
        {"<s>", SPM_CONTROL, 0, false, true},
        {"the", SPM_NORMAL, 3, false, false},
        {"\xe2\x96\x81the", SPM_NORMAL, 3, true, false},
        {"\xe2\x96\x81", SPM_NORMAL, 0, true, false},
        {"\xc3\xa9", SPM_NORMAL, 2, false, false},
        {"\xe2\x96\x81\xc3\xa9s", SPM_NORMAL, 3, true, false},
        {"gone", SPM_UNUSED, 0, false, true},
        {"t\xe2\x96\x81h", SPM_NORMAL, 5, false, false}, /* a mark in the middle counts */
        {"--", SPM_USER_DEFINED, 2, false, false},
    };
    enum { PIECES = sizeof pieces / sizeof pieces[0] };
    static spm_bytes model;
    spm_bytes trainer = {.n = 0};
    lks_test_need_sentencepiece();
    for (int i = 0; i < PIECES; i++)
        spm_put_piece(&model, pieces[i].text, strlen(pieces[i].text), pieces[i].kind);
    for (int i = 0; i < BYTES; i++) {
        char text[8];
        spm_put_piece(&model, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", (unsigned)i),
                      BYTE_KIND);
    }
    spm_put_number(&trainer, 3, SPM_BPE);
    spm_put_number(&trainer, BYTE_FALLBACK, 1);
    spm_put_bytes(&model, SPM_TRAINER, trainer.data, trainer.n);
    const char *path = lks_test_text("%s/small.model", lks_test_folder());
    lks_test_write(path, model.data, model.n);

    lks__byte_table t;
    assert_ok(lks__byte_table_open(path, PIECES + BYTES, &t));
    for (int i = 0; i < PIECES; i++) {
        assert_int_equal(t.bytes[i], pieces[i].bytes);
        assert_int_equal(t.leading_space[i], pieces[i].leading_space);
        assert_int_equal(t.boundary[i], pieces[i].boundary);
    }
    for (int i = PIECES; i < PIECES + BYTES; i++) {
        assert_int_equal(t.bytes[i], 1);
        assert_false(t.leading_space[i]);
        assert_false(t.boundary[i]);
    }
    lks__byte_table_free(&t);
}
