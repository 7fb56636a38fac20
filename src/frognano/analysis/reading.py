"""Trajectories to read: what the model was shown, said and called, what came back, the patch and the verdict."""

from __future__ import annotations

import json
from html import escape

from frognano.analysis.data import Shown
from frognano.records import Message, Outcome, ToolCall, ToolResult, Turn

LONGEST = 6000
"""Characters of one block; the store holds the whole."""


def readable(shown: Shown) -> str:
    row, trajectory, verdict = shown.row, shown.trajectory, shown.verdict
    mark = '<span class="good">resolved</span>' if row.resolved else f'<span class="bad">{row.status.value}</span>'
    what = f"{shown.task.origin.name} · {shown.task.lineage.function}" if shown.task else row.key.task_id
    head = (
        f"{escape(row.key.policy)} · rung {row.key.rung} · {escape(what)} · {mark} · "
        f"{row.turns} turns, {row.generated_tokens} tokens, ended by {row.exit_reason.value}"
    )
    parts = [_message(message) for message in trajectory.messages]
    parts += [_turn(number, turn) for number, turn in enumerate(trajectory.turns, 1)]
    if trajectory.error:
        parts.append(_block("error", trajectory.error))
    parts.append('<div class="role">patch</div>' + diff(trajectory.patch))
    if shown.task and not row.resolved:
        parts.append('<div class="role">the gold patch, which it never saw</div>' + diff(shown.task.gold_patch))
    failing = [name for name, outcome in verdict.outcomes.items() if outcome not in (Outcome.PASSED, Outcome.XFAILED)]
    passed = len(verdict.outcomes) - len(failing)
    told = f"{verdict.status.value}: {passed} of {len(verdict.outcomes)} expected tests passed"
    told += "".join(f"\n{verdict.outcomes[name].value}: {name}" for name in failing[:8])
    parts.append(_block("verdict", f"{told}\n{verdict.evidence}".strip()))
    return f"<details><summary>{head}</summary><div>{''.join(parts)}</div></details>"


def diff(patch: bytes) -> str:
    if not patch:
        return '<p class="none">No change.</p>'
    lines = []
    for line in _cut(patch.decode(errors="backslashreplace")).splitlines():
        kind = ""
        if line.startswith(("+++", "---", "@@", "diff ", "index ")):
            kind = "hunk"
        elif line.startswith("+"):
            kind = "add"
        elif line.startswith("-"):
            kind = "cut"
        lines.append(f'<span class="{kind}">{escape(line) or " "}</span>')
    return f'<pre class="diff">{"".join(lines)}</pre>'


def _message(message: Message) -> str:
    text = message.content
    if message.tool_calls or message.results:
        text = "\n".join([text, *map(_call, message.tool_calls), *map(_result, message.results)]).strip()
    return _block(f"shown · {message.role}", text)


def _turn(number: int, turn: Turn) -> str:
    said = _block(f"turn {number} · the model{' (cut off)' if turn.finish == 'length' else ''}", turn.raw or turn.text)
    calls = "\n".join(_call(call) for call in turn.tool_calls)
    results = "\n\n".join(_result(result) for result in turn.results)
    return said + (_block("calls", calls) if calls else "") + (_block("results", results) if results else "")


def _call(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})" + (f"  ← {call.error}" if call.error else "")


def _result(result: ToolResult) -> str:
    return f"[{'ok' if result.ok else 'error'}] {result.text}"


def _block(role: str, text: str) -> str:
    return f'<div class="role">{escape(role)}</div><pre>{escape(_cut(text)) or " "}</pre>'


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}\n… {len(text) - LONGEST:,} characters left out …\n{text[-LONGEST // 2 :]}"
