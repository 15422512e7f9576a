#!/usr/bin/env python3
"""Makes longbench_golden.json: scores of pairs of texts by the packages that LongBench v1 uses, for test_kvcheck.c.
    pip install rouge==1.0.1 fuzzywuzzy python-Levenshtein && python3 make_longbench_golden.py
The F1 of words and the shares of numbers and classes are computed here from their definitions (LongBench, metrics)."""
import collections
import json
import os
import re
import string

from fuzzywuzzy import fuzz
from rouge import Rouge

PAIRS = [
    ("The Eiffel Tower is in Paris, France.", "Paris"),
    ("the a an", "nothing at all"),
    ("An apple, a day; keeps the doctor away!", "apple a day keeps doctor away"),
    ("", "empty answer"),
    ("same same", "same same"),
    ("A-B's \u201cquoted\u201d caf\u00e9 \u00c9COLE", "abs quoted Caf\u00e9 \u00e9cole"),
    ("theatre and anathema, a1 the\u2019", "theatre anathema a1"),
    ("The cat sat on the mat. The dog barked. It was late.", "The dog sat on the mat. A cat barked late."),
    ("one two three. four five. ", "five four. three two one."),
    ("no stops here but many words words words", "many words. no stops. here"),
    (" . . ", "something. else"),
    ("black black red. black blue black", "black blue green. green red black"),  # one of two longest subsequences
    ("The council met on Tuesday. It approved the budget of 3.5 million. Members disagreed about parks.",
     "On Tuesday the council approved a budget of 3.5 million after members disagreed about parks and roads."),
    ("Paragraph 12", "Paragraph 12"),
    ("It is Paragraph 3 or paragraph 12, not 120", "Paragraph 12"),
    ("there are 7 of 7, or 17", "7"),
    ("none", "7"),
    ("\n\n# a comment\n    return x + 1\n", "    return x + 1"),
    ("```python\nfoo(bar)\n```", "foo(baz)"),
    ("// c\n# d", "int x;"),
    ("def f(a, b):\n    return a", "def g(a, c):"),
    ("na\u00efve = \u00fc", "naive = u"),
]
CLASSES = ["city", "other location", "location", "state", "individual", "group", "date"]
CLASS_PAIRS = [("Type: other location", "other location"), ("location", "other location"), ("state or city", "city"),
               ("a date", "date"), ("other location, state and date", "state"), ("unknown", "city"),
               ("location city state", "other location")]


def words(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(answer, reference):
    a, r = words(answer), words(reference)
    same = sum((collections.Counter(a) & collections.Counter(r)).values())
    return 0 if same == 0 else 2 * (same / len(a)) * (same / len(r)) / (same / len(a) + same / len(r))


def rouge_l(answer, reference):
    try:
        return Rouge().get_scores([answer], [reference], avg=True)["rouge-l"]["f"]
    except ValueError:
        return 0


def numbers(answer, wanted):
    found = re.findall(r"[0-9]+", answer)
    return sum(n == wanted for n in found) / len(found) if found else 0


def paragraph(answer, reference):
    wanted = re.findall(r"Paragraph ([0-9]+)", reference)
    return numbers(answer, wanted[0]) if wanted else 0


def code(answer, reference):
    lines = [l for l in answer.lstrip("\n").split("\n") if "`" not in l and "#" not in l and "//" not in l]
    return fuzz.ratio(lines[0] if lines else "", reference) / 100


def classes(answer, reference):
    found = [c for c in CLASSES if c in answer]
    for c in found:  # the loop of the benchmark: it skips what follows a removed class
        if c in reference and c != reference:
            found.remove(c)
    return 1 / len(found) if reference in found else 0


def main():
    cases = [{"answer": a, "reference": r, "f1": f1(a, r), "rouge": rouge_l(a, r), "paragraph": paragraph(a, r),
              "count": numbers(a, r), "code": code(a, r)} for a, r in PAIRS]
    kinds = [{"answer": a, "reference": r, "score": classes(a, r)} for a, r in CLASS_PAIRS]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "longbench_golden.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"pairs": cases, "classes": CLASSES, "class_pairs": kinds}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
