"""Session: everything that a run holds open. Opened once by every command, closed whatever happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from frognano.analysis.live import Live
from frognano.errors import ConfigError, FrogNanoError
from frognano.harness.leaf.agent import Leaf
from frognano.harness.leaf.pocket import POCKET
from frognano.harness.leaf.prompt import DEFAULT
from frognano.harness.leaf.tools import TOOLS
from frognano.loop.recipe import RecipeConfig
from frognano.models.base import Sampling
from frognano.models.causal_lm import check_checkpoint
from frognano.models.config import PolicyConfig
from frognano.models.engine import SamplerEngine
from frognano.models.pocket import PocketModelError, ensure_pocket_model
from frognano.models.policy import LlamaPolicy, compute_dtype, load_policy
from frognano.models.renderer import Renderer, TemplateRenderer, XmlRenderer
from frognano.models.shards import ShardedEngine
from frognano.models.token_model import TokenModel
from frognano.models.transformers_policy import TransformersPolicy
from frognano.models.vllm_engine import VllmEngine
from frognano.models.vllm_server import check_vllm
from frognano.rl.checkpoint import load_trainer, load_weights
from frognano.rl.trainer import Trainer
from frognano.rollouts.pool import RolloutPool
from frognano.rollouts.rollout import Judge, ModelFactory, Setting
from frognano.runs.rows import BASE as BASE  # what loop's files take from here
from frognano.runs.store import RunStore
from frognano.sandbox.bubblewrap import BubblewrapSandboxes
from frognano.sandbox.mounts import find_bwrap
from frognano.taskpilot.workshop import Workshop
from frognano.tasks.grading import Grader
from frognano.tasks.repository import RepositoryConfig, load_repositories
from frognano.tasks.trees import Trees

T = TypeVar("T")


def cache_folder() -> Path:
    """What runs share: models, snapshots, environments, baselines."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frognano").absolute()


def chosen_repositories(recipe: RecipeConfig) -> dict[str, RepositoryConfig]:
    file = recipe.repositories.file
    try:
        known = load_repositories(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"repositories.file {file} cannot be read ({error}): name a pool of repositories") from error
    names = (*recipe.repositories.train, *recipe.repositories.heldout)
    if missing := [n for n in names if n not in known]:
        pool = f"the pool {file.absolute()}" if file else "the pool that comes with frognano"
        raise ConfigError(f"repositories: unknown {', '.join(missing)}; {pool} holds {', '.join(sorted(known))}")
    return {n: known[n] for n in names}


def check_recipe(recipe: RecipeConfig) -> None:
    """What can be known to fail before anything is started: repositories that are not in the pool, a machine without
    boxes, a folder without a model."""
    for repository in chosen_repositories(recipe).values():
        if repository.path is not None:
            repository.folder()
    find_bwrap()
    if recipe.engine.kind == "vllm":
        check_vllm(recipe.engine)
    if recipe.model.path != "pocket":
        with model_errors(recipe.model.path):
            check_checkpoint(Path(recipe.model.path))


@contextmanager
def model_errors(path: str) -> Iterator[None]:
    """Whatever torch, transformers or safetensors say of a model that cannot be loaded, as one line that names it."""
    try:
        yield
    except FrogNanoError:
        raise
    except PocketModelError:
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        named = said if path in said else f"model.path {path} cannot be loaded: {said}"
        raise ConfigError(f"{named[:400]} (model.path: `pocket`, or a folder as save_pretrained writes it)") from error


def open_policy(config: PolicyConfig) -> LlamaPolicy | TransformersPolicy:
    """The base policy that a recipe names."""
    path = ensure_pocket_model() if config.path == "pocket" else Path(config.path)
    with model_errors(str(path)):
        return load_policy(path, config.trainable_layers, compute_dtype(config.dtype))


