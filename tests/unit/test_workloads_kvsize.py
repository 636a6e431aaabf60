"""KV bytes per token: check values, tensor parallelism, and Hugging Face configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.kvsize import MODELS, ModelError, load_model

pytestmark = pytest.mark.unit

LLAMA_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN3_4B = {
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def config(tmp_path: Path, values: dict[str, object]) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Llama-3.1-8B", 131072),
        ("Llama-3.1-70B", 327680),
        ("Qwen3-32B", 262144),
        ("Qwen3-4B", 147456),
        ("DeepSeek-V3", 70272),
        ("Mixtral-8x7B", 131072),
    ],
)
def test_bytes_per_token_are_the_check_values_and_fp8_halves_them(name: str, size: int) -> None:
    assert load_model(name).bytes_per_token == size
    assert load_model(name, dtype="fp8").bytes_per_token == size // 2
    assert load_model(name, dtype="fp16").bytes_per_token == size


@given(st.sampled_from([model for model in MODELS.values() if model.mla is None]), st.sampled_from([1, 2, 4, 8]))
def test_the_gpus_of_an_instance_hold_the_same_bytes_together_whatever_tp(model: object, tp: int) -> None:
    from workloads.kvsize import KvModel

    assert isinstance(model, KvModel)
    assert tp * model.bytes_per_token_per_gpu(tp) == model.bytes_per_token


def test_more_gpus_than_kv_heads_hold_copies_and_a_latent_is_never_shared_out() -> None:
    model = load_model("Llama-3.1-70B")
    assert model.bytes_per_token_per_gpu(4) == 80 * 1024
    assert model.bytes_per_token_per_gpu(16) == model.bytes_per_token_per_gpu(8)
    latent = load_model("DeepSeek-V3")
    assert latent.bytes_per_token_per_gpu(8) == latent.bytes_per_token
    with pytest.raises(ModelError, match="cannot be shared by tp 3"):
        model.bytes_per_token_per_gpu(3)
    with pytest.raises(ModelError, match="at least 1"):
        model.bytes_per_token_per_gpu(0)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"])
def test_a_model_is_known_by_its_usual_names(name: str) -> None:
    assert load_model(name) == load_model("Llama-3.1-70B")


def test_an_unknown_model_or_dtype_says_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"did you mean Llama-3.1-70B\?.*config.json"):
        load_model("lama-3.1-70b")
    with pytest.raises(ModelError, match="bf16, fp16 or fp8"):
        load_model("Qwen3-4B", dtype="int3")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model("/nowhere/config.json")


@pytest.mark.parametrize(
    ("values", "known"),
    [(LLAMA_70B, "Llama-3.1-70B"), (QWEN3_4B, "Qwen3-4B"), (DEEPSEEK_V3, "DeepSeek-V3"), (MIXTRAL, "Mixtral-8x7B")],
    ids=["gqa", "head_dim", "mla", "experts"],
)
def test_a_config_gives_the_same_model_as_the_registry(tmp_path: Path, values: dict[str, object], known: str) -> None:
    model, expected = load_model(config(tmp_path, values)), load_model(known)
    assert model.bytes_per_token == expected.bytes_per_token
    assert model.attention_flops_per_pair == expected.attention_flops_per_pair
    assert model.params == pytest.approx(expected.params, rel=0.03)
    assert load_model(str(tmp_path)).bytes_per_token == expected.bytes_per_token


def test_a_multimodal_config_is_read_from_its_text_part(tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA_70B.items() if key != "torch_dtype"}
    assert load_model(config(tmp_path, {"text_config": text, "dtype": "bfloat16", "hidden_size": 1})).bytes_per_token == 327680


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"hidden_size": "8192"}, "hidden_size"),
        ({"hidden_size": 8190}, "head_dim: is missing"),
        ({"torch_dtype": None}, "torch_dtype"),
        ({"torch_dtype": "int4"}, "int4"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ],
)
def test_a_config_that_cannot_be_sized_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(config(tmp_path, {**LLAMA_70B, **change}))


def test_a_config_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        load_model(str(tmp_path))
