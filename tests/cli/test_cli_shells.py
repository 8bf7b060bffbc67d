"""`run` with a shell: the text of a line is an argument, never a part of the script."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.command_line import CommandLine, help_of
from intervalq.cli._run.jobs import Lines
from intervalq.cli._run.shells import refuse_scripts
from intervalq.errors import InvalidOption


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'echo {}'",
        "sh -c 'echo \"{}\"'",
        "sh -c \"echo '{}'\"",
        "bash -c 'echo {name}'",
        "dash -ec 'echo {}'",
        "zsh -fc 'echo {}' x {}",
        "ksh -e -c 'echo {}'",
        "/bin/sh -c 'echo {}'",
        "../busybox/sh -c 'echo {}'",
        "busybox sh -c 'echo {}'",
        "env sh -c 'echo {}'",
        "/usr/bin/env -i A=1 sh -c 'echo {}'",
        "timeout 5 nice sh -c 'echo {}'",
        "bash -o pipefail -c 'echo {}'",
        "bash --norc --rcfile x +x -ic 'echo {}'",
        "bash -c -o pipefail 'echo {}'",
        "sh -c -- 'echo {}'",
        "sh -c - 'echo {}'",
        "sh -c {}",
        "sh -c",
        "env sh -ec --",
        "sh -c{} x",
        "sh -c 'sh -c \"echo {}\"'",
        "sh x; sh -c {}",
        "fish -c 'echo {}'",
        "fish --command='echo {}'",
        "tcsh -fc 'echo {}'",
        "xargs sh -c 'echo {}'",
        "find . -exec sh -c 'echo {}' x",
        "python -c 'print(\"{}\")'",
        "/usr/bin/python3.11 -I -Wignore -c 'print({name})'",
        "python3 -W ignore -c",
        "python3 -Ic{}",
        "perl -e 'print \"{}\"'",
        "perl -I lib -ne 'print {}'",
        "ruby -r json -e 'puts {}'",
        "node --eval='{}'",
        "node -p '{}'",
        "php -r 'echo {};'",
        "env -S 'sh -c {}'",
        "env -i A=1 --split-string='sh -c {}'",
        "su -c 'echo {}' ann",
        "su - ann -c 'echo {}'",
        "su ann --command 'echo {}'",
        "runuser -u ann -c 'echo {}'",
        "flock /tmp/lock -c 'echo {}'",
        "script -qc 'echo {}' /dev/null",
    ],
)
def test_a_script_with_a_field_in_it_is_refused(command: str) -> None:
    with pytest.raises(InvalidOption, match=r"-c 'echo \"\$1\"' sh \{\}") as refused:
        refuse_scripts(tuple(shlex.split(command)))
    assert "'eval \"$1\"'" in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        "echo {}",
        "echo",
        "sh -c 'echo \"$1\"' sh {}",
        "sh -c 'echo \"$0\"'",
        "sh script.sh {}",
        "sh {}",
        "sh -e script.sh -c {}",
        "sh -s {}",
        "bash --rcfile c x {}",
        "sh -c 'echo {{}}' {}",
        "sh -c 'a() { echo; }; a'",
        "/bin/shred -c {}",
        "",
        "python script.py -c {}",
        "python -c 'import sys; print(sys.argv[1])' {}",
        "python -m module -c {}",
        "python3 -W ignore script.py {}",
        "perl -e 'print shift' {}",
        "perl script.pl -e {}",
        "env A=1 echo {}",
        "flock /tmp/lock grep -c {}",
        "su ann script {}",
        "gcc -c {}",
        "head -c {} x",
        "bash -c 'ssh host \"echo ${1@Q}\"' bash {}",
        "ssh {} uptime",
        "ssh -p 22 -o BatchMode=yes -- {} uptime",
        "ssh",
        "scp {} host:",
    ],
)
def test_what_hands_a_line_over_is_not(command: str) -> None:
    refuse_scripts(tuple(shlex.split(command)))


@pytest.mark.parametrize(
    "command",
    [
        "ssh host echo {}",
        "ssh host 'echo \"{}\"'",
        "ssh -p 22 -tt ann@host -- echo {name}",
        "ssh -o BatchMode=yes host uptime",
        "ssh -p22 host",
        "ssh -- host {}",
        "timeout 5 /usr/bin/ssh host {}",
    ],
)
def test_a_command_for_another_machine_with_a_field_in_it_is_refused(command: str) -> None:
    with pytest.raises(InvalidOption, match=r"quote it, as in bash -c 'ssh HOST"):
        refuse_scripts(tuple(shlex.split(command)))


ODD = [
    "$(touch harm)",
    "`touch harm`",
    "a'; touch harm; '",
    'a"; touch harm; "',
    "-e x",
    "--",
    "a  b\t*",
    "{}",
]


@pytest.mark.parametrize("shell", ["sh", "bash", "python"])
def test_what_the_documentation_says_passes_any_line_on(intervalq: CommandLine, shell: str) -> None:
    script = (
        ["-c", "import sys; print(sys.argv[1])"] if shell == "python" else ["-c", 'printf "%s\\n" "$1"', "sh"]
    )
    lines = "".join(f"{line}\n" for line in ODD)
    ran = intervalq("run", "--name", "q", "--interval", "1us", "--", shell, *script, "{}", stdin=lines)
    assert sorted(result["stdout"] for result in ran.results) == sorted(f"{line}\n" for line in ODD)
    assert not (intervalq.folder / "harm").exists()


WORDS = st.sampled_from(
    ["sh", "/bin/bash", "env", "-c", "-e", "-ec", "--", "-", "-o", "x", "{}", "echo {}", "{{}}"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_what_is_let_through_never_has_the_line_as_a_script(command: list[str]) -> None:
    """Wherever the line is put, it comes after the script of any shell."""
    try:
        refuse_scripts(tuple(command))
    except InvalidOption:
        return
    job = Lines("x", tuple(command)).job("evil", 1)
    assert job is not None
    for place, word in enumerate(job.argv):
        if word in {"sh", "/bin/bash"} and place + 2 < len(job.argv) and job.argv[place + 1] in {"-c", "-ec"}:
            assert "evil" not in job.argv[place + 2]


def test_the_command_refuses_it_before_anything_is_run(intervalq: CommandLine) -> None:
    line = "x; touch harm"
    ran = intervalq(
        "run", "--name", "q", "--interval", "1ms", "--", "env", "sh", "-c", "echo '{}'", stdin=line, code=2
    )
    assert "sh -c 'echo \"$1\"' sh {}" in ran.stderr
    assert [path.name for path in intervalq.folder.iterdir()] == []
    ran = intervalq(
        "run", "--name", "q", "--interval", "1ms", "--", "sh", "-c", 'echo "$1"', "sh", "{}", stdin=line
    )
    assert [result["stdout"] for result in ran.results] == ["x; touch harm\n"]
    assert not (intervalq.folder / "harm").exists()
    assert "would execute the text of the line" in " ".join(help_of("run").split())


def test_exec_has_no_fields(intervalq: CommandLine) -> None:
    ran = intervalq("exec", "--name", "q", "--interval", "1ms", "--", "sh", "-c", "echo '{} {name}'")
    assert ran.stdout == "{} {name}\n"
