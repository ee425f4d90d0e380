"""Write the notebooks without their outputs, with what they read, for the wheel (CMakeLists.txt).

    python without_outputs.py TARGET

TARGET gets the folders `notebooks` and `docs/pictures`, as the repository has them.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What the notebooks read besides the package.
DATA = Path("docs/pictures/extrapolation.json")


def main(target: Path) -> None:
    """Write both folders."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}
        copy = target / "notebooks" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", "utf-8")
    (target / DATA).parent.mkdir(parents=True, exist_ok=True)
    (target / DATA).write_bytes((ROOT / DATA).read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
