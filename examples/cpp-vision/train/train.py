"""Trains the small Vision Transformer, and records PyTorch's answers for the held-out pictures.

Writes ../model/digits.safetensors (weights, f32) and ../model/heldout.json (indices, labels, PyTorch's classes and
scores, its accuracy). The same seed makes the same network on the same machine with the same versions.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

from data import digits, split

SEED = 7
WIDTH, HEADS, HIDDEN, BLOCKS, CLASSES = 48, 4, 96, 3, 10
EPOCHS, BATCH = 120, 64
MODEL = pathlib.Path(__file__).resolve().parent.parent / "model"


class Block(nn.Module):
    """x += proj(attention(norm1(x))); x += fc2(gelu(fc1(norm2(x))))."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    """A class token and patches of 2 x 2 pixels, pre-norm blocks, and a linear map of the class token."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(4, WIDTH)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, pictures):
        """Returns the scores [b, classes] of pictures [b, 8, 8] whose pixels are 0 to 1."""
        b = len(pictures)
        patches = pictures.view(b, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(b, 16, 4)
        x = torch.cat([self.cls.expand(b, -1, -1), self.patch(patches)], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def moved(pictures, generator):
    """Returns the pictures, each moved by at most one pixel."""
    padded = nn.functional.pad(pictures, (1, 1, 1, 1))
    y, x = torch.randint(0, 3, (2, len(pictures)), generator=generator)
    rows, columns = y[:, None] + torch.arange(8), x[:, None] + torch.arange(8)
    return padded[torch.arange(len(pictures))[:, None, None], rows[:, :, None], columns[:, None, :]]


def main():
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(SEED)
    pictures, labels = digits()
    train, held_out = split()
    x, y = torch.from_numpy(pictures).float() / 255, torch.from_numpy(labels)
    net = Vit()
    steps = EPOCHS * (len(train) // BATCH + 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(EPOCHS):
        order, total = torch.from_numpy(train)[torch.randperm(len(train), generator=generator)], 0.0
        for at in order.split(BATCH):
            loss = loss_of(net(moved(x[at], generator)), y[at])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(at)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {total / len(train):.4f}", flush=True)
    net.eval()
    with torch.no_grad():
        scores = net(x[held_out])
    classes = scores.argmax(1)
    accuracy = (classes == y[held_out]).float().mean().item()
    print(f"accuracy on {len(held_out)} pictures held out: {accuracy:.4f}")
    if accuracy < 0.97:
        raise SystemExit("accuracy below 0.97; nothing is written")
    MODEL.mkdir(exist_ok=True)
    tensors = {name: value.detach().contiguous() for name, value in net.state_dict().items()}
    facts = {"heads": str(HEADS), "seed": str(SEED), "accuracy": f"{accuracy:.4f}", "data": "UCI handwritten digits"}
    save_file(tensors, MODEL / "digits.safetensors", metadata=facts)
    record = {
        "indices": held_out.tolist(),
        "labels": y[held_out].tolist(),
        "classes": classes.tolist(),
        "accuracy": accuracy,
        "scores": [[float(f"{s:.6g}") for s in row] for row in scores.tolist()],
        "torch": torch.__version__.split("+")[0],
    }
    (MODEL / "heldout.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