class Session:
    """`torch` work runs in one thread of its own, so that the event loop goes on serving boxes."""

    def __init__(self, recipe: RecipeConfig, store: RunStore, live: Live) -> None:
        self.recipe, self.store, self.live = recipe, store, live
        self.started = time.monotonic()
        self.part = len(store.metrics("cost"))
        """Processes before this one that worked on the run."""
        self.threads = recipe.model.threads or os.cpu_count() or 1
        self.repositories = chosen_repositories(recipe)
        self.sandboxes = BubblewrapSandboxes()
        self.inner_used: list[dict[str, float]] = []
        """Of the phases that are open, outermost first: what phases within them used."""
        self.compute = ThreadPoolExecutor(1, "compute")
        self.policy = open_policy(recipe.model)
        with model_errors(str(self.policy.path)):
            self.renderer = self._renderer(self.policy.path)
        self.harness = Leaf({"pocket": POCKET, "default": DEFAULT}[recipe.harness.prompt])
        self.engine = self._engine()
        self.trainer = Trainer(self.policy, recipe.optimizer, recipe.dppo)
        self.initial = {k: v.detach().clone() for k, v in self.policy.masters.items()}
        self.version = BASE
        self.trees = Trees(store.path / "tasks", cache_folder(), self.sandboxes.scratch)
        self.judge = Judge(Grader(self.sandboxes, self.trees, recipe.grading), store)
        self.workshop = Workshop(
            store.path / "tasks",
            cache_folder(),
            self.sandboxes,
            recipe.validation,
            recipe.harness.style,
            self.secret(),
        )

    def secret(self) -> str:
        """Makes task ids that mean nothing outside this run and stay the same in it."""
        held = self.store.done("secret")
        if held is None:
            held = os.urandom(8).hex()
            self.store.finish("secret", held)
        return str(held)

    def _renderer(self, path: Path) -> Renderer:
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(path)
        xml = self.recipe.harness.renderer == "xml"
        renderer: Renderer = XmlRenderer(tokenizer) if xml else TemplateRenderer(tokenizer)
        if None in renderer.stop_ids:
            raise ValueError(
                f"{path}: its tokenizer has no token that ends a reply; set harness.renderer to the other one"
            )
        return renderer

    def _static_prefix(self) -> list[int]:
        """What every prompt of this run begins with: where the prompts of two unlike tasks part."""
        one, two = (self.renderer.prompt_ids(self.harness.prompt.messages(t), TOOLS) for t in ("a", "Zebra: 7"))
        same = 0
        while same < min(len(one), len(two)) and one[same] == two[same]:
            same += 1
        return one[:same]

    def _engine(self) -> SamplerEngine | ShardedEngine | VllmEngine:
        stop_ids, rows = self.renderer.stop_ids, self.recipe.rollouts.rows
        if self.recipe.engine.kind == "frognano":
            return self.policy.engine(self._static_prefix(), stop_ids, rows, self.threads)
        return VllmEngine(
            self.recipe.engine,
            self.policy,
            self.store.path / "vllm",
            self.sandboxes.scratch / "vllm",
            stop_ids=stop_ids,
            rows=rows,
            context=self._context(),
            threads=self.threads,
            dtype=str(compute_dtype(self.recipe.model.dtype)).removeprefix("torch."),
        )

    def _context(self) -> int:
        return min(self.recipe.budget.max_context_tokens, self.policy.context)

    def setting(self, sampling: Sampling | None = None) -> Setting:
        return Setting(self.harness, sampling or self.recipe.sampling, self.recipe.budget, self.recipe.box)

    def rollouts(self, sampling: Sampling | None = None) -> RolloutPool:
        return RolloutPool(
            self.store,
            self.setting(sampling),
            self.sandboxes,
            self.trees,
            self.judge,
            concurrency=self.recipe.rollouts.concurrency,
            seed=self.recipe.run.seed,
        )

    def model(self) -> ModelFactory:
        """Makes the model of one rollout under the weights that the engine holds now."""
        version = self.version

        def make(session: str, seed: int) -> TokenModel:
            return TokenModel(
                self.engine, self.renderer, policy=version, session=session, context=self._context(), seed=seed
            )

        return make

    # -- weights ------------------------------------------------------------------------------------------------

    def checkpoint(self, version: str) -> Path:
        return self.store.path / "checkpoints" / version

    async def on_compute(self, work: Callable[..., T], *args: Any) -> T:
        def counted() -> T:
            torch.set_num_threads(self.threads)  # the samplers have set theirs
            return work(*args)

        return await asyncio.get_running_loop().run_in_executor(self.compute, counted)

    async def use(self, version: str) -> None:
        """Take the weights of a version: the base ones, or those of a checkpoint."""
        if version == self.version:
            return
        with self._checkpoint_errors(version):
            weights = self.initial if version == BASE else await self.on_compute(load_weights, self.checkpoint(version))
            await self.on_compute(self.policy.restore, weights)
        await self.publish(version)

    async def resume(self, version: str) -> None:
        """Take weights and optimizer as they were after the update that made a version."""
        with self._checkpoint_errors(version):
            await self.on_compute(load_trainer, self.checkpoint(version), self.trainer)
        await self.publish(version)

    @contextmanager
    def _checkpoint_errors(self, version: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # torch.load tells of a damaged file in many ways
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise FrogNanoError(
                f"the weights of {version} in {self.checkpoint(version)} cannot be used ({said[:200]}): "
                "restore them from a copy, or start another run (--out)"
            ) from error

    async def publish(self, version: str) -> None:
        """The weights have changed: the sampler forgets what it computed with the old ones."""
        with self.trainer.watches["publication"].running(time.process_time):
            await asyncio.to_thread(self.engine.refresh)
        self.version = version

    # -- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self.compute.shutdown()
        shutil.rmtree(self.sandboxes.scratch, ignore_errors=True)
