"""A rank that meets the others without MASTER_ADDR, trains and says so.

``rendezvous_worker.py ways RANK FOLDER STORE PORT...``  by tcp:// with each port, by a file, by a
    store, and as below
``rendezvous_worker.py joins RANK SIZE STORE``           in a store with this port, which others use
    before or after
``rendezvous_worker.py hosts FOLDER PORT``               by addresses that other hosts do not reach
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn

import byteprophet.torch as bps
from byteprophet.errors import JobFailed

RANKS = 2
LOOPBACKS = ("127.0.0.1", "[::1]")


def train(what: str) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    model = nn.Linear(40, 30)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(optimizer, model=model, sync="dear")
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 40)).square().sum().backward()
        optimizer.step()
    model.train()  # after all updates
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybodys = [torch.empty_like(mine) for _ in range(size)]
    distributed.all_gather(everybodys, mine)
    assert all(torch.equal(mine, other) for other in everybodys)
    assert (bps.rank(), bps.size()) == (rank, size)
    assert bps.push_pull(torch.tensor([float(rank)]), average=False, name="rank") == sum(
        range(size)
    )
    assert bps.push_pull(torch.tensor([4e4], dtype=torch.float16), name="half") == 4e4
    print(f"{what}: {size} ranks alike", flush=True)


def ways(number: str, folder: str, store_port: str, *ports: str) -> None:
    rank = int(number)
    for host, port in zip(LOOPBACKS, ports, strict=False):
        place = f"tcp://{host}:{port}"
        distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
        train(host)
        distributed.destroy_process_group()
    place = (Path(folder) / "file").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
    train("file")
    distributed.destroy_process_group()
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    train("store")
    distributed.destroy_process_group()
    joins(number, str(RANKS), store_port)


def joins(number: str, size: str, port: str) -> None:
    store = distributed.TCPStore("127.0.0.1", int(port), None, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=int(number), world_size=int(size))
    train("joined")


def hosts(folder: str, port: str) -> None:
    """GLOO_SOCKET_IFNAME, which the launcher sets, is for gloo alone here."""
    rank, interface = int(os.environ["RANK"]), os.environ["GLOO_SOCKET_IFNAME"]
    root = "127.0.0.1" if rank == 0 else os.environ["MASTER_ADDR"]
    place = f"tcp://{root}:{port}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
    for name in ("GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        del os.environ[name]
    train("hosts")
    distributed.destroy_process_group()
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    place = (Path(folder) / "file").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=RANKS)
    del os.environ["GLOO_SOCKET_IFNAME"]
    began_s = time.monotonic()
    try:
        train("unreachable")
    except JobFailed as error:
        print(f"after {time.monotonic() - began_s:.0f} s: {error}", flush=True)


def main(way: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    {"ways": ways, "joins": joins, "hosts": hosts}[way](*arguments)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
