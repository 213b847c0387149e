"""A run warns where automatic windows take a part of its critical path: on long links, not on short ones."""

import dysharp

WARNING = "% of the critical path waits for full windows"


def warned(latency_ns=2000, **options):
    cluster = f"paper-dgx-h100,link_latency_ns={latency_ns}"
    row = dysharp.run("nvls", model="S-8", cluster=cluster, tokens=128, routing="uniform", options=options)
    return row, [text for text in row.warnings if WARNING in text]


def test_long_links_make_automatic_windows_too_small():
    row, found = warned()
    share = row.attribution["window_us"] / row.time_us
    assert share > 0.1
    assert found == [
        f"nvls: {share:.0%} of the critical path waits for full windows, which follow from latencies and published tables; "
        "larger ones may be faster (--set nvls.dispatch_window=N)"
    ]


def test_windows_that_a_user_sets_are_not_named():
    row, found = warned(dispatch_window=128, combine_window=256)
    assert row.time_us < warned()[0].time_us
    assert not found


def test_short_links_have_windows_of_the_time_of_packets():
    row, found = warned(latency_ns=10)
    assert row.attribution["window_us"] < 0.01 * row.time_us
    assert not found
