"""The decoder of training_models.py in PyTorch, trained by a process that has it.

`PYTHON gpt2_in_pytorch.py DTYPE COMPILED TOKENS BATCH WORDS THREADS`, with an
interpreter that has PyTorch: DTYPE is float32, or bfloat16 for its autocast; COMPILED
is 0, or 1 for `torch.compile`. It trains three steps and prints, as JSON, the seconds
of the first one and the MiB by which they let the process grow; then it trains a step
for each line that it reads, and answers with an empty line.
"""

import json
import re
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

BLOCKS, WIDTH, HEADS = 4, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        batch, tokens, _ = x.shape
        made = self.query_key_value(self.before_attention(x))
        query, key, value = made.view(batch, tokens, 3, HEADS, -1).permute(
            2, 0, 3, 1, 4
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attended(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.inner(x)


class Decoder(nn.Module):
    def __init__(self, words, tokens):
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.places = nn.Embedding(tokens, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.uniform_(self.words.weight, -0.05, 0.05)  # as Keras does

    def forward(self, text):
        places = torch.arange(text.shape[1])
        x = self.blocks(self.words(text) + self.places(places))
        return F.linear(self.norm(x), self.words.weight)


def make_step(dtype, compiled, tokens, batch, words):
    model = Decoder(words, tokens)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    text = torch.randint(0, words, (batch, tokens + 1))
    inputs, targets = text[:, :-1].contiguous(), text[:, 1:].reshape(-1)

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(inputs).view(-1, words)
            return F.cross_entropy(logits, targets)

    of_batch = torch.compile(loss) if compiled else loss

    def step():
        optimizer.zero_grad()
        of_batch().backward()
        optimizer.step()

    return step


def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def main():
    dtype, *numbers = sys.argv[1:]
    compiled, tokens, batch, words, threads = map(int, numbers)
    torch.set_num_threads(threads)
    before = peak()
    step = make_step(dtype, compiled, tokens, batch, words)
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    step()
    step()
    print(json.dumps([seconds, peak() - before]), flush=True)
    for _ in sys.stdin:
        step()
        print(flush=True)


if __name__ == "__main__":
    main()
