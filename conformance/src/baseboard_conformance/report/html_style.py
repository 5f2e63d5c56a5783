"""The page's looks."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { --ink: #1c2430; --soft: #5a6675; --line: #d9dfe6; --paper: #ffffff; --shade: #f4f6f8;
  --good: #d7f0dd; --good-ink: #14532d; --bad: #fbdcdc; --bad-ink: #8a1c1c;
  --waived: #fdf0c4; --waived-ink: #6b4e00; --none: #eceff3; --none-ink: #5a6675; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .2rem 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .3rem 0; }
.kind, .note, small { color: var(--soft); font-size: .9rem; }
.lead { font-size: 1.1rem; }
.verdict { display: inline-block; padding: .05em .5em; border-radius: .4em; font-size: .75em; vertical-align: .1em; }
.counts { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: .9rem 0 0; }
.counts li { padding: .25rem .7rem; border-radius: .5rem; }
.good { background: var(--good); color: var(--good-ink); }
.bad { background: var(--bad); color: var(--bad-ink); }
.waived { background: var(--waived); color: var(--waived-ink); }
.none { background: var(--none); color: var(--none-ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border: 1px solid var(--line); white-space: nowrap; }
thead th { background: var(--shade); font-weight: 600; } thead th:first-child { text-align: left; }
tbody th { text-align: left; font-weight: 500; position: sticky; left: 0; background-color: var(--paper); }
tbody th.good { background-color: var(--good); } tbody th.bad { background-color: var(--bad); }
tbody th.waived { background-color: var(--waived); } tbody th.none { background-color: var(--none); }
table.matrix td.none { text-align: center; }
table.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
article { border: 1px solid var(--line); border-left: .35rem solid var(--bad-ink); border-radius: .4rem;
  padding: .2rem .9rem .6rem; margin: .8rem 0; background: var(--paper); color: var(--ink); }
article.bad, article.waived { background: var(--paper); color: var(--ink); }
article.waived { border-left-color: var(--waived-ink); }
pre, code { font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--shade); padding: .6rem .8rem;
  border-radius: .4rem; }
.replay code { overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { font-size: 15px; } h1 { font-size: 1.4rem; } table { font-size: .8rem; }
  th, td { padding: .25rem .3rem; } table.groups { width: 100%; } table.groups thead th { white-space: normal; } }
@media print { main { max-width: none; padding: 0; } .wide { overflow: visible; } table { font-size: 7.5pt; }
  th, td { padding: .1rem .25rem; } article, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } tbody th { position: static; } }
"""
