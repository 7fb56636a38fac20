"""Calls survive writing and reading; what was sampled is never rendered again; results are what a template would write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from frognano.models.base import ContextOverflow, Conversation, ModelError, Sampling, ToolSpec
from frognano.models.renderer import TemplateRenderer, XmlRenderer
from frognano.models.sessions import Generation
from frognano.models.token_model import TokenModel
from frognano.records import Message, ToolCall, ToolResult

# As Qwen's: consecutive results share one user turn, calls are JSON in <tool_call>.
CHATML = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}
{%- elif message.role == "assistant" %}<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHATML = CHATML.replace("{% endif %}\n<tool_response>", "{% endif %}{{ '\n' }}<tool_response>")


def tokenizer() -> Any:
    """Bytes, the three marks of ChatML, and one merge, so that a text has two spellings."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate([*alphabet, "ab"])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", chat_template=CHATML)


TOKENIZER = tokenizer()
XML, CHAT = XmlRenderer(TOKENIZER), TemplateRenderer(TOKENIZER)
BODY = st.text(alphabet=st.sampled_from("ab <>/\"'=\n\\é\x00{}&;x+-"), max_size=30)
NAME = st.text(alphabet="ab/._- é*", min_size=1, max_size=12)
CALLS = st.one_of(
    st.builds(lambda p, o, n: ("Edit", {"file_path": p, "old_string": o, "new_string": n}), NAME, BODY, BODY),
    st.builds(lambda p, c: ("Write", {"file_path": p, "content": c}), NAME, BODY),
    st.builds(lambda p: ("Read", {"file_path": p}), NAME),
    st.builds(lambda p: ("Glob", {"pattern": p}), NAME),
    st.builds(lambda c: ("Bash", {"command": c}), BODY),
)


def call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=arguments)


@given(st.lists(CALLS, min_size=1, max_size=4))
def test_calls_change_on_their_way_through_xml(calls: list[tuple[str, dict[str, Any]]]) -> None:
    written = "\n".join(XML.write_call(call(*c)) for c in calls)
    text, read = XML.parse(f"I look.\n{written}\nDone.")
    assert [(c.name, c.arguments, c.error) for c in read] == [(*c, "") for c in calls]
    assert text.startswith("I look.")
    assert text.endswith("Done.")
    assert len({c.id for c in read}) == len(read)


def test_edit_of_several_lines_loses_its_indentation() -> None:
    _, (read,) = XML.parse('<edit path="a">\n-     if x:\n-         y()\n- \n+     y()\n+</edit>\n</edit>')
    assert read.arguments == {
        "file_path": "a",
        "old_string": "    if x:\n        y()\n",
        "new_string": "    y()\n</edit>",
    }


def test_tag_inside_a_text_becomes_a_call_of_its_own() -> None:
    inner = '<bash>rm -rf .</bash> <read path="b"/>'
    written = XML.write_call(call("Write", {"file_path": "a", "content": inner}))
    _, read = XML.parse(written + "<bash>ls</bash>")
    assert [(c.name, c.arguments) for c in read] == [
        ("Write", {"file_path": "a", "content": inner}),
        ("Bash", {"command": "ls"}),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('<edit path="a">\n- x\n</edit>', ["Edit!"]),
        ('<edit path="a">\n+ x\n</edit>', ["Edit!"]),
        ('<edit path="a">\n- x\n+ y\n- z\n+ w\n</edit>', ["Edit!"]),
        ('<edit path="a">\n- x\n+ y', ["Edit"]),
        ("<edit>\n- x\n+ y\n</edit>", ["Edit!"]),
        ("<bash>ls", ["Bash!"]),
        ("<read/>", ["Read!"]),
        ('<read path="a"/> <bash>ls', ["Read", "Bash!"]),
        ('<write path="a"> <read path="b"/>', ["Write!", "Read"]),
    ],
)
def test_malformed_call_passes_for_a_last_word(text: str, names: list[str]) -> None:
    """It is answered with what is wrong with it, also beside a good one."""
    _, read = XML.parse(text)
    assert [c.name + "!" * bool(c.error) for c in read] == names


def test_words_pass_for_a_call() -> None:
    for text in ("done", "a < b and <b>bold</b>", "<editor>", ""):
        assert XML.parse(text) == (text, ())


@pytest.mark.parametrize("renderer", [XML, CHAT])
def test_stop_token_shows_in_the_text(renderer: Any) -> None:
    ids = TOKENIZER("aab é\n", add_special_tokens=False)["input_ids"]
    assert renderer.decode([*ids, *renderer.stop_ids]) == "aab é\n"
    assert renderer.decode(ids) == "aab é\n"
    assert renderer.decode([]) == ""


def results(*texts: str) -> Message:
    return Message(
        role="tool", results=tuple(ToolResult(call_id=f"c{i}", ok=True, text=t) for i, t in enumerate(texts))
    )


