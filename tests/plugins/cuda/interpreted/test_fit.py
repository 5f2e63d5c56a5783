"""Which tile is taken when several Tritons have to agree; what each says is compiled in ``compiled``."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from baseboard_cuda.check import fit as fit_command
from baseboard_cuda.check.fit import Fitted, candidates, family, fit
from baseboard_cuda.check.fits import DOES_NOT_FIT, Elsewhere
from baseboard_cuda.tiles import Tile, TileKey, load_tiles, parse_tiles

KEY = TileKey("prefill", "float32", "native", 128)
TILES = candidates(100, KEY)


class Likes:
    """Fits what it was told, on the architectures it was told; notes what it is asked."""

    def __init__(self, tiles, capabilities=(100, 103)) -> None:
        self.tiles, self.capabilities = tiles, capabilities
        self.asked: list[tuple[int, Tile]] = []

    def __call__(self, capability, key, tile) -> bool:
        assert key == KEY
        self.asked.append((capability, tile))
        return tile in self.tiles and capability in self.capabilities


def test_what_is_in_use_comes_first() -> None:
    assert TILES[0] == load_tiles("sm_100").tiles[KEY]
    assert len(set(TILES)) == len(TILES)
    assert family(100) == [100, 103]


def test_the_first_tile_that_all_agree_on_is_taken() -> None:
    one, other = Likes(TILES[1:]), Likes([TILES[0], *TILES[3:]])
    assert fit(100, KEY, [one, other]) == Fitted(KEY, TILES[3])
    assert {tile for _, tile in other.asked} == set(TILES[1:4])  # the first was refused before


def test_a_tile_has_to_fit_in_the_whole_family() -> None:
    assert fit(100, KEY, [Likes(TILES), Likes(TILES, (100,))]).tile is None
    assert fit(90, KEY, [Likes(candidates(90, KEY), (90,))]).tile == candidates(90, KEY)[0]


def test_the_command_asks_every_python(tmp_path, monkeypatch) -> None:
    """The second one is a program that refuses the tile in use; the file has what is left."""
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
case "$5" in '{json.dumps(asdict(TILES[0]))}') exit {DOES_NOT_FIT};; esac
""")
    python.chmod(0o755)
    monkeypatch.setattr(fit_command, "keys", lambda dtypes: [KEY])
    monkeypatch.setattr(fit_command, "fits", lambda capability, key, tile: True)
    assert fit_command.main(["100", str(tmp_path / "tiles.json"), "--also", str(python)]) == 0
    assert parse_tiles("new", json.loads((tmp_path / "tiles.json").read_text())).tiles == {KEY: TILES[1]}
    asked = (tmp_path / "asked").read_text().splitlines()
    wanted = [(100, TILES[0]), (100, TILES[1]), (103, TILES[1])]
    assert asked == [
        f"-m baseboard_cuda.check.fits {capability} {json.dumps(asdict(KEY))} {json.dumps(asdict(tile))}"
        for capability, tile in wanted
    ]


def test_a_python_that_cannot_tell_is_an_error(tmp_path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named triton >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match=r"python cannot tell whether a tile fits: No module named triton"):
        Elsewhere(python)(90, KEY, TILES[0])
