"""Reads a stream of the source that is named, in two runs of a session; run by test_stream_sources.py.

Arguments: source, folder, processes of the loader. Prints, as JSON, what both runs took.
"""

from __future__ import annotations

import io
import json
import pathlib
import random
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from elasticjob_runtime.data import stream_reader
from elasticjob_runtime.training import ElasticSession

FOLDER = pathlib.Path(sys.argv[2])
SHARDS, LENGTH, STREAMS = 8, 40, 4


def generate(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for item in range(LENGTH):
            yield {"name": f"{shard}-{item}", "image": [item] * 3}


def hugging_face(stream: int, _: int) -> Iterable[Any]:
    import datasets

    source = datasets.IterableDataset.from_generator(generate, gen_kwargs={"shards": list(range(SHARDS))})
    return source.shard(STREAMS, stream)  # type: ignore[no-any-return]


def shuffled_hugging_face(stream: int, epoch: int) -> Iterable[Any]:
    return hugging_face(stream, epoch).shuffle(seed=epoch, buffer_size=20)  # type: ignore[attr-defined,no-any-return]


def torchdata_nodes(stream: int, _: int) -> Iterable[Any]:
    from torchdata import nodes

    return nodes.Loader(nodes.IterableWrapper(generate(list(range(stream, SHARDS, STREAMS)))))  # type: ignore[no-any-return]


def torchdata_loader(stream: int, _: int) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(list(generate(list(range(stream, SHARDS, STREAMS)))), batch_size=None)  # type: ignore[no-any-return]


def parquet(stream: int, epoch: int) -> Iterator[Any]:
    from pyarrow import parquet

    files = sorted(FOLDER.glob("*.parquet"))[stream::STREAMS]
    random.Random(f"{stream} {epoch}").shuffle(files)
    for file in files:
        for rows in parquet.ParquetFile(file).iter_batches(batch_size=16):
            yield from rows.to_pylist()


def webdataset(stream: int, _: int) -> Iterable[Any]:
    from webdataset import WebDataset

    shards = [str(shard) for shard in sorted(FOLDER.glob("*.tar"))[stream::STREAMS]]
    source = WebDataset(shards, shardshuffle=False, nodesplitter=None, workersplitter=None)
    return source.decode().to_tuple("txt", "cls")  # type: ignore[no-any-return]


def write_parquet() -> None:
    import pyarrow
    from pyarrow import parquet

    for shard in range(SHARDS):
        parquet.write_table(pyarrow.Table.from_pylist(list(generate([shard]))), FOLDER / f"{shard}.parquet")


def write_tar() -> None:
    for shard in range(SHARDS):
        with tarfile.open(FOLDER / f"{shard}.tar", "w") as archive:
            for item in range(LENGTH):
                for suffix, data in (("txt", f"{shard}-{item}".encode()), ("cls", b"1")):
                    entry = tarfile.TarInfo(f"{shard:02}{item:04}.{suffix}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))


def train(open_stream: Callable[[int, int], Iterable[Any]], steps: int) -> list[str]:
    session = ElasticSession(model=torch.nn.Linear(1, 1))
    session.checkpoint(FOLDER / "checkpoints", every=1)
    taken: list[str] = []
    for step, batch in enumerate(
        session.stream(open_stream, streams=STREAMS, batch_size=8, collate_fn=list, num_workers=int(sys.argv[3]))
    ):
        with session.step():
            taken += [str(item["name"] if isinstance(item, dict) else item[0]) for item in batch]
        if step + 1 == steps:
            break
    return taken


def main() -> None:
    stream_reader.STATE_INTERVAL = 0.0
    source = globals()[sys.argv[1]]
    {"parquet": write_parquet, "webdataset": write_tar}.get(sys.argv[1], lambda: None)()
    first = train(source, 12)
    print(json.dumps([first, train(source, 1000)]))


if __name__ == "__main__":
    main()
