"""Sampling by vLLM: token ids in, ids and log-probs out, weights reloaded in place.

The log-probs are those the tokens were drawn with (`processed_logprobs`, nothing truncates the distribution), which DPPO needs
as q. Rows keep no state here: vLLM finds what it knows of a conversation in its prefix cache.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from frognano.models.sessions import Generation
from frognano.models.vllm_server import NAME, EngineConfig, VllmServer
from frognano.stopwatch import Stopwatch

if TYPE_CHECKING:
    import httpx2


class Saved(Protocol):
    """What can be written as a transformers folder: a policy."""

    path: Path

    def save_pretrained(self, folder: Path) -> None: ...


class VllmEngine:
    """The interface of `SamplerEngine`. `context` bounds the ids of a conversation. `folder` takes the log and, while they are
    reloaded, the weights; `sockets` the socket."""

    def __init__(
        self,
        config: EngineConfig,
        policy: Saved,
        folder: Path,
        sockets: Path,
        *,
        stop_ids: tuple[int, ...],
        rows: int,
        context: int,
        threads: int,
        dtype: str,
    ) -> None:
        self.policy, self.folder, self.stop_ids = policy, folder, list(stop_ids)
        self.generated = 0
        self._watch = Stopwatch()
        self._weights = 0
        self._client: tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient] | None = None
        self._closed = False
        self._starting = asyncio.Lock()
        arguments = {
            "--dtype": dtype,
            "--max-model-len": context,
            "--max-num-seqs": rows,
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",  # the model's own would set top_p and the like
        }
        words = [str(word) for pair in arguments.items() for word in pair]
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("weights-*"):  # of a killed process
            shutil.rmtree(left, ignore_errors=True)
        self.server = VllmServer(config, policy.path, folder / "vllm.log", sockets, words, threads)

    @property
    def watch(self) -> Stopwatch:
        self._watch.cpu = self.server.cpu_seconds()
        return self._watch

    @property
    def outside_cpu(self) -> float:
        """CPU seconds that no count of this process and its ended children holds yet."""
        return 0.0 if self._closed else self.server.cpu_seconds()

    async def generate(self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int) -> Generation:
        """As `SamplerEngine.generate`; with the same seed vLLM may still draw otherwise where rounding differs by batch.

        Raises RuntimeError or ValueError where this reply cannot be had, FrogNanoError where the server is gone.
        """
        import httpx2

        if self._closed:
            raise RuntimeError("the sampler is closed")
        if not self.server.answers:
            async with self._starting:  # one thread waits, not one for each rollout
                await asyncio.to_thread(self.server.wait)
        body = {
            "model": NAME,
            "prompt": ids,
            "max_tokens": limit,
            "temperature": temperature,
            "seed": seed % 2**63,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self.stop_ids,
            "ignore_eos": True,  # what ends a reply is said by stop_ids alone
            "skip_special_tokens": False,
        }
        started = time.monotonic()
        try:
            with self._watch.running():
                answer = await self._asking().post("/v1/completions", json=body)
        except httpx2.TransportError as error:
            waited = time.monotonic() - started
            said = f"vLLM's server did not answer in {waited:.0f} s: {str(error) or type(error).__name__}"
        else:
            if answer.status_code == 200:
                return self._generation(answer.json()["choices"][0])
            said = f"vLLM's server refused ({answer.status_code}): {answer.text[:300]}"
            if answer.status_code in (400, 422):
                raise ValueError(said)
        # When its engine dies, the server still answers for a moment: tries in that time would be this rollout's last.
        await asyncio.sleep(3.0)
        self.server.check()
        raise RuntimeError(said)

    def _generation(self, choice: dict[str, Any]) -> Generation:
        ids, logprobs = choice["token_ids"], (choice["logprobs"] or {}).get("token_logprobs", [])
        if (
            not ids
            or len(ids) != len(logprobs)
            or None in logprobs
            or choice["finish_reason"] not in ("stop", "length")
        ):
            raise RuntimeError(
                f"vLLM's server gave {len(ids)} ids, {len(logprobs)} log-probs and finish {choice['finish_reason']!r}"
            )
        self.generated += len(ids)
        return Generation(ids, [float(x) for x in logprobs], choice["finish_reason"])

    def _asking(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            self._client = (loop, self.server.client())
        return self._client[1]

    def release(self, session: str) -> None:
        """Nothing is held: its blocks stay in the prefix cache until others need the room."""

    def refresh(self) -> None:
        """Weights have changed: the server takes those of now and forgets every key. No reply may be under way."""
        self.server.wait()
        self._weights += 1
        folder = self.folder / f"weights-{self._weights}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self.policy.save_pretrained(folder)
            self.server.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}
            )
            self.server.post("/reset_prefix_cache", {})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End the server. Whoever still waits is told."""
        self._closed = True
        self.server.close()