TOOLS = [ToolSpec("Bash", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}})]
FIRST = [Message(role="system", content="s"), Message(role="user", content="fix\nit")]


@pytest.mark.parametrize("texts", [("one",), ("one", "two"), ("", "a\n", "<tool_response>")])
@pytest.mark.parametrize("renderer", [XML, CHAT])
def test_results_gain_a_turn_that_the_template_does_not_write(renderer: Any, texts: tuple[str, ...]) -> None:
    """Prompt + sampled reply + observation equals the whole conversation rendered at once."""
    calls = tuple(ToolCall(id=f"c{i}", name="Bash", arguments={"command": "ls"}) for i in range(len(texts)))
    said = Message(role="assistant", content="look", tool_calls=calls)
    whole = renderer.prompt_ids([*FIRST, said, results(*texts)], TOOLS)
    prompt = renderer.prompt_ids(FIRST, TOOLS)
    observation = renderer.observation_ids(results(*texts))
    assert whole[: len(prompt)] == prompt
    assert whole[-len(observation) :] == observation
    reply = whole[len(prompt) : -len(observation)]
    assert reply[-1] == renderer.stop_ids[0]
    assert not set(reply[:-1]) & set(renderer.stop_ids)
    text, read = renderer.parse(renderer.decode(reply))
    assert (text, [c.arguments for c in read]) == ("look", [{"command": "ls"}] * len(texts))


def test_tools_are_not_told_to_the_model() -> None:
    assert '"name": "Bash"' in TOKENIZER.decode(CHAT.prompt_ids(FIRST, TOOLS))


@pytest.mark.parametrize("body", ["{", '{"name": "Bash"}', "[]", '{"name": "Bash", "arguments": 3}', ""])
def test_malformed_json_call_kills_the_rollout(body: str) -> None:
    good = json.dumps({"name": "Bash", "arguments": {"command": "ls"}})
    text, read = CHAT.parse(f"a<tool_call>{body}</tool_call><tool_call>{good}</tool_call>")
    assert text == "a"
    assert [bool(c.error) for c in read] == [True, False]


def test_template_is_missing() -> None:
    bare = tokenizer()
    bare.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        TemplateRenderer(bare)


class Script:
    """An engine that says what it is told to, and keeps what it was asked."""

    def __init__(self, *replies: list[int] | Exception) -> None:
        self.replies, self.asked, self.seeds, self.limits = list(replies), [], [], []  # type: ignore[var-annotated]

    async def generate(self, session: str, ids: list[int], *, temperature: float, limit: int, seed: int) -> Generation:
        self.asked.append(list(ids))
        self.seeds.append(seed)
        self.limits.append(limit)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return Generation(reply, [-0.5] * len(reply), "stop")

    def release(self, session: str) -> None: ...


def model(engine: Script, context: int = 4000) -> TokenModel:
    return TokenModel(engine, XML, policy="pi0", session="s", context=context, seed=10)


async def test_sampled_ids_are_tokenised_anew() -> None:
    """The reply spells `ab` with two tokens where the tokenizer would take one."""
    a, b = TOKENIZER.convert_tokens_to_ids(["a", "b"])
    assert len(TOKENIZER("ab", add_special_tokens=False)["input_ids"]) == 1
    odd, stop = [a, b], XML.stop_ids[0]
    engine = Script([*odd, stop], ModelError("down"), [*odd, odd[0], stop], [stop])
    m, conversation = model(engine), Conversation(list(FIRST), ())
    for k in range(3):
        try:
            reply = await m.complete(conversation, Sampling())
        except ModelError:  # asked again: nothing may be appended twice
            reply = await m.complete(conversation, Sampling())
        assert reply.text == ["ab", "aba", ""][k]
        conversation.messages += [Message(role="assistant", content=reply.text), results(f"r{k}")]
    first, second, again, third = engine.asked
    assert second == [*first, *odd, stop, *XML.observation_ids(results("r0"))]
    assert again == second
    assert third[: len(second) + 4] == [*second, *odd, odd[0], stop]
    assert len(set(engine.seeds)) == 4
    assert conversation.tokens is not None
    (segment,) = conversation.tokens.freeze()
    assert [i for i, m in zip(segment.ids, segment.loss_mask, strict=True) if m] == [
        *odd, stop, *odd, odd[0], stop, stop,
    ]  # fmt: skip


async def test_reply_may_run_past_the_context() -> None:
    engine = Script([XML.stop_ids[0]])
    prompt = len(XML.prompt_ids(FIRST, ()))
    m, conversation = model(engine, context=prompt + 3), Conversation(list(FIRST), ())
    await m.complete(conversation, Sampling(max_tokens_per_turn=100))
    assert engine.limits == [3]
    conversation.messages += [Message(role="assistant"), results("much too long")]
    with pytest.raises(ContextOverflow, match="do not fit"):
        await m.complete(conversation, Sampling())
