"""An environment for each contender, made on demand in benchmarks/envs."""

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.process import ROOT

FOLDER = ROOT / "benchmarks" / "envs"
# torch 2.13.0 has a build without CUDA. Looser requirements would bring gigabytes of it.
COMMON = ("torch==2.13.0", "pyarrow==26.0.1", "pillow==13.0.0")
OWN = ("numpy==2.4.6", "tokenizers==0.23.3")


class InstallError(Exception):
    """pip could not make the environment. The message is its last line."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A library: its module in ``contenders``, its name for people, and what its environment has.

    ``quick`` is False for those whose workers start as new interpreters, which takes seconds each time.
    """

    name: str
    label: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    quick: bool = True

    @property
    def python(self) -> Path:
        """The interpreter. Contenders without requirements run in the environment of this process."""
        return FOLDER / self.name / "bin" / "python" if self.requirements else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether the environment is there, with just these requirements."""
        stamp = FOLDER / self.name / "requirements"
        return not self.requirements or (stamp.exists() and stamp.read_text() == self._wanted())

    def install(self) -> None:
        """Make the environment."""
        if self.installed:
            return
        folder = FOLDER / self.name
        print(f"making {folder} ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [str(self.python), "-m", "pip", "install", "--quiet", *self.requirements]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise InstallError((done.stderr.strip() or "pip failed").splitlines()[-1])
        (folder / "requirements").write_text(self._wanted())

    def _wanted(self) -> str:
        return "\n".join(self.requirements)


CONTENDERS = (
    Contender(name="midepoch", label="midepoch", packages=("torch",)),
    Contender(name="pyarrow", label="pyarrow, a loop", packages=("pyarrow",)),
    Contender(
        name="datasets",
        label="datasets + StatefulDataLoader",
        packages=("datasets", "torchdata"),
        requirements=(*COMMON, *OWN, "datasets==5.2.0", "torchdata==0.11.0"),
    ),
    Contender(
        name="litdata",
        label="LitData",
        packages=("litdata",),
        requirements=(*COMMON, *OWN, "litdata==0.2.76", "polars==2.1.0"),
    ),
    Contender(
        name="streaming",
        label="MosaicML Streaming",
        packages=("mosaicml-streaming",),
        # it wants an older NumPy and transformers, which wants older tokenizers
        requirements=("torch==2.13.0", "pyarrow", "pillow", "tokenizers", "mosaicml-streaming==0.13.0"),
    ),
    Contender(
        name="grain",
        label="Grain + ArrayRecord",
        packages=("grain", "array_record"),
        requirements=(*COMMON, *OWN, "grain==0.2.18", "array_record==0.8.6"),
        quick=False,
    ),
    Contender(
        name="webdataset",
        label="WebDataset",
        packages=("webdataset",),
        requirements=(*COMMON, *OWN, "webdataset==1.0.2"),
    ),
    Contender(
        name="lance",
        label="LanceDB StreamingDataset",
        packages=("lancedb", "pylance"),
        requirements=(*COMMON, *OWN, "lancedb==0.40.0", "pylance==14.0.2"),
        quick=False,
    ),
    Contender(
        name="dataloader_utils",
        label="torch-dataloader-utils",
        packages=("torch-dataloader-utils",),
        requirements=(*COMMON, *OWN, "torch-dataloader-utils==0.2.0"),
    ),
)
