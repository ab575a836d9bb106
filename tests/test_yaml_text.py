"""YAML of other tools: what each form means, and what is refused with the number of its line."""

import random

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.support.yaml_text import parse_yaml

TEXT = """--- # of a tool
a: {choice: xpu, n: [1, 2.5, 'x, y', true], none: }
"b c":
- - 1
  - -2e3
-   d: 'it''s'  # a remark
    e: "q\\u0041 # none"
-
  - f
long: words that go
  on here # a remark
kept: |-
  raw # kept
    x: y

folded: 'two
  lines'
url: a:b#c
empty:
last: 007
...
"""


def test_each_form_by_hand():
    """PyYAML 6.0.4 differs in two: there -2e3 is text, and the literal text keeps its indentation."""
    assert parse_yaml(TEXT) == {
        "a": {"choice": "xpu", "n": [1, 2.5, "x, y", True], "none": None},
        "b c": [[1, -2000.0], {"d": "it's", "e": "qA # none"}, ["f"]],
        "long": "words that go on here",
        "kept": "raw # kept\nx: y",
        "folded": "two lines",
        "url": "a:b#c",
        "empty": None,
        "last": 7,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("3", 3),
        ("[]", []),
        ("- 1\n- 2\n", [1, 2]),
        ("a:\n- 1\nb: 2\n", {"a": [1], "b": 2}),
    ],
)
def test_small_texts(text, value):
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x 1", "line 1: anchors of YAML are not read"),
        ("a: 1\nb: *x", "line 2: aliases of YAML are not read"),
        ("a: !!int 1", "line 1: tags of YAML are not read"),
        ("? a", "line 1: keys of several lines of YAML are not read"),
        ("a: 1\n---\nb: 2", "line 2: a file must hold one document"),
        ("a: 1\n...\nb: 2", "line 3: a file must hold one document"),
        ("a:\n\tb: 2", "line 2: lines must be indented by spaces"),
        ("a: 1\na: 2", "line 2: the key 'a' appears twice"),
        ("a: 1\n- 2", "line 2: its indentation fits no line above it"),
        ("a: 1\n  b: 2", "line 2: a key must not stand below a value"),
        ("a: 1\nword", "line 2 must be KEY: VALUE, got 'word'"),
        ("a: [1, 2", "line 1: ] or a comma is missing"),
        ("a: {b: 1, b: 2}", "line 1: a mapping must be {KEY: VALUE, ...}, each key once"),
        ("a: 'x", "line 1: a text in quotation marks must end"),
        ("a: [1] 2", "line 1: nothing may follow a value"),
        ("[" * 200, "it is nested more than 100 deep"),
        ("- " * 200 + "1", "it is nested more than 100 deep"),
    ],
)
def test_what_is_not_read_is_refused_by_its_line(text, words):
    with pytest.raises(InputError) as refused:
        parse_yaml(text)
    assert words in str(refused.value)


def outcome(text):
    """The sentence with which a text is refused; "": it is read. Any other exception is passed on."""
    try:
        parse_yaml(text)
    except InputError as sentence:
        return str(sentence)
    return ""


def test_a_damaged_text_is_a_value_or_a_sentence():
    draw, refused = random.Random(0), []
    for _ in range(2000):
        start, end = sorted(draw.randrange(len(TEXT)) for _ in range(2))
        middle = draw.choice([TEXT[start : start + 9], draw.choice(":-[]{}'\"|>&#,\n ") * draw.randrange(3)])
        refused.append(outcome(draw.choice([TEXT[:start] + middle + TEXT[start:], TEXT[:start] + middle + TEXT[end:]])))
    assert all(sentence.startswith("line ") for sentence in refused if sentence)
    assert 200 < sum(map(bool, refused)) < 1800
