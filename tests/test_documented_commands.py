"""Every command line that the documents show is one that the commands accept. Nothing is run."""

import importlib
import re
import shlex

import pytest
import typer

from tests.test_project import DOCUMENTS, PROJECT

PROGRAMS = sorted(PROJECT["scripts"])
ENDS = re.compile(r"\s+#|\s*[;&|>]|\)")
"""Where a command line ends: a remark, or another one begins."""


def shown(document):
    """Yield (line number, words, whether it is a line to type) for each command of a document."""
    text = document.read_text().replace("\\\n", "  ")
    for number, line in enumerate(text.splitlines(), start=1):
        to_type = line.startswith("    ")
        for code in [line] if to_type else re.findall(r"`([^`]+)`", line):
            for found in re.finditer(rf"(?<![\w./-])({'|'.join(PROGRAMS)}) (?=[a-z-])(.*)", code):
                line_shown = ENDS.split(found[2], maxsplit=1)[0].replace('"', "")
                yield number, [found[1], *shlex.split(line_shown)], to_type


ALL = [
    pytest.param(words, to_type, id=f"{document.name}:{number}:{' '.join(words)}")
    for document in DOCUMENTS
    for number, words, to_type in shown(document)
]


def leaf_of(words):
    """Return the command that the words name, and those that are its own."""
    module = importlib.import_module(PROJECT["scripts"][words[0]].partition(":")[0])
    command, rest = typer.main.get_command(module.app), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


@pytest.mark.parametrize(("words", "to_type"), ALL)
def test_a_command_in_the_documents_is_accepted(words, to_type):
    command, rest = leaf_of(words)
    assert not getattr(command, "commands", {}) or command.invoke_without_command, words
    if to_type:
        # Parsing calls nothing; it raises what a user would read.
        command.make_context(words[0], rest)
        return
    # In running text a command may stand without its arguments, but never with wrong options.
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    own = rest[: rest.index("--")] if "--" in rest else rest
    options = [word for word in own if word.startswith("--")]
    assert set(options) <= known, f"{words}: {sorted(known)}"


def test_there_are_commands_of_each_program_and_a_wrong_one_is_found():
    lines = [param.values for param in ALL if param.values[1]]
    assert {words[0] for words, _ in lines} == set(PROGRAMS) and len(lines) > 40
    for wrong in ("spotlightctl token --ttl 15m", "spotlightctl top --colour", "spotlightd chek x"):
        with pytest.raises(Exception, match=r"No such option|spotlight"):
            test_a_command_in_the_documents_is_accepted(wrong.split(), True)
