"""The page around the report: style for light and dark, desktop and phone, and the few HTML pieces it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

PARTS = (
    *("var(--c0)", "var(--c1)", "var(--c2)", "var(--c4)", "var(--c3)", "#c06a9b", "var(--c5)", "#7d5a45", "#9aa5b1"),
    *("#c9b8a0", "var(--rule)"),
)
"""Colours of the parts of a stacked bar."""
STYLE = (
    """
:root { color-scheme: light dark; --page: #fbfbf8; --card: #fff; --ink: #1c2420; --soft: #5d6a63; --rule: #dfe4df;
  --c0: #2f7d4f; --c1: #c8632b; --c2: #3b6fb6; --c3: #8b5fa8; --c4: #8a7a1f; --c5: #4f8f95;
  --good: #1f7a45; --bad: #b3372e;
  --add: #e3f5e8; --cut: #fbe6e3; --code: #f3f5f1; }
@media (prefers-color-scheme: dark) { :root { --page: #131714; --card: #1b211d; --ink: #e4ebe6; --soft: #97a59c;
  --rule: #323b35; --c0: #5cc285; --c1: #eb9159; --c2: #7aa9ea; --c3: #c39bdd; --c4: #cdbb55; --c5: #80c4ca;
  --good: #6bd093; --bad: #f08579;
  --add: #17371f; --cut: #45211e; --code: #222a25; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 1.7rem; margin: 0 0 6px; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin: 44px 0 10px; }
h3 { font-size: .95rem; margin: 0 0 8px; }
.result { font-size: 1.15rem; max-width: 52rem; margin: 8px 0 18px; }
.note, .none { color: var(--soft); font-size: .88rem; }
.note { max-width: 52rem; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px 24px; margin: 0; }
dl.facts dt { color: var(--soft); font-size: .8rem; } dl.facts dd { margin: 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 16px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px; min-width: 0; }
svg { display: block; width: 100%; height: auto; } .tick, .value { font-size: 11px; fill: var(--soft); }
.value { fill: var(--ink); font-weight: 600; } .grid { stroke: var(--rule); } .bar { fill: var(--c0); }
.break { stroke: var(--soft); stroke-dasharray: 3 4; } .whisker { stroke: var(--ink); stroke-width: 1.4; fill: none; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: .82rem; color: var(--soft); margin-bottom: 6px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { text-align: left; padding: 5px 14px 5px 0; white-space: nowrap;
  border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:last-child { white-space: normal; min-width: 3rem; overflow-wrap: anywhere; }
.tall { max-height: 480px; overflow: auto; } .tall thead th { position: sticky; top: 0; background: var(--card); }
details { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; margin: 8px 0; }
summary { cursor: pointer; padding: 10px 14px; overflow-wrap: anywhere; } details > div { padding: 0 14px 14px; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
pre { background: var(--code); border-radius: 6px; padding: 10px 12px; font: .8rem/1.45 ui-monospace, monospace;
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; margin: 6px 0 12px; max-height: 420px; }
pre.diff { white-space: pre; overflow-wrap: normal; } pre .add { background: var(--add); }
pre .cut { background: var(--cut); }
pre .hunk { color: var(--soft); } pre span { display: block; min-width: max-content; }
.role { font-size: .78rem; color: var(--soft); margin-top: 10px; }
.time { display: grid; grid-template-columns: minmax(90px, max-content) 1fr max-content; gap: 6px 12px; align-items: center; }
.time b { font-weight: 400; } .time div { height: 10px; border-radius: 3px; background: var(--c2); min-width: 1px; }
.stacks { display: grid; grid-template-columns: minmax(70px, max-content) 1fr; gap: 8px 12px; align-items: center; }
.stacks b { font-weight: 400; font-size: .86rem; overflow-wrap: anywhere; max-width: 10rem; }
.stack { display: flex; height: 18px; } .stack i { height: 100%; }
.alarm { border-left: 4px solid var(--bad); margin: 8px 0; } .alarm.over { border-left-color: var(--rule); }
.alarm p { margin: 4px 0 0; }
@media (max-width: 560px) { main { padding: 16px 12px 40px; } h1 { font-size: 1.35rem; }
  .result { font-size: 1.02rem; }
  .card { padding: 12px; } .tick, .value { font-size: 15px; } }
"""
    + "".join(
        f".line.c{n} {{ stroke: var(--c{n}); }} .dot.c{n}, .fill.c{n} {{ fill: var(--c{n}); }}\n"
        f"i.c{n} {{ background: var(--c{n}); }}\n"
        for n in range(6)
    )
    + "".join(f"i.s{n} {{ background: {colour}; }}\n" for n, colour in enumerate(PARTS))
)


def page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · FrogNano</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def section(title: str, *content: str, note: str = "") -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{said}{''.join(content)}</section>"


def cards(figures: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f'<div class="card"><h3>{escape(title)}</h3>{figure}</div>' for title, figure in figures)
    return f'<div class="cards">{inner}</div>'


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: frozenset[int] = frozenset(), tall: bool = False
) -> str:
    """``numbers`` are the columns set to the right."""

    def cells(tag: str, row: Sequence[object]) -> str:
        marks = [' class="num"' if n in numbers else "" for n in range(len(row))]
        return "".join(f"<{tag}{mark}>{escape(str(value))}</{tag}>" for mark, value in zip(marks, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    if not body:
        return '<p class="none">Nothing to list yet.</p>'
    shape = "card scroll tall" if tall else "card scroll"
    return f'<div class="{shape}"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'
