"""Text from files makes no Markdown of its own."""

from dysharp.show.markdown import escaped, paragraph, table


def test_text_from_a_file_is_only_text() -> None:
    text = "a\n\n# head\n[x](http://e) ![y](http://e) <b>|\\|\x1b[0m"
    assert escaped(text) == "a  # head \\[x\\](http://e) !\\[y\\](http://e) &lt;b&gt;\\|\\\\\\|\\\\x1b\\[0m"
    assert paragraph("# head") == "\\# head"
    assert paragraph("```\ncode") == "\\``` code"
    assert table(("a", "b"), [("x|y", "\n")]).split("\n") == ["| a | b |", "|---|---|", "| x\\|y |   |"]
