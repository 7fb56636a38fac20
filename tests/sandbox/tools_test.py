"""The five tools: each test is a way in which such tools have misled a model or hurt a file."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from frognano.sandbox.base import BoxSpec
from frognano.sandbox.bubblewrap import BubblewrapSandbox, BubblewrapSandboxes

Tool = Callable[..., Awaitable[tuple[bool, str]]]


class TestRead:
    async def test_line_numbers_are_off(self, tool: Tool) -> None:
        ok, text = await tool("Read", file_path="pkg/mod.py", offset=2, limit=1)
        assert ok
        assert text == "     2\t    return x + 1\n[more lines follow; continue with offset=3]"
        assert (await tool("Read", file_path="/repo/pkg/mod.py"))[1].startswith("     1\tdef f(x):\n")

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("none.py", "No such file"),
            ("pkg", "directory"),
            ("/dev/null", "Not a regular file"),
            ("image.bin", "binary file of 256 bytes"),
        ],
    )
    async def test_an_odd_file_hangs_or_floods(self, tool: Tool, path: str, said: str) -> None:
        ok, text = await tool("Read", file_path=path)
        assert not ok
        assert said in text

    async def test_a_fifo_hangs(self, tool: Tool) -> None:
        await tool("Bash", command="mkfifo pipe")
        assert await tool("Read", file_path="pipe") == (False, "Not a regular file: /repo/pipe")

    async def test_more_is_shown_than_fits(self, tool: Tool) -> None:
        await tool("Bash", command="seq 100000 > many; head -c 1000000 /dev/zero | tr '\\0' x > long; : > empty")
        ok, text = await tool("Read", file_path="many", offset=90_000)
        assert ok
        assert text.startswith(" 90000\t90000\n")
        assert len(text) < 20_100
        assert "continue with offset=" in text
        ok, text = await tool("Read", file_path="long")
        assert ok
        assert len(text) < 2_100
        assert "line of 1,000,000 bytes cut" in text
        assert await tool("Read", file_path="empty") == (True, "(the file is empty)")
        ok, text = await tool("Read", file_path="many", offset=100_001)
        assert (ok, "has 100000 lines" in text) == (False, True)

    async def test_other_encodings_are_lost(self, tool: Tool) -> None:
        assert (await tool("Read", file_path="latin.txt"))[1] == "     1\tcaf\\xe9 ol\\xe9"
        assert (await tool("Read", file_path="crlf.txt"))[1] == "     1\tone\n     2\ttwo\n     3\tthree"


class TestEdit:
    async def test_bytes_beside_the_span_change(self, tool: Tool, box: BubblewrapSandbox) -> None:
        assert (await tool("Edit", file_path="crlf.txt", old_string="one\ntwo", new_string="1\n2"))[0]
        assert await box.read_bytes("crlf.txt") == b"1\r\n2\r\nthree"
        assert (await tool("Edit", file_path="latin.txt", old_string="ol\u00e9", new_string="\u00e9t\u00e9"))[0]
        assert await box.read_bytes("latin.txt") == b"caf\xe9 \xe9t\xe9\n"
        assert not (await tool("Edit", file_path="latin.txt", old_string="caf", new_string="\u20ac"))[0]
        await box.write_bytes("mixed", b"a  \r\nb\t\nc \xe2\x82\xac\x0c\xef\xbb\xbf\r end")
        assert (await tool("Edit", file_path="mixed", old_string="b\t", new_string="B"))[0]
        assert await box.read_bytes("mixed") == b"a  \r\nB\nc \xe2\x82\xac\x0c\xef\xbb\xbf\r end"

    async def test_mode_or_link_is_lost(self, tool: Tool, box: BubblewrapSandbox) -> None:
        assert (await tool("Edit", file_path="run.sh", old_string="run", new_string="walk"))[0]
        assert (await tool("Edit", file_path="link.md", old_string="A title", new_string="Another"))[0]
        done = await box.exec(["stat", "-c", "%A %N", "run.sh", "link.md"])
        assert done.stdout == b"-rwxr-xr-x 'run.sh'\nlrwxrwxrwx 'link.md' -> 'README.md'\n"
        assert (await box.read_bytes("README.md")).startswith(b"# Another\n")

    async def test_an_ambiguous_edit_is_guessed(self, tool: Tool, box: BubblewrapSandbox) -> None:
        ok, text = await tool("Edit", file_path="pkg/mod.py", old_string="return x + 1", new_string="return x")
        assert not ok
        assert "2 times" in text
        assert "     5\tdef g(x):\n     6>\t    return x + 1" in text
        assert (await box.read_bytes("pkg/mod.py")).count(b"+ 1") == 2
        ok, text = await tool(
            "Edit", file_path="pkg/mod.py", old_string="return x + 1", new_string="return x", replace_all=True
        )
        assert (ok, "lines 2, 6" in text) == (True, True)
        assert (await box.read_bytes("pkg/mod.py")).count(b"+ 1") == 0

    @pytest.mark.parametrize(
        ("old", "said"),
        [
            ("def f(x):\n  return x + 1", "Only white space differs."),
            ("DEF f(x):", "Only upper and lower case differ."),
            ("    return x + 2", "     2\t    return x + 1"),
            ("zzzzzzzzzzzzzzzzzzzzzzzzzzzz", "Nothing in the file is similar"),
        ],
    )
    async def test_a_miss_gives_nothing_to_correct_by(self, tool: Tool, old: str, said: str) -> None:
        ok, text = await tool("Edit", file_path="pkg/mod.py", old_string=old, new_string="x")
        assert not ok
        assert said in text

    async def test_a_void_edit_succeeds(self, tool: Tool) -> None:
        assert not (await tool("Edit", file_path="README.md", old_string="A", new_string="A"))[0]
        assert not (await tool("Edit", file_path="README.md", old_string="", new_string="A"))[0]
        assert not (await tool("Edit", file_path="none.md", old_string="B", new_string="A"))[0]

    async def test_a_full_disk_destroys_the_file(
        self, tool: Tool, box: BubblewrapSandbox, sandboxes: BubblewrapSandboxes
    ) -> None:
        await tool("Bash", command="cat /dev/zero > filler")
        ok, text = await tool("Write", file_path="README.md", content="x" * 100_000)
        assert (ok, "No space" in text) == (False, True)
        assert (await box.read_bytes("README.md")).startswith(b"# A title")


class TestWriteAndGlob:
    async def test_a_write_adds_or_drops_something(self, tool: Tool, box: BubblewrapSandbox) -> None:
        assert (await tool("Write", file_path="deep/er/new.txt", content="a\r\nb\u20ac"))[0]
        assert await box.read_bytes("deep/er/new.txt") == "a\r\nb\u20ac".encode()
        assert (await tool("Write", file_path="link.md", content=""))[0]
        assert await box.read_bytes("README.md") == b""
        done = await box.exec(["stat", "-c", "%F", "link.md"])
        assert done.stdout == b"symbolic link\n"
        ok, text = await tool("Write", file_path="/usr/x", content="a")
        assert (ok, "Read-only" in text) == (False, True)
        assert not (await tool("Write", file_path="pkg", content="a"))[0]

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.md", ["README.md", "link.md"]),
            ("**/*.py", ["pkg/mod.py"]),
            ("/repo/pkg/*", ["pkg/mod.py"]),
            ("{README,run}.{md,sh}", ["README.md", "run.sh"]),
            ("[cl]*.txt", ["crlf.txt", "latin.txt"]),
            ("p?g", ["pkg/"]),
        ],
    )
    async def test_a_pattern_finds_something_else(self, tool: Tool, pattern: str, found: list[str]) -> None:
        assert await tool("Glob", pattern=pattern) == (True, "\n".join(found))

    async def test_glob_floods_loops_or_misleads(self, tool: Tool) -> None:
        await tool("Bash", command="mkdir many; cd many; touch f{1..1100}; ln -s .. up")
        text = (await tool("Glob", pattern="**/f*"))[1].splitlines()
        assert len(text) == 1001
        assert text[-1] == "[100 more paths match; narrow the pattern]"
        assert (await tool("Glob", pattern="mod.py"))[1].endswith("Try **/mod.py to look in every directory.")
        assert (await tool("Glob", pattern="*.py", path="pkg"))[1] == "pkg/mod.py"
        assert not (await tool("Glob", pattern="*", path="none"))[0]


class TestBash:
    async def test_exit_code_or_order_is_lost(self, tool: Tool) -> None:
        ok, text = await tool("Bash", command="echo a; echo b >&2; echo c; exit 3", description="print")
        assert (ok, text) == (False, "a\nb\nc\n[exit code 3]")
        assert await tool("Bash", command="[[ a == a ]] && pwd") == (True, "/repo\n[exit code 0]")
        assert await tool("Bash", command="kill -9 $$") == (False, "[killed by signal 9]")

    async def test_a_background_child_or_a_prompt_hangs_it(self, tool: Tool) -> None:
        started = time.monotonic()
        assert await tool("Bash", command="sleep 60 & (sleep 60; echo x) & cat; echo done") == (
            True,
            "done\n[exit code 0]",
        )
        await tool("Bash", command="(while echo spam; do :; done) &")
        assert (await tool("Bash", command="read x < /dev/tty; sudo -k true; git commit"))[0] is False
        assert time.monotonic() - started < 20

    async def test_a_server_started_in_one_call_is_gone_in_the_next(self, tool: Tool) -> None:
        wait = "for i in {1..50}; do sleep .1; (: > /dev/tcp/127.0.0.1/8000) && break; done 2>/dev/null"
        await tool("Bash", command=f"python3 -I -m http.server 8000 2>&1 &\n{wait}")
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/README.md').status)"
        for _ in range(2):
            assert (await tool("Bash", command=f'python3 -I -c "{code}"'))[1] == "200\n[exit code 0]"

    async def test_a_timeout_is_silent(self, tool: Tool) -> None:
        ok, text = await tool("Bash", command="echo before; sleep 60", timeout=0.3)
        assert not ok
        assert text.startswith("before\n[killed after 0.3")

    async def test_long_odd_or_cut_text_is_lost(self, tool: Tool) -> None:
        assert (await tool("Bash", command=": " + "x" * 200_000 + "\necho end"))[1] == "end\n[exit code 0]"
        assert (await tool("Bash", command="printf '\\0\\377\\e[1m'"))[1] == "\\0\\xff\x1b[1m\n[exit code 0]"
        # the box keeps 20,000 bytes of output here
        text = (await tool("Bash", command="echo first; seq 100000; echo last"))[1]
        assert text.startswith("first\n")
        assert text.endswith("last\n[exit code 0]")
        assert len(text) < 21_000


async def test_cut_output_is_nowhere(sandboxes: BubblewrapSandboxes, workspace: Path) -> None:
    async with sandboxes.open(BoxSpec(workspace)) as box:
        text = (await box.call_tool("Bash", {"command": "seq 20000; echo last"}))[1]
        assert 30_000 < len(text) < 30_300
        assert text.endswith("last\n[exit code 0]")
        path = text.split("all of it is in ")[1].split()[0]
        assert (await box.exec(["wc", "-l", path])).stdout.split()[0] == b"20001"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("Read", {"path": "x"}, "Unknown parameter path. Read takes file_path (a string)"),
        ("Read", {}, "Missing parameter file_path"),
        ("Read", {"file_path": 3}, "file_path must be a string, not 3"),
        ("Read", {"file_path": "README.md", "offset": 0}, "offset must be a whole number from 1"),
        ("Edit", {"file_path": "x", "old_string": "a"}, "Missing parameter new_string"),
        ("Edit", {"file_path": "x", "old_string": "a", "new_string": "b", "replace_all": "yes"}, "true or false"),
        ("Bash", {"command": "x\0y"}, "NUL"),
        ("Bash", {"command": "x", "timeout": -1}, "timeout must be"),
        ("Search", {}, "There is no tool 'Search'"),
        ("Write", {"file_path": "x", "content": "\ud800"}, "surrogates"),
        ("Read", {"file_path": "a" * 300}, "File name too long"),
    ],
)
async def test_a_wrong_call_crashes(box: BubblewrapSandbox, name: str, arguments: dict[str, object], said: str) -> None:
    ok, text = await box.call_tool(name, arguments)
    assert not ok
    assert said in text


async def test_optional_null_is_refused(box: BubblewrapSandbox) -> None:
    assert (await box.call_tool("Read", {"file_path": "README.md", "offset": None}))[0]


def test_the_schemas_and_the_tools_disagree() -> None:
    from frognano.harness.leaf import TOOLS
    from frognano.sandbox.toolbox.tools import PARAMETERS

    assert {
        t.name: [p + "?" * (p not in t.parameters["required"]) for p in t.parameters["properties"]] for t in TOOLS
    } == {name: list(parameters) for name, parameters in PARAMETERS.items()}
