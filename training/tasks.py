"""Problems with exactly checkable answers, as ChatML text. Any number of them can be made; nothing here needs torch.

Every task returns (user, assistant). `sample` draws from one of the mixtures in MIXES, which name a weight and the
lengths of each task. Tasks whose answers are long (registers, rounds, late) are what a rounded state is measured by:
prompts go through prefill, which rounds a state every 256 tokens, while every token of an answer may round it again.
"""
import random

REGISTERS = "abcdefgh"
WORDS = ("river stone apple cloud ember falcon garden harbor island jungle kettle lantern meadow needle orchid pepper "
         "quartz ribbon saddle temple umber valley willow yarrow zephyr anchor basket candle dagger engine feather "
         "goblet hammer iron jacket knight ladder mirror nettle oyster pillow quiver rocket silver timber urchin "
         "velvet wagon copper bridge castle desert forest glacier helmet ivory jasper kernel lagoon marble nickel onyx "
         "parcel quill raven shadow thunder vessel winter acorn bronze crystal dolphin eagle flame granite honey "
         "indigo jewel").split()


def prompt(user):
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


def chat(user, assistant):
    return prompt(user) + assistant + "<|im_end|>\n"


def registers(rng, steps, count=None):
    """Run a straight-line program on decimal digits; the trace is the chain of thought."""
    names = REGISTERS[:count or rng.randint(2, 6)]
    value = {r: rng.randint(0, 9) for r in names}
    start = " ".join(f"{r}={value[r]}" for r in names)
    program, trace = [], []
    for _ in range(steps):
        target, op = rng.choice(names), rng.choice("+-=+-")
        if rng.random() < 0.3:
            source = str(rng.randint(0, 9))
            x = int(source)
        else:
            source = rng.choice(names)
            x = value[source]
        old = value[target]
        value[target] = (old + x) % 10 if op == "+" else (old - x) % 10 if op == "-" else x
        program.append(f"{target}{op}{source}")
        trace.append(f"{target}{op}{source} {value[target]}")
    end = " ".join(f"{r}={value[r]}" for r in names)
    return "Run: " + start + "\n" + "\n".join(program), "\n".join(trace) + "\nanswer " + end


