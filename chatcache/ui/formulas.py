"""LaTeX in model text → MathML, which browsers draw themselves.

`$…$`, `$$…$$`, `\\(…\\)`, `\\[…\\]` and bare environments such as `\\begin{align}`. Only elements and attributes of
presentation MathML that are named here come through; what cannot be converted is shown as it was written.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

MAX_FORMULA_LENGTH = 4000

GROWING = "is_growing"
"""Set in markdown-it's environment while more text is expected."""

_ENVIRONMENTS = "equation|align|gather|multline|eqnarray|alignat|split|cases|[pbvBV]?matrix"
_BEGIN = re.compile(rf"\\begin\{{((?:{_ENVIRONMENTS})\*?)\}}")
_RENAMED = {"aligned": "align*", "align": "align*", "split": "align*", "gathered": "gather*", "gather": "gather*"}
_RENAMED_ENVIRONMENT = re.compile(r"\\(begin|end)\{(" + "|".join(_RENAMED) + r")\}")
_DOLLARS = re.compile(r"\$(?![\s$])((?:\\.|[^\\$\n`])+?)(?<!\s)\$(?![\w{])", re.DOTALL)
"""Neither money (`$5 and $6`) nor variables (`${HOME}/bin:$PATH`)."""

_INLINE = (
    (re.compile(r"\$\$((?:\\.|[^\\$])+?)\$\$", re.DOTALL), True),
    (_DOLLARS, False),
    (re.compile(r"\\\((.+?)\\\)", re.DOTALL), False),
    (re.compile(r"\\\[(.+?)\\\]", re.DOTALL), True),
)

_ELEMENTS = frozenset(
    re.findall(
        r"\w+",
        "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts "
        "mprescripts mtable mtr mtd mstyle mpadded mphantom menclose",
    )
)
_ATTRIBUTES = frozenset(
    re.findall(
        r"\w+",
        "accent accentunder columnalign depth display displaystyle fence form height largeop linethickness lspace "
        "mathcolor mathvariant maxsize minsize movablelimits notation rspace scriptlevel separator stretchy symmetric "
        "voffset width",
    )
)
_VALUE = re.compile(r"[-+.#%\w ]{1,40}")


def add_math(markdown: MarkdownIt) -> None:
    """Make `markdown` read and render formulas."""
    interrupts: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    markdown.block.ruler.before("fence", "math_block", _read_block, interrupts)
    markdown.inline.ruler.before("escape", "math_inline", _read_inline)
    markdown.add_render_rule("math_block", _render)
    markdown.add_render_rule("math_inline", _render)


@lru_cache(512)
def render_formula(source: str, *, is_display: bool) -> str:
    """The formula as MathML; the source, marked up as code, where it is none."""
    if len(source) <= MAX_FORMULA_LENGTH:
        named = _RENAMED_ENVIRONMENT.sub(lambda m: rf"\{m[1]}{{{_RENAMED[m[2]]}}}", source)
        try:
            return _serialized(convert_to_element(named, display="block" if is_display else "inline"))
        except Exception:  # the converter raises whatever its parser trips over, RecursionError among it
            pass
    return f'<code class="formula">{html.escape(source)}</code>'


def _serialized(element: Element) -> str:
    content = html.escape(html.unescape(element.text or "")) + "".join(
        _serialized(child) + html.escape(html.unescape(child.tail or "")) for child in element
    )
    if element.tag not in _ELEMENTS:
        return f"<mrow>{content}</mrow>"
    attributes = "".join(
        f' {name}="{html.escape(value)}"'
        for name, value in element.attrib.items()
        if name in _ATTRIBUTES and _VALUE.fullmatch(value)
    )
    return f"<{element.tag}{attributes}>{content}</{element.tag}>"


def _render(_renderer: object, tokens: Sequence[Token], idx: int, _options: object, _env: object) -> str:
    token = tokens[idx]
    if token.meta.get("is_open"):
        return f'<pre class="formula" tabindex="0"><code>{html.escape(token.content)}</code></pre>'
    formula = render_formula(token.content, is_display=token.meta["is_display"])
    if token.meta["is_display"]:
        return f'<div class="formula-block" tabindex="0">{formula}</div>' if token.block else formula
    return formula


def _read_inline(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    for pattern, is_display in _INLINE:
        if (found := pattern.match(state.src, state.pos, state.posMax)) is None:
            continue
        if pattern is _DOLLARS and state.pos and state.src[state.pos - 1].isalnum():
            continue
        if not silent:
            token = state.push("math_inline", "math", 0)
            token.content, token.meta = found[1].strip(), {"is_display": is_display}
        state.pos = found.end()
        return True
    return False


def _read_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A formula that begins a line and ends one. No blank line may stand in it: where one does, it is ordinary text.

    One that reaches the end of a text that is still being written may yet end; so may no other.
    """
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    if (delimiters := _delimiters(first)) is None:
        return False
    opening, closing = delimiters
    line, is_open = start, True
    while line < end and not state.isEmpty(line):
        text = state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].rstrip()
        after = text[len(opening) :] if line == start else text
        if closing in after:
            if not after.endswith(closing) or after.index(closing) != len(after) - len(closing):
                return False
            is_open = False
            break
        line += 1
    if is_open and (line < state.lineMax or not state.env.get(GROWING)):
        return False
    if silent:
        return True
    stop = line if is_open else line + 1
    content = state.getLines(start, stop, state.blkIndent, False).strip()
    token = state.push("math_block", "math", 0)
    token.block, token.map = True, [start, stop]
    token.content, token.meta = content, {"is_display": True, "is_open": is_open}
    if not is_open and not opening.startswith(r"\begin"):
        token.content = content[len(opening) : -len(closing)].strip()
    state.line = stop
    return True


def _delimiters(line: str) -> tuple[str, str] | None:
    """What opens the formula that this line begins with, and what closes it."""
    for opening, closing in (("$$", "$$"), (r"\[", r"\]")):
        if line.startswith(opening):
            return opening, closing
    if begin := _BEGIN.match(line):
        return begin[0], rf"\end{{{begin[1]}}}"
    return None
