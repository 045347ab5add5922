"""Manifests as text: what is read, and what is wrong where."""

from __future__ import annotations

import pytest
from elasticjob.decisions.documents import dump, parse
from elasticjob.errors import InvalidManifestError

READ = {
    "a document": ("a: 1", [{"a": 1}]),
    "several, with empty ones": ("a: 1\n---\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
    "a List": ("kind: List\nitems: [{a: 1}, {b: 2}]", [{"a": 1}, {"b": 2}]),
    "a List of one kind": ("kind: PyTorchJobList\nitems: [{a: 1}]", [{"a": 1}]),
    "JSON": ('{"a": [1, null, true]}', [{"a": [1, None, True]}]),
    "JSON with tabs": ('{\n\t"a": 1\n}', [{"a": 1}]),
    "JSON, a list": ('[{"a": 1}, {"b": 2}]', [{"a": 1}, {"b": 2}]),
    "YAML in flow style": ("{a: 1}", [{"a": 1}]),
    "times are text": ("a: 2025-01-02T03:04:05Z", [{"a": "2025-01-02T03:04:05Z"}]),
    "12:30 is text": ("a: 12:30", [{"a": "12:30"}]),
    "octal modes are numbers": ("a: 0644", [{"a": 420}]),
    "booleans as kubectl reads them": ("[a: yes, b: off]", [{"a": True}, {"b": False}]),
    "keys are text": ("1: a", [{"1": "a"}]),
    "anchors": ("a: &x {b: 1}\nc: {<<: *x, d: 2}", [{"a": {"b": 1}, "c": {"b": 1, "d": 2}}]),
}


@pytest.mark.parametrize(("text", "documents"), READ.values(), ids=READ.keys())
def test_manifests_are_read_as_kubectl_reads_them(text: str, documents: list[object]) -> None:
    assert parse(text, "a.yaml") == documents


WRONG = {
    "empty": ("", "a.yaml is empty"),
    "comments only": ("# nothing\n---\n", "a.yaml is empty"),
    "an empty List": ("kind: List\nitems: []", "a.yaml is empty"),
    "text": ("hello", "not a Kubernetes object"),
    "indentation": ("a:\n  b: 1\n c: 2", "a.yaml:3:2: not valid YAML"),
    "an open quote": ('a: "x', "a.yaml:1:6: not valid YAML"),
    "a key twice": ("a:\n  b: 1\n  b: 2", "a.yaml:3:3: not valid YAML: b is given twice"),
    "a tab": ("a:\n\tb: 1", "a.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token (YAML is "
              "indented with spaces)"),
    "a tag": ("a: !!python/object:os.system x", "a.yaml:1:4"),
    "a control character": ("a: \x01", "not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_in_a_manifest_is_said_with_line_and_column(text: str, words: str) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        parse(text, "a.yaml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_in_json_have_line_and_column() -> None:
    with pytest.raises(InvalidManifestError, match=r"a\.json:2:8: not valid JSON: Expecting value"):
        parse('{\n  "a": }', "a.json")


@pytest.mark.parametrize(
    "text",
    ["two\nlines\n", "trailing \nspace", "tab\there\nand", " leading\nspace", "yes", "1", "null", "é", "a: b", ""],
)
def test_text_survives_being_written_and_read(text: str) -> None:
    document = {"a": text, "b": [text]}
    assert parse(dump(document), "a.yaml") == [document]
