/* The recorder: sums by part that add up, and a ring that keeps the newest events. */
#include "support.h"

#include "base/system/sys.h"
#include "base/trace.h"

static void pass_time(void)
{
    for (double end = lks__sys_now() + 0.002; lks__sys_now() < end;)
        ;
}

TEST(test_off)
{
    assert_null(lks__trace_current);
    lks__trace_begin(LKS__SPAN_STEP, 1);
    lks__trace_end();
    lks__trace_past(LKS__SPAN_BUCKET, 1, 0.0);
    assert_null(lks__trace_current);
}

/* Each span counts only its own time; together they give the time of the outermost one. */
TEST(test_parts)
{
    lks__trace *t;
    double parts[LKS__N_PARTS];
    assert_ok(lks__trace_open(8, &t));
    assert_ptr_equal(lks__trace_current, t);
    lks__trace_begin(LKS__SPAN_STEP, 7);
    pass_time();
    lks__trace_begin(LKS__SPAN_BACKWARD, -1);
    lks__trace_begin(LKS__SPAN_BACKWARD_LAYER, 2);
    pass_time();
    lks__trace_begin(LKS__SPAN_WAIT, -1);
    pass_time();
    pass_time();
    lks__trace_end();
    lks__trace_end();
    lks__trace_end();
    lks__trace_end();
    lks__trace_take_parts(t, parts);
    double sum = 0.0;
    for (int p = 0; p < LKS__N_PARTS; p++)
        sum += parts[p];
    assert_true(parts[LKS__PART_OTHER] >= 0.002);
    assert_true(parts[LKS__PART_BACKWARD] >= 0.002);
    assert_true(parts[LKS__PART_WAIT] >= 0.004);
    assert_true(parts[LKS__PART_FORWARD] == 0.0 && parts[LKS__PART_DATA] == 0.0);

    lks__trace_event events[8];
    size_t n;
    assert_int_equal(lks__trace_events(t, events, &n), 0);
    assert_int_equal(n, 4);
    const int spans[] = {LKS__SPAN_WAIT, LKS__SPAN_BACKWARD_LAYER, LKS__SPAN_BACKWARD,
                         LKS__SPAN_STEP};
    const int indices[] = {-1, 2, -1, 7};
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(events[i].span, spans[i]);
        assert_int_equal(events[i].index, indices[i]);
        if (i > 0) { /* the previous one lies inside it */
            assert_true(events[i - 1].start >= events[i].start);
            assert_true(events[i - 1].start + events[i - 1].seconds <=
                        events[i].start + events[i].seconds + 1e-9);
        }
    }
    assert_near(sum, events[3].seconds, 1e-9);

    lks__trace_take_parts(t, parts); /* taking them sets them to 0 */
    assert_true(parts[LKS__PART_WAIT] == 0.0 && parts[LKS__PART_OTHER] == 0.0);
    lks__trace_close(t);
    assert_null(lks__trace_current);
}

/* The newest events in their order, however many were dropped. */
TEST(test_ring)
{
    enum { ROOM = 4 };
    for (int n_seen = 1; n_seen < 14; n_seen++) {
        lks__trace *t;
        lks__trace_event events[ROOM];
        size_t n;
        const int kept = n_seen < ROOM ? n_seen : ROOM;
        assert_ok(lks__trace_open(ROOM, &t));
        for (int i = 0; i < n_seen - 1; i++) {
            lks__trace_begin(LKS__SPAN_DATA, i);
            lks__trace_end();
        }
        lks__trace_past(LKS__SPAN_BUCKET, n_seen - 1, lks__sys_now() - 3);
        assert_int_equal(lks__trace_events(t, events, &n), n_seen - kept);
        assert_int_equal(n, kept);
        for (int i = 0; i < kept; i++)
            assert_int_equal(events[i].index, n_seen - kept + i);
        assert_int_equal(events[kept - 1].span, LKS__SPAN_BUCKET);
        assert_true(events[kept - 1].seconds >= 3 && events[kept - 1].seconds < 60);
        lks__trace_close(t);
    }
}

/* Only sums; and spans deeper than the limit change only their own record. */
TEST(test_depth)
{
    lks__trace *t;
    double parts[LKS__N_PARTS];
    assert_ok(lks__trace_open(0, &t));
    for (int i = 0; i < 40; i++)
        lks__trace_begin(LKS__SPAN_FORWARD_LAYER, i);
    for (int i = 0; i < 40; i++)
        lks__trace_end();
    lks__trace_end(); /* one too many */
    lks__trace_begin(LKS__SPAN_WAIT, -1);
    pass_time();
    lks__trace_end();
    lks__trace_take_parts(t, parts);
    assert_true(parts[LKS__PART_WAIT] >= 0.002);
    size_t n;
    assert_int_equal(lks__trace_events(t, NULL, &n), 0);
    assert_int_equal(n, 0);
    lks__trace_close(t);
}
