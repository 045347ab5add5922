"""`python -m hack.reference` writes the reference pages; `hack.checks` compares them."""

from __future__ import annotations

from pathlib import Path

from hack.reference import pages


def main() -> None:
    for name, text in pages().items():
        path = Path(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
