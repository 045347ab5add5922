"""The pages of two workers, which they write and their agent reads."""

from __future__ import annotations

import pathlib

from elasticjob_runtime.training import auto_progress


class Pages:
    def __init__(self, folder: pathlib.Path) -> None:
        self.error_files = {rank: str(folder / str(rank) / "error.json") for rank in range(2)}
        for error_file in self.error_files.values():
            pathlib.Path(error_file).parent.mkdir()
            auto_progress.create_page(auto_progress.page_file(error_file))

    def write(self, rank: int, data: bytes, at: int = 0) -> None:
        with open(auto_progress.page_file(self.error_files[rank]), "r+b") as file:
            file.seek(at)
            file.write(data)
