"""Load an exported model in an independent FP32 implementation and write reference.json beside it.

usage: parity.py PRESET FOLDER

Qwen3.5 models load in transformers (Qwen3_5ForCausalLM), which gives the numbers; the token-by-token recurrence of
decode.py must agree to 1e-3. Kimi-Linear models have Moonshot's tensor names, which transformers' own kimi_linear does
not load: there the numbers are those of that recurrence. reference.json: text, its ids, the mean loss of the next
token, all logits of the last position, and the ids of 40 greedy tokens after the text.
"""
import json
import sys

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import decode
import export

TEXT = ("Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: "
        "once or twice she had peeped into the book")
GREEDY = 40


def recurrence(model, ids):
    """Logits of every position of ids, one token at a time, and greedy ids after them."""
    batch, out, answer = decode.Batch(model, 1, len(ids) + GREEDY, decode.FORMATS["fp32"]), [], []
    for t in range(len(ids) + GREEDY - 1):
        if t >= len(ids):
            answer.append(int(out[-1].argmax()))
        token = torch.tensor([[ids[t] if t < len(ids) else answer[-1]]])
        out.append(model.logits(batch.forward(token, torch.ones(1, dtype=torch.long)))[0, 0])
    return torch.stack(out[:len(ids)]), answer + [int(out[-1].argmax())]


def in_transformers(folder, ids):
    """The same, by whole sequences: without attention layers there is no cache that transformers can measure."""
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    line = list(ids)
    for _ in range(GREEDY):
        line.append(int(model(torch.tensor([line]), use_cache=False).logits[0, -1].argmax()))
    name = f"{type(model).__name__} of transformers {transformers.__version__}, FP32"
    return name, model(torch.tensor([ids]), use_cache=False).logits[0], line[len(ids):]


@torch.no_grad()
def main():
    preset, folder = sys.argv[1:3]
    torch.set_flush_denormal(True)
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    ids = tokenizer.encode(TEXT).ids
    model = export.load(preset, folder)
    own, own_answer = recurrence(model, ids)
    name, logits, answer = "training/decode.py, the recurrence token by token, FP32", own, own_answer
    if model.config["arch"] == "gdn":
        name, logits, answer = in_transformers(folder, ids)
    worst = float((logits - own).abs().max())
    if worst > 1e-3 or answer != own_answer:
        raise SystemExit(f"{folder}: logits differ by {worst} from the recurrence, "
                         "expected at most 1e-3 and one answer")
    loss = float(F.cross_entropy(logits[:-1], torch.tensor(ids[1:])))
    export.write_json(folder + "/reference.json",
                      {"source": name, "text": TEXT, "ids": ids, "loss": loss,
                       "logits": [round(x, 5) for x in logits[-1].tolist()], "greedy": answer})
    print(f"{preset}: {name}; loss {loss:.6f}, largest difference to the recurrence {worst:.1e}")
    print(tokenizer.decode(ids + answer))


if __name__ == "__main__":
    main()
