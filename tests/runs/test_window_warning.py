"""A run warns where automatic windows, which leave out the time of packets, take a part of its critical path."""

import dysharp

WARNING = "% of the critical path waits for full windows"


def warned(**options):
    row = dysharp.run("explicit", model="S-8", cluster="paper-dgx-h100,link_latency_ns=10", tokens=128, routing="uniform", options=options)
    return row, [text for text in row.warnings if WARNING in text]


def test_short_links_make_automatic_windows_too_small():
    row, found = warned()
    share = row.attribution["window_us"] / row.time_us
    assert share > 0.1
    assert found == [
        f"explicit: {share:.0%} of the critical path waits for full windows, which follow from latencies and leave out the time of packets; "
        "larger ones may be faster (--set explicit.dispatch_window=N)"
    ]


def test_windows_that_a_user_sets_are_not_named():
    row, found = warned(dispatch_window=8, combine_window=16)
    assert row.time_us < warned()[0].time_us
    assert not found
