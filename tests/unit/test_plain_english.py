"""What users read is plain English: standard words, short sentences, values and fields.

The words are those of `support/plain_english.py`. They are found in the sources, so that a new
text is checked without being run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plain_english import (
    MAX_WORDS,
    NAMES_OF_THE_API,
    PUBLIC_MODULES,
    ROOT,
    banned_words,
    calls_of_loggers,
    document_texts,
    documents,
    errors_of_input,
    long_sentences,
    names_of_module,
    source_texts,
    sources,
)


def of_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- the package and the documents -----------------------------------------------------------


@pytest.mark.slow
def test_no_text_of_the_package_has_a_banned_word() -> None:
    found = [
        f"{text.place}: {word}\n    {' '.join(text.text.split())[:100]}"
        for path in sources()
        for text in source_texts(path)
        for word in banned_words(text.text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_no_name_that_users_meet_has_a_banned_word() -> None:
    found = [
        f"{text.place}: {text.text}: {word}"
        for path in sources()
        for text in names_of_module(path)
        if text.text not in NAMES_OF_THE_API
        for word in banned_words(text.text.replace("_", " ").replace(".", " "))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", documents(), ids=of_path)
def test_no_document_has_a_banned_word(path: Path) -> None:
    found = [
        f"{text.place}: {word}"
        for text in document_texts(path)
        for word in banned_words(text.text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", documents(), ids=of_path)
def test_no_sentence_of_a_document_is_long(path: Path) -> None:
    found = [
        f"{text.place}: {words}"
        for text in document_texts(path)
        for words in long_sentences(text.text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_no_sentence_of_the_package_is_long() -> None:
    found = [
        f"{text.place}: {words}"
        for path in sources()
        for text in source_texts(path)
        for words in long_sentences(text.text)
    ]
    assert not found, "\n".join(found)


def test_every_error_about_input_has_the_value() -> None:
    errors = [each for path in sources() for each in errors_of_input(path)]
    assert len(errors) > 50
    found = [f"{text.place}: {text.text}" for text, has_value in errors if not has_value]
    assert not found, "\n".join(found)


def test_every_log_line_has_an_event() -> None:
    calls = [each for path in sources() for each in calls_of_loggers(path)]
    assert len(calls) > 20
    found = [f"{text.place}: {text.text}" for text, has_event in calls if not has_event]
    assert not found, "\n".join(found)


# -- the checks themselves -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "whoever runs it",
        "Nobody has claimed since",
        "hints are interrupted",
        "3 owed a message",
        "the World's patience is over",
        "as the wire has it",
        "how to mend it",
        "the message is given back",
        "it must bear that",
        "the text says why",
        "three slots behind",
        "a prefix in front of it",
        "at the begin of a run",
        "it goes on",
        "where it lies",
        "'x' is no topic",
        "the resume is of another hook",
        "What fails is tried again.",
        "It is so. What fails is tried again",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert banned_words(text)


@pytest.mark.parametrize(
    "text",
    [
        "their wire names and the wire format",
        "there is no server",
        "it is no longer leased",
        "run `mend()` or --hint",
        "behind a proxy",
        "What is a lease?",
        "the owner of the key",
        "owed: x is not a live run",
    ],
)
def test_other_words_are_not(text: str) -> None:
    assert not banned_words(text)


def test_a_long_sentence_is_found() -> None:
    words = " ".join(["word"] * MAX_WORDS)
    assert not long_sentences(f"{words}. {words}.")
    assert long_sentences(f"{words}. And {words}.")
    assert not long_sentences(f"| {words} and more")


def test_texts_are_collected_wherever_they_are(tmp_path: Path) -> None:
    package = ROOT / "src" / "redis_world"
    assert all((package / f"{name}.py").exists() for name in PUBLIC_MODULES)
    texts = {text.text for path in sources() for text in source_texts(path)}
    # A constant, an f-string in several parts, a docstring of an attribute, of a method.
    assert "lost the lease, the message is delivered again" in texts
    assert any(text.startswith("{} must be a whole number") for text in texts)
    assert any(text.startswith("A point in time: aware, UTC") for text in texts)
    assert any(text.startswith("Return a leased message unchanged") for text in texts)
    # Of a class that a public module only passes on.
    assert any(text.startswith("A message that failed, or lost its lease") for text in texts)
    names = {text.text for path in sources() for text in names_of_module(path)}
    assert {"message_id", "oldest_due_age", "older_than", "release", "lease.lost"} <= names
    document = tmp_path / "x.md"
    document.write_text(
        "# Head\n\nOne line\nand another.\n\n```sh\nwhoever\n```\n| a | b |\n* entry\n",
        encoding="utf-8",
    )
    assert [text.text for text in document_texts(document)] == [
        "# Head", "One line and another.", "| a", "| b", "entry",
    ]  # fmt: skip