def key_names(rng, count):
    """Distinct keys: words, or two words each where there are not enough of them."""
    if count <= 64:
        return rng.sample(WORDS, count)
    return [" ".join((WORDS[i // len(WORDS)], WORDS[i % len(WORDS)])) for i in rng.sample(range(len(WORDS)**2), count)]


def recall(rng, pairs, queries=None):
    """Associative recall: a key names a code of four digits."""
    known = [(k, "%04d" % rng.randint(0, 9999)) for k in key_names(rng, pairs)]
    asked = rng.sample(known, queries or min(pairs, rng.choice([4, 8, 16])))
    return ("Remember: " + "; ".join(f"{k} {v}" for k, v in known) + ".\nRecall: " + " ".join(k for k, _ in asked),
            "; ".join(f"{k} {v}" for k, v in asked))


def overwrite(rng, keys, writes):
    """A key-value store in which the last write wins."""
    names = rng.sample(WORDS, keys)
    store, ops = {}, []
    for _ in range(writes):
        k, v = rng.choice(names), "%02d" % rng.randint(0, 99)
        store[k] = v
        ops.append(f"{k}={v}")
    read = [k for k in names if k in store]
    rng.shuffle(read)
    return "Store: " + " ".join(ops) + "\nRead: " + " ".join(read), " ".join(f"{k}={store[k]}" for k in read)


def rounds_lines(rng, names, rounds):
    start = {k: rng.randint(0, 99) for k in names}
    step = {k: rng.randint(1, 99) for k in names}
    given = "; ".join(f"{k}={start[k]:02d}+{step[k]:02d}" for k in names)
    lines = []
    for i in range(1, rounds + 1):
        lines.append(f"{i}: " + " ".join(f"{k}={(start[k] + i * step[k]) % 100:02d}" for k in names))
    return given, "\n".join(lines)


def rounds(rng, keys, turns):
    """Add each key's own step to it, over and over: the steps are given once and needed until the end."""
    given, lines = rounds_lines(rng, rng.sample(WORDS, keys), turns)
    return f"Rounds: {turns}\n{given}", lines


def late(rng, pairs, keys, turns):
    """Pairs, then rounds, then the pairs: what was told first is asked last."""
    words = rng.sample(WORDS, pairs + keys)
    known = [(k, "%04d" % rng.randint(0, 9999)) for k in words[:pairs]]
    given, lines = rounds_lines(rng, words[pairs:], turns)
    asked = rng.sample(known, pairs)
    return ("Remember: " + "; ".join(f"{k} {v}" for k, v in known) + f".\nRounds: {turns}\n{given}\nRecall: " +
            " ".join(k for k, _ in asked), lines + "\n" + "; ".join(f"{k} {v}" for k, v in asked))


def needle(rng, hay, length, count=None):
    """Secret numbers in a haystack of prose."""
    count = count or rng.choice([1, 1, 2, 4])
    at = rng.randint(0, max(1, len(hay) - length - 1))
    text = hay[at:at + length].replace("<|endoftext|>", "")
    words = rng.sample(WORDS, count)
    numbers = ["%05d" % rng.randint(0, 99999) for _ in words]
    cuts = sorted(rng.randint(0, len(text)) for _ in words)
    out, last = [], 0
    for cut, word, number in zip(cuts, words, numbers):
        out += [text[last:cut], f" The secret number for {word} is {number}. "]
        last = cut
    out.append(text[last:])
    i = rng.randrange(count)
    return ("".join(out) + f"\nWhat is the secret number for {words[i]}?",
            f"The secret number for {words[i]} is {numbers[i]}.")


def copy(rng, words):
    w = " ".join(rng.choice(WORDS) for _ in range(words))
    return "Copy: " + w, w


def reverse(rng, words):
    w = [rng.choice(WORDS) for _ in range(words)]
    return "Reverse: " + " ".join(w), " ".join(reversed(w))


def add(rng, digits):
    """Addition of long numbers, least significant digit first, with carries."""
    a, b = rng.randint(0, 10**digits - 1), rng.randint(0, 10**digits - 1)
    x, y, carry, work = str(a).zfill(digits), str(b).zfill(digits), 0, []
    for i in range(digits - 1, -1, -1):
        s = int(x[i]) + int(y[i]) + carry
        work.append(f"{x[i]}+{y[i]}+{carry}={s}")
        carry = s // 10
    return f"Add: {a} + {b}", " ".join(work) + f" answer {a + b}"


# Mixtures: task -> (weight, a function of rng that draws the arguments). "short" problems fit 2,048 tokens; "long" ones
# reach 8,192. A hybrid has attention layers to copy and recall with; "pure" must keep everything in its states.
def pick(*choices):
    return lambda rng: (rng.choice(choices),)


def pick2(a, b):
    return lambda rng: (rng.choice(a), rng.choice(b))


MIXES = {
    "hybrid-short": {
        registers: (.28, pick(3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 128)),
        recall: (.15, pick(3, 4, 6, 8, 12, 16, 24, 32, 48, 48, 64)),
        overwrite: (.22, pick2([3, 5, 8, 12, 12], [4, 8, 12, 20, 40, 80, 80, 120])),
        needle: (.08, pick(200, 500, 1500, 3000, 5000)),
        copy: (.11, pick(3, 5, 10, 20, 40, 80, 80, 120)),
        reverse: (.04, pick(4, 8, 16, 32)),
        add: (.09, pick(2, 3, 4, 6, 8, 12, 16)),
        rounds: (.03, pick2([2, 4, 8], [2, 4, 8, 12])),
    },
    "hybrid-long": {
        registers: (.30, pick(64, 128, 128, 192, 256, 384)),
        recall: (.12, pick(48, 48, 64, 96)),
        overwrite: (.22, pick2([12, 24], [80, 80, 160, 320])),
        needle: (.13, pick(3000, 5000, 10000, 20000)),
        copy: (.11, pick(80, 120, 160, 240)),
        add: (.04, pick(12, 16, 20)),
        rounds: (.04, pick2([8, 16], [12, 24])),
        late: (.04, lambda rng: (rng.choice([8, 16, 32]), rng.choice([4, 8]), rng.choice([8, 16, 32]))),
    },
    "pure-short": {
        registers: (.12, pick(3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)),
        recall: (.24, pick(3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
        overwrite: (.17, pick2([3, 5, 8, 12, 16], [4, 8, 12, 20, 40, 80, 160])),
        needle: (.02, pick(200, 500, 1500, 3000)),
        copy: (.14, pick(3, 5, 10, 20, 40, 60, 80)),
        reverse: (.02, pick(4, 8, 16)),
        add: (.03, pick(2, 3, 4, 6, 8, 12, 16)),
        rounds: (.18, pick2([1, 2, 3, 4, 6, 8, 12], [2, 4, 8, 16])),
        late: (.08, lambda rng: (rng.choice([2, 4, 8, 16]), rng.choice([2, 4, 8]), rng.choice([2, 4, 8, 16]))),
    },
    "pure-long": {
        registers: (.14, pick(64, 128, 128, 192, 256)),
        recall: (.15, pick(48, 64, 96, 128)),
        overwrite: (.15, pick2([12, 16, 24, 32], [160, 320, 640])),
        needle: (.03, pick(5000, 10000, 20000)),
        copy: (.11, pick(80, 120, 160)),
        rounds: (.25, pick2([4, 8, 12, 16], [16, 32, 48, 64])),
        late: (.17, lambda rng: (rng.choice([8, 16, 32, 48]), rng.choice([4, 8, 16]), rng.choice([16, 32, 48]))),
    },
}


def sample(rng, hay, mix):
    """One problem of a mixture, as chat text."""
    table = MIXES[mix]
    task = rng.choices(list(table), [w for w, _ in table.values()])[0]
    arguments = table[task][1](rng)
    if task is needle:
        arguments = (hay,) + arguments
    return chat(*task(rng, *arguments))


# Named sets for evaluation: name -> a function of rng.
SETS = {
    "registers-32": lambda rng: registers(rng, 32, 4),
    "registers-128": lambda rng: registers(rng, 128, 4),
    "registers-192": lambda rng: registers(rng, 192, 4),
    "registers-256": lambda rng: registers(rng, 256, 4),
    "overwrite-12x80": lambda rng: overwrite(rng, 12, 80),
    "overwrite-16x320": lambda rng: overwrite(rng, 16, 320),
    "overwrite-32x640": lambda rng: overwrite(rng, 32, 640),
    "copy-80": lambda rng: copy(rng, 80),
    "copy-160": lambda rng: copy(rng, 160),
    "recall-48": lambda rng: recall(rng, 48, 16),
    "recall-64": lambda rng: recall(rng, 64, 16),
    "recall-128": lambda rng: recall(rng, 128, 16),
    "add-16": lambda rng: add(rng, 16),
    "rounds-8x32": lambda rng: rounds(rng, 8, 32),
    "rounds-8x64": lambda rng: rounds(rng, 8, 64),
    "rounds-16x32": lambda rng: rounds(rng, 16, 32),
    "rounds-16x64": lambda rng: rounds(rng, 16, 64),
    "late-16-8x32": lambda rng: late(rng, 16, 8, 32),
    "late-32-8x32": lambda rng: late(rng, 32, 8, 32),
    "late-32-8x48": lambda rng: late(rng, 32, 8, 48),
}
