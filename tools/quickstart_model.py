"""Saves two steps of a small model with its optimizer into a CairnFS mount, loads the second back and compares.

quickstart_model.py MOUNT_POINT CAIRNFS. Nothing here knows CairnFS: torch.save, os.rename, torch.load.
"""
import json
import os
import shutil
import subprocess
import sys
import time

import torch

MOUNT_POINT, CAIRNFS = sys.argv[1:]
FOLDER = os.path.join(MOUNT_POINT, "quickstart")
STEPS = (1, 2)


def build_model():
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Embedding(8192, 512),
        *[torch.nn.TransformerEncoderLayer(512, 8, 2048) for _ in range(4)],
        torch.nn.Linear(512, 8192),
    )
    # As in fine-tuning: the embedding is frozen, so its bytes are the same in every checkpoint.
    model[0].weight.requires_grad = False
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    return model, optimizer


def train_a_step(model, optimizer):
    tokens = torch.randint(0, 8192, (16, 2))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def status():
    return json.loads(subprocess.check_output([CAIRNFS, "status", "--json", MOUNT_POINT]))


def save(step, model, optimizer):
    temporary, final = (os.path.join(FOLDER, f"step-{step}{end}") for end in (".tmp", ""))
    os.makedirs(temporary)
    began = time.monotonic()
    torch.save(model.state_dict(), os.path.join(temporary, "model.pt"))
    torch.save(optimizer.state_dict(), os.path.join(temporary, "optimizer.pt"))
    written = time.monotonic()
    os.rename(temporary, final)  # returns once every byte is durable; readers see all of it or nothing
    return final, written - began, time.monotonic() - written


def size_of(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


def mebibytes(count):
    return f"{count / 2**20:.1f} MiB"


def compare(saved, loaded, where, counts):
    """Every tensor is equal bit for bit, and everything beside the tensors is equal."""
    if torch.is_tensor(saved):
        assert saved.dtype == loaded.dtype and torch.equal(saved, loaded), where
        counts[0] += 1
    elif isinstance(saved, dict):
        assert saved.keys() == loaded.keys(), where
        for key in saved:
            compare(saved[key], loaded[key], f"{where}.{key}", counts)
    elif isinstance(saved, (list, tuple)):
        assert len(saved) == len(loaded), where
        for index, pair in enumerate(zip(saved, loaded)):
            compare(*pair, f"{where}[{index}]", counts)
    else:
        assert saved == loaded, where


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)  # of an earlier run
    os.makedirs(FOLDER)
    model, optimizer = build_model()
    report = []
    for step in STEPS:
        train_a_step(model, optimizer)
        before = status()
        folder, write_seconds, commit_seconds = save(step, model, optimizer)
        after = status()
        durability = os.getxattr(folder, "user.cairnfs.durability").decode()
        size = size_of(folder)
        report.append(
            f"step-{step}: {mebibytes(size)} in {write_seconds + commit_seconds:.2f} s "
            f"(torch.save {write_seconds:.2f} s, rename {commit_seconds:.3f} s); "
            f"stored anew: {mebibytes(after['new_bytes_total'] - before['new_bytes_total'])}; durability: {durability}")
        assert durability == "local", durability

    counts = [0]
    last = os.path.join(FOLDER, f"step-{STEPS[-1]}")
    compare(model.state_dict(), torch.load(os.path.join(last, "model.pt")), "model", counts)
    compare(optimizer.state_dict(), torch.load(os.path.join(last, "optimizer.pt")), "optimizer", counts)

    subprocess.run(["ls", "-lR", FOLDER], check=True)
    print()
    print("\n".join(report))
    print(f"loaded step-{STEPS[-1]} back: {counts[0]} tensors, every one equal bit for bit")


if __name__ == "__main__":
    main()
