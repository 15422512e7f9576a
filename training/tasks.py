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


def keep(rng, cold, hot, writes):
    """An overwrite whose first `cold` keys are written once, before `writes` writes to `hot` others. All are read: the
    cold ones must outlast writes that the model has no reason to ignore."""
    names = key_names(rng, cold + hot)
    store = {k: "%02d" % rng.randint(0, 99) for k in names[:cold]}
    ops = [f"{k}={v}" for k, v in store.items()]
    for _ in range(writes):
        k = rng.choice(names[cold:])
        store[k] = "%02d" % rng.randint(0, 99)
        ops.append(f"{k}={store[k]}")
    read = rng.sample(list(store), len(store))
    return "Store: " + " ".join(ops) + "\nRead: " + " ".join(read), " ".join(f"{k}={store[k]}" for k in read)


def hold(rng, hay, words, length):
    """Words, then prose, then the words."""
    w = " ".join(rng.choice(WORDS) for _ in range(words))
    at = rng.randint(0, max(1, len(hay) - length - 1))
    return f"Hold: {w}\n" + hay[at:at + length].replace("<|endoftext|>", "") + "\nCopy:", w


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
    # To finish a hybrid that knows most of it, in rows of 2,048: more of what was missing.
    "gdn-short": {
        registers: (.24, pick(8, 16, 32, 64, 96, 128, 128, 128)),
        recall: (.12, pick(8, 16, 32, 48, 48, 64)),
        overwrite: (.34, pick2([8, 12, 12, 12, 16], [20, 40, 80, 80, 80, 120])),
        needle: (.05, pick(500, 1500, 3000, 5000)),
        copy: (.09, pick(20, 40, 80, 80, 120)),
        reverse: (.02, pick(4, 8, 16, 32)),
        add: (.12, pick(4, 8, 12, 16, 16)),
        rounds: (.02, pick2([2, 4, 8], [2, 4, 8, 12])),
    },
    "kda-short": {
        registers: (.34, pick(4, 8, 16, 24, 32, 48, 64, 96, 128, 128, 128)),
        recall: (.26, pick(4, 8, 12, 16, 24, 32, 48, 48, 48, 64)),
        overwrite: (.10, pick2([5, 8, 12, 12], [8, 20, 40, 80, 80])),
        needle: (.05, pick(500, 1500, 3000, 5000)),
        copy: (.12, pick(10, 20, 40, 80, 80, 120)),
        reverse: (.02, pick(4, 8, 16, 32)),
        add: (.09, pick(2, 4, 6, 8, 12, 16, 16)),
        rounds: (.02, pick2([2, 4, 8], [2, 4, 8, 12])),
    },
    # What tiny-kda still got wrong then: a line, a digit or a word taken from the wrong place.
    "follow-short": {
        registers: (.36, pick(16, 32, 64, 96, 128, 128, 160, 192)),
        recall: (.30, lambda rng: rng.choice([(16, 16), (32, 32), (48, 16), (48, 48), (48, 48), (64, 64), (80, 48)])),
        overwrite: (.05, pick2([8, 12, 12], [40, 80, 80])),
        needle: (.03, pick(1500, 3000, 5000)),
        copy: (.18, pick(20, 40, 80, 80, 120, 160, 240)),
        add: (.08, pick(4, 8, 12, 16, 16)),
    },
    # The last of that on a CPU (finetune.py): long programs, and enough of the rest that it stays.
    "finish-short": {
        registers: (.80, pick2([112, 128, 128, 144], [3, 4, 4, 5])),
        recall: (.08, pick2([48], [16])),
        overwrite: (.05, pick2([12], [80])),
        copy: (.07, pick(80, 120)),
    },
    "pure-short": {
        overwrite: (.14, pick2([5, 8, 12, 12, 16], [8, 20, 40, 80, 160])),
        keep: (.38, lambda rng: (rng.choice([2, 4, 8, 12, 16, 24, 32]), rng.choice([4, 8]),
                                 rng.choice([10, 20, 40, 80, 160, 300]))),
        copy: (.16, pick(5, 10, 20, 40, 40, 60, 80)),
        recall: (.14, pick(4, 8, 12, 16, 24, 32, 48)),
        hold: (.18, lambda rng: (rng.choice([5, 10, 20, 40]), rng.choice([50, 200, 500, 1500, 4000]))),
    },
    "pure-long": {
        overwrite: (.10, pick2([12, 16, 24, 32], [160, 320, 640])),
        keep: (.62, lambda rng: (rng.choice([8, 16, 24, 32, 40]), rng.choice([4, 8, 12]),
                                 rng.choice([300, 600, 900, 1200, 1600]))),
        hold: (.28, lambda rng: (rng.choice([10, 20, 40, 60]), rng.choice([4000, 8000, 16000, 22000]))),
    },
}


def sample(rng, hay, mix):
    """One problem of a mixture, as chat text."""
    table = MIXES[mix]
    task = rng.choices(list(table), [w for w, _ in table.values()])[0]
    arguments = table[task][1](rng)
    if task in (needle, hold):
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
    # cold keys - hot keys x writes
    "keep-16-8x80": lambda rng: keep(rng, 16, 8, 80),
    "keep-16-8x300": lambda rng: keep(rng, 16, 8, 300),
    "keep-16-8x800": lambda rng: keep(rng, 16, 8, 800),
    "keep-16-8x1600": lambda rng: keep(rng, 16, 8, 1600),
    "keep-32-8x80": lambda rng: keep(rng, 32, 8, 80),
    "keep-32-8x300": lambda rng: keep(rng, 32, 8, 300),
    "keep-32-8x800": lambda rng: keep(rng, 32, 8, 800),
    "keep-32-8x1600": lambda rng: keep(rng, 32, 8, 1600),
    "copy-40": lambda rng: copy(rng, 40),
}
