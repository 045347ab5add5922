"""`python -m hack.dashboards`, in the root of the repository, writes the chart's dashboards."""

from __future__ import annotations

from hack.dashboards import files


def main() -> None:
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
