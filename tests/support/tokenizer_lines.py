"""Lines of text that are hard for a tokenizer, the same ones in every run."""

from __future__ import annotations

import random

_WORDS = """
    the of and a to in is you that it he was for on are as with his they at be this have from
    or one had by word but not what all were we when your can said there use an each which she
""".split()  # noqa: SIM905 (a text)
# Compatibility characters, combining marks, scripts without spaces, emoji, near-sentinels.
_HARD_WORDS = """
    ﬁancé Å \u212b \u00bd \u2460 ｆｕｌｌ Ⅳ ｶﾀｶﾅ ｶﾞ ﾊﾟ ～ ㌔ \u00b2 ﷺ e\u0301 n\u0303o e\u0323\u0302
    café naïve 日本語 水 🙂 👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f 👍🏽 ſ 가 각 \u1100\u1161 µ \u2026 “x” «q»
    \u2010 \u2013 a\u200bb \ufeffx اللغة हिन्दी ไทย עברית 𝒳 𝟘 Привет ё и\u0306 x\u0327\u0301
    z\u0001x \ufffd <extra extra_id_3> </b> &amp; 100% 3.14 a_b \\n 's don't
""".split()  # noqa: SIM905 (a text)
_SPACES = (" ",) * 12 + ("  ", "   ", "\t", "\n", " \u00a0", "\u3000")


def make_lines(count: int, *, sentinels: int = 100) -> list[str]:
    """Return lines with a sentinel after about every eighth word, each after a space.

    A sentinel is followed by a space or by punctuation.
    """
    chance = random.Random(0)  # noqa: S311 (made-up text)
    lines = []
    for _ in range(count):
        line = chance.choice(("",) * 6 + (" ", "  ", "\t"))
        for _ in range(chance.randrange(15)):
            line += _make_word(chance) + chance.choice(_SPACES)
            if sentinels and line.endswith(" ") and chance.random() < 0.12:
                line += f"<extra_id_{chance.randrange(sentinels)}>"
                line += chance.choice((" ", "  ", ". ", ", ", ".  "))
        lines.append(line + chance.choice(("",) * 6 + (" ", "  ")))
    return lines


def _make_word(chance: random.Random) -> str:
    """Return a word: common, in capitals, hard, of unknown characters, or with digits."""
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(_WORDS)
    if kind < 0.7:
        return chance.choice(_WORDS).upper() + chance.choice(".,!?;")
    if kind < 0.9:
        return chance.choice(_HARD_WORDS)
    if kind < 0.95:
        first, last = chance.choice(((0x3B1, 0x3C9), (0x4E00, 0x9FA5), (0x1F300, 0x1F64F)))
        return "".join(chr(chance.randint(first, last)) for _ in range(chance.randint(1, 4)))
    # No digit twice: two ways to split 1111 have the same score, and the libraries may differ.
    return chance.choice(_WORDS) + "".join(chance.sample("0123456789", 4))
